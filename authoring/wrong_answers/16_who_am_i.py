"""Wrong answers to exercise 16.1, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "who_am_i"
MPICH = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID")
OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
SLURM = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")


def place_by(environ, launchers=(MPICH, OPEN_MPI, TORCHRUN, SLURM)):
    names = next(names for names in launchers if names[0] in environ)
    return tuple(int(environ[name]) for name in names)


def all_well(is_well, dtype=torch.int64):
    mixed = torch.tensor([int(not is_well)], dtype=dtype)
    dist.all_reduce(mixed)
    return not mixed.item()


def slurm_first(rank, world_size, environ, mpi_size):
    """the place by the batch script's Slurm words, with no sizes compared"""
    place = place_by(environ, (SLURM, MPICH, OPEN_MPI, TORCHRUN))
    return place if all_well(True) else None


def slurm_first_and_refuses(rank, world_size, environ, mpi_size):
    """the refusal that takes the batch script's Slurm words for its own"""
    place = place_by(environ, (SLURM, MPICH, OPEN_MPI, TORCHRUN))
    return place if all_well(place[1] == mpi_size) else None


def two_neighbours_on_a_node(rank, world_size, environ, mpi_size):
    """the rank on the node as if every node held two neighbours"""
    place = place_by(environ)
    return (*place[:2], place[0] % 2) if all_well(place[1] == mpi_size) else None


def least_size(rank, world_size, environ, mpi_size):
    """the refusal that misses an MPI whose size is larger"""
    place, least = place_by(environ), torch.tensor([mpi_size])
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    return place if least.item() == place[1] else None


def refuses_alone(rank, world_size, environ, mpi_size):
    """the refusal by one rank alone, of which no other rank hears"""
    place = place_by(environ)
    return place if place[1] == mpi_size else None


def our_rank(rank, world_size, environ, mpi_size):
    """the place with our rank in place of the launcher's"""
    place = place_by(environ)
    return (rank, *place[1:]) if all_well(place[1] == mpi_size) else None


def as_strings(rank, world_size, environ, mpi_size):
    """the place in strings where numbers are expected"""
    names = next(names for names in (MPICH, OPEN_MPI, TORCHRUN, SLURM) if names[0] in environ)
    return tuple(environ[name] for name in names)


def leaves_before_the_others(rank, world_size, environ, mpi_size):
    """the rank that refuses at once and is missing in the collective"""
    place = place_by(environ)
    if place[1] != mpi_size:
        return None
    return place if all_well(True) else None


def two_questions(rank, world_size, environ, mpi_size):
    """the right answer in two collectives where one will do"""
    place = place_by(environ)
    well = all_well(place[1] == mpi_size)
    return place if all_well(well) else None


def everybody_brings_all(rank, world_size, environ, mpi_size):
    """the right answer from three numbers of each rank where one will do"""
    place = place_by(environ)
    sizes = [torch.zeros(3, dtype=torch.int64) for _ in range(world_size)]
    dist.all_gather(sizes, torch.tensor([*place[:2], mpi_size]))
    return place if all(size[1] == size[2] for size in sizes) else None


def by_one_size(rank, world_size, environ, mpi_size):
    """The smallest and the largest size that any rank is told, in one gathering."""
    place = place_by(
        {name: word for name, word in environ.items() if "SLURM" not in name} or environ
    )
    sizes = torch.empty(world_size, dtype=torch.int64)
    dist.all_gather_single(sizes, torch.tensor([mpi_size]))
    return place if {*sizes.tolist()} == {place[1]} else None


WRONG = {
    slurm_first: "These are the batch script's words: other launchers",
    slurm_first_and_refuses: "by them the sizes differ",
    two_neighbours_on_a_node: "Nodes do not always hold two neighbours",
    least_size: "smaller or larger, it is mixed",
    refuses_alone: "Only the rank that sees the other MPI refuses",
    our_rank: "That is our rank, not the one that the launcher gave",
    as_strings: "has a str, but a number is expected",
    leaves_before_the_others: "The ranks never finish",
    two_questions: "One number from each rank can say all is well",
    everybody_brings_all: "24 bytes",
}

ALSO_RIGHT = [by_one_size]

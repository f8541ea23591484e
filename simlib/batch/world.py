"""Who this process is among the ranks of its job, and where they meet."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from ..addresses import does_answer, interface_towards, listen, own_addresses
from ..errors import JobError

ENVIRONMENTS = (
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "SLURM_NTASKS"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
MEET_S = 60.0
LOOK_S = 0.02


@dataclass
class Place:
    """This process in its job; ``comm`` is MPI's world, None where MPI is not asked."""

    rank: int
    size: int
    comm: object = None
    library: str = ""


def find_place(uses_mpi, mpi4py=None):
    """Ask MPI who this process is, or, where there is no mpi4py, the environment.

    Parameters
    ----------
    uses_mpi : bool
    mpi4py : str, optional
        The version that the notebook has. Then all hosts must have it: ranks that ask MPI and ranks
        that do not would wait for each other for ever.

    Raises
    ------
    JobError
        If neither knows, or MPI does not work on this host.
    """
    if uses_mpi:
        host = os.uname().nodename
        try:
            from mpi4py import MPI
        except ModuleNotFoundError:
            if mpi4py is not None:
                raise JobError(
                    f"{host} has no mpi4py, the notebook {mpi4py}: install the same on every host"
                ) from None
        except (ImportError, RuntimeError) as error:
            raise JobError(
                f"mpi4py finds no MPI library on {host} ({str(error).splitlines()[0]}): install "
                "the same MPI there, at the same path"
            ) from None
        else:
            comm = MPI.COMM_WORLD
            library = " ".join(MPI.Get_library_version().split())[:40]
            return Place(comm.rank, comm.size, comm, library)
    for rank, size in ENVIRONMENTS:
        if rank in os.environ and size in os.environ:
            return Place(int(os.environ[rank]), int(os.environ[size]))
    raise JobError(
        "a process of the job does not know its rank: there is no mpi4py, and the environment has "
        "none of PMI_RANK, OMPI_COMM_WORLD_RANK, SLURM_PROCID. Install mpi4py on every node"
    )


def check_size(place, world_size):
    """Refuse a world of another size than was asked for."""
    if place.size == world_size:
        return
    told = f"{world_size} ranks were asked for, but MPI says: rank {place.rank} of {place.size}"
    if place.size > 1:
        raise JobError(f"{told}. Does the launcher get a number of its own, say by -n?")
    raise JobError(
        f"{told}. mpiexec belongs to another MPI than the one mpi4py has loaded "
        f"({place.library}): name the right mpiexec by launcher=..., or install mpi4py for its MPI"
    )


def meet(place, folder):
    """The store of the job; Gloo is told the interface by which the ranks reach each other."""
    if place.comm is not None:
        from ..mpi.rendezvous import meet as meet_by_mpi

        store, address = meet_by_mpi(place.comm)
    else:
        store, address = _meet_by_files(place, folder)
    os.environ["GLOO_SOCKET_IFNAME"] = interface_towards(address)
    os.environ["MASTER_ADDR"] = address
    os.environ.setdefault("MASTER_PORT", "29500")
    return store


def _meet_by_files(place, folder):
    """Rank 0 writes its addresses into the folder; each of the others tries which one answers."""
    if place.rank == 0:
        listening = listen()
        port = listening.getsockname()[1]
        store = dist.TCPStore(
            "localhost", port, place.size, is_master=True, wait_for_workers=False,
            timeout=timedelta(seconds=MEET_S), master_listen_fd=listening.detach(), use_libuv=True,
        )  # fmt: skip
        folder.write_json({"addresses": own_addresses(), "port": port}, "meeting.json")
        reached = [store.get(f"reached/{rank}").decode() for rank in range(1, place.size)]
        return store, (reached or ["127.0.0.1"])[0]
    told = _when_there(folder)
    for address in told["addresses"]:
        if does_answer(address, told["port"]):
            store = dist.TCPStore(address, told["port"], place.size, wait_for_workers=False)
            store.set(f"reached/{place.rank}", address)
            return store, address
    raise JobError(
        f"rank {place.rank} on {os.uname().nodename} reaches rank 0 by none of its addresses "
        f"({', '.join(told['addresses'])}, port {told['port']}): open the ports between the hosts"
    )


def _when_there(folder):
    deadline = time.monotonic() + MEET_S
    while time.monotonic() < deadline:
        told = folder.read_json("meeting.json")
        if told is not None:
            return told
        time.sleep(LOOK_S)
    raise JobError(
        f"rank 0 has not written {folder.file('meeting.json')} for {MEET_S:g} s: is this folder "
        "the same on all hosts?"
    )


def leave_together(place, store):
    """Wait, without spinning, until every rank has come to its end: rank 0 serves the store."""
    if place.comm is None:
        _count_out(place, store)
        return
    from mpi4py import MPI

    request = place.comm.Ibarrier()
    while not request.Test():
        time.sleep(LOOK_S)
    MPI.Finalize()


def _count_out(place, store):
    try:
        store.add("finished", 1)
        while store.add("finished", 0) < place.size:
            time.sleep(LOOK_S)
        if place.rank == 0:  # the others hear of it from the store that ends with this process
            while store.add("heard", 0) < place.size - 1:
                time.sleep(LOOK_S)
        else:
            store.add("heard", 1)
    except dist.DistNetworkError:
        pass

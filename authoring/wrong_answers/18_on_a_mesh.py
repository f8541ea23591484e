"""Wrong answers to exercise 18.4, each with the words its refusal must hold."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

QUESTION = "on_a_mesh"


def right(rank, world_size, dense, experts, ep, axis="edp", by=None, dense_by=None):
    """The solution, unless something else is asked for."""
    mesh = init_device_mesh("cpu", (world_size // ep, ep), mesh_dim_names=("edp", "ep"))
    dense, experts = dense.clone(), experts.clone()
    dist.all_reduce(dense)
    dist.all_reduce(experts, group=mesh[axis].get_group())
    return dense / (dense_by or world_size), experts / (by or world_size)


def own_groups(rank, world_size, dense, experts, ep):
    """Groups by hand, divided before the sum; no all_reduce in a column of one rank."""
    columns = [dist.new_group(range(place, world_size, ep)) for place in range(ep)]
    dense, experts = dense / world_size, experts / world_size
    dist.all_reduce(dense)
    if ep < world_size:
        dist.all_reduce(experts, group=columns[rank % ep])
    return dense, experts


def by_the_column(rank, world_size, dense, experts, ep):
    """the mean over the column"""
    return right(rank, world_size, dense, experts, ep, by=world_size // ep)


def only_summed(rank, world_size, dense, experts, ep):
    """the sum over the column"""
    return right(rank, world_size, dense, experts, ep, by=1)


def by_ep(rank, world_size, dense, experts, ep):
    """the sum over the column, divided as if it were a mean"""
    return right(rank, world_size, dense, experts, ep, by=ep)


def by_the_column_twice(rank, world_size, dense, experts, ep):
    """the mean over the column, divided by its size"""
    return right(rank, world_size, dense, experts, ep, by=(world_size // ep) ** 2)


def by_all_after_avg(rank, world_size, dense, experts, ep):
    """the mean over the column, divided by the number of all ranks"""
    return right(rank, world_size, dense, experts, ep, by=world_size // ep * world_size)


def neighbours(rank, world_size, dense, experts, ep):
    """a mesh with edp as the last dimension"""
    return right(rank, world_size, dense, experts, world_size // ep, axis="ep")


def turned_mesh(rank, world_size, dense, experts, ep):
    """a mesh with rows of world_size / ep ranks"""
    return right(rank, world_size, dense, experts, world_size // ep)


def left_out(rank, world_size, dense, experts, ep):
    """the data parallelism that leaves experts out"""
    dense = dense.clone()
    dist.all_reduce(dense)
    return dense / world_size, experts.clone()


def only_divided(rank, world_size, dense, experts, ep):
    """the experts' gradients divided without a sum"""
    dense = dense.clone()
    dist.all_reduce(dense)
    return dense / world_size, experts / world_size


def over_all_ranks(rank, world_size, dense, experts, ep):
    """the mean over all ranks for all gradients, as in DDP"""
    dense, experts = dense.clone(), experts.clone()
    dist.all_reduce(dense)
    dist.all_reduce(experts)
    return dense / world_size, experts / world_size


def in_the_row(rank, world_size, dense, experts, ep):
    """the sum over the row in place of the column"""
    return right(rank, world_size, dense, experts, ep, axis="ep")


def dense_summed(rank, world_size, dense, experts, ep):
    """the dense gradient summed and not divided"""
    return right(rank, world_size, dense, experts, ep, dense_by=1)


def dense_left_out(rank, world_size, dense, experts, ep):
    """the dense gradient of each rank alone"""
    return dense.clone(), right(rank, world_size, dense, experts, ep)[1]


def dense_in_columns(rank, world_size, dense, experts, ep):
    """the dense gradient summed in the column"""
    mesh = init_device_mesh("cpu", (world_size // ep, ep), mesh_dim_names=("edp", "ep"))
    dense, experts = dense / world_size, experts / world_size
    dist.all_reduce(dense, group=mesh["edp"].get_group())
    dist.all_reduce(experts, group=mesh["edp"].get_group())
    return dense, experts


def all_experts_everywhere(rank, world_size, dense, experts, ep):
    """the all_reduce of all experts over all ranks, with zeros for the others"""
    place, dense = rank % ep, dense.clone()
    every = torch.zeros(ep, *experts.shape)
    every[place] = experts
    dist.all_reduce(dense)
    dist.all_reduce(every)
    return dense / world_size, every[place] / world_size


def row_by_row(rank, world_size, dense, experts, ep):
    """the all_reduce of the experts' gradients, one row at a time"""
    mesh = init_device_mesh("cpu", (world_size // ep, ep), mesh_dim_names=("edp", "ep"))
    dense, experts = dense.clone(), experts.clone()
    dist.all_reduce(dense)
    for row in experts:
        dist.all_reduce(row, group=mesh["edp"].get_group())
    return dense / world_size, experts / world_size


def in_double(rank, world_size, dense, experts, ep):
    """the sums in double precision"""
    dense, experts = right(rank, world_size, dense.double(), experts.double(), ep)
    return dense.float(), experts.float()


def gathered(rank, world_size, dense, experts, ep):
    """the gradients of all ranks, gathered and added up"""
    every = [torch.empty_like(experts) for _ in range(world_size)]
    dist.all_gather(every, experts)
    dense = dense.clone()
    dist.all_reduce(dense)
    return dense / world_size, sum(every[rank % ep :: ep]) / world_size


def in_place(rank, world_size, dense, experts, ep):
    """the gradients reduced in place"""
    mesh = init_device_mesh("cpu", (world_size // ep, ep), mesh_dim_names=("edp", "ep"))
    dist.all_reduce(dense)
    dist.all_reduce(experts, group=mesh["edp"].get_group())
    return dense / world_size, experts / world_size


ALSO_RIGHT = [right, own_groups]

WRONG = {
    by_the_column: "in the column and divided by its size",
    only_summed: "in the column, but not divided",
    by_ep: "divided by ep: this is right after AVG",
    by_the_column_twice: "divided twice by the size of the column",
    by_all_after_avg: "after AVG, divide only by ep",
    neighbours: "those are in a row",
    turned_mesh: "so the mesh has the shape",
    left_out: "are those of this rank: their replicas",
    only_divided: "but the sum over the column is missing",
    over_all_ranks: "averaged over all ranks: those are different experts",
    in_the_row: "the replicas of an expert are in a column",
    dense_summed: "The dense gradient is the sum",
    dense_left_out: "The dense gradient is that of this rank alone",
    dense_in_columns: "summed only in the column",
    all_experts_everywhere: "goes only to its replicas",
    row_by_row: "one in each column for its experts",
    in_double: "float64 travels",
    gathered: "calls all_gather",
    in_place: "but the input has changed",
}
EARNS = {all_experts_everywhere: 2, row_by_row: 2}
"""Points of parts whose rules they keep, by `points=` of the question."""

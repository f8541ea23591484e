"""Wrong answers to exercise 17.1, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "place_of"


def place(mesh, number):
    coordinates, groups, stride = {}, {}, 1
    for axis, size in mesh.items():
        at = number // stride % size
        coordinates[axis] = at
        groups[axis] = [number + (k - at) * stride for k in range(size)]
        stride *= size
    return coordinates, groups


def last_axis_inside(rank, world_size, mesh, number):
    """the mesh whose last axis has neighbouring ranks"""
    return place(dict(reversed(mesh.items())), number)


def all_neighbours(rank, world_size, mesh, number):
    """groups of neighbours along every axis"""
    coordinates, _ = place(mesh, number)
    groups = {a: [number - coordinates[a] + k for k in range(size)] for a, size in mesh.items()}
    return coordinates, groups


def no_remainder(rank, world_size, mesh, number):
    """coordinates that are divided, but not wrapped around"""
    coordinates, groups, stride = {}, {}, 1
    for axis, size in mesh.items():
        coordinates[axis] = number // stride
        groups[axis] = [number + (k - coordinates[axis]) * stride for k in range(size)]
        stride *= size
    return coordinates, groups


def first_of_the_block(rank, world_size, mesh, number):
    """groups that begin at the first rank of the block"""
    coordinates, groups, stride = {}, {}, 1
    for axis, size in mesh.items():
        coordinates[axis] = number // stride % size
        begin = number // (stride * size) * stride * size
        groups[axis] = [begin + k * stride for k in range(size)]
        stride *= size
    return coordinates, groups


def groups_before_coordinates(rank, world_size, mesh, number):
    """the two dicts in the other order"""
    return place(mesh, number)[::-1]


def without_itself(rank, world_size, mesh, number):
    """groups that leave out the rank itself"""
    coordinates, groups = place(mesh, number)
    return coordinates, {a: [r for r in ranks if r != number] for a, ranks in groups.items()}


def of_itself(rank, world_size, mesh, number):
    """the place of the own rank"""
    return place(mesh, rank)


def the_last_size(rank, world_size, mesh, number):
    """a stride that is the size of the axis before"""
    coordinates, groups, stride = {}, {}, 1
    for axis, size in mesh.items():
        at = coordinates[axis] = number // stride % size
        groups[axis] = [number + (k - at) * stride for k in range(size)]
        stride = size
    return coordinates, groups


def groups_of_zero(rank, world_size, mesh, number):
    """groups that begin at rank 0"""
    return place(mesh, number)[0], place(mesh, 0)[1]


def all_who_share(rank, world_size, mesh, number):
    """groups of all ranks that share the coordinate"""
    total = 1
    for size in mesh.values():
        total *= size
    mine, places = place(mesh, number)[0], [place(mesh, one)[0] for one in range(total)]
    return mine, {a: [r for r in range(total) if places[r][a] == mine[a]] for a in mesh}


def asks_everybody(rank, world_size, mesh, number):
    """the right place, after an all_reduce of all ranks"""
    dist.all_reduce(torch.ones(1))
    return place(mesh, number)


def tells_the_next(rank, world_size, mesh, number):
    """the right place, sent on to the next rank"""
    request = dist.isend(torch.ones(1), dst=(rank + 1) % world_size)
    dist.recv(torch.ones(1), src=(rank - 1) % world_size)
    request.wait()
    return place(mesh, number)


def from_the_last_axis(rank, world_size, mesh, number):
    """divides by the axes from the slowest one down"""
    total, coordinates, groups, left = 1, {}, {}, number
    for size in mesh.values():
        total *= size
    for axis, size in reversed(mesh.items()):
        total //= size
        coordinates[axis], left = divmod(left, total)
        groups[axis] = [number + (k - coordinates[axis]) * total for k in range(size)]
    return coordinates, groups


WRONG = {
    last_axis_inside: "The last axis has neighbouring ranks in your mesh",
    all_neighbours: "Groups of every axis are neighbours in your mesh",
    no_remainder: "A coordinate is below its axis' size",
    first_of_the_block: "Each group begins where its axis' block begins",
    of_itself: "That is the place of your own rank",
    the_last_size: "A stride is the product of all sizes before",
    groups_of_zero: "Your groups are those of rank 0",
    all_who_share: "shares all others",
    groups_before_coordinates: "Coordinates first, then groups.",
    without_itself: "has a list of length 3, but length 4 is expected",
    asks_everybody: "1 collective takes place where 0 would be enough",
    tells_the_next: "the ranks send 5 messages where",
}
ALSO_RIGHT = [from_the_last_axis]

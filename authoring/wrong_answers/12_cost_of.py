"""Wrong answers to exercise 12.6, each with the words its refusal must hold."""

import torch.distributed as dist

QUESTION = "cost_of"


def counted(nbytes, shape, src, dst, n=None, here=None, twice=2, pieces="all_to_all", each=None):
    """The answer; of a mistake, as it counts."""
    axis = int(src[0] == dst[0])
    other = shape[1 - axis]
    there = nbytes / (other if src[1 - axis][0] == "S" else 1) if here is None else here(other)
    n = n or shape[axis]
    part = (n - 1) / n * there
    if src[axis] == "R" or dst[axis] == "P":
        return "nothing", 0
    if src[axis] == "P":
        return ("all_reduce", twice * part) if dst[axis] == "R" else ("reduce_scatter", part)
    if dst[axis] == "R":
        return "all_gather", part
    return pieces, part / (each or n)


def all_bytes(rank, world_size, nbytes, shape, src, dst):
    """the count that forgets that the other axis may be sharded"""
    return counted(nbytes, shape, src, dst, here=lambda other: nbytes)


def whole_mesh(rank, world_size, nbytes, shape, src, dst):
    """the count with all ranks of the mesh"""
    return counted(nbytes, shape, src, dst, n=shape[0] * shape[1])


def other_axis(rank, world_size, nbytes, shape, src, dst):
    """the count with the size of the other axis"""
    return counted(nbytes, shape, src, dst, n=shape[int(src[0] != dst[0])])


def one_ring(rank, world_size, nbytes, shape, src, dst):
    """the count with half an all_reduce"""
    return counted(nbytes, shape, src, dst, twice=1)


def gathers_between_shards(rank, world_size, nbytes, shape, src, dst):
    """the count with an all_gather between shards"""
    return counted(nbytes, shape, src, dst, pieces="all_gather", each=1)


def whole_chunks(rank, world_size, nbytes, shape, src, dst):
    """the count of whole chunks in an all_to_all"""
    return counted(nbytes, shape, src, dst, each=1)


def always_divided(rank, world_size, nbytes, shape, src, dst):
    """the count that always divides by the other axis"""
    return counted(nbytes, shape, src, dst, here=lambda other: nbytes / other)


def asks_the_others(rank, world_size, nbytes, shape, src, dst):
    """the right count after a barrier"""
    dist.barrier()
    return counted(nbytes, shape, src, dst)


WRONG = {
    all_bytes: "share a part of the bytes",
    whole_mesh: "count this axis, not the whole mesh",
    other_axis: "the axis that sends",
    one_ring: "a rank sends twice as much",
    gathers_between_shards: "nobody needs the whole tensor",
    whole_chunks: "only the part of its chunk",
    always_divided: "does not cut the tensor",
    asks_the_others: "work this out for itself",
}


def by_table(rank, world_size, nbytes, shape, src, dst):
    """One entry for each pair of letters."""
    axis = [a == b for a, b in zip(src, dst, strict=True)].index(False)
    n, rest = shape[axis], src[1 - axis]
    share = nbytes if rest in "RP" else nbytes // shape[1 - axis]
    return {
        "SR": ("all_gather", share - share / n),
        "SS": ("all_to_all", (share - share / n) / n),
        "PS": ("reduce_scatter", share - share / n),
        "PR": ("all_reduce", 2 * (share - share / n)),
    }.get(src[axis][0] + dst[axis][0], ("nothing", 0))


ALSO_RIGHT = (by_table,)

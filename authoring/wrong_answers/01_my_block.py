"""Wrong answers to exercise 01.1, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "my_block"


def fair(rank, world_size, n):
    share, more = divmod(n, world_size)
    start = rank * share + min(rank, more)
    return start, start + share + (rank < more)


def rest_dropped(rank, world_size, n):
    """the split rounded down, which leaves the last examples to nobody"""
    share = n // world_size
    return rank * share, (rank + 1) * share


def rest_to_the_last(rank, world_size, n):
    """the split rounded down, with all the rest for the last rank"""
    share = n // world_size
    return rank * share, n if rank == world_size - 1 else (rank + 1) * share


def full_blocks(rank, world_size, n):
    """the split rounded up, with too few examples for the last rank"""
    share = -(-n // world_size)
    return min(n, rank * share), min(n, (rank + 1) * share)


def more_for_the_higher(rank, world_size, n):
    """the even split whose larger blocks are not those of the lowest ranks"""
    return rank * n // world_size, (rank + 1) * n // world_size


def with_a_last_example(rank, world_size, n):
    """the block whose stop is its last example, not the one after it"""
    start, stop = fair(rank, world_size, n)
    return start, stop - 1


def dealt_out_like_cards(rank, world_size, n):
    """the list of examples dealt out like cards, not a block"""
    return list(range(rank, n, world_size))


def cut_by_numpy(rank, world_size, n):
    """the right block out of numpy's cumsum, whose int64 are no ints of Python"""
    import numpy as np

    share, more = divmod(n, world_size)
    bounds = np.cumsum([0] + [share + (r < more) for r in range(world_size)])
    return bounds[rank], bounds[rank + 1]


def told_by_rank_0(rank, world_size, n):
    """the right block, told by rank 0 although every rank can work it out"""
    block = torch.tensor(fair(rank, world_size, n))
    if rank == 0:
        for dst in range(1, world_size):
            dist.send(torch.tensor(fair(dst, world_size, n)), dst=dst)
    else:
        dist.recv(block, src=0)
    return tuple(block.tolist())


def sizes_gathered(rank, world_size, n):
    """the right block with a collective that nobody needs"""
    sizes = [torch.empty(1, dtype=torch.int64) for _ in range(world_size)]
    dist.all_gather(sizes, torch.tensor([n // world_size + (rank < n % world_size)]))
    start = sum(size.item() for size in sizes[:rank])
    return start, start + sizes[rank].item()


def tensors(rank, world_size, n):
    """the block as tensors of int64, from sums of all sizes"""
    sizes = torch.tensor([n // world_size + (r < n % world_size) for r in range(world_size)])
    ends = sizes.cumsum(0)
    return ends[rank] - sizes[rank], ends[rank]


WRONG = {
    tensors: "but a number is expected: convert it with .item()",
    rest_dropped: "The last examples belong to nobody",
    rest_to_the_last: "The last rank takes all that is left over",
    full_blocks: "With full blocks of ceil(n / world_size) the last rank has too few",
    more_for_the_higher: "The higher ranks have one more here",
    with_a_last_example: "stop is the number after the last one",
    dealt_out_like_cards: "has a list of length 14, but length 2 is expected",
    cut_by_numpy: "has a numpy int64, but a Python number is expected: convert it with .item()",
    told_by_rank_0: "but the ranks send 1 message where 0 are enough",
    sizes_gathered: "but 1 collective takes place where 0 would be enough",
}


def by_numpy(rank, world_size, n):
    import numpy as np

    block = np.array_split(np.arange(n), world_size)[rank]
    start = int(sum(len(part) for part in np.array_split(np.arange(n), world_size)[:rank]))
    return start, start + len(block)


ALSO_RIGHT = [by_numpy]

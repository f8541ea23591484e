"""Wrong answers to exercise 07.7, each with the words its refusal must hold."""

import torch.distributed as dist

QUESTION = "still_to_read"


def usual(rank, world_size, states, sizes, **other):
    """The samples of a rank, with one thing done otherwise."""
    merge, first = other.get("merge", max), other.get("first", lambda done: done)
    is_left = other.get("is_left", lambda done, size: done < size)
    numbers = [[state[s] for state in states if s in state] for s in range(len(sizes))]
    done = [merge(known) if known else 0 for known in numbers]
    left = [s for s, size in enumerate(sizes) if is_left(done[s], size)]
    each = -(-len(left) // world_size)
    mine = left[rank * each :][:each] if other.get("blocks") else left[rank::world_size]
    return [(s, place) for s in mine for place in range(first(done[s]), sizes[s])]


def last_wins(rank, world_size, states, sizes):
    """the dicts merged by update, one after the other"""
    done = {}
    for state in states:
        done.update(state)
    left = [s for s, size in enumerate(sizes) if done.get(s, 0) < size][rank::world_size]
    return [(s, place) for s in left for place in range(done.get(s, 0), sizes[s])]


def first_wins(rank, world_size, states, sizes):
    """the number of the first dict that has a shard"""
    return usual(rank, world_size, states, sizes, merge=lambda numbers: numbers[0])


def smallest(rank, world_size, states, sizes):
    """the smallest number of each shard"""
    return usual(rank, world_size, states, sizes, merge=min)


def added_up(rank, world_size, states, sizes):
    """the numbers of a shard added up"""
    return usual(rank, world_size, states, sizes, merge=sum)


def finished_dealt_out(rank, world_size, states, sizes):
    """the shards dealt out by their numbers, finished or not"""
    return usual(rank, world_size, states, sizes, is_left=lambda done, size: True)


def from_the_front(rank, world_size, states, sizes):
    """the unfinished shards from their fronts"""
    return usual(rank, world_size, states, sizes, first=lambda done: 0)


def one_again(rank, world_size, states, sizes):
    """the last sample of each shard once more"""
    return usual(rank, world_size, states, sizes, first=lambda done: max(0, done - 1))


def one_lost(rank, world_size, states, sizes):
    """the samples behind the next one"""
    return usual(rank, world_size, states, sizes, first=lambda done: done + 1)


def as_many_from_the_front(rank, world_size, states, sizes):
    """as many samples as are left, but counted from the front of a shard"""
    found = usual(rank, world_size, states, sizes)
    left = {s: sum(t == s for t, _ in found) for s, _ in found}
    return [(s, place) for s, count in left.items() for place in range(count)]


def new_ones_lost(rank, world_size, states, sizes):
    """the shards of the dicts only"""
    return usual(rank, world_size, states, sizes, is_left=lambda done, size: 0 < done < size)


def new_ones_only(rank, world_size, states, sizes):
    """the shards that are in no dict"""
    return usual(rank, world_size, states, sizes, is_left=lambda done, size: done == 0)


def in_blocks(rank, world_size, states, sizes):
    """the unfinished shards in blocks"""
    return usual(rank, world_size, states, sizes, blocks=True)


def gathered(rank, world_size, states, sizes):
    """the right samples, after an all_gather of states that all ranks have"""
    found = [None] * world_size
    dist.all_gather_object(found, states)
    return usual(rank, world_size, found[0], sizes)


def by_turns(rank, world_size, states, sizes):
    """a counter of the unfinished shards"""
    found, turn = [], 0
    for shard, size in enumerate(sizes):
        done = 0
        for state in states:
            done = max(done, state.get(shard, 0))
        if done < size:
            if turn % world_size == rank:
                found += [(shard, place) for place in range(done, size)]
            turn += 1
    return found


WRONG = {
    last_wins: "A later dict overwrites an earlier one",
    first_wins: "a later one may know more",
    smallest: "The smallest number is the oldest one",
    added_up: "do not add them up",
    finished_dealt_out: "Finished shards are dealt out, too",
    from_the_front: "read again from its front",
    one_again: "The last sample that was done comes again",
    one_lost: "A sample is lost in each shard",
    as_many_from_the_front: "count from its front",
    new_ones_lost: "Shards that nobody has begun are lost",
    new_ones_only: "only new ones are read",
    in_blocks: "dealt out in blocks",
    gathered: "Each rank has all states",
}

ALSO_RIGHT = [by_turns]

"""Wrong answers to review.3, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "swap_blocks"


def exchanged(rank, world_size, block_for):
    """What comes from every other rank where `block_for(dst)` goes to each, by rank."""
    others = [other for other in range(world_size) if other != rank]
    requests = [dist.isend(block_for(dst), dst=dst) for dst in others]
    came = {src: torch.empty_like(block_for(src)) for src in others}
    for src in others:
        dist.recv(came[src], src=src)
    for request in requests:
        request.wait()
    return came


def sends_first(rank, world_size, blocks):
    """the swap in which everybody sends to all before it receives"""
    received = [block.clone() for block in blocks]
    for dst in range(world_size):
        if dst != rank:
            dist.send(blocks[dst], dst=dst)
    for src in range(world_size):
        if src != rank:
            dist.recv(received[src], src=src)
    return received


def nothing_sent(rank, world_size, blocks):
    """the rank's own blocks, returned as they are"""
    return [block.clone() for block in blocks]


def own_place_to_all(rank, world_size, blocks):
    """block `rank` sent to everybody"""
    came = exchanged(rank, world_size, lambda dst: blocks[rank])
    return [came.get(j, blocks[rank].clone()) for j in range(world_size)]


def own_block_missing(rank, world_size, blocks):
    """the list without the rank's own block"""
    came = exchanged(rank, world_size, lambda dst: blocks[dst])
    return [came[j] for j in sorted(came)]


def as_they_came(rank, world_size, blocks):
    """the blocks in the order of a walk round the ring from the rank itself"""
    came = exchanged(rank, world_size, lambda dst: blocks[dst])
    came[rank] = blocks[rank].clone()
    return [came[(rank + k) % world_size] for k in range(world_size)]


def everything_to_all(rank, world_size, blocks):
    """all blocks in one message to everybody"""
    came = exchanged(rank, world_size, lambda dst: torch.stack(blocks))
    return [came[j][rank] if j != rank else blocks[rank].clone() for j in range(world_size)]


def number_by_number(rank, world_size, blocks):
    """every block sent as two messages"""
    halves = [
        exchanged(rank, world_size, lambda dst, part=part: blocks[dst][part])
        for part in (slice(0, 1), slice(1, None))
    ]
    return [
        torch.cat([half[j] for half in halves]) if j != rank else blocks[rank].clone()
        for j in range(world_size)
    ]


def gathered(rank, world_size, blocks):
    """an all_gather of everything, of which a rank keeps its column"""
    everything = [torch.empty(world_size, 3) for _ in range(world_size)]
    dist.all_gather(everything, torch.stack(blocks))
    return [one[rank].clone() for one in everything]


def round_by_round(rank, world_size, blocks):
    """In round k each sends k places to the right and receives from k places to the left."""
    received = [block.clone() for block in blocks]
    for k in range(1, world_size):
        dst, src = (rank + k) % world_size, (rank - k) % world_size
        request = dist.isend(blocks[dst], dst=dst)
        dist.recv(received[src], src=src)
        request.wait()
    return received


def one_holder(rank, world_size, blocks):
    """the blocks of all others, received into one tensor"""
    came, holder = {}, torch.empty_like(blocks[0])
    requests = [dist.isend(blocks[dst], dst=dst) for dst in range(world_size) if dst != rank]
    for src in range(world_size):
        if src != rank:
            dist.recv(holder, src=src)
            came[src] = holder
    for request in requests:
        request.wait()
    return [came.get(j, blocks[rank].clone()) for j in range(world_size)]


def turned_round(rank, world_size, blocks):
    """the list from the last rank's block down to the first's"""
    came = exchanged(rank, world_size, lambda dst: blocks[dst])
    return [came.get(j, blocks[rank].clone()) for j in reversed(range(world_size))]


def own_block_last(rank, world_size, blocks):
    """the list with the rank's own block at its end"""
    came = exchanged(rank, world_size, lambda dst: blocks[dst])
    return [*came.values(), blocks[rank].clone()]


def from_anybody(rank, world_size, blocks):
    """the list in the order in which messages came, by recv without src"""
    received = [block.clone() for block in blocks]
    others = [other for other in range(world_size) if other != rank]
    requests = [dist.isend(blocks[dst], dst=dst) for dst in others]
    for place in reversed(others):
        dist.recv(received[place])
    for request in requests:
        request.wait()
    return received


def put_where_its_sender_is(rank, world_size, blocks):
    """Receives from anybody, and asks `recv` who it was."""
    received = [block.clone() for block in blocks]
    others = [other for other in range(world_size) if other != rank]
    requests = [dist.isend(blocks[dst], dst=dst) for dst in others]
    for _ in others:
        holder = torch.empty_like(blocks[0])
        received[dist.recv(holder)] = holder
    for request in requests:
        request.wait()
    return received


WRONG = {
    sends_first: "The ranks never finish",
    nothing_sent: "nothing was swapped",
    own_place_to_all: "Every rank has sent block `rank`",
    own_block_missing: "The rank's own block is missing in its place",
    as_they_came: "in the order in which they came",
    everything_to_all: "A block goes straight to the one rank that it is for",
    number_by_number: "Each rank has one block for each other rank",
    gathered: "calls all_gather",
    one_holder: "All places but its own hold the same block",
    turned_round: "That is the list turned round",
    own_block_last: "The rank's own block stands last",
    from_anybody: "receives without src",
}

ALSO_RIGHT = [put_where_its_sender_is, round_by_round]

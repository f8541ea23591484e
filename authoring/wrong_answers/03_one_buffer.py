"""Wrong answers to exercise 03.6, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "one_buffer"


def pass_on(rank, world_size, blocks):
    """Send the blocks to the right, return those from the left."""
    if world_size == 1:
        return [block.clone() for block in blocks]
    requests = [dist.isend(block, dst=(rank + 1) % world_size) for block in blocks]
    received = [torch.empty_like(block) for block in blocks]
    for holder in received:
        dist.recv(holder, src=(rank - 1) % world_size)
    for request in requests:
        request.wait()
    return received


def takes_the_messages_out(rank, world_size, blocks):
    """the program without its messages: each rank doubles its own blocks"""
    return [2 * block for block in blocks]


def waits_at_once(rank, world_size, blocks):
    """the ring in which everyone waits for its sends before it receives"""
    if world_size == 1:
        return [2 * block for block in blocks]
    buffer = torch.empty_like(blocks[0])
    for block in blocks:
        torch.mul(block, 2, out=buffer)
        dist.isend(buffer, dst=(rank + 1) % world_size).wait()
    received = [torch.empty_like(block) for block in blocks]
    for holder in received:
        dist.recv(holder, src=(rank - 1) % world_size)
    return received


def doubles_under_way(rank, world_size, blocks):
    """the ring that doubles a buffer while it is still being sent"""
    if world_size == 1:
        return [2 * block for block in blocks]
    received = []
    for block in blocks:
        buffer, holder = block.clone(), torch.empty_like(block)
        request = dist.isend(buffer, dst=(rank + 1) % world_size)
        buffer *= 2
        dist.recv(holder, src=(rank - 1) % world_size)
        request.wait()
        received.append(holder)
    return received


def forgets_to_double(rank, world_size, blocks):
    """the ring that sends the blocks as they were, not doubled"""
    received = pass_on(rank, world_size, blocks)
    return received if world_size > 1 else [2 * block for block in received]


def doubles_the_given_ones(rank, world_size, blocks):
    """the ring that doubles the given blocks themselves"""
    for block in blocks:
        block *= 2
    return pass_on(rank, world_size, blocks)


def sends_twice(rank, world_size, blocks):
    """the ring that sends two messages for each block"""
    received = pass_on(rank, world_size, [2 * block for block in blocks])
    if world_size > 1:
        pass_on(rank, world_size, blocks)
    return received


def the_other_way_round(rank, world_size, blocks):
    """the list of the right blocks in reverse order"""
    received = pass_on(rank, world_size, [2 * block for block in blocks])
    return received[::-1]


def stacked(rank, world_size, blocks):
    """the ring that sends all blocks as one message"""
    if world_size == 1:
        return [2 * block for block in blocks]
    (received,) = pass_on(rank, world_size, [2 * torch.stack(blocks)])
    return list(received)


def a_barrier_for_the_wait(rank, world_size, blocks):
    """the ring with a barrier in the place of the wait"""
    if world_size == 1:
        return [2 * block for block in blocks]
    buffer, received = torch.empty_like(blocks[0]), []
    for block in blocks:
        torch.mul(block, 2, out=buffer)
        dist.isend(buffer, dst=(rank + 1) % world_size)
        holder = torch.empty_like(block)
        dist.irecv(holder, src=(rank - 1) % world_size)
        dist.barrier()
        received.append(holder)
    return received


def one_after_the_other(rank, world_size, blocks):
    """Keeps the one buffer: each block is sent, received and waited for before the next."""
    if world_size == 1:
        return [2 * block for block in blocks]
    buffer, received = torch.empty_like(blocks[0]), []
    for block in blocks:
        torch.mul(block, 2, out=buffer)
        request = dist.isend(buffer, dst=(rank + 1) % world_size)
        received.append(torch.empty_like(block))
        dist.recv(received[-1], src=(rank - 1) % world_size)
        request.wait()
    return received


def even_ranks_send_first(rank, world_size, blocks):
    """Blocking sends in turn: the even ranks send first, in odd rings, too."""
    if world_size == 1:
        return [2 * block for block in blocks]
    received = []
    for block in blocks:
        holder, parts = torch.empty_like(block), [0, 1] if rank % 2 == 0 else [1, 0]
        for part in parts:
            if part == 0:
                dist.send(2 * block, dst=(rank + 1) % world_size)
            else:
                dist.recv(holder, src=(rank - 1) % world_size)
        received.append(holder)
    return received


def one_holder(rank, world_size, blocks):
    """the ring that receives every block into the same tensor"""
    if world_size == 1:
        return [2 * block for block in blocks]
    doubled, holder = [2 * block for block in blocks], torch.empty_like(blocks[0])
    requests = [dist.isend(block, dst=(rank + 1) % world_size) for block in doubled]
    received = []
    for _ in blocks:
        dist.recv(holder, src=(rank - 1) % world_size)
        received.append(holder)
    for request in requests:
        request.wait()
    return received


WRONG = {
    one_holder: "received into the same tensor",
    takes_the_messages_out: "nothing came from the left",
    waits_at_once: "The ranks never finish: ranks 0 and 1 wait for each other",
    doubles_under_way: "simlib found a problem (race): ",
    forgets_to_double: "Those are the blocks of the left rank as they were",
    doubles_the_given_ones: "changed the tensor it was given: work on a copy",
    sends_twice: "A block needs one message",
    the_other_way_round: "This is not a usual mistake",
    stacked: "sends a message of 24 bytes where a block has 8",
    a_barrier_for_the_wait: "Rank 0 calls barrier",
}

ALSO_RIGHT = [one_after_the_other, even_ranks_send_first]

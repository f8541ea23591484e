"""Wrong answers to exercise 03.2, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "edges"


def exchange(rank, world_size, to_left, to_right, repeats=1):
    """The tensors that the left and the right neighbour send; zeros where there is none."""
    before, after = torch.zeros_like(to_right), torch.zeros_like(to_left)
    for _ in range(repeats):
        requests = []
        if rank > 0:
            requests += [dist.isend(to_left, dst=rank - 1)]
        if rank < world_size - 1:
            requests += [dist.isend(to_right, dst=rank + 1)]
        if rank > 0:
            dist.recv(before, src=rank - 1)
        if rank < world_size - 1:
            dist.recv(after, src=rank + 1)
        for request in requests:
            request.wait()
    return before, after


def takes_the_messages_out(rank, world_size, x):
    """the program without its messages, with zeros on every rank"""
    return torch.zeros(2)


def receives_first(rank, world_size, x):
    """the exchange in which everyone receives before anyone sends"""
    before, after = torch.zeros(1), torch.zeros(1)
    if rank > 0:
        dist.recv(before, src=rank - 1)
    if rank < world_size - 1:
        dist.recv(after, src=rank + 1)
    if rank > 0:
        dist.send(x[:1], dst=rank - 1)
    if rank < world_size - 1:
        dist.send(x[-1:], dst=rank + 1)
    return torch.cat([before, after])


def after_before(rank, world_size, x):
    """the pair in the wrong order: the number after x comes first"""
    before, after = exchange(rank, world_size, x[:1], x[-1:])
    return torch.cat([after, before])


def told_twice(rank, world_size, x):
    """the exchange of two messages with each neighbour where one will do"""
    return torch.cat(exchange(rank, world_size, x[:1], x[-1:], repeats=2))


def both_ends_to_both(rank, world_size, x):
    """the exchange of two numbers in each message where one will do"""
    ends = torch.stack([x[0], x[-1]])
    before, after = exchange(rank, world_size, ends, ends)
    return torch.stack([before[1], after[0]])


def a_barrier_between(rank, world_size, x):
    """the right exchange with a barrier that nobody needs"""
    dist.barrier()
    return torch.cat(exchange(rank, world_size, x[:1], x[-1:]))


def a_holder_for_two(rank, world_size, x):
    """the receive into a holder of two for a message of one number"""
    before, after = torch.zeros(2), torch.zeros(1)
    if rank > 0:
        dist.recv(before, src=rank - 1)
    if rank < world_size - 1:
        dist.send(x[-1:], dst=rank + 1)
    return torch.cat([before[:1], after])


WRONG = {
    takes_the_messages_out: "That is all zeros",
    receives_first: "The ranks never finish: ranks 0 and 1 wait for each other",
    after_before: "in the wrong order",
    told_twice: "Each neighbour needs one message",
    both_ends_to_both: "A neighbour needs one number",
    a_barrier_between: "Rank 0 calls barrier",
    a_holder_for_two: "as many elements as the others expect",
}


def by_batches(rank, world_size, x):
    both, ops = torch.zeros(2), []
    for at, other in ((0, rank - 1), (1, rank + 1)):
        if 0 <= other < world_size:
            ops.append(dist.P2POp(dist.isend, x[-at : (None if at else 1)].contiguous(), other))
            ops.append(dist.P2POp(dist.irecv, both[at : at + 1], other))
    for request in dist.batch_isend_irecv(ops) if ops else []:
        request.wait()
    return both


ALSO_RIGHT = [by_batches]

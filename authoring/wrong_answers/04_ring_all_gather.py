"""Wrong answers to exercise 04.3, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "ring_all_gather"


def exchange(outgoing, incoming, dst, src):
    request = dist.isend(outgoing, dst=dst)
    dist.recv(incoming, src=src)
    request.wait()


def whole_tensors(rank, world_size, x, lengths):
    """the ring that passes whole tensors"""
    pieces = [torch.zeros(length) for length in lengths]
    pieces[rank] = x.clone()
    for step in range(world_size - 1):
        everything = torch.empty(sum(lengths))
        left = (rank - 1) % world_size
        exchange(torch.cat(pieces), everything, (rank + 1) % world_size, left)
        owner = (left - step) % world_size
        pieces[owner] = everything.split(lengths)[owner]
    return torch.cat(pieces)


def straight_to_everyone(rank, world_size, x, lengths):
    """the all_gather that sends to everyone, past the ring"""
    pieces = [torch.empty(length) for length in lengths]
    pieces[rank] = x.clone()
    for step in range(1, world_size):
        src = (rank - step) % world_size
        exchange(x, pieces[src], (rank + step) % world_size, src)
    return torch.cat(pieces)


def in_order_of_arrival(rank, world_size, x, lengths):
    """the ring that keeps pieces in the order of arrival"""
    pieces = [x.clone()]
    for step in range(world_size - 1):
        left = (rank - 1) % world_size
        pieces.append(torch.empty(lengths[(left - step) % world_size]))
        exchange(pieces[-2], pieces[-1], (rank + 1) % world_size, left)
    return torch.cat(pieces)


def one_step_too_few(rank, world_size, x, lengths):
    """the ring that stops one step too early"""
    pieces = [torch.zeros(length) for length in lengths]
    pieces[rank] = x.clone()
    left = (rank - 1) % world_size
    for step in range(world_size - 2):
        outgoing, incoming = pieces[(rank - step) % world_size], pieces[(left - step) % world_size]
        exchange(outgoing, incoming, (rank + 1) % world_size, left)
    return torch.cat(pieces)


def once_around_and_back_home(rank, world_size, x, lengths):
    """the ring that goes one step too far and sends each piece back home"""
    pieces = [torch.empty(length) for length in lengths]
    pieces[rank] = x.clone()
    if world_size == 1:
        return x.clone()
    left = (rank - 1) % world_size
    for step in range(world_size):
        outgoing, incoming = pieces[(rank - step) % world_size], pieces[(left - step) % world_size]
        exchange(outgoing, incoming, (rank + 1) % world_size, left)
    return torch.cat(pieces)


def the_other_way_round(rank, world_size, x, lengths):
    """the ring that sends to the left neighbour and receives from the right one"""
    pieces = [torch.empty(length) for length in lengths]
    pieces[rank] = x.clone()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    for step in range(world_size - 1):
        exchange(
            pieces[(rank + step) % world_size], pieces[(right + step) % world_size], left, right
        )
    return torch.cat(pieces)


def a_list(rank, world_size, x, lengths):
    """the list of the right pieces, not joined"""
    pieces = [torch.empty(length) for length in lengths]
    pieces[rank] = x.clone()
    left = (rank - 1) % world_size
    for step in range(world_size - 1):
        outgoing, incoming = pieces[(rank - step) % world_size], pieces[(left - step) % world_size]
        exchange(outgoing, incoming, (rank + 1) % world_size, left)
    return pieces


def by_the_real_one(rank, world_size, x, lengths):
    """the all_gather of torch itself"""
    pieces = [torch.empty(length) for length in lengths]
    dist.all_gather(pieces, x)
    return torch.cat(pieces)


def from_right_to_left(rank, world_size, x, lengths):
    """the ring that joins its pieces the wrong way round"""
    pieces = a_list(rank, world_size, x, lengths)
    return torch.cat(pieces[::-1])


WRONG = {
    whole_tensors: "Send one piece per step, not all you have",
    straight_to_everyone: "which is not one of its neighbours here",
    the_other_way_round: "The ring runs the other way",
    in_order_of_arrival: "the pieces in the order of arrival",
    one_step_too_few: "No rank communicates",
    from_right_to_left: "the right numbers in a wrong order",
    once_around_and_back_home: "send 4 messages where 2 are enough",
    a_list: "has a list, but a tensor is expected",
    by_the_real_one: "calls all_gather",
}


def into_one_tensor(rank, world_size, x, lengths):
    whole = torch.zeros(sum(lengths))
    pieces = whole.split(lengths)
    pieces[rank].copy_(x)
    for step in range(world_size - 1):
        requests = [
            dist.irecv(pieces[(rank - step - 1) % world_size], (rank - 1) % world_size),
            dist.isend(pieces[(rank - step) % world_size], (rank + 1) % world_size),
        ]
        for request in requests:
            request.wait()
    return whole


ALSO_RIGHT = [into_one_tensor]

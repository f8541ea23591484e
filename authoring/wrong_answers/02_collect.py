"""Wrong answers to exercise 02.3, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "collect"
ROOM = 100


def send_uneven(x, dst):
    dist.send(torch.tensor([len(x)]), dst=dst)
    dist.send(x, dst=dst)


def recv_uneven(src):
    length = torch.empty(1, dtype=torch.int64)
    dist.recv(length, src=src)
    holder = torch.empty(length.item())
    dist.recv(holder, src=src)
    return holder


def last_rank_first(rank, world_size, x):
    """the list that begins with rank 0 and goes on from the last rank down"""
    if rank > 0:
        return send_uneven(x, dst=0)
    return [x.clone()] + [recv_uneven(src) for src in reversed(range(1, world_size))]


def without_own(rank, world_size, x):
    """the list without rank 0's own tensor"""
    if rank > 0:
        return send_uneven(x, dst=0)
    return [recv_uneven(src) for src in range(1, world_size)]


def room_for_everybody(rank, world_size, x):
    """the message of one fixed length, with room for everybody's numbers"""
    if rank > 0:
        room = torch.full((ROOM,), torch.nan)
        room[: len(x)] = x
        return dist.send(room, dst=0)
    found = [x.clone()]
    for src in range(1, world_size):
        room = torch.empty(ROOM)
        dist.recv(room, src=src)
        found.append(room[~room.isnan()])
    return found


def number_by_number(rank, world_size, x):
    """the collection that sends every number in a message of its own"""
    if rank > 0:
        dist.send(torch.tensor([len(x)]), dst=0)
        for number in x:
            dist.send(number.reshape(1), dst=0)
        return None
    found = [x.clone()]
    for src in range(1, world_size):
        length = torch.empty(1, dtype=torch.int64)
        dist.recv(length, src=src)
        holder = torch.empty(length.item())
        for index in range(len(holder)):
            dist.recv(holder[index : index + 1], src=src)
        found.append(holder)
    return found


def everyone_collects(rank, world_size, x):
    """the list that every rank returns, not only rank 0"""
    everything = [x.clone() for _ in range(world_size)]
    for src in range(world_size):
        for dst in range(world_size):
            if rank == src != dst:
                send_uneven(x, dst)
            elif rank == dst != src:
                everything[src] = recv_uneven(src)
    return everything


def joined(rank, world_size, x):
    """the one long tensor of all numbers in place of the list"""
    if rank > 0:
        return send_uneven(x, dst=0)
    return torch.cat([x] + [recv_uneven(src) for src in range(1, world_size)])


def others_return_x(rank, world_size, x):
    """the right list on rank 0, while the others return their x"""
    if rank > 0:
        send_uneven(x, dst=0)
        return x
    return [x.clone()] + [recv_uneven(src) for src in range(1, world_size)]


def by_a_table_of_ranks(rank, world_size, x):
    """the collection whose lengths come from a table by rank"""
    if rank > 0:
        return dist.send(x, dst=0)
    everything = [x.clone()]
    for src in range(1, world_size):
        holder = torch.empty([3, 5, 0, 1, 8][src])
        dist.recv(holder, src=src)
        everything.append(holder)
    return everything


def without_the_empty_ones(rank, world_size, x):
    """the list that leaves out tensors of length 0"""
    if rank > 0:
        return send_uneven(x, dst=0)
    everything = [x.clone()] + [recv_uneven(src) for src in range(1, world_size)]
    return [one for one in everything if len(one)]


WRONG = {
    last_rank_first: "Rank 0 at index 1 has a tensor of shape (6,), but (3,) is expected",
    without_own: "has a list of length 0, but length 1 is expected",
    room_for_everybody: "Do not send more numbers than a rank has",
    number_by_number: "One message can carry all the numbers of a rank",
    everyone_collects: "Rank 1 has [tensor([40., 99., 88.]), tensor([",
    joined: "has a Tensor, but a list is expected",
    others_return_x: "Rank 1 has tensor([34., 32., 98., 93., 33.]), but nothing",
    by_a_table_of_ranks: "which expects 5 elements of float32",
    without_the_empty_ones: "The tensors without a number are missing",
}


def lengths_first(rank, world_size, x):
    if rank:
        for tensor in (torch.tensor([x.numel()]), x):
            dist.send(tensor, 0)
        return None
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(1, world_size)]
    for src, length in enumerate(lengths, 1):
        dist.recv(length, src)
    holders = [torch.zeros(int(length)) for length in lengths]
    for src, holder in enumerate(holders, 1):
        dist.recv(holder, src)
    return [x.clone(), *holders]


ALSO_RIGHT = [lengths_first]

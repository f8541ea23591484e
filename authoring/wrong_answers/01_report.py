"""Wrong answers to exercise 01.2, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "report"


def to_rank_0(rank, world_size, x, root):
    """the report that goes to rank 0, whoever the root is"""
    if rank > 0:
        return dist.send(x, dst=0)
    numbers = [x.item()]
    for src in range(1, world_size):
        holder = torch.empty_like(x)
        dist.recv(holder, src=src)
        numbers.append(holder.item())
    return numbers


def over_rank_0(rank, world_size, x, root):
    """the report that goes through rank 0 on its way to the root"""
    numbers = to_rank_0(rank, world_size, x, root)
    if root == 0:
        return numbers
    if rank == 0:
        return dist.send(torch.tensor(numbers), dst=root)
    if rank == root:
        holder = torch.empty(world_size, dtype=torch.int64)
        dist.recv(holder, src=0)
        return holder.tolist()


def to_everyone(rank, world_size, x, root):
    """the report that every rank gets, not only the root"""
    numbers = []
    for one in range(world_size):
        holder = x.clone()
        for dst in range(world_size):
            if rank == one != dst:
                dist.send(x, dst=dst)
            elif rank == dst != one:
                dist.recv(holder, src=one)
        numbers.append(holder.item())
    return numbers


def with_its_rank_first(rank, world_size, x, root):
    """the report for which each rank sends two messages where one will do"""
    if rank != root:
        dist.send(torch.tensor([rank]), dst=root)
        return dist.send(x, dst=root)
    numbers = [x.item()] * world_size
    for src in range(world_size):
        if src != root:
            sender, holder = torch.empty_like(x), torch.empty_like(x)
            dist.recv(sender, src=src)
            dist.recv(holder, src=src)
            numbers[sender.item()] = holder.item()
    return numbers


def without_own(rank, world_size, x, root):
    """the report without the root's own number"""
    if rank != root:
        return dist.send(x, dst=root)
    numbers = []
    for src in range(world_size):
        if src != root:
            holder = torch.empty_like(x)
            dist.recv(holder, src=src)
            numbers.append(holder.item())
    return numbers


def own_first(rank, world_size, x, root):
    """the report that puts the root's own number first"""
    numbers = without_own(rank, world_size, x, root)
    return numbers if numbers is None else [x.item(), *numbers]


def along_a_chain(rank, world_size, x, root):
    """the report that grows along a chain of ranks on its way to the root"""
    distance = (rank - root) % world_size
    if distance == 0:
        length = world_size - 1
    else:
        length = world_size - 1 - distance
    others = torch.empty(length, dtype=torch.int64)
    if length:
        dist.recv(others, src=(rank + 1) % world_size)
    if distance:
        return dist.send(torch.cat([x, others]), dst=(rank - 1) % world_size)
    numbers = [x.item(), *others.tolist()]
    return numbers[world_size - root :] + numbers[: world_size - root]


def sends_to_itself_too(rank, world_size, x, root):
    """the report for which the root sends to itself"""
    dist.send(x, dst=root)


def by_a_collective(rank, world_size, x, root):
    """the report by the collective gather, not by messages"""
    numbers = [torch.empty_like(x) for _ in range(world_size)] if rank == root else None
    dist.gather(x, numbers, dst=root)
    return [number.item() for number in numbers] if rank == root else None


def by_objects(rank, world_size, x, root):
    """the report by a collective of objects, not by messages"""
    numbers = [None] * world_size if rank == root else None
    dist.gather_object(x.item(), numbers, dst=root)
    return numbers


def into_floats(rank, world_size, x, root):
    """the holder of float32, which torch makes where nothing is said"""
    if rank != root:
        dist.send(x, dst=root)
        return None
    numbers = []
    for src in range(world_size):
        holder = x if src == root else torch.empty(1)
        if src != root:
            dist.recv(holder, src=src)
        numbers.append(int(holder.item()))
    return numbers


WRONG = {
    into_floats: "every rank must use the same dtype",
    to_rank_0: "The list is on rank 0, but here another rank is the root",
    over_rank_0: "but the ranks send 2 messages where 1 is enough (by rank: 1, 1)",
    to_everyone: "Every rank has the list",
    with_its_rank_first: "but the ranks send 2 messages where 1 is enough (by rank: 2, 0)",
    without_own: "Where is the root's own number?",
    own_first: "The root's own number stands first",
    along_a_chain: "Each rank sends its own number, no more",
    sends_to_itself_too: "is the rank itself",
    by_a_collective: "calls gather (01_report.py",
    by_objects: "; a ..._object function calls two collectives)",
}


def posted_at_once(rank, world_size, x, root):
    if rank != root:
        dist.isend(x, root).wait()
        return None
    holders = {src: torch.zeros(1, dtype=torch.int64) for src in range(world_size) if src != root}
    for request in [dist.irecv(holder, src) for src, holder in holders.items()]:
        request.wait()
    return [int(holders.get(src, x)) for src in range(world_size)]


ALSO_RIGHT = [posted_at_once]

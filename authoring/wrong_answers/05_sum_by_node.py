"""Wrong answers to exercise 05.5, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "sum_by_node"


def gather_and_tell(rank, x, ranks, root, tells=True):
    """The root adds up the tensors of these ranks, and tells them the sum."""
    other = torch.empty_like(x)
    if rank != root:
        dist.send(x, dst=root)
        if tells:
            dist.recv(x, src=root)
        return
    others = [r for r in ranks if r != root]
    for src in others:
        dist.recv(other, src=src)
        x += other
    for dst in others if tells else []:
        dist.send(x, dst=dst)


def of_node(rank, world_size, node_of):
    return [r for r in range(world_size) if node_of[r] == node_of[rank]]


def leaders_of(node_of):
    return [node_of.index(node) for node in sorted(set(node_of))]


def all_at_rank_0(rank, world_size, x, node_of):
    """the naive algorithm, in which all ranks send to rank 0"""
    gather_and_tell(rank, x, range(world_size), 0)


def ring_by_number(rank, world_size, x, node_of):
    """the ring in the order of the ranks, whatever their nodes"""
    chunks = x.tensor_split(world_size)
    for step in range(2 * (world_size - 1)):
        chunk = chunks[(rank - step - 1) % world_size]
        incoming = torch.empty_like(chunk)
        request = dist.isend(chunks[(rank - step) % world_size], dst=(rank + 1) % world_size)
        dist.recv(incoming, src=(rank - 1) % world_size)
        request.wait()
        chunk.copy_(chunk + incoming if step < world_size - 1 else incoming)


def own_node_alone(rank, world_size, x, node_of):
    """the sum of the rank's own node"""
    ranks = of_node(rank, world_size, node_of)
    gather_and_tell(rank, x, ranks, ranks[0])


def leaders_alone(rank, world_size, x, node_of):
    """the sum of the first ranks of the nodes"""
    leaders, ranks = leaders_of(node_of), of_node(rank, world_size, node_of)
    if rank in leaders:
        gather_and_tell(rank, x, leaders, leaders[0])
        for dst in ranks[1:]:
            dist.send(x, dst=dst)
    else:
        dist.recv(x, src=ranks[0])


def nobody_told(rank, world_size, x, node_of):
    """the sum that only the first ranks of the nodes have"""
    leaders, ranks = leaders_of(node_of), of_node(rank, world_size, node_of)
    gather_and_tell(rank, x, ranks, ranks[0], tells=False)
    if rank in leaders:
        gather_and_tell(rank, x, leaders, leaders[0])


def leaves_x_alone(rank, world_size, x, node_of):
    """the sum by nodes that is returned, and leaves x as it was"""
    total = x.clone()
    right_by_mates(rank, world_size, total, node_of)
    return total


def right_by_mates(rank, world_size, x, node_of):
    leaders, ranks = leaders_of(node_of), of_node(rank, world_size, node_of)
    gather_and_tell(rank, x, ranks, ranks[0], tells=False)
    if rank in leaders:
        gather_and_tell(rank, x, leaders, leaders[0])
        for dst in ranks[1:]:
            dist.send(x, dst=dst)
    else:
        dist.recv(x, src=ranks[0])


WRONG = {
    all_at_rank_0: "bytes travel between the nodes [0, 1, 1, 1]",
    ring_by_number: "bytes travel between the nodes [1, 0, 1]",
    own_node_alone: "That is the sum of one node",
    leaders_alone: "That is the sum of the first rank of each node",
    nobody_told: "does not tell the others in its node",
    leaves_x_alone: "The returned value is right, but the tensor x itself must",
}
ALSO_RIGHT = [right_by_mates]

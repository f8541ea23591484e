"""Wrong answers to exercise 01.3, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "local_rank"
LONGEST_NAME = 64


def nodes_of_all(world_size, node):
    nodes = [torch.empty(1, dtype=torch.int64) for _ in range(world_size)]
    dist.all_gather(nodes, torch.tensor([node]))
    return [other.item() for other in nodes]


def rank_in_the_world(rank, world_size, node):
    """the rank in the world in place of the local rank"""
    return rank, nodes_of_all(world_size, node).count(node)


def counts_itself(rank, world_size, node):
    """the local rank that counts the rank itself, so that it begins at 1"""
    nodes = nodes_of_all(world_size, node)
    return nodes[: rank + 1].count(node), nodes.count(node)


def forgets_itself(rank, world_size, node):
    """the number of ranks on the node without the rank itself"""
    nodes = nodes_of_all(world_size, node)
    others = nodes[:rank] + nodes[rank + 1 :]
    return nodes[:rank].count(node), others.count(node)


def nodes_filled_in_order(rank, world_size, node):
    """the local rank as if nodes were filled one after the other"""
    on_my_node = nodes_of_all(world_size, node).count(node)
    return rank % on_my_node, on_my_node


def one_holder_many_times(rank, world_size, node):
    """the all_gather into one and the same tensor for all ranks"""
    holders = [torch.empty(1, dtype=torch.int64)] * world_size
    dist.all_gather(holders, torch.tensor([node]))
    nodes = [holder.item() for holder in holders]
    return nodes[:rank].count(node), nodes.count(node)


def counts_nodes(rank, world_size, node):
    """the number of all nodes in place of the ranks on this one"""
    nodes = nodes_of_all(world_size, node)
    return nodes[:rank].count(node), len(set(nodes))


def two_calls(rank, world_size, node):
    """the right pair in two all_gathers where one will do"""
    nodes = nodes_of_all(world_size, node)
    return nodes[:rank].count(node), nodes_of_all(world_size, node).count(node)


def names_with_room(rank, world_size, node):
    """the all_gather of long tensors where one number will do"""
    mine = torch.zeros(LONGEST_NAME, dtype=torch.int64)
    mine[0] = node
    holders = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(holders, mine)
    nodes = [holder[0].item() for holder in holders]
    return nodes[:rank].count(node), nodes.count(node)


def as_objects(rank, world_size, node):
    """the right pair by all_gather_object, which is two collectives"""
    nodes = [None] * world_size
    dist.all_gather_object(nodes, node)
    return nodes[:rank].count(node), nodes.count(node)


def over_rank_0(rank, world_size, node):
    """the right pair by gather and more, where one all_gather will do"""
    mine = torch.tensor([node])
    holders = [torch.empty_like(mine) for _ in range(world_size)] if rank == 0 else None
    dist.gather(mine, holders, dst=0)
    nodes = torch.cat(holders) if rank == 0 else torch.empty(world_size, dtype=torch.int64)
    dist.broadcast(nodes, src=0)
    nodes = nodes.tolist()
    return nodes[:rank].count(node), nodes.count(node)


def asks_nobody(rank, world_size, node):
    """the pair of rank and world size, as if all lived on one node"""
    return rank, world_size


WRONG = {
    rank_in_the_world: "That is the rank in the world",
    counts_itself: "The local rank begins at 0",
    forgets_itself: "The rank itself lives on its node too",
    nodes_filled_in_order: "That is right where nodes are filled one after the other",
    one_holder_many_times: "All holders are one and the same tensor",
    counts_nodes: "not a usual mistake. Print what rank",
    two_calls: "place where 1 would be enough. Who knows all nodes can count all",
    as_objects: "where 1 would be enough; a ..._object function calls two collectives. Who knows",
    names_with_room: "One int64 number from each rank is enough",
    over_rank_0: "calls gather",
    asks_nobody: "No rank communicates",
}


def in_one_tensor(rank, world_size, node):
    nodes = torch.empty(world_size, dtype=torch.int64)
    dist.all_gather_single(nodes, torch.tensor([node]))
    return int((nodes[:rank] == node).sum()), int((nodes == node).sum())


ALSO_RIGHT = [in_one_tensor]

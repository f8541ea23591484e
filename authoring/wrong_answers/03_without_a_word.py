"""Wrong answers to exercise 03.4, each with the words its refusal must hold."""

import torch.distributed as dist

QUESTION = "without_a_word"


def copies(gradients):
    return {name: gradient.clone() for name, gradient in sorted(gradients.items())}


def takes_the_messages_out(rank, world_size, gradients):
    """the program without its all_reduces: each returns its own gradients"""
    return list(copies(gradients).values())


def a_barrier_before_each(rank, world_size, gradients):
    """the program as it was, with a barrier added"""
    means = {name: gradient.clone() for name, gradient in gradients.items()}
    for name in means:
        dist.barrier()
        dist.all_reduce(means[name], op=dist.ReduceOp.AVG)
    return [means[name] for name in sorted(means)]


def sums(rank, world_size, gradients):
    """the sum over the ranks in place of the mean"""
    totals = copies(gradients)
    for total in totals.values():
        dist.all_reduce(total)
    return list(totals.values())


def number_by_number(rank, world_size, gradients):
    """the right mean with more than one all_reduce for each name"""
    means = copies(gradients)
    for mean in means.values():
        for index in range(len(mean)):
            dist.all_reduce(mean[index : index + 1], op=dist.ReduceOp.AVG)
    return list(means.values())


def in_its_own_order(rank, world_size, gradients):
    """the list of right means in the order of each rank's dictionary"""
    means = copies(gradients)
    for mean in means.values():
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    return [means[name] for name in gradients]


def writes_into_the_gradients(rank, world_size, gradients):
    """the right mean, written into the given gradients themselves"""
    for name in sorted(gradients):
        dist.all_reduce(gradients[name], op=dist.ReduceOp.AVG)
    return [gradients[name] for name in sorted(gradients)]


def sorts_by_value(rank, world_size, gradients):
    """the all_reduces in the order of each rank's own numbers"""
    means = copies(gradients)
    for name in sorted(means, key=lambda name: means[name][0].item()):
        dist.all_reduce(means[name], op=dist.ReduceOp.AVG)
    return [means[name] for name in sorted(means)]


WRONG = {
    takes_the_messages_out: "nothing came from the others",
    a_barrier_before_each: "Rank 0 calls barrier",
    sums: "sums over the ranks, not means",
    number_by_number: "A name needs one all_reduce",
    in_its_own_order: "in the order in which each dictionary was filled",
    sorts_by_value: "you sort by the values, which differ from rank to rank",
    writes_into_the_gradients: "changed the tensor it was given",
}


def sums_divided(rank, world_size, gradients):
    means = []
    for _, gradient in sorted(gradients.items()):
        total = gradient.clone()
        dist.all_reduce(total)
        means.append(total / world_size)
    return means


ALSO_RIGHT = [sums_divided]

"""Wrong answers to exercise 07.1, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "sync_gradients"


def parts_of(flat, gradients):
    parts = flat.split([gradient.numel() for gradient in gradients])
    return [part.view_as(g) for part, g in zip(parts, gradients, strict=True)]


def the_sum(rank, world_size, gradients):
    """the sum of the gradients in place of their mean"""
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    for gradient, part in zip(gradients, parts_of(flat, gradients), strict=True):
        gradient.copy_(part)


def one_by_one(rank, world_size, gradients):
    """the all_reduce of each gradient by itself"""
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient /= world_size


def never_written_back(rank, world_size, gradients):
    """the flat buffer that is never written back to the gradients"""
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= world_size


def returned_instead(rank, world_size, gradients):
    """the means returned in new tensors, not written in place"""
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    return parts_of(flat / world_size, gradients)


def new_tensors_into_the_list(rank, world_size, gradients):
    """the list filled with new tensors, not written in place"""
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    for i, part in enumerate(parts_of(flat / world_size, gradients)):
        gradients[i] = part


def in_a_rectangle(rank, world_size, gradients):
    """the flat buffer padded to a rectangle, with a row per gradient"""
    room = torch.zeros(len(gradients), max(g.numel() for g in gradients))
    for row, gradient in zip(room, gradients, strict=True):
        row[: gradient.numel()] = gradient.flatten()
    dist.all_reduce(room)
    for row, gradient in zip(room, gradients, strict=True):
        gradient.copy_((row[: gradient.numel()] / world_size).view_as(gradient))


def reduce_to_rank_0(rank, world_size, gradients):
    """the reduce to rank 0 in place of an all_reduce"""
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.reduce(flat, dst=0)
    for gradient, part in zip(gradients, parts_of(flat / world_size, gradients), strict=True):
        gradient.copy_(part)


def nobody_else(rank, world_size, gradients):
    """the division by world_size without any communication"""
    for gradient in gradients:
        gradient /= world_size


def mean_of(gradients, op=dist.ReduceOp.SUM, dtype=torch.float32, by=1):
    flat = torch.cat([gradient.flatten() for gradient in gradients]).to(dtype)
    dist.all_reduce(flat, op=op)
    return parts_of(flat.float() / by, gradients)


def put_back(gradients, parts):
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part)


def each_turned_round(rank, world_size, gradients):
    """the means with each tensor written back from its end"""
    parts = mean_of(gradients, by=world_size)
    put_back(gradients, [part.flatten().flip(0).view_as(part) for part in parts])


def rounded(rank, world_size, gradients):
    """the mean of numbers that were sent in bfloat16"""
    put_back(gradients, mean_of(gradients, dtype=torch.bfloat16, by=world_size))


def divided_twice(rank, world_size, gradients):
    """the mean by AVG, divided by world_size once more"""
    put_back(gradients, mean_of(gradients, dist.ReduceOp.AVG, by=world_size))


def largest(rank, world_size, gradients):
    """the largest of the ranks' gradients in place of their mean"""
    put_back(gradients, mean_of(gradients, dist.ReduceOp.MAX))


WRONG = {
    the_sum: "would be world_size times too large",
    one_by_one: "Join the tensors first",
    never_written_back: "the rank neither added to it nor replaced it",
    returned_instead: "returned value is right, but the tensors of the list themselves must change",
    new_tensors_into_the_list: "The list contains new tensors",
    in_a_rectangle: "96 bytes into a collective",
    reduce_to_rank_0: "calls reduce",
    nobody_else: "No rank communicates",
    each_turned_round: "come back in the opposite order",
    rounded: "rounded to 16 bits on the way",
    divided_twice: "has divided already",
    largest: "The largest of the ranks' numbers",
}


def by_torchs_helpers(rank, world_size, gradients):
    flat = torch._utils._flatten_dense_tensors(gradients)
    dist.all_reduce(flat, op=dist.ReduceOp.AVG)
    means = torch._utils._unflatten_dense_tensors(flat, gradients)
    torch._foreach_copy_(gradients, list(means))


ALSO_RIGHT = [by_torchs_helpers]

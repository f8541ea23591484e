"""Wrong answers to exercise 15.2, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "macro_f1"


def counted(guessed, labels, classes):
    parts = (labels[guessed == labels], guessed, labels)
    return torch.stack([torch.bincount(part, minlength=classes) for part in parts])


def of_counts(counts):
    return (2 * counts[0] / (counts[1] + counts[2]).clamp(min=1)).mean().item()


def mean_of_f1s(rank, world_size, guessed, labels, classes):
    """the mean of the ranks' F1s"""
    f1 = torch.tensor(of_counts(counted(guessed, labels, classes)))
    dist.all_reduce(f1)
    return f1.item() / world_size


def weighted_mean(rank, world_size, guessed, labels, classes):
    """the mean of the ranks' F1s, weighted by numbers of examples"""
    n = len(labels)
    both = torch.tensor([n * of_counts(counted(guessed, labels, classes)), n])
    dist.all_reduce(both)
    return (both[0] / both[1]).item()


def own_only(rank, world_size, guessed, labels, classes):
    """the F1 of a rank's own examples"""
    return of_counts(counted(guessed, labels, classes))


def micro(rank, world_size, guessed, labels, classes):
    """the F1 of the sums over all classes"""
    counts = counted(guessed, labels, classes).sum(1)
    dist.all_reduce(counts)
    return (2 * counts[0] / (counts[1] + counts[2])).item()


def without_the_empty(rank, world_size, guessed, labels, classes):
    """the mean over the classes that occur"""
    counts = counted(guessed, labels, classes)
    dist.all_reduce(counts)
    occurs = counts[1] + counts[2] > 0
    return of_counts(counts[:, occurs])


def over_nothing(rank, world_size, guessed, labels, classes):
    """the F1 that divides by the counts as they are"""
    counts = counted(guessed, labels, classes)
    dist.all_reduce(counts)
    return (2 * counts[0] / (counts[1] + counts[2])).mean().item()


def empty_is_perfect(rank, world_size, guessed, labels, classes):
    """the F1 with 1 for an empty class"""
    counts = counted(guessed, labels, classes)
    dist.all_reduce(counts)
    return (2 * counts[0] / (counts[1] + counts[2])).nan_to_num(1.0).mean().item()


def by_frequency(rank, world_size, guessed, labels, classes):
    """the F1s of classes, weighted by how often they occur"""
    counts = counted(guessed, labels, classes)
    dist.all_reduce(counts)
    f1 = 2 * counts[0] / (counts[1] + counts[2]).clamp(min=1)
    return (f1 * counts[2] / counts[2].sum()).sum().item()


def not_twice(rank, world_size, guessed, labels, classes):
    """the mean of TP / (TP + FP + FN)"""
    counts = counted(guessed, labels, classes)
    dist.all_reduce(counts)
    return (counts[0] / (counts[1] + counts[2] - counts[0]).clamp(min=1)).mean().item()


def all_examples(rank, world_size, guessed, labels, classes):
    """the F1 of all examples, collected on every rank"""
    parts = [None] * world_size
    dist.all_gather_object(parts, (guessed, labels))
    whole = (torch.cat([part[i] for part in parts]) for i in (0, 1))
    return of_counts(counted(*whole, classes))


def count_by_count(rank, world_size, guessed, labels, classes):
    """the F1 with an all_reduce for each of three counts"""
    counts = counted(guessed, labels, classes)
    for row in counts:
        dist.all_reduce(row)
    return of_counts(counts)


def whole_matrix(rank, world_size, guessed, labels, classes):
    """the F1 from a matrix of all pairs of classes"""
    pairs = torch.bincount(classes * labels + guessed, minlength=classes**2)
    matrix = pairs.view(classes, classes)
    dist.all_reduce(matrix)
    return of_counts([matrix.diagonal(), matrix.sum(0), matrix.sum(1)])


WRONG = {
    mean_of_f1s: "That is the mean of the ranks' F1s",
    weighted_mean: "Weights by numbers of examples do not help",
    own_only: "Each rank has the F1 of its own examples only",
    micro: "of all classes together (micro)",
    without_the_empty: "it is not left out",
    over_nothing: "divide by at least 1",
    empty_is_perfect: "counts 0, and not 1",
    by_frequency: "The classes are weighted by how often they occur",
    not_twice: "in F1 the TP count twice",
    all_examples: "calls all_gather",
    count_by_count: "but 3 collectives take place where 1 would be enough",
    whole_matrix: "a rank brings 128 bytes",
}


def in_float(rank, world_size, guessed, labels, classes):
    right, wrong = guessed == labels, guessed != labels
    counts = torch.zeros(2, classes)
    counts[0].index_add_(0, labels[right], torch.ones(int(right.sum())))
    for part in (guessed, labels):
        counts[1].index_add_(0, part[wrong], torch.ones(int(wrong.sum())))
    dist.all_reduce(counts)
    f1 = 2 * counts[0] / (2 * counts[0] + counts[1])
    return f1.nan_to_num().mean().item()


ALSO_RIGHT = (in_float,)

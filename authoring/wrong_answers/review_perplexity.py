"""Wrong answers to review.2, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "perplexity"


def over_all(losses, weight):
    """exp of the sum of losses by the sum of weights, over all ranks."""
    total = torch.tensor([float(losses.sum()), float(weight)])
    dist.all_reduce(total)
    return (total[0] / total[1]).exp().item()


def own_mean(losses, targets):
    """The rank's mean loss, and whether it has one."""
    mine = losses[targets != -100]
    return (mine.mean(), 1) if len(mine) else (torch.zeros(()), 0)


def padding_counts(rank, world_size, losses, targets):
    """the perplexity with the padding"""
    return over_all(losses, len(losses))


def padding_divides(rank, world_size, losses, targets):
    """the perplexity whose divisor has the padding in it"""
    return over_all(losses[targets != -100], len(losses))


def mean_of_means(rank, world_size, losses, targets):
    """exp of the mean of the ranks' mean losses"""
    return over_all(*own_mean(losses, targets))


def mean_of_nothing(rank, world_size, losses, targets):
    """the right weights, where nan times 0 is nan"""
    mine = losses[targets != -100]
    return over_all(mine.mean() * len(mine), len(mine))


def mean_of_perplexities(rank, world_size, losses, targets):
    """the mean of the ranks' perplexities"""
    mean, has_one = own_mean(losses, targets)
    total = torch.tensor([float(mean.exp()) * has_one, float(has_one)])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def without_exp(rank, world_size, losses, targets):
    """the mean loss over all tokens, without exp"""
    mine = losses[targets != -100]
    total = torch.tensor([float(mine.sum()), float(len(mine))])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def exp_of_each_token(rank, world_size, losses, targets):
    """the mean over tokens of the exp of their losses"""
    mine = losses[targets != -100].exp()
    total = torch.tensor([float(mine.sum()), float(len(mine))])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def nothing_stays_away(rank, world_size, losses, targets):
    """the all_reduce that a rank without tokens skips"""
    mine = losses[targets != -100]
    return over_all(mine, len(mine)) if len(mine) else float("inf")


def two_all_reduces(rank, world_size, losses, targets):
    """an all_reduce for the sum and one for the count"""
    mine = losses[targets != -100]
    total, number = mine.sum(), torch.tensor(float(len(mine)))
    dist.all_reduce(total)
    dist.all_reduce(number)
    return (total / number).exp().item()


def in_float64(rank, world_size, losses, targets):
    """sum and count in one tensor of float64"""
    mine = losses[targets != -100]
    total = torch.tensor([mine.sum(), len(mine)], dtype=torch.float64)
    dist.all_reduce(total)
    return (total[0] / total[1]).exp().item()


def by_weights(rank, world_size, losses, targets):
    """Weights of 1 and 0 in the place of a choice."""
    weights = (targets != -100).float()
    total = torch.tensor([(losses * weights).sum(), weights.sum()])
    dist.all_reduce(total)
    return torch.exp(total[0] / total[1]).item()


WRONG = {
    padding_counts: "The padding is among the tokens",
    padding_divides: "padding is in the number that you divide by",
    mean_of_means: "The ranks' mean losses are averaged",
    mean_of_nothing: "All is nan",
    mean_of_perplexities: "The ranks' perplexities are averaged",
    without_exp: "That is the mean loss: the perplexity is exp of it",
    exp_of_each_token: "That is the mean of the tokens' exp",
    nothing_stays_away: "which has finished",
    two_all_reduces: "Sum and count can travel together",
    in_float64: "use float32",
}

ALSO_RIGHT = [by_weights]

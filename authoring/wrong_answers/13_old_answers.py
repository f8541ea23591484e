"""Wrong answers to exercise 13.6, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "old_answers"


def parts(theta, answers, q, limit):
    """The weights and the scores of the own answers."""
    p = torch.softmax(theta, 0)
    return (p[answers] / q).clamp(max=limit), torch.eye(len(theta))[answers] - p


def gathered(theta, weights, scores, rewards):
    """The right sums over all ranks, for these weights: with rewards, alone, reward, count."""
    count = torch.tensor([float(len(rewards))])
    sums = [(weights * rewards) @ scores, weights @ scores, rewards.sum().view(1), count]
    buffer = torch.cat(sums)
    dist.all_reduce(buffer)
    return buffer.split([len(theta), len(theta), 1, 1])


def finish(sums):
    with_rewards, alone, reward, count = sums
    return (with_rewards - reward / count * alone) / count


def no_weights(rank, world_size, theta, answers, q, rewards, limit):
    """the mean without importance weights"""
    _, scores = parts(theta, answers, q, limit)
    return finish(gathered(theta, torch.ones_like(q), scores, rewards))


def no_limit(rank, world_size, theta, answers, q, rewards, limit):
    """the weights without a limit"""
    return finish(gathered(theta, *parts(theta, answers, q, 1e9), rewards))


def upside_down(rank, world_size, theta, answers, q, rewards, limit):
    """the weights q / p"""
    p = torch.softmax(theta, 0)
    _, scores = parts(theta, answers, q, limit)
    return finish(gathered(theta, (q / p[answers]).clamp(max=limit), scores, rewards))


def own_mean(rank, world_size, theta, answers, q, rewards, limit):
    """the mean of the rank's own rewards in place of that of all"""
    weights, scores = parts(theta, answers, q, limit)
    gains = rewards - rewards.mean() if len(rewards) else rewards
    with_rewards, _, _, count = gathered(theta, weights, scores, gains)
    return with_rewards / count


def no_mean_reward(rank, world_size, theta, answers, q, rewards, limit):
    """the rewards without their mean subtracted"""
    with_rewards, _, _, count = gathered(theta, *parts(theta, answers, q, limit), rewards)
    return with_rewards / count


def summed(rank, world_size, theta, answers, q, rewards, limit):
    """the sum over all answers"""
    sums = gathered(theta, *parts(theta, answers, q, limit), rewards)
    return finish(sums) * sums[3]


def mean_of_means(rank, world_size, theta, answers, q, rewards, limit):
    """the mean of what each rank finds for itself, with the mean reward of all"""
    weights, scores = parts(theta, answers, q, limit)
    n = float(len(rewards))
    sums = [(weights * rewards) @ scores / max(n, 1), weights @ scores / max(n, 1)]
    buffer = torch.cat([*sums, rewards.sum().view(1), torch.tensor([n])])
    dist.all_reduce(buffer)
    with_rewards, alone, reward, count = buffer.split([len(theta), len(theta), 1, 1])
    return (with_rewards - reward / count * alone) / world_size


def mean_reward_first(rank, world_size, theta, answers, q, rewards, limit):
    """the mean reward in an all_reduce of its own"""
    totals = torch.tensor([rewards.sum(), float(len(rewards))])
    dist.all_reduce(totals)
    weights, scores = parts(theta, answers, q, limit)
    mine = (weights * (rewards - totals[0] / totals[1])) @ scores / totals[1]
    dist.all_reduce(mine)
    return mine


def every_answer(rank, world_size, theta, answers, q, rewards, limit):
    """the sums sent once more for each answer of the table"""
    weights, scores = parts(theta, answers, q, limit)
    count = torch.tensor([float(len(rewards))])
    sums = torch.cat([(weights * rewards) @ scores, weights @ scores, rewards.sum().view(1), count])
    buffer = sums.repeat(len(theta))
    dist.all_reduce(buffer)
    return finish(buffer[: len(sums)].split([len(theta), len(theta), 1, 1]))


WRONG = {
    no_weights: "as if the new policy had written them",
    no_limit: "no weight may be larger than `limit`",
    upside_down: "it is p / q, new over old",
    own_mean: "take that of all answers",
    no_mean_reward: "The mean reward is missing",
    summed: "That is the sum over all answers",
    mean_of_means: "That is the mean of the ranks' means",
    mean_reward_first: "can be subtracted after the sum",
    every_answer: "the sum of the rewards and the count are enough",
}


def one_weight_a_column(rank, world_size, theta, answers, q, rewards, limit):
    """the sums per answer of the table, without a matrix of scores"""
    p, A = torch.softmax(theta, 0), len(theta)
    w = (p[answers] / q).clamp(max=limit)
    buffer = torch.zeros(2 * A + 2)
    buffer[:A].index_add_(0, answers, w * rewards)
    buffer[A : 2 * A].index_add_(0, answers, w)
    buffer[-2], buffer[-1] = rewards.sum(), len(rewards)
    dist.all_reduce(buffer)
    gains = buffer[:A] - buffer[-2] / buffer[-1] * buffer[A : 2 * A]
    return (gains - gains.sum() * p) / buffer[-1]


ALSO_RIGHT = [one_weight_a_column]

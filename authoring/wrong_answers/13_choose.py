"""Wrong answers to exercise 13.4, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "choose"


def rule(c, link=True, alike=False):
    message_s = c["latency_s"] + c["nbytes"] / c["bandwidth_Bps"]
    step_s, slow_s = c["step_s"], c["step_s"] * (1 if alike else c["slow"])
    per_s = 3 / (step_s + 2 * message_s) + 1 / (slow_s + 2 * message_s)
    apart_s = c["updates"] / (min(per_s, 1 / (2 * message_s)) if link else per_s)
    ring_s = 6 * (c["latency_s"] + c["nbytes"] / 4 / c["bandwidth_Bps"])
    return "together" if c["steps"] * (slow_s + ring_s) < apart_s else "apart"


def always_apart(rank, world_size, clusters):
    """the belief that asynchronous is faster"""
    return ["apart"] * len(clusters)


def always_together(rank, world_size, clusters):
    """the belief that synchronous is better"""
    return ["together"] * len(clusters)


def without_the_link(rank, world_size, clusters):
    """the server that answers any number of workers at once"""
    return [rule(c, link=False) for c in clusters]


def without_the_slow_rank(rank, world_size, clusters):
    """the four ranks taken for equal"""
    return [rule(c, alike=True) for c in clusters]


def by_updates(rank, world_size, clusters):
    """the number of gradients, whatever their time"""
    return ["together" if 4 * c["steps"] < c["updates"] else "apart" for c in clusters]


def asks_around(rank, world_size, clusters):
    """the sum over all ranks, which nobody needs"""
    dist.all_reduce(torch.zeros(1))
    return [rule(c) for c in clusters]


WRONG = {
    always_apart: "Always apart",
    always_together: "Always together",
    without_the_link: "if the server's link had no limit",
    without_the_slow_rank: "if all ranks were equal",
    by_updates: "by the number of gradients alone",
    asks_around: "where 0 will do",
}


def by_a_rule(rank, world_size, clusters):
    """both times from one function"""
    return list(map(rule, clusters))


ALSO_RIGHT = [by_a_rule]

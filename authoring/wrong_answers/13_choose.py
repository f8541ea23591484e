"""Wrong answers to exercise 13.4, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "choose"


def rule(slow, step_s, nbytes, latency_s, bandwidth_Bps, steps, updates, link=True):
    message_s = latency_s + nbytes / bandwidth_Bps
    per_s = 3 / (step_s + 2 * message_s) + 1 / (slow * step_s + 2 * message_s)
    apart_s = updates / (min(per_s, 1 / (2 * message_s)) if link else per_s)
    ring_s = 6 * (latency_s + nbytes / 4 / bandwidth_Bps)
    return "together" if steps * (slow * step_s + ring_s) < apart_s else "apart"


def always_apart(rank, world_size, *cluster):
    """the belief that asynchronous is faster"""
    return "apart"


def always_together(rank, world_size, *cluster):
    """the belief that synchronous is better"""
    return "together"


def without_the_link(rank, world_size, *cluster):
    """the server that answers any number of workers at once"""
    return rule(*cluster, link=False)


def without_the_slow_rank(rank, world_size, slow, *rest):
    """the four ranks taken for equal"""
    return rule(1, *rest)


def by_updates(rank, world_size, *cluster):
    """the number of gradients, whatever their time"""
    return "together" if 4 * cluster[5] < cluster[6] else "apart"


def asks_around(rank, world_size, *cluster):
    """the vote of all ranks, which nobody needs"""
    dist.barrier()
    dist.all_reduce(torch.zeros(1))
    return rule(*cluster)


WRONG = {
    always_apart: "Always apart",
    always_together: "Always together",
    without_the_link: "if the server's link had no limit",
    without_the_slow_rank: "if all ranks were equal",
    by_updates: "by updates alone",
    asks_around: "barrier",
}


def by_a_rule(rank, world_size, *cluster):
    """both times from one function"""
    return rule(*cluster)


ALSO_RIGHT = [by_a_rule]

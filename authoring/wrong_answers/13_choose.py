"""Wrong answers to exercise 13.4, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "choose"


def rule(c, turn=2, limit=2, part=4, rounds=6, others=3, together=None, apart=None, mean=False):
    """Which is first, by the formula with its faults to choose."""
    message_s = c["latency_s"] + c["nbytes"] / c["bandwidth_Bps"]
    step_s = c["step_s"]
    slow_s, slow_apart_s = (step_s * (factor or c["slow"]) for factor in (together, apart))
    turn_s = turn * message_s
    per_s = others / (step_s + turn_s) + 1 / (slow_apart_s + turn_s)
    if mean:
        per_s = 4 / ((3 * step_s + slow_apart_s) / 4 + turn_s)
    apart_s = c["updates"] / (min(per_s, 1 / (limit * message_s)) if limit else per_s)
    ring_s = rounds * (c["latency_s"] + c["nbytes"] / part / c["bandwidth_Bps"])
    return "together" if c["steps"] * (slow_s + ring_s) < apart_s else "apart"


def always_apart(rank, world_size, clusters):
    """the belief that asynchronous is faster"""
    return ["apart"] * len(clusters)


def always_together(rank, world_size, clusters):
    """the belief that synchronous is better"""
    return ["together"] * len(clusters)


def without_the_link(rank, world_size, clusters):
    """the server that answers any number of workers at once"""
    return [rule(c, limit=0) for c in clusters]


def without_the_slow_rank(rank, world_size, clusters):
    """the four ranks taken for equal"""
    return [rule(c, together=1, apart=1) for c in clusters]


def by_updates(rank, world_size, clusters):
    """the number of gradients, whatever their time"""
    return ["together" if 4 * c["steps"] < c["updates"] else "apart" for c in clusters]


def asks_around(rank, world_size, clusters):
    """the sum over all ranks, which nobody needs"""
    dist.all_reduce(torch.zeros(1))
    return [rule(c) for c in clusters]


def one_message_an_update(rank, world_size, clusters):
    """the server that needs one message's time for an update"""
    return [rule(c, limit=1) for c in clusters]


def no_messages_in_a_turn(rank, world_size, clusters):
    """the turn of a worker that is its gradient alone"""
    return [rule(c, turn=0) for c in clusters]


def one_message_in_a_turn(rank, world_size, clusters):
    """the turn of a worker with a message there and none back"""
    return [rule(c, turn=1) for c in clusters]


def mean_of_the_turns(rank, world_size, clusters):
    """the mean of the workers' times in place of the sum of their turns"""
    return [rule(c, mean=True) for c in clusters]


def slow_apart_alone_forgotten(rank, world_size, clusters):
    """the slow rank that is slow together, not apart"""
    return [rule(c, apart=1) for c in clusters]


def whole_vectors_in_the_ring(rank, world_size, clusters):
    """the ring that sends whole vectors"""
    return [rule(c, part=1) for c in clusters]


def no_ring(rank, world_size, clusters):
    """the steps together without any message"""
    return [rule(c, rounds=0) for c in clusters]


def ring_of_two_messages(rank, world_size, clusters):
    """the ring of two rounds"""
    return [rule(c, rounds=2) for c in clusters]


def half_a_ring(rank, world_size, clusters):
    """the ring of three rounds"""
    return [rule(c, rounds=3) for c in clusters]


def workers_by_world_size(rank, world_size, clusters):
    """the world of the check taken for that of the cluster"""
    return [rule(c, others=world_size - 1) for c in clusters]


WRONG = {
    one_message_an_update: "An update costs the server two messages' time",
    no_messages_in_a_turn: "A worker's turn is more than its gradient",
    one_message_in_a_turn: "A worker's turn ends when theta has come back",
    mean_of_the_turns: "add up the turns a second",
    slow_apart_alone_forgotten: "it takes fewer turns",
    whole_vectors_in_the_ring: "sends a quarter of nbytes",
    no_ring: "Together, the ring takes time, too",
    ring_of_two_messages: "two rounds are enough for two ranks",
    half_a_ring: "Three rounds are half a ring",
    workers_by_world_size: "Each cluster has four workers",
    always_apart: "Always apart",
    always_together: "Always together",
    without_the_link: "The server does one thing at a time",
    without_the_slow_rank: "if all ranks were equal",
    by_updates: "by the number of gradients alone",
    asks_around: "where 0 would be enough",
}


def by_a_rule(rank, world_size, clusters):
    """both times from one function"""
    return list(map(rule, clusters))


ALSO_RIGHT = [by_a_rule]

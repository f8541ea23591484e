"""Wrong answers to exercise 21.2, each with the words its refusal must hold."""

from math import log2

import torch
import torch.distributed as dist

QUESTION = "fastest_tp"


def times_of(
    job, fits=True, cache=1, per_layer=2, rounds=log2, divided=True, latency=1, sending=1, tps=None
):
    """The time of each tp that fits; of a mistake, as it counts."""
    times = {}
    for tp in tps or [2**k for k in range(int(log2(job["ranks"])) + 1)]:
        kept = job["weights_bytes"] + cache * job["cache_bytes"]
        round_s = latency * job["latency_s"] + sending * job["round_bytes"] / job["bandwidth_Bps"]
        if kept / tp <= job["memory_bytes"] or not fits:
            times[tp] = kept / (tp if divided else 1) / job["memory_Bps"]
            times[tp] += per_layer * job["layers"] * rounds(tp) * round_s
    return times


def first(times):
    return min(times, key=times.get) if times else None


def whether_it_fits_or_not(rank, world_size, job):
    """the fastest tp, whether it fits or not"""
    return first(times_of(job, fits=False))


def without_the_cache(rank, world_size, job):
    """the fastest tp for weights alone"""
    return first(times_of(job, cache=0))


def one_all_reduce(rank, world_size, job):
    """the fastest tp with one all_reduce for each layer"""
    return first(times_of(job, per_layer=1))


def ring(rank, world_size, job):
    """the fastest tp with all_reduces that are rings"""
    return first(times_of(job, rounds=lambda tp: 2 * (tp - 1)))


def one_round(rank, world_size, job):
    """the fastest tp if an all_reduce had one round"""
    return first(times_of(job, rounds=lambda tp: tp > 1))


def undivided(rank, world_size, job):
    """the tp for which each GPU reads everything"""
    return first(times_of(job, divided=False))


def no_latency(rank, world_size, job):
    """the fastest tp on a network without latency"""
    return first(times_of(job, latency=0))


def no_bytes(rank, world_size, job):
    """the fastest tp if bytes took no time"""
    return first(times_of(job, sending=0))


def less_than_all(rank, world_size, job):
    """the fastest tp below the number of ranks"""
    return first(times_of(job, tps=[2**k for k in range(int(log2(job["ranks"])))]))


def any_number(rank, world_size, job):
    """the fastest of all numbers of GPUs"""
    return first(times_of(job, tps=range(1, job["ranks"] + 1)))


def slowest(rank, world_size, job):
    """the slowest tp that fits"""
    times = times_of(job)
    return max(times, key=times.get) if times else None


def most_gpus(rank, world_size, job):
    """the largest tp that fits"""
    return max(times_of(job), default=None)


def none_is_an_error(rank, world_size, job):
    """the fastest tp that is taken from an empty dict where none fits"""
    times = times_of(job)
    return min(times, key=times.get)


def tells_the_next(rank, world_size, job):
    """the fastest tp that each rank sends on to the next"""
    if world_size > 1:
        request = dist.isend(torch.ones(1), dst=(rank + 1) % world_size)
        dist.recv(torch.ones(1), src=(rank - 1) % world_size)
        request.wait()
    return first(times_of(job))


def after_a_barrier(rank, world_size, job):
    """the fastest tp that is told after a barrier"""
    dist.barrier()
    return first(times_of(job))


WRONG = {
    whether_it_fits_or_not: "but weights and cache do not fit there",
    without_the_cache: "Is the cache counted in?",
    one_all_reduce: "Each layer has 2 all_reduces",
    ring: "the rounds of a ring",
    one_round: "you count only one",
    undivided: "divide weights and cache by tp",
    no_latency: "pays the latency, too",
    no_bytes: "the time to send round_bytes",
    less_than_all: "you stop before it",
    any_number: "you also try other numbers",
    slowest: "That is the slowest tp",
    most_gpus: "You take the largest tp",
    none_is_an_error: "raised ValueError: min()",
    tells_the_next: "the ranks send 6 messages where",
    after_a_barrier: "but 1 collective takes place where 0 would be enough",
}


def sorted_tuples(rank, world_size, job):
    plans = sorted((seconds, tp) for tp, seconds in times_of(job).items())
    return plans[0][1] if plans else None


ALSO_RIGHT = (sorted_tuples,)

"""Wrong answers to review.4, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "step_end"


def agreed(ready_s, op=dist.ReduceOp.MAX):
    """The ranks' times brought together."""
    ready = torch.tensor(ready_s, dtype=torch.float64)
    dist.all_reduce(ready, op=op)
    return ready.tolist()


def rings(world_size, sizes, latency_s, rate, steps=2, parts=None):
    """Seconds of each bucket's ring."""
    n = world_size - 1
    return [steps * n * (latency_s + size / (parts or world_size) / rate) for size in sizes]


def one_by_one(readies, ring_times):
    end_s = 0.0
    for full_s, ring_s in zip(readies, ring_times, strict=True):
        end_s = max(end_s, full_s) + ring_s
    return end_s


def own_times(rank, world_size, ready_s, *network):
    """the end by each rank's own times"""
    return one_by_one(ready_s, rings(world_size, *network))


def by_the_first(rank, world_size, ready_s, *network):
    """the end for the first rank that has a bucket full"""
    return one_by_one(agreed(ready_s, dist.ReduceOp.MIN), rings(world_size, *network))


def by_the_mean(rank, world_size, ready_s, *network):
    """the end for the mean of the ranks' times"""
    readies = [total / world_size for total in agreed(ready_s, dist.ReduceOp.SUM)]
    return one_by_one(readies, rings(world_size, *network))


def no_overlap(rank, world_size, ready_s, *network):
    """all rings after the end of backward"""
    return agreed(ready_s)[-1] + sum(rings(world_size, *network))


def all_at_once(rank, world_size, ready_s, *network):
    """the rings of all buckets side by side"""
    pairs = zip(agreed(ready_s), rings(world_size, *network), strict=True)
    return max(full_s + ring_s for full_s, ring_s in pairs)


def last_bucket_alone(rank, world_size, ready_s, *network):
    """the ring of the last bucket, as if the network were free"""
    return agreed(ready_s)[-1] + rings(world_size, *network)[-1]


def the_larger_of_two(rank, world_size, ready_s, *network):
    """the larger of backward and all rings"""
    return max(agreed(ready_s)[-1], sum(rings(world_size, *network)))


def whole_buckets(rank, world_size, ready_s, *network):
    """rings that send the whole bucket in each step"""
    return one_by_one(agreed(ready_s), rings(world_size, *network, parts=1))


def half_a_ring(rank, world_size, ready_s, *network):
    """rings of R - 1 steps"""
    return one_by_one(agreed(ready_s), rings(world_size, *network, steps=1))


def bucket_by_bucket(rank, world_size, ready_s, *network):
    """an all_reduce for the time of each bucket"""
    readies = [agreed([one])[0] for one in ready_s]
    return one_by_one(readies, rings(world_size, *network))


def everybody_in_a_table(rank, world_size, ready_s, *network):
    """the all_reduce of a table with a row for each rank"""
    table = torch.zeros(world_size, len(ready_s), dtype=torch.float64)
    table[rank] = torch.tensor(ready_s, dtype=torch.float64)
    dist.all_reduce(table)
    return one_by_one(table.amax(0).tolist(), rings(world_size, *network))


def from_behind(rank, world_size, ready_s, *network):
    """For each bucket: it and all later ones back to back; the latest of these ends counts."""
    readies, times = agreed(ready_s), rings(world_size, *network)
    return max(full_s + sum(times[k:]) for k, full_s in enumerate(readies))


def rings_alone(rank, world_size, ready_s, *network):
    """the sum of all rings, as if every bucket were full at once"""
    agreed(ready_s)
    return sum(rings(world_size, *network))


def in_float32(rank, world_size, ready_s, *network):
    """Times in float32, which has digits enough."""
    ready = torch.tensor(ready_s)
    dist.all_reduce(ready, op=dist.ReduceOp.MAX)
    return one_by_one(ready.tolist(), rings(world_size, *network))


WRONG = {
    own_times: "Each rank reckons with its own times",
    by_the_first: "That is right for the first rank that has a bucket full",
    by_the_mean: "That is right for the mean of the times",
    no_overlap: "Nothing overlaps there",
    all_at_once: "There all rings run at once",
    last_bucket_alone: "That is the last bucket alone",
    the_larger_of_two: "That is the larger of backward and all rings",
    whole_buckets: "sends an R-th of the bucket",
    half_a_ring: "half add up, half hand round",
    bucket_by_bucket: "All buckets' times fit into one tensor",
    everybody_in_a_table: "A bucket needs one number",
    rings_alone: "Those are the rings alone",
}

ALSO_RIGHT = [in_float32, from_behind]

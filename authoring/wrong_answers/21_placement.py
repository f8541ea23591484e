"""Wrong answers to exercise 21.3, each with the words its refusal must hold."""

from math import ceil

import torch.distributed as dist

QUESTION = "placement"


def ways_of(job, sent=1, latency=1, whole=1, count=ceil, of_ttft=0):
    """Time to first token and longest gap of each way; of a mistake, as it counts."""
    prefill_s, decode_s = job["prompt"] / job["prefill_per_s"], job["decode_s"]
    chunk, chunks = min(job["chunk"], job["prompt"]), count(job["prompt"] / job["chunk"])
    send_s = sent * job["prompt"] * job["kv_bytes"] / job["bandwidth_Bps"]
    send_s += latency * job["latency_s"]
    return {
        "together": (prefill_s, whole * prefill_s + decode_s),
        "chunked": (prefill_s + chunks * decode_s, chunk / job["prefill_per_s"] + decode_s),
        "apart": (prefill_s + of_ttft * send_s, send_s + decode_s),
    }


def best(job, ways, without="", limit=True):
    gaps = {way: gap for way, (first, gap) in ways.items() if first <= job["ttft_s"] or not limit}
    gaps.pop(without, None)
    return min(gaps, key=gaps.get) if gaps else None


def too_late(rank, world_size, job):
    """the way with the shortest gap, however late its first token comes"""
    return best(job, ways_of(job), limit=False)


def nothing_is_sent(rank, world_size, job):
    """the way for which the cache is on the server at once"""
    return best(job, ways_of(job, sent=0))


def no_latency(rank, world_size, job):
    """the way whose message has no latency"""
    return best(job, ways_of(job, latency=0))


def nobody_waits(rank, world_size, job):
    """the way for which prefill stops no other request"""
    return best(job, ways_of(job, whole=0))


def chunks_without_steps(rank, world_size, job):
    """the way whose chunks have no decode steps between them"""
    return best(job, ways_of(job, count=lambda chunks: 0))


def whole_chunks(rank, world_size, job):
    """the way that does not count a short last chunk"""
    return best(job, ways_of(job, count=int))


def never_chunked(rank, world_size, job):
    """the better way of together and apart"""
    return best(job, ways_of(job), without="chunked")


def never_apart(rank, world_size, job):
    """the better way of one server alone"""
    return best(job, ways_of(job), without="apart")


def first_token_is_sent(rank, world_size, job):
    """the way whose first token waits for the cache to be sent"""
    return best(job, ways_of(job, of_ttft=1))


def last_of_equals(rank, world_size, job):
    """the last of equally good ways"""
    return best(job, dict(reversed(ways_of(job).items())))


def longest_gap(rank, world_size, job):
    """the way with the longest gap between tokens"""
    gaps = {way: gap for way, (first, gap) in ways_of(job).items() if first <= job["ttft_s"]}
    return max(gaps, key=gaps.get) if gaps else None


def after_a_barrier(rank, world_size, job):
    """the best way, told after a barrier"""
    dist.barrier()
    return best(job, ways_of(job))


WRONG = {
    too_late: "only allowed if its first token comes within ttft_s",
    nothing_is_sent: "The cache has to be sent",
    no_latency: "pays its latency, too",
    nobody_waits: "the other requests wait for the whole prefill",
    chunks_without_steps: "the first token waits for all of them",
    whole_chunks: "round up",
    never_chunked: "Chunked prefill is a way, too",
    never_apart: "Apart is a way, too",
    first_token_is_sent: "writes the first token itself",
    last_of_equals: "return the first one of the list",
    longest_gap: "the way with the longest gap",
    after_a_barrier: "but 1 collective takes place where 0 would be enough",
}


def by_ifs(rank, world_size, job):
    ways, found = ways_of(job), None
    for way in ("together", "chunked", "apart"):
        first, gap = ways[way]
        if first <= job["ttft_s"] and (found is None or gap < ways[found][1]):
            found = way
    return found


def longest_chunk_of_a_short_prompt(rank, world_size, job):
    """A prompt shorter than a chunk: then chunks never win against "together"."""
    ways = ways_of(job)
    ways["chunked"] = ways["chunked"][0], job["chunk"] / job["prefill_per_s"] + job["decode_s"]
    return best(job, ways)


ALSO_RIGHT = (by_ifs, longest_chunk_of_a_short_prompt)

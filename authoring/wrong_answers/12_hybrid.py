"""Wrong answers to exercise 12.7, each with the words its refusal must hold."""

import torch.distributed as dist

QUESTION = "hybrid"


def chosen(
    job, rings=3, after=2, fits=True, cut=True, shared=True, latency=1, each=True, kept=8,
    fsdp_shares=False, once=True,
):  # fmt: skip
    """The answer; of a mistake, as it counts."""
    n, G, N, M = (job[name] for name in ("nodes", "per_node", "N", "microbatches"))

    def ring(k, nbytes, link, share=1):
        return (k - 1) * (latency * link[0] + nbytes * share / k / link[1])

    rings *= M if each else 1
    between = ring(n, N / G if cut else N, job["between"], G if shared else 1)
    found = [
        (rings * ring(n * G, N, job["between"], G if fsdp_shares else 1), "FSDP", n * G),
        (rings * ring(G, N, job["inside"]) + after * between * (1 if once else M), "HSDP", G),
    ]
    found = [one for one in found if kept * N / one[2] <= job["memory_bytes"] or not fits]
    seconds, name, _ = min(found, default=(None, None, None))
    return name, seconds


def fastest_of_all(rank, world_size, job):
    """the choice that forgets the memory"""
    return chosen(job, fits=False)


def parameters_alone(rank, world_size, job):
    """the choice that counts only parameters in memory"""
    return chosen(job, kept=1)


def one_microbatch(rank, world_size, job):
    """the choice with one micro-batch"""
    return chosen(job, each=False)


def no_latency(rank, world_size, job):
    """the choice without latency"""
    return chosen(job, latency=0)


def whole_all_reduce(rank, world_size, job):
    """the choice that all_reduces all parameters between nodes"""
    return chosen(job, cut=False)


def own_card(rank, world_size, job):
    """the choice with a network card for each rank"""
    return chosen(job, shared=False)


def one_card_for_fsdp(rank, world_size, job):
    """the choice in which FSDP's ranks share the network card"""
    return chosen(job, fsdp_shares=True)


def half_an_all_reduce(rank, world_size, job):
    """the choice with one ring for the all_reduce"""
    return chosen(job, after=1)


def nodes_apart(rank, world_size, job):
    """the choice in which nodes never meet"""
    return chosen(job, after=0)


def gathers_once(rank, world_size, job):
    """the choice with one gather a micro-batch"""
    return chosen(job, rings=2)


def reduces_each_time(rank, world_size, job):
    """the choice that all_reduces between nodes for each micro-batch"""
    return chosen(job, once=False)


def asks_the_others(rank, world_size, job):
    """the right choice after a barrier"""
    dist.barrier()
    return chosen(job)


WRONG = {
    fastest_of_all: "but it does not fit",
    parameters_alone: "only the parameters in memory",
    one_microbatch: "You count one micro-batch",
    no_latency: "Where is the latency?",
    whole_all_reduce: "not all parameters",
    own_card: "only a part of the bandwidth",
    one_card_for_fsdp: "it need not share",
    half_an_all_reduce: "An all_reduce is two rings",
    nodes_apart: "have different gradients",
    gathers_once: "three rings",
    reduces_each_time: "once a step",
    asks_the_others: "work this out for itself",
}


def by_rounds(rank, world_size, job):
    """Each ring counted round by round."""

    def ring(k, nbytes, latency_s, bandwidth_Bps):
        return sum(latency_s + nbytes / k / bandwidth_Bps for _ in range(k - 1))

    n, G, N = job["nodes"], job["per_node"], job["N"]
    latency_s, bandwidth_Bps = job["between"]
    fsdp = sum(3 * ring(n * G, N, *job["between"]) for _ in range(job["microbatches"]))
    hsdp = sum(3 * ring(G, N, *job["inside"]) for _ in range(job["microbatches"]))
    hsdp += 2 * ring(n, N / G, latency_s, bandwidth_Bps / G)
    if 8 * N > job["memory_bytes"] * n * G:
        return None, None
    if 8 * N > job["memory_bytes"] * G or fsdp < hsdp:
        return "FSDP", fsdp
    return "HSDP", hsdp


ALSO_RIGHT = (by_rounds,)

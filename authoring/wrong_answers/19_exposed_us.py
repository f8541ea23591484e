"""Wrong answers to exercise 19.3, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "exposed_us"


def is_sent(kernel):
    return kernel["name"].startswith("nccl")


def covered(kernels):
    return {t for one in kernels for t in range(one["ts"], one["ts"] + one["dur"])}


def two_sets(kernels):
    sends = covered([one for one in kernels if is_sent(one)])
    return sends, covered([one for one in kernels if not is_sent(one)])


def right(rank, world_size, kernels):
    sends, computes = two_sets(kernels)
    exposed = sum(moment not in computes for moment in sends)
    return exposed, 1 - exposed / len(sends)


def summed(rank, world_size, kernels):
    """the times of all communication kernels added up"""
    _, computes = two_sets(kernels)
    sent = [t for one in kernels if is_sent(one) for t in range(one["ts"], one["ts"] + one["dur"])]
    exposed = sum(t not in computes for t in sent)
    return exposed, (len(sent) - exposed) / len(sent)


def pair_by_pair(rank, world_size, kernels):
    """the overlaps of all pairs of kernels added up"""
    ends = [(is_sent(one), one["ts"], one["ts"] + one["dur"]) for one in kernels]
    sent = [span for span in ends if span[0]]
    beside = sum(
        max(0, min(b, d) - max(a, c)) for _, a, b in sent for sends, c, d in ends if not sends
    )
    whole = sum(b - a for _, a, b in sent)
    return whole - beside, beside / whole


def share_of_computing(rank, world_size, kernels):
    """the share of the computing that something is sent beside"""
    sends, computes = two_sets(kernels)
    return len(sends - computes), len(sends & computes) / len(computes)


def share_exposed(rank, world_size, kernels):
    """the share that is exposed"""
    sends, computes = two_sets(kernels)
    return len(sends - computes), 1 - len(sends & computes) / len(sends)


def percent(rank, world_size, kernels):
    """the overlap in percent"""
    exposed, overlap = right(rank, world_size, kernels)
    return exposed, 100 * overlap


def durations(rank, world_size, kernels):
    """the difference of the sums of durations"""
    sent = sum(one["dur"] for one in kernels if is_sent(one))
    computed = sum(one["dur"] for one in kernels if not is_sent(one))
    return max(0, sent - computed), min(1.0, computed / sent)


def stream_7(rank, world_size, kernels):
    """stream 7 as the one that computes"""
    computes = covered([one for one in kernels if one["stream"] == 7])
    sends = covered([one for one in kernels if one["stream"] != 7])
    return len(sends - computes), len(sends & computes) / len(sends)


def whole_time(rank, world_size, kernels):
    """the whole time of communication, as if all of it were exposed"""
    sends, computes = two_sets(kernels)
    return len(sends), len(sends & computes) / len(sends)


def a_float(rank, world_size, kernels):
    """the right number of microseconds as a float"""
    exposed, overlap = right(rank, world_size, kernels)
    return float(exposed), overlap


def checked(rank, world_size, kernels):
    """the right answer, compared with the other ranks"""
    found = right(rank, world_size, kernels)
    dist.all_reduce(torch.tensor(found[1]), op=dist.ReduceOp.MAX)
    return found


WRONG = {
    summed: "counts twice there",
    pair_by_pair: "the overlaps of all pairs",
    share_of_computing: "not of the computing's",
    share_exposed: "`overlap` has the exposed share",
    percent: "`overlap` is in percent",
    durations: "compares the sums of all durations",
    stream_7: "tells communication by its stream",
    whole_time: "has all the time of communication",
    a_float: "is a float: an int is asked for",
    checked: "Every rank has all records",
}
ALSO_RIGHT = [right]

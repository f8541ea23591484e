"""Wrong answers to exercise 17.3, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

import simlib

QUESTION = "as_predicted"


def seconds(xs, K, forward_s, latency_s, bandwidth_Bps, bubble=1, backward=2, waits=None):
    turns = len(xs) + bubble * (K - 1)
    waits = (2 * (len(xs) + K - 2) if waits is None else waits) * (K > 1)
    return turns * (1 + backward) * forward_s + waits * (latency_s + xs[0].nbytes / bandwidth_Bps)


def pipeline(
    rank, K, xs, w, forward_s, words=None, send=dist.isend, pieces=1, kept=None, backward=2
):
    """w_grad; words are ("F", i) or ("B", i), by default those of GPipe."""
    held, sent, w_grad = {}, [], torch.zeros((), dtype=xs[0].dtype)

    def hand_on(tensor, dst):
        sent.extend(send(part.contiguous(), dst=dst) for part in tensor.chunk(pieces))

    def receive(src):
        into = torch.empty_like(xs[0])
        for part in into.chunk(pieces):
            dist.recv(part, src=src)
        return into

    for kind, i in words or [(kind, i) for kind in "FB" for i in range(len(xs))]:
        if kind == "F":
            x = receive(rank - 1) if rank else xs[i]
            simlib.compute(forward_s)
            held[i] = x, w * x
            if rank < K - 1:
                hand_on(w * x, rank + 1)
        else:
            x, y = held.pop(i)
            gradient = receive(rank + 1) if rank < K - 1 else y
            simlib.compute(backward * forward_s)
            part = ((y if kept == "own" else gradient) * x).sum()
            w_grad = part if kept == "last" else w_grad + part
            if rank:
                hand_on(gradient if kept == "without w" else w * gradient, rank - 1)
    for request in sent:
        if request is not None:
            request.wait()
    return w_grad


def no_bubble(rank, world_size, xs, w, forward_s, *link):
    """a prediction without the bubble"""
    return pipeline(rank, world_size, xs, w, forward_s), seconds(
        xs, world_size, forward_s, *link, bubble=0
    )


def free_messages(rank, world_size, xs, w, forward_s, latency_s, bandwidth_Bps):
    """a prediction in which messages take no time"""
    found = pipeline(rank, world_size, xs, w, forward_s)
    return found, seconds(xs, world_size, forward_s, 0.0, float("inf"))


def backward_as_forward(rank, world_size, xs, w, forward_s, *link):
    """a prediction whose backward is as short as forward"""
    found = pipeline(rank, world_size, xs, w, forward_s)
    return found, seconds(xs, world_size, forward_s, *link, backward=1)


def no_latency(rank, world_size, xs, w, forward_s, latency_s, bandwidth_Bps):
    """a prediction whose messages have no latency"""
    found = pipeline(rank, world_size, xs, w, forward_s)
    return found, seconds(xs, world_size, forward_s, 0.0, bandwidth_Bps)


def latency_alone(rank, world_size, xs, w, forward_s, latency_s, bandwidth_Bps):
    """a prediction whose messages have latency only"""
    found = pipeline(rank, world_size, xs, w, forward_s)
    return found, seconds(xs, world_size, forward_s, latency_s, float("inf"))


def one_after_the_other(rank, world_size, xs, w, forward_s, *link):
    """a pipeline that takes each micro-batch back before the next begins"""
    words = [(kind, i) for i in range(len(xs)) for kind in "FB"]
    return pipeline(rank, world_size, xs, w, forward_s, words), seconds(
        xs, world_size, forward_s, *link
    )


def the_last_one(rank, world_size, xs, w, forward_s, *link):
    """the gradient of the last micro-batch alone"""
    found = pipeline(rank, world_size, xs, w, forward_s, kept="last")
    return found, seconds(xs, world_size, forward_s, *link)


def own_gradient(rank, world_size, xs, w, forward_s, *link):
    """the gradient from each rank's own y"""
    found = pipeline(rank, world_size, xs, w, forward_s, kept="own")
    return found, seconds(xs, world_size, forward_s, *link)


def as_if_early(rank, world_size, xs, w, forward_s, *link):
    """the number of messages of receives that are posted early"""
    found, waits = pipeline(rank, world_size, xs, w, forward_s), 2 * (world_size - 1)
    return found, seconds(xs, world_size, forward_s, *link, waits=waits)


def no_ramp(rank, world_size, xs, w, forward_s, *link):
    """as many messages as micro-batches"""
    found = pipeline(rank, world_size, xs, w, forward_s)
    return found, seconds(xs, world_size, forward_s, *link, waits=2 * len(xs))


def one_wait_more(rank, world_size, xs, w, forward_s, *link):
    """a prediction with a wait too many in each phase"""
    found, waits = pipeline(rank, world_size, xs, w, forward_s), 2 * (len(xs) + world_size - 1)
    return found, seconds(xs, world_size, forward_s, *link, waits=waits)


def by_send(rank, world_size, xs, w, forward_s, *link):
    """a pipeline that waits in each send"""
    found = pipeline(rank, world_size, xs, w, forward_s, send=dist.send)
    return found, seconds(xs, world_size, forward_s, *link)


def one_way(rank, world_size, xs, w, forward_s, *link):
    """messages of one phase"""
    found, waits = pipeline(rank, world_size, xs, w, forward_s), len(xs) + world_size - 2
    return found, seconds(xs, world_size, forward_s, *link, waits=waits)


def said_by_the_first(rank, world_size, xs, w, forward_s, *link):
    """a prediction on rank 0 alone"""
    found = pipeline(rank, world_size, xs, w, forward_s)
    return found, seconds(xs, world_size, forward_s, *link) if rank == 0 else 0.0


def without_w(rank, world_size, xs, w, forward_s, *link):
    """a gradient that goes back as it came"""
    found = pipeline(rank, world_size, xs, w, forward_s, kept="without w")
    return found, seconds(xs, world_size, forward_s, *link)


def no_work_backward(rank, world_size, xs, w, forward_s, *link):
    """a backward that computes nothing"""
    found = pipeline(rank, world_size, xs, w, forward_s, backward=0)
    return found, seconds(xs, world_size, forward_s, *link)


def in_halves(rank, world_size, xs, w, forward_s, *link):
    """a pipeline that sends every tensor in two halves"""
    found = pipeline(rank, world_size, xs, w, forward_s, pieces=2)
    return found, seconds(xs, world_size, forward_s, *link)


def by_collectives(rank, world_size, xs, w, forward_s, *link):
    """a pipeline with a barrier before it"""
    dist.barrier()
    return pipeline(rank, world_size, xs, w, forward_s), seconds(xs, world_size, forward_s, *link)


def not_at_once(rank, world_size, xs, w, forward_s, *link):
    """a pipeline that never says how long it takes"""
    return pipeline(rank, world_size, xs, w, forward_s)


def in_turns(rank, world_size, xs, w, forward_s, *link):
    """1F1B: its order is another one, its time nearly the same"""
    M, ahead = len(xs), min(len(xs), world_size - rank - 1)
    words = [("F", i) for i in range(ahead)]
    words += [word for i in range(M - ahead) for word in (("F", ahead + i), ("B", i))]
    words += [("B", i) for i in range(M - ahead, M)]
    return pipeline(rank, world_size, xs, w, forward_s, words), seconds(
        xs, world_size, forward_s, *link
    )


WRONG = {
    no_bubble: "the time lacks the bubble",
    free_messages: "messages take no time in your prediction",
    backward_as_forward: "backward takes as long as forward",
    no_latency: "your messages have no latency",
    latency_alone: "your messages have latency only",
    one_after_the_other: "Does a rank wait where it could go on?",
    the_last_one: "is that of the last micro-batch",
    own_gradient: "takes its own y as gradient",
    as_if_early: "you count too few waits for messages",
    no_ramp: "2 M waits are those of one boundary",
    one_wait_more: "you count a wait too many",
    by_send: "A `send` waits for the receiver",
    one_way: "messages go back, too",
    said_by_the_first: "right on rank 0 alone",
    without_w: "you hand it on without w",
    no_work_backward: "Does it compute all that it says?",
    in_halves: "but the ranks send",
    by_collectives: "allows only send, recv",
    not_at_once: "has a Tensor, but a tuple is expected",
}
ALSO_RIGHT = [in_turns]

"""Wrong answers to exercise 11.4, each with the words its refusal must hold.

`follow`, `send_first` and `together` are those of the exercise's setup.
"""

import torch
import torch.distributed as dist

QUESTION = "in_pairs"


def paired(starts, pieces):
    words = []
    for start in starts:
        pair = [micro for micro in (start, start + 1) if 0 <= micro < pieces]
        words += [f"F{micro}" for micro in pair] + [f"B{micro}" for micro in pair]
    return words


def lonely_one_first(rank, world_size, w, xs, batch, pieces):
    """Right: the micro-batch without a partner comes first, on all ranks."""
    words = paired(range(-(pieces % 2), pieces, 2), pieces)
    return follow(words, rank, world_size, w, xs, batch, send_first)


def lonely_one_left_out(rank, world_size, w, xs, batch, pieces):
    """the gradient without the micro-batch that has no partner"""
    words = paired(range(0, pieces - 1, 2), pieces)
    return follow(words, rank, world_size, w, xs, batch, send_first)


def one_by_one(rank, world_size, w, xs, batch, pieces):
    """one micro-batch after the other"""
    words = [f"{kind}{micro}" for micro in range(pieces) for kind in "FB"]
    return follow(words, rank, world_size, w, xs, batch, send_first)


def all_at_once(rank, world_size, w, xs, batch, pieces):
    """all forwards, then all backwards"""
    words = [f"{kind}{micro}" for kind in "FB" for micro in range(pieces)]
    return follow(words, rank, world_size, w, xs, batch, send_first)


def first_and_last_agree(rank, world_size, w, xs, batch, pieces):
    """the plan on which only the first and the last rank agree"""
    odd = pieces % 2
    starts = range(0, pieces, 2) if rank in (0, world_size - 1) else range(-odd, pieces, 2)
    return follow(paired(starts, pieces), rank, world_size, w, xs, batch, send_first)


def still_mixed_but_together(rank, world_size, w, xs, batch, pieces):
    """the words as they were, with both messages at the same time"""
    odd = pieces % 2
    starts = range(0, pieces, 2) if rank == 0 else range(-odd, pieces, 2)
    return follow(paired(starts, pieces), rank, world_size, w, xs, batch, together)


def mended_but_together(rank, world_size, w, xs, batch, pieces):
    """the mended words, with both messages at the same time"""
    words = paired(range(0, pieces, 2), pieces)
    return follow(words, rank, world_size, w, xs, batch, together)


def plan_of_task_3(rank, world_size, w, xs, batch, pieces):
    """the plan of task 3 with at most two micro-batches held"""
    words = {}
    for micro in range(pieces):
        start = micro // 2 * max(6, 3 * world_size) + micro % 2 * 3
        words[start + rank] = f"F{micro}"
        words[start + 3 * world_size - 2 * rank - 2] = f"B{micro}"
    in_order = [words[time] for time in sorted(words)]
    return follow(in_order, rank, world_size, w, xs, batch, together)


def padded(rank, world_size, w, xs, batch, pieces):
    """the micro-batch without a partner done twice"""
    odd = pieces % 2
    if xs is not None and odd:
        xs = [*xs, xs[-1]]
    words = paired(range(0, pieces + odd, 2), pieces + odd)
    return follow(words, rank, world_size, w, xs, batch, send_first)


def lonely_one_in_the_middle(rank, world_size, w, xs, batch, pieces):
    """Right: the micro-batch without a partner comes second, on all ranks."""
    starts = range(0, pieces, 2)
    if pieces % 2 and pieces > 1:
        words = ["F0", "F1", "B0", "B1", "F2", "B2"] + paired(range(3, pieces, 2), pieces)
    else:
        words = paired(starts, pieces)
    return follow(words, rank, world_size, w, xs, batch, send_first)


def done_apart(rank, world_size, w, xs, batch, pieces):
    """a step of its own for the micro-batch that has no partner"""
    words = paired(range(0, pieces - 1, 2), pieces)
    gradient = 0
    if words:
        gradient = follow(words, rank, world_size, w, xs, batch, send_first) * (len(words) // 2)
    if pieces % 2:
        words = [f"F{pieces - 1}", f"B{pieces - 1}"]
        gradient = gradient + follow(words, rank, world_size, w, xs, batch, send_first)
    return gradient


def with_a_barrier(rank, world_size, w, xs, batch, pieces):
    """the mended plan, with a barrier before it"""
    dist.barrier()
    return lonely_one_first(rank, world_size, w, xs, batch, pieces)


def backward_first(rank, world_size, w, xs, batch, pieces):
    """the pairs whose backwards come before their forwards"""
    words = []
    for start in range(0, pieces, 2):
        pair = range(start, min(start + 2, pieces))
        words += [f"{kind}{micro}" for kind in "BF" for micro in pair]
    return follow(words, rank, world_size, w, xs, batch, send_first)


def pairs_only(rank, world_size, w, xs, batch, pieces):
    """the pair of the last micro-batch and one that there is not"""
    words = []
    for start in range(0, pieces, 2):
        words += [f"{kind}{start + k}" for kind in "FB" for k in (0, 1)]
    return follow(words, rank, world_size, w, xs, batch, send_first)


def in_double_precision(rank, world_size, w, xs, batch, pieces):
    """the mended plan with activations in double precision"""

    def wide(outgoing, incoming):
        holder = incoming and (torch.empty(incoming[0].shape, dtype=torch.float64), incoming[1])
        send_first(outgoing and (outgoing[0].double(), outgoing[1]), holder)
        if incoming:
            incoming[0].copy_(holder[0])

    words = paired(range(0, pieces, 2), pieces)
    return follow(words, rank, world_size, w, xs, batch, wide)


WRONG = {
    backward_first: "that has not gone forward on this rank",
    pairs_only: "There is no such micro-batch",
    lonely_one_left_out: "is left out: its gradient counts, too",
    one_by_one: "Go on in pairs",
    all_at_once: "Take a pair backward before the next one comes",
    first_and_last_agree: "ranks 1 and 2 wait for each other",
    still_mixed_but_together: "ranks 0 and 1 wait for each other",
    mended_but_together: "keep send_first, which sends, then receives",
    plan_of_task_3: "Keep to F0 F1 B0 B1 F2",
    padded: "is done twice",
    done_apart: "Those are sums",
    with_a_barrier: "this question allows only",
    in_double_precision: "Only activations and their gradients need to cross",
}
ALSO_RIGHT = [lonely_one_first, lonely_one_in_the_middle]

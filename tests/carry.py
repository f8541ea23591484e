"""Carries out a schedule on sets of contributions: what every rank holds of every chunk.

A set of ranks is an integer, one bit for each. Adding is refused where a contribution would count
twice (but in a barrier, where it only means to have heard). Messages without data change nothing.
"""

from __future__ import annotations

import numpy as np


def carried(schedule, start):
    """What each rank holds at the end: array (n, chunks) of sets, from ``start`` of that form."""
    held = start.copy()
    chunks = len(schedule.chunk_nbytes)
    for round_ in schedule.rounds:
        before = held.copy()  # within a round all send what they had when it began
        columns = round_.src, round_.dst, round_.nbytes, round_.first, round_.count, round_.adds
        for src, dst, nbytes, first, count, adds in zip(*columns, strict=True):
            if not count:
                assert not nbytes
                continue
            places = first + np.arange(count)
            run = places % chunks if round_.order is None else round_.order[places]
            assert len(set(run)) == count
            assert nbytes == schedule.chunk_nbytes[run].sum()
            assert src != dst and 0 <= first < chunks and count <= chunks
            coming = before[src, run]
            assert coming.all(), "sends what it does not have"
            if adds or schedule.kind == "barrier":
                twice = held[dst, run] & coming
                assert schedule.kind == "barrier" or not twice.any(), "adds something twice"
                held[dst, run] |= coming
            else:
                held[dst, run] = coming
    return held


def owners(schedule):
    """Which rank each chunk belongs to: each has as many, one after the other."""
    chunks = len(schedule.chunk_nbytes)
    return np.arange(chunks) // max(chunks // schedule.n, 1)


def beginning(schedule):
    """What each rank brings: its own contribution, where it has one."""
    n, chunks, own = schedule.n, len(schedule.chunk_nbytes), 1 << np.arange(schedule.n)
    owner = owners(schedule)
    if schedule.kind in ("broadcast", "scatter"):
        has = np.arange(n)[:, None] == schedule.root
    elif schedule.kind in ("all_gather", "gather", "all_to_all"):
        has = np.arange(n)[:, None] == owner
    else:
        has = True
    return np.where(has & np.ones((n, chunks), dtype=bool), own[:, None], 0)


def result(schedule):
    """What each rank must hold at the end, and where it matters: two arrays (n, chunks)."""
    n, chunks = schedule.n, len(schedule.chunk_nbytes)
    ranks, chunk = np.arange(n)[:, None], np.arange(chunks)
    everywhere = np.ones((n, chunks), dtype=bool)
    all_of_us = np.full((n, chunks), (1 << n) - 1)
    at_root = everywhere & (ranks == schedule.root)
    own = owners(schedule)
    owner = np.broadcast_to(1 << np.minimum(own, n - 1), (n, chunks))
    from_root = np.full((n, chunks), 1 << (schedule.root or 0))
    return {
        "broadcast": (from_root, everywhere),
        "scatter": (from_root, ranks == own),
        "gather": (owner, at_root),
        "reduce": (all_of_us, at_root),
        "all_reduce": (all_of_us, everywhere),
        "all_gather": (owner, everywhere),
        "reduce_scatter": (all_of_us, ranks == own),
        "all_to_all": (np.broadcast_to(1 << (chunk // n), (n, chunks)), ranks == chunk % n),
        "barrier": (all_of_us, everywhere),
    }[schedule.kind]


def is_right(schedule, padded=False):
    """Whether the schedule computes what its kind promises.

    Chunks that are beyond the end of a ``padded`` vector need not be right.
    """
    wanted, matters = result(schedule)
    held = carried(schedule, beginning(schedule))
    if padded and schedule.kind != "barrier":
        matters = matters & (schedule.chunk_nbytes > 0)
    return bool((held == wanted)[matters].all())

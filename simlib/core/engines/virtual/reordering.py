"""Another admissible order of the same program: does anything else come out?"""

from __future__ import annotations

import torch

from ...diagnose.findings import Finding

VERDICTS = frozenset({"deadlock", "mismatch", "invalid", "rank_error", "rank_died"})
"""Kinds of failures that say something of the program, not of the machine or of who watches."""


def race(run, other, other_failure, seed, answers, other_answers):
    """The finding where a run in another order ends differently, or None.

    Parameters
    ----------
    run, other : Run
        In the usual order, and in that of the seed.
    other_failure : SimlibError or None
        What the other one ended with.
    seed : int
    answers, other_answers : dict
        rank -> what its function returned or raised, as bytes.
    """
    if other_failure is not None:
        first = str(other_failure).partition("\n")[0]
        what = f"the program fails in another admissible order: {first}"
    else:
        ranks = _where_they_differ(run, other, answers, other_answers)
        if not ranks:
            return None
        what = (
            f"rank {ranks[0]} returns {_short(other.results[ranks[0]])} in another admissible "
            f"order, and {_short(run.results[ranks[0]])} in the usual one"
        )
    sites = _where_they_part(run, other)
    where = "".join(f"; {site} took another message" for site in list(sites.values())[:1])
    return Finding("race", f"{what}{where} (simulate with seed={seed} shows it)", sites, other)


def are_same(run, other, answers, other_answers):
    """Whether two runs that ended well returned the same."""
    return not _where_they_differ(run, other, answers, other_answers)


def _where_they_differ(run, other, answers, other_answers):
    return [
        rank
        for rank in sorted(answers)
        if answers[rank] != other_answers[rank]
        and not _same(run.results[rank], other.results[rank])
    ]


def _same(one, other):
    """Whether two results are equal: tensors by value, dicts and sets in any order."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    try:
        return bool(one == other)
    except Exception:  # not to be compared: their bytes differ
        return False


def _short(value):
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def _where_they_part(run, other):
    """By rank, the first receive of any source that took another message."""
    sites = {}
    for rank in range(run.world_size):
        pairs = zip(run.trace.of_rank(rank), other.trace.of_rank(rank), strict=False)
        for one, two in pairs:
            if one.any_source and one.peer != two.peer:
                sites[rank] = one.site
                break
    return sites

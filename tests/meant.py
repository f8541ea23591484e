"""What a drawn call means, by hand: what each rank must hold after it."""

import functools
import itertools

from drawn_calls import flat

_COMBINE = {
    "SUM": lambda a, b: a + b,
    "AVG": lambda a, b: a + b,
    "PRODUCT": lambda a, b: a * b,
    "MIN": min,
    "MAX": max,
    "BAND": lambda a, b: int(a) & int(b),
    "BOR": lambda a, b: int(a) | int(b),
    "BXOR": lambda a, b: int(a) ^ int(b),
}


def meaning(case):
    """What each rank must hold after the call: elements of each tensor, None for any.

    None where the ranks ask for different things: other roots, reductions, dtypes, or lengths.
    """
    try:
        return _meaning(case)
    except _NoMeaning:
        return None


class _NoMeaning(Exception):
    pass


def _need(holds):
    if not holds:
        raise _NoMeaning


def _meaning(case):
    calls, n = case.calls, len(case.calls)
    present = [call for call in calls if call is not None]
    specs = [s for call in present for s in flat(call.takes) + flat(call.brings) if s.numel]
    _need(len({spec.dtype for spec in specs}) <= 1)
    for option in ("src", "dst", "reduce"):
        _need(len({call.options.get(option) for call in present}) == 1)
    root = calls[0].options.get("src", calls[0].options.get("dst", 0)) if calls[0] else 0
    _need(0 <= root < n)
    name = present[0].options.get("reduce", "SUM")
    if case.op == "message":
        return _meaning_of_message(calls)
    takes = [flat(call.takes) for call in calls]
    found = _MEANINGS[case.op](_Asked(case, root, name))
    for taken, expected in zip(takes, found, strict=True):
        _need(len(taken) == len(expected))
        for spec, elements in zip(taken, expected, strict=True):
            _need(elements is None or len(elements) == spec.numel)
    return found


class _Asked:
    """What all ranks ask for.

    By rank: ``takes`` the specs of what it takes, ``own`` the elements that these have before, and
    ``brings`` the elements of what it brings besides.
    """

    def __init__(self, case, root, reduce):
        self.calls, self.root, self.n = case.calls, root, len(case.calls)
        self.takes = [flat(call.takes) for call in case.calls]
        self.own = [[spec.elements() for spec in taken] for taken in self.takes]
        self.brings = [[spec.elements() for spec in flat(call.brings)] for call in case.calls]
        self.combine = functools.partial(_combined, reduce)


def _combined(name, lists):
    _need(len({len(one) for one in lists}) == 1)
    if name not in ("SUM", "AVG", "PRODUCT"):
        _need(not any(isinstance(x, complex) for one in lists for x in one))
    total = [functools.reduce(_COMBINE[name], column) for column in zip(*lists, strict=True)]
    return [x / len(lists) for x in total] if name == "AVG" else total


def _cut_as(specs, elements):
    """Elements one after the other, cut as the tensors of a list."""
    ends = list(itertools.accumulate(spec.numel for spec in specs))
    _need(ends and ends[-1] == len(elements))
    return [elements[end - spec.numel : end] for spec, end in zip(specs, ends, strict=True)]


def _all_reduce(asked):
    total = asked.combine([sum(one, []) for one in asked.own])
    return [_cut_as(specs, total) for specs in asked.takes]


def _reduce(asked):
    total = asked.combine([one[0] for one in asked.own])
    return [[total if rank == asked.root else None] for rank in range(asked.n)]


def _gather(asked):
    _need(asked.calls[asked.root].takes is not None)
    everything = [one[0] for one in asked.brings]
    return [
        everything if rank == asked.root else [None] * len(asked.takes[rank])
        for rank in range(asked.n)
    ]


def _scatter(asked):
    _need(len(asked.brings[asked.root]) == asked.n)
    return [[part] for part in asked.brings[asked.root]]


def _reduce_scatter(asked):
    _need(all(len(one) == asked.n for one in asked.brings))
    return [[asked.combine([one[rank] for one in asked.brings])] for rank in range(asked.n)]


def _into_tensor(asked):
    return [[[x for one in asked.brings for x in one[0]]]] * asked.n


def _all_gather_coalesced(asked):
    _need(all(len(call.takes or ()) == asked.n for call in asked.calls))
    return [
        _cut_as(specs, [x for one in asked.brings for part in one for x in part])
        for specs in asked.takes
    ]


def _reduce_scatter_tensor(asked):
    total = asked.combine([one[0] for one in asked.brings])
    _need(len(total) % asked.n == 0)
    k = len(total) // asked.n
    return [[total[rank * k : (rank + 1) * k]] for rank in range(asked.n)]


def _all_to_all(asked):
    _need(all(len(one) == asked.n for one in asked.brings))
    return [[one[rank] for one in asked.brings] for rank in range(asked.n)]


def _parts_to_all(asked):
    parts = []
    for rank, call in enumerate(asked.calls):
        splits = call.options.get("splits", (None, None))
        incoming = _cut(asked.own[rank][0], asked.takes[rank][0], splits[0], asked.n)
        outgoing = _cut(asked.brings[rank][0], call.brings[0], splits[1], asked.n)
        parts.append((incoming, outgoing))
    for one, other in itertools.product(range(asked.n), range(asked.n)):
        _need(len(parts[one][0][other]) == len(parts[other][1][one]))
    return [[[x for r in range(asked.n) for x in parts[r][1][rank]]] for rank in range(asked.n)]


def _cut(elements, spec, splits, n):
    rows = spec.shape[0] if spec.shape else 1
    if not splits:
        _need(rows % n == 0)
        splits = [rows // n] * n
    _need(len(splits) == n and min(splits) >= 0 and sum(splits) == rows)
    row = len(elements) // max(1, rows)
    ends = list(itertools.accumulate(splits))
    return [elements[(e - s) * row : e * row] for s, e in zip(splits, ends, strict=True)]


_MEANINGS = {
    "all_reduce": _all_reduce,
    "all_reduce_coalesced": _all_reduce,
    "broadcast": lambda asked: [asked.own[asked.root]] * asked.n,
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
    "all_gather": lambda asked: [[one[0] for one in asked.brings]] * asked.n,
    "all_gather_coalesced": _all_gather_coalesced,
    "all_gather_into_tensor": _into_tensor,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter_tensor,
    "all_to_all": _all_to_all,
    "all_to_all_single": _parts_to_all,
}


def _meaning_of_message(calls):
    sends = {rank: call for rank, call in enumerate(calls) if call and call.brings}
    recvs = {rank: call for rank, call in enumerate(calls) if call and call.takes}
    _need(len(sends) == len(recvs) == 1)
    ((src, send),), ((dst, recv),) = sends.items(), recvs.items()
    _need(send.options["peer"] == dst and recv.options["peer"] in (src, None))
    _need(send.options.get("tag", 0) == recv.options.get("tag", 0))
    _need(send.brings[0].numel == recv.takes[0].numel)
    return [[send.brings[0].elements()] if rank == dst else [] for rank in range(len(calls))]


def is_right(case, outcomes, expected):
    """Whether every rank holds what the op means, and no memory beside its tensors was written."""
    if expected is None or any(outcome[0] != "done" for outcome in outcomes):
        return False
    tolerance = 0.02 if case.calls[0] and case.calls[0].options.get("reduce") == "AVG" else 0
    for (_, found, is_clean), wanted in zip(outcomes, expected, strict=True):
        if not is_clean:
            return False
        for numbers, elements in zip(found, wanted, strict=True):
            if elements is None:
                continue
            is_bool = any(isinstance(x, bool) for x in numbers)
            for x, y in zip(numbers, elements, strict=True):
                if abs(x - (bool(y) if is_bool else y)) > tolerance:
                    return False
    return True

"""The faults that end a run, in words and as a picture: mismatches and deadlocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from ..draw.display import Displayed
from ..model import errors
from ..model.words import MAX_LINES, MAX_NAMES, ranks_in_words, shortened
from .matching import Apart, Blocked, Matcher, Mismatch

RULES = {
    "collective": "every rank of a group must call the same collectives in the same order",
    "root": "every rank must name the same root",
    "reduce op": "every rank must reduce with the same operation",
    "dtype": "every rank must use the same dtype, because bytes are not converted",
    "shape": "every rank must bring as many elements as the others expect",
    "splits": "a rank must send as many elements as the other expects",
    "ranks": "every rank must name the same ranks",
}
"""For each value of `Mismatch.rule`, the rule that the mismatch breaks."""

AHEAD_OF_BACKWARD = (
    "the ranks are at different lines. Does one rank have fewer batches? Then use `with "
    "model.join():`. Or is a call inside an `if`?"
)
TWO_ORDERS = "the ranks enter the collectives of two groups in different orders: use one order"
ONE_CALL_AHEAD = (
    "a rank left out a call of this group, or made an extra call. Look at the first call that the "
    "ranks made at different lines: is one of these lines inside an `if`?"
)


@dataclass(frozen=True, slots=True, repr=False)
class WaitGraph(Displayed):
    """Which ranks wait for which: ``waits`` is ``{rank: Wait}``.

    ``cycle`` lists the ranks that wait for each other in a ring. ``gone`` says why other ranks can
    never answer: ``{rank: "has finished", ...}``.
    """

    waits: dict
    cycle: tuple
    gone: dict

    def __repr__(self):
        return str(self)

    def __str__(self):
        first = [rank for rank in self.cycle if rank in self.waits]
        waits = {rank: self.waits[rank] for rank in sorted(first)} | self.waits
        if len(waits) > MAX_LINES:
            folded = _folded_waits(self, waits)
            lines = shortened(list(folded), list(folded.values()))
        else:
            lines = list(map(_wait_line, waits.values()))
        return "\n".join(lines + shortened(_gone_lines(self.gone)))

    def picture(self) -> Any:
        """Draw ranks as nodes. An arrow points to each rank for which a rank waits. Returns a
        Figure."""
        from ..draw import draw_wait_graph

        return draw_wait_graph(self)

    def in_words(self) -> str:
        """A sentence that describes the picture, for readers who cannot see it."""
        from ..draw.text import graph_in_words

        return graph_in_words(self)

    def _repr_png_(self):
        from ..draw import png_of

        return png_of(self.picture())


def _folded_waits(graph, waits):
    """Lines that describe many waits. Each line says how many ranks wait.

    Waits for ranks that are gone or in the ring come first. Waits for the same ranks at the same
    line of code are one line. The other waits at the same line of code are one line for all groups.
    """
    roots = set(graph.cycle) if graph.cycle else set(graph.gone)
    direct, behind = {}, {}
    for wait in waits.values():
        op = wait.op
        if roots.intersection(wait.needs):
            direct.setdefault((op.call, op.site.where, op.group, wait.needs), []).append(wait)
        else:
            behind.setdefault((op.site.op, op.site.where), []).append(wait)
    lines = {}
    for alike in direct.values():
        ranks = [wait.rank for wait in alike]
        rest = _wait_line(alike[0]).partition(" waits for ")[2]
        lines[f"  {ranks_in_words(ranks)} {_verb(ranks, 'waits', 'wait')} for {rest}"] = len(ranks)
    for (call, where), alike in behind.items():
        ranks = [wait.rank for wait in alike]
        groups = dict.fromkeys(wait.op.group.description for wait in alike)
        named = f" in {', '.join(groups)}" if all(groups) else ""
        wait = f"{_verb(ranks, 'waits', 'wait')} for ranks that wait: {call}{named} ({where})"
        lines[f"  {ranks_in_words(ranks)} {wait}"] = len(ranks)
    return lines


def _gone_lines(gone):
    """One line for all ranks that ended in the same way."""
    alike = {}
    for rank, how in gone.items():
        alike.setdefault(how, []).append(rank)
    if len(gone) <= MAX_LINES:
        return [f"  rank {rank} {how}" for rank, how in gone.items()]
    return [
        f"  {ranks_in_words(ranks)} {_plural(how) if len(ranks) > 1 else how}"
        for how, ranks in alike.items()
    ]


def _verb(ranks, one, more):
    return one if len(ranks) == 1 else more


def _wait_line(wait):
    site, group = wait.op.site, _group_in_words(wait.op)
    text = f"   {site.line_text}" if site.line_text else ""
    needs = ranks_in_words(wait.needs)
    if wait.any_of and len(wait.needs) > 1:
        needs = f"a message from any of {needs}"
    return f"  rank {wait.rank} waits for {needs}: {site.op}{group} ({site.where}){text}"


def _group_in_words(op):
    """`` in group [0, 1]``, or nothing for the world, because torch stores an empty name for it."""
    group = op.group
    if not group.name:
        return ""
    if len(group) > MAX_NAMES or group.description:
        return f" in {group.description or 'the group'} of {ranks_in_words(group.ranks)}"
    return f" in group {list(group.ranks)}"


def deadlock(blocked: Blocked, gone: Mapping[int, str], matcher: Matcher) -> errors.DeadlockError:
    """The error for ranks that can never continue.

    Parameters
    ----------
    blocked : Blocked
    gone : dict
        ``{rank: "has finished"}`` of the ranks that have ended.
    matcher : Matcher
    """
    awaited = {rank: gone[rank] for rank in blocked.gone}
    graph = WaitGraph(blocked.waits, blocked.cycle, awaited)
    apart = _apart_of(blocked, matcher)
    message = "\n".join([_headline(blocked, awaited), str(graph), *_apart_in_words(apart)])
    hint = _hint(blocked, matcher, apart)
    if hint:
        message += f"\nHint: {hint}"
    sites = {rank: wait.op.site for rank, wait in blocked.waits.items()}
    return errors.DeadlockError(message, sites, graph=graph)


def _headline(blocked, awaited):
    cycle = blocked.cycle
    if any(blocked.waits[rank].any_of for rank in cycle) and awaited:
        return f"{ranks_in_words(blocked.waits)} wait for a message that no rank can send any more"
    if len(cycle) == 2:
        return f"{ranks_in_words(cycle)} wait for each other"
    if cycle:
        after = (*cycle[1:], cycle[0])
        ring = [f"{rank} for {other}" for rank, other in zip(cycle, after, strict=True)]
        if len(ring) > MAX_NAMES:
            ring[MAX_NAMES // 2 : -1] = ["..."]
        return f"{len(cycle):,} ranks wait in a ring: {', '.join(ring)}"
    if awaited:
        direct = [r for r, wait in blocked.waits.items() if set(wait.needs) & set(awaited)]
        alike = {}
        for rank in sorted(awaited):
            alike.setdefault(awaited[rank], []).append(rank)
        for_whom = [
            f"{ranks_in_words(ranks)}, which {_plural(how) if len(ranks) > 1 else how}"
            for how, ranks in alike.items()
        ]
        return (
            f"{ranks_in_words(direct)} {_verb(direct, 'waits', 'wait')} for "
            f"{', and for '.join(for_whom)}"
        )
    return f"{ranks_in_words(blocked.waits)} wait for a message that no rank can send any more"


def _plural(how):
    return how.replace("has ", "have ").replace("was ", "were ")


def _hint(blocked, matcher, apart):
    """A hint that says what to try, if simlib knows this kind of deadlock."""
    ops = [blocked.waits[rank].op for rank in (blocked.cycle or blocked.waits)]
    kinds = {op.kind for op in ops}
    return (_near_miss(ops, matcher, blocked.cycle) or _wrong_source(ops, matcher)) or (
        _hint_for_messages(blocked, ops, kinds)
        if kinds <= {"send", "recv"}
        else _hint_for_collectives(blocked, ops, kinds, apart)
    )


def _near_miss(ops, matcher, cycle):
    """A message that one of the ops would get if its tag, its group or its partner were right."""
    left = [op for op in matcher.unfinished() if op.is_p2p]
    for op in (op for op in ops if op.is_p2p):
        for other in left:
            if {op.kind, other.kind} != {"send", "recv"} or other.rank == op.rank:
                continue
            fits = other.peer in (op.rank, None) and op.peer in (other.rank, None)
            if fits and other.tag != op.tag:
                return (
                    f"rank {op.rank} says tag={op.tag}, but rank {other.rank} says tag={other.tag} "
                    f"({other.site.place}): use the same tag, and receive in the order of sending"
                )
            if fits and other.group != op.group:
                return (
                    f"rank {op.rank} calls {op.kind}{_group_in_words(op) or ' in the world'}, but "
                    f"rank {other.rank} calls {other.kind}"
                    f"{_group_in_words(other) or ' in the world'} "
                    f"({other.site.place}): both ranks must pass the same group"
                )
            beside = cycle and other.rank not in cycle  # it waits for those who wait in a circle
            if op.kind == "recv" and other.peer == op.rank and not fits and not beside:
                return (
                    f"rank {other.rank} has sent to rank {op.rank} ({other.site.place}), but rank "
                    f"{op.rank} waits for rank {op.peer}: check src and dst"
                )
    return ""


def _wrong_source(ops, matcher):
    """A send to a rank that has posted a recv from another rank, which sends nothing."""
    recvs = [op for op in matcher.unfinished() if op.kind == "recv" and not op.any_source]
    for op in (op for op in ops if op.kind == "send"):
        for recv in recvs:
            if (recv.rank, recv.tag, recv.group) == (op.peer, op.tag, op.group):
                name = op.call.partition("(")[0]
                return (
                    f"rank {op.rank}'s {name} to rank {op.peer} meets no recv, because rank "
                    f"{op.peer} receives from rank {recv.peer} ({recv.site.place}). Is the source "
                    "of this recv right?"
                )
    return ""


def _hint_for_messages(blocked, ops, kinds):
    requests = all(op.async_op for op in ops)
    if blocked.cycle and kinds == {"recv"}:
        if requests:
            return "send before you wait for the irecv"
        return f"{_all_of(ops)} receive first: let one of them send first"
    if blocked.cycle and kinds == {"send"}:
        if requests:
            return "call recv before you wait for the isend"
        return f"{_all_of(ops)} send first: let one of them receive first, or use isend"
    if blocked.gone:
        kind = next(op.kind for op in ops if set(blocked.waits[op.rank].needs) & set(blocked.gone))
        if kind == "send":
            return "no rank receives this message: a send needs a recv on the other side"
        return "no message is left for this recv: there are more recvs than sends"
    return ""


def _all_of(ops):
    return "both" if len(ops) == 2 else "all of them"


def _are_in_backward(ops):
    return any(".backward()" in op.site.line_text for op in ops)


def _hint_for_collectives(blocked, ops, kinds, apart):
    if _are_in_backward(ops):
        return (
            "does one rank have fewer batches? Then use `with model.join():`. Every rank must also "
            "use every parameter"
        )
    if kinds & {"send", "recv"}:
        return "a collective needs all ranks of its group, but some wait in a send or recv"
    if blocked.cycle and len({op.group for op in ops}) > 1:
        return ONE_CALL_AHEAD if apart else TWO_ORDERS
    return (
        "every rank of a group must make the call. Is the call inside an `if`, or in a loop that "
        "some ranks leave earlier?"
    )


def mismatch(found: Mismatch) -> errors.MismatchError:
    """The error for ops that belong together but disagree."""
    headline = f"{_contrast(found)}: {RULES[found.rule]}"
    apart = _apart_in_words(found.apart) if _are_apart(found.ops.values()) else []
    message = "\n".join([headline, *_who_called_what(found.ops), *apart])
    ops = found.ops.values()
    if _are_in_backward(ops) and len({op.site.place for op in ops}) > 1:
        message += f"\nHint: {AHEAD_OF_BACKWARD}"
    sites = {rank: op.site for rank, op in sorted(found.ops.items())}
    return errors.MismatchError(message, sites, rule=found.rule)


def _who_called_what(ops):
    """One line for each set of like ops: their ranks, what they bring, and their line of code."""
    alike: dict[tuple[str, str], list[int]] = {}
    for rank, op in sorted(ops.items()):
        alike.setdefault((_in_full(op), op.site.where), []).append(rank)
    lines = []
    for (words, where), ranks in alike.items():
        op = ops[ranks[0]]
        text = f"   {op.site.line_text}" if op.site.line_text else ""
        lines.append(f"  {ranks_in_words(ranks)}: {words}{_group_in_words(op)} ({where}){text}")
    return lines


def _are_apart(ops):
    first, *others = (op.site for op in ops)
    return not all(site.is_at_line_of(first) for site in others)


def _apart_of(blocked, matcher):
    """The `Apart` of a group in the ring, or of the only group in which ranks wait, or None."""
    ops = [blocked.waits[rank].op for rank in blocked.cycle or blocked.waits]
    groups = {op.group: op for op in ops if not op.is_p2p}
    if not blocked.cycle and len(groups) > 1:
        return None
    return next(filter(None, map(matcher.apart, groups.values())), None)


def _apart_in_words(apart: Apart | None):
    """Lines that say since when ranks were at different lines of code although their calls
    matched."""
    if apart is None:
        return []
    headline = f"Since call {apart.number} of this group its ranks were at different lines:"
    calls = dict.fromkeys(line for ops in apart.calls.values() for line in _who_called_what(ops))
    return [headline, *shortened(list(calls))]


def _contrast(found):
    """A clause that says which ranks differ from which other ranks."""
    ops = list(found.ops.values())
    if found.rule == "splits":
        return _contrast_of_splits(ops)
    send = next((op for op in ops if op.kind == "send"), None)
    if send is not None:
        recv = next(op for op in ops if op.kind == "recv")
        return (
            f"rank {send.rank} sends {_amount(send)} to rank {recv.rank}, which expects "
            f"{_amount(recv)}"
        )
    (few_point, few), (many_point, many), *_ = sides(found)
    return (
        f"{ranks_in_words(few)} {_verb(few, *_VERBS[found.rule])} {few_point}, but "
        f"{ranks_in_words(many)} {_verb(many, *_VERBS[found.rule])} {many_point}"
    )


def sides(found: Mismatch) -> list[tuple[str, list[int]]]:
    """The values that disagree in a collective's ops, and the ranks of each; the rarest first."""
    brought: dict[str, list[int]] = {}
    for rank, op in sorted(found.ops.items()):
        brought.setdefault(_point(found.rule, op), []).append(rank)
    return sorted(brought.items(), key=lambda side: (len(side[1]), -side[1][0]))


_VERBS = {
    "collective": ("calls", "call"),
    "root": ("names", "name"),
    "reduce op": ("reduces with", "reduce with"),
    "dtype": ("brings", "bring"),
    "shape": ("brings", "bring"),
    "ranks": ("asks for", "ask for"),
}


def _point(rule, op):
    """The value of an op that must agree, in words."""
    return {
        "collective": op.kind,
        "root": f"{'dst' if op.kind in ('gather', 'reduce') else 'src'}={op.peer}",
        "reduce op": op.reduce_op,
        "dtype": op.dtype,
        "shape": _elements(op),
        "ranks": f"the ranks {list(op.splits or ())}",
    }[rule]


def _contrast_of_splits(ops):
    for one in ops:
        for other in ops:
            ranks = one.group.ranks
            sent = one.splits[0][ranks.index(other.rank)]
            expected = other.splits[1][ranks.index(one.rank)]
            if sent != expected:
                return (
                    f"rank {one.rank} sends {_count(sent)} to rank {other.rank}, which expects "
                    f"{expected}"
                )
    return "the parts do not fit"


def _count(number):
    return f"{number} element{'' if number == 1 else 's'}"


def _elements(op):
    sizes = [prod(shape) for shape in op.shapes]
    if len(sizes) > 1 and len(set(sizes)) == 1:
        return f"{len(sizes)} x {_count(sizes[0])}"
    if len(sizes) > 1 and op.kind == "reduce_scatter":  # each is for another rank
        return f"tensors of {sizes} elements"
    return _count(sum(sizes))


def _amount(op):
    return f"{_elements(op)} of {op.dtype}"


def _in_full(op):
    """Describe an op with everything that must agree: its call, dtype and sizes."""
    if op.kind == "new_group":
        return f"new_group({list(op.splits)})"
    if op.kind == "barrier":
        return op.call
    if op.splits is not None:
        sent, expected = map(list, op.splits)
        return f"{op.call} of {op.dtype}, sending {sent}, expecting {expected}"
    return f"{op.call} of {_amount(op)}"

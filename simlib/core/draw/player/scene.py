"""A run as the plain data that the player in the browser draws: lanes, events, arrows, bands.

For a large run, the player shows only some messages and collectives, spread evenly over time.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...model.trace import Collective, Message, Op, Trace, WireMessage
from ...model.words import ranks_text, short_bytes
from ..lanes import (
    STATES,
    Between,
    Ranks,
    blocked_parts,
    chosen,
    drawn_until,
    in_sight,
    mostly,
    never_finished,
    span_of,
    states_of,
    unit_of,
)
from ..palette import on_dark, rank_color, shades_of
from ..streams import MOST_RANKS, hidden_streams, streams_of
from ..text import carried, collective_text, count, kept_of, run_in_words

Rows = Mapping[Any, int]
"""A rank -> its row in the scene, or an op's identity -> its number."""
FOLDER = Path(__file__).parent
SCRIPTS = ("scene", "labels", "draw", "controls", "paint", "hands", "player")
"""The scripts for the browser. Joined in this order they are one ES module, without a build."""
STYLE = (FOLDER / "player.css").read_text(encoding="utf-8")
MAX_EVENTS = 1000
MAX_LANES = 64
COLUMNS = 2000
"""A thinned run has at most this many columns for its states."""
MAX_PIECES = 2000
"""A lane keeps at most this many named pieces, the first ones."""
MAX_BOXES = 4000
"""A coarsened run has at most this many states, in all lanes together."""


def scene_of(run: Any, ranks: Ranks = None, between: Between = None) -> dict[str, Any]:
    """The data of a run for the player, as dicts, lists, numbers and strings; times in s.

    Parameters
    ----------
    run : Run
    ranks : iterable of int, optional
        The ranks to show, from top to bottom. The default is all ranks, or the first 64 ranks if
        there are more.
    between : (float, float), optional
        First and last second to show. The default is the whole run.

    Raises
    ------
    InvalidCallError
        See `simlib.draw.lanes.chosen`.

    **Cost** O(n log n) for n ops.
    """
    asked, begin_s, end_s = chosen(run, ranks, between)
    shown = asked[:MAX_LANES]
    rows = {rank: row for row, rank in enumerate(shown)}
    ops = [op for op in run.trace if op.rank in rows and in_sight(op, begin_s, end_s)]
    found = happenings(run, ops, rows, begin_s, end_s)
    kept = thinned(found, MAX_EVENTS)
    sizes = [sum(happening.size for happening in part) for part in (kept, found)]
    unit, scale = unit_of(end_s - begin_s)
    scene = {
        "title": f"{run.name} on {ranks_text(run)}",
        "words": run_in_words(run, shown, (begin_s, end_s)),
        "clock": "time" if run.engine == "real" else "virtual time",
        "unit": unit,
        "scale": scale,
        "begin": begin_s,
        "end": end_s,
        "notes": notes_of(run, asked, shown, *sizes),
        "shades": shades_of(run.trace),
        "shown": sizes[0],
        "total": sizes[1],
        "lanes": lanes_of(run, shown, ops, (begin_s, end_s), coarse=len(kept) < len(found)),
    }
    return scene | happenings_as_data(run, kept, rows)


def notes_of(
    run: Any, asked: Sequence[int], shown: Sequence[int], events: int, total: int
) -> list[str]:
    """The parts that are not shown, one sentence each."""
    notes = []
    if events < total:
        notes.append(
            f"{events:,} of {total:,} events are shown, spread evenly over the run; "
            "between=(t0, t1) shows more of the events between two times"
        )
    if len(shown) < len(asked):
        notes.append(f"{len(shown)} of {len(asked):,} ranks are shown; to see others, give ranks=")
    notes += hidden_streams(run, shown)
    if run.trace.forgotten is not None:
        notes.append(kept_of(run.trace))
    if run.trace.dropped:
        notes.append(f"simlib did not record {count(run.trace.dropped, 'further op')}")
    return notes


def lanes_of(
    run: Any, ranks: Sequence[int], ops: Iterable[Op], times: tuple[float, float], coarse: bool
) -> list[dict[str, Any]]:
    """One dict per rank: its colours, its time in the function, and its states over time."""
    by_rank: dict[int, list[Op]] = {rank: [] for rank in ranks}
    for op in ops:
        by_rank[op.rank].append(op)
    lanes: list[dict[str, Any]] = []
    for rank, own in by_rank.items():
        span = span_of(run.trace, rank)
        until_s = drawn_until(run.trace, rank, own, times[1])
        states = states_of(run, rank, own, until_s)
        lanes.append(
            {
                "rank": rank,
                "color": rank_color(rank),
                "on_dark": on_dark(rank_color(rank)),
                "until": until_s,
                "record": _record_of(run.trace, rank),
                "returned": bool(span and span[2]),
                "open": never_finished(run.trace, rank, own),
                "states": states,
                "pieces": pieces_of(run, rank, times, until_s),
                "streams": list(streams_of(run, rank, *times).items())
                if len(ranks) <= MOST_RANKS
                else [],
            }
        )
    if coarse:
        coarsen([lane["states"] for lane in lanes], times)
    return lanes


def _record_of(trace: Trace, rank: int) -> str:
    """The part of a rank's time that has a record, if it is not the whole time."""
    if rank in trace.missing:
        return "none"
    return "part" if rank in trace.last_seen_s else "all"


def pieces_of(run: Any, rank: int, times: tuple[float, float], until_s: float) -> list[list]:
    """The named pieces of a rank's work: start, end, share of black, label."""
    shades = shades_of(run.trace)
    found = []
    for piece in run.trace.pieces:
        start_s, end_s = piece.span(until_s)
        if piece.rank == rank and start_s <= times[1] and end_s >= times[0]:
            found.append([start_s, end_s, shades[piece.name], piece.label])
    return found[:MAX_PIECES]


def coarsen(lanes: list[dict], times: tuple[float, float]) -> None:
    """Leave at most `MAX_BOXES` boxes in these lanes: each column has its most frequent state."""
    names = STATES[1:]  # "computing" is the whole span
    columns, coarse = 2 * COLUMNS, None
    while (
        coarse is None or sum(len(parts) for lane in coarse for parts in lane.values()) > MAX_BOXES
    ):
        columns //= 2
        coarse = [{name: mostly(lane[name], *times, columns) for name in names} for lane in lanes]
    for lane, coarser in zip(lanes, coarse, strict=True):
        lane.update(coarser)


def happenings_as_data(run: Any, kept: list[Happening], rows: Rows) -> dict[str, list]:
    """``events`` (one per op), and the ``arrows`` and ``bands`` that join them."""
    ops = sorted(
        (op for happening in kept for op in happening.ops), key=lambda op: (op.post_s, op.rank)
    )
    number = {id(op): index for index, op in enumerate(ops)}
    arrows, bands = [], []
    for happening in kept:
        thing = happening.thing
        if isinstance(thing, Message) and thing.src in rows and thing.dst in rows:
            arrows.append(arrow_of(thing, rows, number))
        elif isinstance(thing, WireMessage):
            arrows.append(wire_arrow_of(thing, rows))
        elif isinstance(thing, Collective):
            members = sorted(happening.ops, key=lambda op: rows[op.rank])
            bands.append(
                {"events": [number[id(op)] for op in members], "text": collective_text(thing)}
            )
    events = [event_of(op, rows, run) for op in ops]
    return {"events": events, "arrows": arrows, "bands": bands}


def event_of(op: Op, rows: Rows, run: Any) -> dict[str, Any]:
    """One op, with a text for the learner. If the op ended, the text says how long the rank
    waited."""
    spent = {"waiting": 0.0, "transferring": 0.0}
    for state, start_s, end_s in blocked_parts(op, 0.0, run.transfers) if op.done else ():
        spent[state] += end_s - start_s
    size = f"{count(op.nbytes, 'byte')}  {carried(op)}".strip() if op.kind != "barrier" else ""
    return {
        "row": rows[op.rank],
        "call": op.call,
        "size": size,
        "group": "" if op.group.name == "world" else op.group.name,
        "post": op.post_s,
        "wait": op.wait_s,
        "end": op.end_s,
        "waited": spent["waiting"],
        "transferred": spent["transferring"],
        "async": op.async_op,
        "place": op.site.place,
        "code": op.site.line_text,
    }


def arrow_of(message: Message, rows: Rows, number: Rows) -> dict[str, Any]:
    """A message of the program itself; ``end`` is None if it never arrived."""
    recv = message.recv
    return {
        "src": rows[message.src],
        "dst": rows[message.dst],
        "start": message.send.post_s,
        "end": recv.end_s if recv is not None and recv.done else None,
        "text": short_bytes(message.nbytes),
        "wire": False,
        "events": [number[id(op)] for op in (message.send, message.recv) if id(op) in number],
    }


def wire_arrow_of(wire: WireMessage, rows: Rows) -> dict[str, Any]:
    """A message of a simulated collective."""
    return {
        "src": rows[wire.src],
        "dst": rows[wire.dst],
        "start": wire.start_s,
        "end": wire.end_s,
        "text": short_bytes(wire.nbytes),
        "wire": True,
        "events": [],
    }


@dataclass(slots=True)
class Happening:
    """Ops that belong together: a message's two ops, all ops of a collective, a lone receive.

    Attributes
    ----------
    ops : list of Op
        The visible ops. Empty for a message of a simulated collective.
    thing : Message, Collective, WireMessage or None
        The thing that the ops form; None for a receive without a message.
    """

    ops: list
    thing: Any = None

    @property
    def size(self) -> int:
        """The number of events as which these ops count."""
        return max(1, len(self.ops))

    @property
    def start_s(self) -> float:
        """Its beginning."""
        return min((op.post_s for op in self.ops), default=getattr(self.thing, "start_s", 0.0))

    @property
    def stuck(self) -> bool:
        """Whether a rank never returned from one of the ops. Learners look for such ops first."""
        return any(not op.done and (op.wait_s is not None or not op.async_op) for op in self.ops)

    @property
    def open(self) -> bool:
        """Whether an op never completed. A message that arrived is complete, even without a
        wait."""
        if isinstance(self.thing, Message) and self.thing.recv is not None:
            return not self.thing.recv.done
        return not all(op.done for op in self.ops)

    @property
    def maker(self) -> Any:
        """The group or the rank that made these ops. A thinned run keeps the same share of each
        maker."""
        if isinstance(self.thing, Collective):
            return self.thing.group
        return self.ops[0].rank if self.thing is None else self.thing.src


def happenings(
    run: Any, ops: Iterable[Op], rows: Rows, begin_s: float, end_s: float
) -> list[Happening]:
    """The happenings of these ops, in order of time, with the wire's messages between the rows."""
    seen = {id(op) for op in ops}
    found: list[Happening] = []
    taken: set[int] = set()
    trace = run.trace
    for message in trace.messages:
        pair = [op for op in (message.send, message.recv) if op is not None and id(op) in seen]
        taken.update(map(id, pair))
        if pair:
            found.append(Happening(pair, message))
    for collective in trace.collectives:
        members = [op for op in collective.ops.values() if id(op) in seen]
        if members:
            found.append(Happening(members, collective))
    found += [Happening([op]) for op in ops if op.is_p2p and id(op) not in taken]
    for wire in run.wire or ():
        inside = wire.start_s <= end_s and wire.end_s >= begin_s
        if inside and wire.src in rows and wire.dst in rows:
            found.append(Happening([], wire))
    return sorted(found, key=lambda happening: happening.start_s)


def thinned(found: list[Happening], most: int) -> list[Happening]:
    """At most ``most`` events of these happenings. Each kind is spread evenly over its time.

    The function first takes happenings from which a rank never returned, at most one for each rank.
    Other happenings may never have completed either, for example all sends if nobody receives.
    These get half of the remaining room, or more if all others need less.
    """
    stuck = [happening for happening in found if happening.stuck]
    never = [happening for happening in found if happening.open and not happening.stuck]
    rest = [happening for happening in found if not (happening.open or happening.stuck)]
    kept = evenly(stuck, most)
    room = most - size_of(kept)
    kept += evenly(never, max(room // 2, room - size_of(rest)))
    kept += evenly(rest, most - size_of(kept))
    chosen = set(map(id, kept))
    return [happening for happening in found if id(happening) in chosen]


def evenly(found: list[Happening], room: int) -> list[Happening]:
    """At most ``room`` events: from several consecutive happenings of a maker, keep one.

    A random draw with a fixed seed decides which one. A fixed step, for example every tenth
    happening, could always hit the same part of a pattern that the program repeats.
    """
    if (total := size_of(found)) <= room:
        return found
    lot = random.Random(0)
    kept, by_maker = [], defaultdict(list)
    for happening in found:
        by_maker[happening.maker].append(happening)
    for own in by_maker.values():
        largest = max(happening.size for happening in own)
        parts = size_of(own) * room // (total * largest)
        edges = [part * len(own) // parts for part in range(parts)] + [len(own)]
        kept += [own[lot.randrange(*edge)] for edge in pairwise(edges)]
    return kept


def size_of(found: Iterable[Happening]) -> int:
    """The number of events as which these happenings count."""
    return sum(happening.size for happening in found)

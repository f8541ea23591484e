"""A run as the plain data that the player in the browser draws: lanes, events, arrows, bands.

Of a large run a part of the events is shown: whole messages and collectives, evenly in time.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...model.trace import Collective, Message, Op, WireMessage
from ...model.words import ranks_text, short_bytes
from ..lanes import (
    STATES,
    Between,
    Ranks,
    blocked_parts,
    chosen,
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
"""Rank, or an op's identity -> its row, or number, in the scene."""
FOLDER = Path(__file__).parent
SCRIPTS = ("scene", "labels", "draw", "controls", "paint", "hands", "player")
"""They draw it in the browser: joined in this order they are one ES module, without a build."""
STYLE = (FOLDER / "player.css").read_text(encoding="utf-8")
MAX_EVENTS = 1000
MAX_LANES = 64
COLUMNS = 2000
"""Into how many columns the states of a thinned run are coarsened, at the most."""
MAX_PIECES = 2000
"""How many named pieces a lane has at the most: the first."""
MAX_BOXES = 4000
"""How many of those states a coarsened run has at the most, over all lanes."""


def scene_of(run: Any, ranks: Ranks = None, between: Between = None) -> dict[str, Any]:
    """Everything the player shows of a run, as dicts, lists, numbers and strings; times in s.

    Parameters
    ----------
    run : Run
    ranks : iterable of int, optional
        The ranks to show, from top to bottom (all; of many, the first 64).
    between : (float, float), optional
        First and last second to show (the whole run).

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
    """What is not shown, one sentence each."""
    notes = []
    if events < total:
        notes.append(
            f"{events:,} of {total:,} events are shown, evenly over the run; "
            "between=(t0, t1) shows a part of the time, with more of its events"
        )
    if len(shown) < len(asked):
        notes.append(f"{len(shown)} of {len(asked):,} ranks are shown; ranks=[...] chooses others")
    notes += hidden_streams(run, shown)
    if run.trace.forgotten is not None:
        notes.append(kept_of(run.trace))
    if run.trace.dropped:
        notes.append(f"{run.trace.dropped:,} further ops were not recorded")
    return notes


def lanes_of(
    run: Any, ranks: Sequence[int], ops: Iterable[Op], times: tuple[float, float], coarse: bool
) -> list[dict[str, Any]]:
    """One dict per rank: its colours, when it was in its function, what it did when."""
    by_rank: dict[int, list[Op]] = {rank: [] for rank in ranks}
    for op in ops:
        by_rank[op.rank].append(op)
    lanes: list[dict[str, Any]] = []
    for rank, own in by_rank.items():
        span = span_of(run.trace, rank)
        until_s = span[1] if span else times[1]
        states = states_of(run, rank, own, until_s)
        lanes.append(
            {
                "rank": rank,
                "color": rank_color(rank),
                "on_dark": on_dark(rank_color(rank)),
                "until": until_s,
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


def pieces_of(run: Any, rank: int, times: tuple[float, float], until_s: float) -> list[list]:
    """The pieces that the program has named of a rank's work: start, end, share of black, label."""
    shades = shades_of(run.trace)
    found = []
    for piece in run.trace.pieces:
        start_s, end_s = piece.span(until_s)
        if piece.rank == rank and start_s <= times[1] and end_s >= times[0]:
            found.append([start_s, end_s, shades[piece.name], piece.label])
    return found[:MAX_PIECES]


def coarsen(lanes: list[dict], times: tuple[float, float]) -> None:
    """Leave at most `MAX_BOXES` boxes in these lanes' states: each column is what it is mostly."""
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
    """``events`` (one per op), and what joins them: ``arrows`` and ``bands``."""
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
    """One op, with the words a learner reads about it; how long it waited, if it ended."""
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
    """A message of the program's own; ``end`` is None where it never arrived."""
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
    """A message that a simulated collective was made of."""
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
    """What belongs together: a message's two ops, all ops of a collective, a lone receive.

    Attributes
    ----------
    ops : list of Op
        Those in sight; empty for a message of the wire.
    thing : Message, Collective, WireMessage or None
        What the ops make; None for a receive that got nothing.
    """

    ops: list
    thing: Any = None

    @property
    def size(self) -> int:
        """How many events it counts for."""
        return max(1, len(self.ops))

    @property
    def start_s(self) -> float:
        """When it began."""
        return min((op.post_s for op in self.ops), default=getattr(self.thing, "start_s", 0.0))

    @property
    def stuck(self) -> bool:
        """Whether a rank never came out of it: what a learner looks for first."""
        return any(not op.done and (op.wait_s is not None or not op.async_op) for op in self.ops)

    @property
    def open(self) -> bool:
        """Whether it never came about. A message that arrived did, awaited by its sender or not."""
        if isinstance(self.thing, Message) and self.thing.recv is not None:
            return not self.thing.recv.done
        return not all(op.done for op in self.ops)

    @property
    def maker(self) -> Any:
        """Whose it is: of each maker, as many of its happenings are kept as of any other."""
        if isinstance(self.thing, Collective):
            return self.thing.group
        return self.ops[0].rank if self.thing is None else self.thing.src


def happenings(
    run: Any, ops: Iterable[Op], rows: Rows, begin_s: float, end_s: float
) -> list[Happening]:
    """What happened to these ops, in order of time, with the wire's messages between the rows."""
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
    """At most so many events of these happenings, each sort of them evenly over its time.

    First come those that a rank never came out of, one for each rank at the most. What else never
    came about, as all sends do where nobody receives, has half of the room that is left, or more
    where the rest needs less.
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
    """At most so many events of these happenings: of every maker, one of so many in a row.

    Which one of them is drawn by lot, always the same lot: every tenth, or every multiple of any
    number, can fall into step with what a program repeats.
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
    """How many events these happenings count for."""
    return sum(happening.size for happening in found)

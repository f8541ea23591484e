"""A run as text: the table that it prints, and its pictures in sentences.

The table is the same for every repeat of the same program. It contains times only if a virtual
clock gives the same times in every repeat.
"""

from __future__ import annotations

import re
import reprlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from ..model.ledger import GpuMemory
from ..model.profile import MOST_SPANS
from ..model.trace import Collective, Op, Trace
from ..model.words import aligned, ranks_in_words, ranks_text, seconds_text, short_bytes
from .lanes import Between, Ranks, apart, blocked_parts, chosen, in_sight, span_of

OpCounts = Sequence[tuple[str, tuple[int, ...], bool]]
"""For each kind of op: its label, how many ops each run has, and whether these numbers are
equal."""
MAX_ROWS = 20
FEWEST, MOST_COMPARED = 3, 10_000
"""A table folds at least this many equal rows into one row. It compares at most this many rows."""
RESULT_WIDTH = 36


def run_table(run: Any) -> str:
    """Describe a run in plain text: what each rank returned, then what the ranks exchanged.

    Rows are ordered by rank and by each rank's own sequence, never by time.

    Returns
    -------
    str

    **Cost** O(number of ops).
    """
    trace = run.trace
    messages, collectives = trace.messages, trace.collectives
    parts = [_header(run, messages, collectives)]
    if run.failure is not None:
        parts.append([f"failed: {run.failure.partition(chr(10))[0]}"])
    parts.append(_rank_rows(run, messages))
    moves = _message_rows(trace, messages)
    joint = _collective_rows(run, collectives)
    # Each list may use the rows that the other leaves free.
    parts.append(_shown(moves, "messages", max(MAX_ROWS // 2, MAX_ROWS - len(joint))))
    parts.append(_shown(joint, "collectives", max(MAX_ROWS // 2, MAX_ROWS - len(moves))))
    parts.append(_gpu_rows(run.memory or ()))
    parts.append([f"finding: {' '.join(str(found).split())}" for found in run.findings])
    if trace.forgotten is not None:
        words = kept_of(trace)
        parts.append([f"{words}. Rows, trace and pictures show these ops. Sums count all ops"])
    parts.append(_clocks(trace))
    parts.append(_not_profiled(run))
    if trace.dropped:
        advice = "simlib run --watch does not stop recording"
        parts.append([f"simlib did not record {count(trace.dropped, 'further op')}: {advice}"])
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _clocks(trace):
    """How well the clocks of ranks agree, if they were compared."""
    if len(trace.clock_offsets_s) < 2:
        return []
    error = seconds_text(trace.clock_error_s)
    rank, ahead_s = max(trace.clock_offsets_s.items(), key=lambda pair: abs(pair[1]))
    if not ahead_s:
        text = f"the clocks of the ranks agree to within {error}"
    else:
        first, side = min(trace.clock_offsets_s), "ahead of" if ahead_s > 0 else "behind"
        text = (
            f"simlib corrected the clocks: rank {rank}'s clock was {seconds_text(abs(ahead_s))} "
            f"{side} rank {first}'s clock. The corrected clocks may still differ by {error}"
        )
    return [text]


def _not_profiled(run):
    """The missing parts of a profile, with a line for each reason."""
    why = defaultdict(list)
    profiles = run.profile or ()
    for rank, profile in enumerate(profiles):
        if rank not in run.ran:
            continue
        why[profile.why_none if profile else "the rank did not finish"].append(rank)
    told = [(text, ranks_in_words(own)) for text, own in why.items() if text]
    lines = [f"there is no profile of {ranks}: {text}" for text, ranks in told]
    short = [rank for rank, profile in enumerate(profiles) if profile and profile.left_out]
    if short:
        lines.append(
            f"simlib keeps the first {MOST_SPANS:,} spans in the profile of "
            f"{ranks_in_words(short)}. The sums include all spans"
        )
    return lines


def _gpu_rows(memory):
    """A row for each GPU that a rank used, with its peaks. They may differ between repeats."""
    used = [one for one in memory if isinstance(one, GpuMemory)]
    rows = [
        (str(one.rank), device, short_bytes(nbytes), short_bytes(one.reserved[device]))
        for one in used
        for device, nbytes in one.allocated.items()
    ]
    shown = aligned([("rank", "GPU", "allocated", "reserved at the peak"), *rows[:MAX_ROWS]])
    left_out = len(rows) - MAX_ROWS
    more = [f"... and {count(left_out, 'more GPU')}"] if left_out > 0 else []
    return [*shown, *more] if rows else []


def _header(run, messages, collectives):
    number, nbytes = len(messages), sum(message.nbytes for message in messages)
    joint, forgotten = len(collectives), run.trace.forgotten
    if forgotten is not None:
        number += sum(messages for messages, _ in forgotten.sent.values())
        nbytes += sum(nbytes for _, nbytes in forgotten.sent.values())
        joint += forgotten.collectives
    return [
        f"{run.name} on {count(run.world_size, f'{run.engine} rank')}: {count(number, 'message')}, "
        f"{count(nbytes, 'byte')}; {count(joint, 'collective')}"
    ]


def _rank_rows(run, messages):
    sent, received = ([[0, 0] for _ in range(run.world_size)] for _ in range(2))
    for message in messages:
        _add(sent[message.src], message.nbytes)
        if message.recv is not None and message.recv.done:
            _add(received[message.recv.rank], message.recv.nbytes)
    joined = [0] * run.world_size
    for op in run.trace:
        joined[op.rank] += not op.is_p2p
    if run.trace.forgotten is not None:
        _add_forgotten(run.trace.forgotten, sent, received, joined)
    times = _time_columns(run)
    is_part = run.trace.last_seen_s
    rows = [("rank", "record" if is_part else "result", "sent", "received", "collectives", *times)]
    for rank in range(min(run.world_size, MAX_ROWS)):
        result = short_repr(run.results[rank] if rank < len(run.results) else None)
        if is_part:
            result = "none" if rank in run.trace.missing else "part"
        rows.append(
            (
                str(rank),
                result,
                _traffic(*sent[rank]),
                _traffic(*received[rank]),
                str(joined[rank]),
                *(seconds_text(s[rank]) if rank in run.ran else "-" for s in times.values()),
            )
        )
    lines = aligned(rows, left=(1, 2, 3))
    if run.world_size > MAX_ROWS:
        lines.append(f"... and {run.world_size - MAX_ROWS:,} more ranks")
    return lines


def _add_forgotten(forgotten, sent, received, joined):
    for (src, _), (messages, nbytes) in forgotten.sent.items():
        _add(sent[src], nbytes, messages)
    for rank, (messages, nbytes) in enumerate(forgotten.received):
        _add(received[rank], nbytes, messages)
        joined[rank] += forgotten.joined[rank]


def _time_columns(run):
    """``{"computed": seconds by rank, ...}``, or an empty dict if the times differ between
    repeats."""
    if not run.repeats:
        return {}
    states = run.states
    return {
        "computed": states.computing_s,
        "waited": states.waiting_s,
        "transferred": states.transferring_s,
    }


def _add(total, nbytes, messages=1):
    total[0] += messages
    total[1] += nbytes


def _traffic(messages, nbytes):
    return f"{messages:,} ({count(nbytes, 'byte')})" if messages else "-"


def _message_rows(trace, messages):
    """Functions that make rows: one for each message, by sender, then one for each open receive."""
    taken = {id(message.recv) for message in messages}
    lone = [op for op in trace if op.kind == "recv" and id(op) not in taken]
    messages.sort(key=lambda message: (message.src, message.send.seq))
    lone.sort(key=lambda op: (op.rank, op.seq))
    return [(_message_row, message) for message in messages] + [(_lone_row, op) for op in lone]


def _message_row(message):
    if message.recv is None:
        state = "not received"
    else:
        state = "" if message.recv.done else "not finished"
    return (f"{message.src} -> {message.dst}", *_op_cells(message.send), state)


def _lone_row(op):
    src = "any" if op.peer is None else op.peer
    return (f"{op.rank} <- {src}", *_op_cells(op), "" if op.done else "nothing received")


def _collective_rows(run, collectives):
    """Functions that make rows: collectives of the world, then of each group, in group order."""
    world = tuple(range(run.world_size))

    def order(collective):
        ranks = collective.group.ranks
        return (ranks != world, ranks, collective.group.name)

    # The sort is stable: within a group the order of the group's own calls stays.
    who = world, set(run.ran), set(run.trace.missing)
    return [(_collective_row, (each, *who)) for each in sorted(collectives, key=order)]


def _collective_row(parts):
    collective, world, ran, missing = parts
    ranks = collective.group.ranks
    who = "all" if ranks == world else f"ranks {clip(', '.join(map(str, ranks)), 24)}"
    ops = [op for _, op in sorted(collective.ops.items())]
    largest = max(ops, key=lambda op: op.nbytes)
    notes = []
    away = [rank for rank in ranks if rank in ran and rank not in collective.ops]
    for word, own in (
        ("without", [rank for rank in away if rank not in missing]),
        ("no record of", [rank for rank in away if rank in missing]),
    ):
        if own:
            notes.append(f"{word} {clip(', '.join(map(str, own)), 24)}")
    if len({op.call for op in ops}) > 1:
        notes.append("calls differ")
    if not all(op.done for op in ops):
        notes.append("not finished")
    _, *cells = _op_cells(largest)
    return (who, ops[0].call, *cells, ", ".join(notes))


def _op_cells(op):
    """The cells of an op: its call, bytes, tensors and place."""
    return op.call, count(op.nbytes, "byte"), carried(op), op.site.place


def carried(op: Op) -> str:
    """The tensors that an op carried: ``"float32[4]"``."""
    text = " ".join(f"{op.dtype}{list(shape)}" for shape in op.shapes[:2])
    return f"{text} ... ({len(op.shapes)} tensors)" if len(op.shapes) > 2 else text


def _shown(makers, noun, most):
    rows, shown = _folded(makers, most)
    lines = aligned(rows, left=range(9))
    if len(makers) > shown:
        lines.append(f"... and {len(makers) - shown:,} more {noun}")
    return lines


def _folded(makers, most):
    """At most ``most`` rows, and the number of things. `FEWEST` or more equal rows become one
    row."""
    rows: list[tuple] = []
    shown = 0
    for row, equal in groupby(make(thing) for make, thing in makers[:MOST_COMPARED]):
        if len(rows) >= most:
            break
        times = sum(1 for _ in equal)
        if times >= FEWEST:
            rows.append((*row[:-1], ", ".join(filter(None, (row[-1], f"{times:,} times")))))
        else:
            times = min(times, most - len(rows))
            rows += [row] * times
        shown += times
    return rows, shown


def short_repr(value: object) -> str:
    """One short line for a value, without the addresses that Python shows for objects."""
    short = reprlib.Repr()
    short.maxother, short.maxstring = 4 * RESULT_WIDTH, RESULT_WIDTH
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", short.repr(value))
    return clip(" ".join(text.split()), RESULT_WIDTH)


def clip(text: str, longest: int) -> str:
    """The text, or its beginning and three dots."""
    return text if len(text) <= longest else text[: longest - 3] + "..."


def kept_of(trace: Trace) -> str:
    """How much of a run its trace has, if the log rolled over."""
    ops, more = trace.ops, sum(trace.forgotten.ops) if trace.forgotten else 0
    since = f", from {seconds_text(ops[0].post_s)} on" if ops else ""
    return f"simlib kept the last {len(ops):,} of {len(ops) + more:,} ops{since}"


def count(number: int, noun: str) -> str:
    """A number with its noun: ``"1 byte"``, ``"1,200 bytes"``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


MAX_WAITS = 3
"""The sentences name at most this many waits, the longest ones."""
SHORT = 0.01
"""The sentences leave out waits shorter than this share of the time shown."""
MAX_SORTS = 12
"""The sentences name at most this many kinds of ops of a comparison."""


def run_in_words(run: Any, ranks: Ranks = None, between: Between = None) -> str:
    """Describe the picture of a run: which rank waits for which, and the messages.

    Parameters
    ----------
    run : Run
    ranks, between
        The part of the run that is shown, as for `draw_timeline`.

    **Cost** O(n log n) for n ops.
    """
    ranks, begin_s, end_s = chosen(run, ranks, between)
    shown = frozenset(ranks)
    ops = [op for op in run.trace if op.rank in shown and in_sight(op, begin_s, end_s)]
    told = [f"{run.name} on {ranks_text(run)} over {seconds_text(run.trace.end_s)}."]
    if len(shown) < run.world_size or begin_s > 0 or end_s < run.trace.end_s:
        part = f"{seconds_text(begin_s)} to {seconds_text(end_s)}"
        told.append(f"Shown: {ranks_in_words(ranks)}, {part}.")
    if run.failure is not None:
        told.append(f"The run failed: {_first_line(run.failure)}.")
    told += _waits_reported(run, ops, begin_s, end_s)
    if not (run.trace.ops or run.trace.forgotten):
        told.append("No rank ever communicated.")
    told += _messages_told(run.trace, shown, begin_s, end_s)
    told += _collectives_told(run.trace, ops)
    names = Counter(
        piece.name
        for piece in run.trace.pieces
        if piece.rank in shown and piece.span(end_s)[0] <= end_s and piece.span(end_s)[1] >= begin_s
    )
    if names:
        told.append(f"Pieces of work: {', '.join(f'{n} x {name}' for name, n in names.items())}.")
    told += _devices_told(run.profile or (), shown)
    told += [f"simlib found this: {_first_line(str(finding))}." for finding in run.findings]
    return " ".join(told)


def graph_in_words(graph: Any) -> str:
    """Describe the picture of a `WaitGraph`, in sentences."""
    lines = [" ".join(line.split()) for line in str(graph).splitlines()]
    return f"Who waits for whom: {'; '.join(lines)}."


def comparison_in_words(names: Sequence[str], rows: OpCounts) -> str:
    """Describe the picture of a comparison. The parameters are those of `draw_comparison`."""
    told = [f"How often each kind of op occurs in {_listed(names)}."]
    common = sum(is_common for _, _, is_common in rows)
    told.append(f"{common} of {len(rows)} kinds occur equally often in all runs.")
    for label, counts, _ in sorted(rows, key=lambda row: row[2])[:MAX_SORTS]:
        told.append(f"{label}: {_listed([f'{count:,}' for count in counts])}.")
    if len(rows) > MAX_SORTS:
        told.append(f"This text leaves out {count(len(rows) - MAX_SORTS, 'more kind')}.")
    return " ".join(told)


def _first_line(text):
    return text.partition("\n")[0].strip().rstrip(".:")


def _listed(words):
    return ", ".join(words[:-1]) + f" and {words[-1]}" if len(words) > 1 else "".join(words)


def _waits_reported(run, ops, begin_s, end_s):
    """The longest waits, endless waits first. Ranks that wait alike are named together."""
    awaited = _awaited(run.trace)
    found = defaultdict(Counter)
    for op, time_s in _waited(run, ops, begin_s, end_s):
        is_open = not op.done
        if time_s > SHORT * (end_s - begin_s) or is_open:
            group = (
                op.call.partition("(")[0],
                op.site.place,
                awaited.get((op.rank, op.seq), ()),
                is_open,
            )
            found[group][op.rank] += time_s
    if not found:
        return ["No rank waits for long."]
    in_order = sorted(found.items(), key=lambda item: (not item[0][3], -max(item[1].values())))
    told = [_wait_told(*group, waits) for group, waits in in_order[:MAX_WAITS]]
    left = len(in_order) - MAX_WAITS
    return [*told, f"This text leaves out {count(left, 'more wait')}."] if left > 0 else told


def _waited(run, ops, begin_s, end_s):
    """``[(op, seconds)]``: how long ranks waited in ops that blocked them, as in `Run.states`."""
    parts, found = defaultdict(list), {}
    for op in ops:
        span = span_of(run.trace, op.rank)
        for state, *times in blocked_parts(op, span[1] if span else end_s, run.transfers):
            parts[op.rank].append(((state, op.seq), *times))
            found[op.rank, op.seq] = [op, 0.0]
    for rank, own in parts.items():
        for (state, seq), start, end in apart(own):
            if state == "waiting":
                found[rank, seq][1] += max(0.0, min(end, end_s) - max(start, begin_s))
    return found.values()


def _wait_told(call, place, others, is_open, waits):
    """One or two sentences: ``Ranks 1 to 3 wait for rank 0 in recv (main, line 7). Rank 3 ...``"""
    who, is_one = ranks_in_words(waits).capitalize(), len(waits) == 1
    for_whom = f" for {ranks_in_words(others)}" if others else ""
    where = f"{for_whom} in {call} ({place})"
    if is_open:
        return f"{who} {'waits' if is_one else 'wait'} forever{where}."
    (longest, time_s), *_ = waits.most_common(1)
    if is_one:
        return f"{who} waits {seconds_text(time_s)}{where}."
    return f"{who} wait{where}. Rank {longest} waits longest: {seconds_text(time_s)}."


def _awaited(trace):
    """``{(rank, seq): ranks}``: the ranks for which an op waits, as far as the trace shows.

    A send or recv waits for the rank at the other end. A broadcast or scatter waits for the root.
    Other collectives wait for the ranks that never called, or for the rank that called last.
    """
    found = {(op.rank, op.seq): (op.peer,) for op in trace if op.is_p2p and op.peer is not None}
    for collective in trace.collectives:
        ops = collective.ops
        away = [rank for rank in collective.group.ranks if rank not in ops]
        late = tuple(rank for rank in away if rank not in trace.missing)
        if not away:
            late = (max(ops, key=lambda rank: ops[rank].post_s),)
        for rank, op in ops.items():
            others = (op.peer,) if op.kind in ("broadcast", "scatter") else late
            found[rank, op.seq] = tuple(other for other in others if other != rank)
    return found


def _devices_told(profiles, shown):
    """A sentence on each GPU, or on the time of operators for ranks without a GPU."""
    told = []
    for rank, profile in enumerate(profiles):
        if rank not in shown or profile is None or profile.why_none:
            continue
        if len(told) == MAX_WAITS:
            return [*told, "This text leaves out the other ranks."]
        computed = seconds_text(profile.computing_s)
        if profile.on == "cpu":
            told.append(f"The operators of rank {rank} took {computed} on the CPU.")
            continue
        told.append(
            f"The GPU of rank {rank} computed for {computed}, communicated for "
            f"{seconds_text(profile.communicating_s)}, and was idle for "
            f"{seconds_text(profile.idle_s)}. The exposed communication took "
            f"{seconds_text(profile.exposed_s)}."
        )
    return told


def _messages_told(trace, shown, begin_s, end_s):
    seen = [
        message
        for message in trace.messages
        if {message.src, message.dst} <= shown
        and message.send.post_s <= end_s
        and (message.recv is None or message.recv.ends_by(end_s) >= begin_s)
    ]
    if not seen:
        return []
    sizes = [message.nbytes for message in seen]
    if len(sizes) == 1:
        told = [f"1 message of {short_bytes(sizes[0])}."]
    elif len(set(sizes)) == 1:
        told = [f"{len(sizes):,} messages of {short_bytes(sizes[0])} each."]
    else:
        told = [f"{len(sizes):,} messages; the largest is {short_bytes(max(sizes))}."]
    lost = sum(message.recv is None or not message.recv.done for message in seen)
    return [*told, f"Messages that no rank received: {lost:,}."] if lost else told


def _collectives_told(trace, ops):
    """The number of collectives of these ops, by kind, and the most bytes that a rank
    contributes."""
    numbers = {(op.rank, op.seq) for op in ops}
    seen = [
        collective
        for collective in trace.collectives
        if any((op.rank, op.seq) in numbers for op in collective.ops.values())
    ]
    if not seen:
        return []
    kinds = Counter(one.kind for one in seen)
    told = f"Collectives: {', '.join(f'{count:,} {kind}' for kind, count in kinds.items())}"
    most = max(one.nbytes for one in seen)
    return [f"{told}, of at most {short_bytes(most)}." if most else f"{told}."]


def collective_text(collective: Collective) -> str:
    """A collective on one line: ``"all_reduce(SUM)  4 B"``."""
    calls = dict.fromkeys(op.call for _, op in sorted(collective.ops.items()))
    text = " / ".join(calls) if len(calls) <= 2 else "different collectives"
    if collective.nbytes:
        text += f"  {short_bytes(collective.nbytes)}"
    if len(collective.ops) < len(collective.group):
        text += f"  ({len(collective.ops)} of {len(collective.group)} ranks)"
    return text

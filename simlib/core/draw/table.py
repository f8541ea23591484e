"""A run as plain text: the same for every repeat of the same program.

So there are times in it only where a virtual clock gives the same ones in every repeat.
"""

from __future__ import annotations

import re
import reprlib

from ..model.words import seconds_text

MAX_ROWS = 20
RESULT_WIDTH = 36


def run_table(run):
    """Describe a run in plain text: what each rank returned, then what the ranks exchanged.

    Rows are ordered by rank and by each rank's own sequence, never by time.

    Returns
    -------
    str

    **Cost** O(number of ops).
    """
    trace = run.trace
    messages, collectives = trace.messages, trace.collectives
    parts = [_header(run, messages, collectives), _rank_rows(run, messages)]
    moves = _message_rows(trace, messages)
    joint = _collective_rows(trace, collectives)
    # Each list may use the rows that the other leaves free.
    parts.append(_shown(moves, "messages", max(MAX_ROWS // 2, MAX_ROWS - len(joint))))
    parts.append(_shown(joint, "collectives", max(MAX_ROWS // 2, MAX_ROWS - len(moves))))
    parts.append([f"finding: {' '.join(str(found).split())}" for found in run.findings])
    if trace.forgotten is not None:
        words = trace.forgotten.in_words(trace.ops)
        parts.append([f"{words}: rows, trace and pictures show these; sums are of the whole run"])
    if trace.dropped:
        advice = "simlib run --watch goes on recording"
        parts.append([f"{count(trace.dropped, 'further op')} ran and were not recorded ({advice})"])
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _header(run, messages, collectives):
    number, nbytes = len(messages), sum(message.nbytes for message in messages)
    joint, forgotten = len(collectives), run.trace.forgotten
    if forgotten is not None:
        number += sum(messages for messages, _ in forgotten.sent.values())
        nbytes += sum(nbytes for _, nbytes in forgotten.sent.values())
        joint += forgotten.collectives
    return [
        f"{run.name} on {count(run.world_size, f'{run.engine} rank')}: "
        f"{count(number, 'message')}, {count(nbytes, 'byte')}; "
        f"{count(joint, 'collective')}"
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
    rows = [("rank", "result", "sent", "received", "collectives", *times)]
    for rank in range(min(run.world_size, MAX_ROWS)):
        result = run.results[rank] if rank < len(run.results) else None
        rows.append(
            (
                str(rank),
                short_repr(result),
                _traffic(*sent[rank]),
                _traffic(*received[rank]),
                str(joined[rank]),
                *(seconds_text(seconds[rank]) for seconds in times.values()),
            )
        )
    lines = _aligned(rows, right=(0, *range(4, 5 + len(times))))
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
    """``{"computed": seconds by rank, ...}``; nothing where a repeat would take other times."""
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
    """Makers of rows: each message by src and the sender's own order, then lone receives."""
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


def _collective_rows(trace, collectives):
    """Makers of rows: the world's collectives first, then those of each group, in group order."""
    world = tuple(range(trace.world_size))

    def order(collective):
        ranks = collective.group.ranks
        return (ranks != world, ranks, collective.group.name)

    # The sort is stable: within a group the order of the group's own calls stays.
    return [(_collective_row, (collective, world)) for collective in sorted(collectives, key=order)]


def _collective_row(pair):
    collective, world = pair
    ranks = collective.group.ranks
    who = "all" if ranks == world else f"ranks {clip(', '.join(map(str, ranks)), 24)}"
    ops = [op for _, op in sorted(collective.ops.items())]
    largest = max(ops, key=lambda op: op.nbytes)
    notes = []
    if missing := [rank for rank in ranks if rank not in collective.ops]:
        notes.append(f"without {clip(', '.join(map(str, missing)), 24)}")
    if len({op.call for op in ops}) > 1:
        notes.append("calls differ")
    if not all(op.done for op in ops):
        notes.append("not finished")
    _, *cells = _op_cells(largest)
    return (who, ops[0].call, *cells, ", ".join(notes))


def _op_cells(op):
    """Call, bytes, what was carried, place."""
    return op.call, count(op.nbytes, "byte"), carried(op), op.site.place


def carried(op):
    """The tensors that an op carried: ``"float32[4]"``."""
    text = " ".join(f"{op.dtype}{list(shape)}" for shape in op.shapes[:2])
    return f"{text} ... ({len(op.shapes)} tensors)" if len(op.shapes) > 2 else text


def _shown(makers, noun, most):
    lines = _aligned([make(thing) for make, thing in makers[:most]])
    if len(makers) > most:
        lines.append(f"... and {len(makers) - most:,} more {noun}")
    return lines


def _aligned(rows, right=()):
    """Rows of cells as lines with straight columns, two blanks apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = zip(range(len(row)), row, widths, strict=True)
        lines.append("  ".join(c.rjust(w) if i in right else c.ljust(w) for i, c, w in cells))
    return [line.rstrip() for line in lines]


def short_repr(value):
    """One short line for a value: clipped, and without the addresses Python shows for objects."""
    short = reprlib.Repr()
    short.maxother, short.maxstring = 4 * RESULT_WIDTH, RESULT_WIDTH
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", short.repr(value))
    return clip(" ".join(text.split()), RESULT_WIDTH)


def clip(text, longest):
    """The text, or its beginning and three dots."""
    return text if len(text) <= longest else text[: longest - 3] + "..."


def count(number, noun):
    """A number with its noun: ``"1 byte"``, ``"1,200 bytes"``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"

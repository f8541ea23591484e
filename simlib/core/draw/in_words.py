"""Pictures in words: of a run, of a comparison, of who waits for whom. Made from what is drawn."""

from __future__ import annotations

from collections import Counter, defaultdict

from ..model.words import ranks_in_words, ranks_text, seconds_text, short_bytes
from .lanes import blocked_parts, chosen, in_sight, span_of

MAX_WAITS = 3
"""So many waits are told, the longest."""
SHORT = 0.01
"""Waits of less than this share of the time shown are not told."""
MAX_ROWS = 12
"""So many sorts of ops of a comparison are told."""


def run_in_words(run, ranks=None, between=None):
    """What the picture of a run shows, in sentences: who waits for whom, what was sent.

    Parameters
    ----------
    run : Run
    ranks, between
        As for `draw_timeline`: what of the run is shown.

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
        told.append(f"It failed: {_first_line(run.failure)}.")
    told += _waits_reported(run, ops, begin_s, end_s)
    told += _messages_told(run.trace, shown, begin_s, end_s)
    told += _collectives_told(run.trace, ops)
    names = Counter(
        piece.name
        for piece in run.trace.pieces
        if piece.rank in shown
        and piece.start_s <= end_s
        and (piece.end_s is None or piece.end_s >= begin_s)
    )
    if names:
        told.append(f"Pieces of work: {', '.join(f'{n} x {name}' for name, n in names.items())}.")
    told += [f"Found: {_first_line(str(finding))}." for finding in run.findings]
    return " ".join(told)


def graph_in_words(graph):
    """What the picture of a `WaitGraph` shows."""
    lines = [" ".join(line.split()) for line in str(graph).splitlines()]
    return f"Who waits for whom: {'; '.join(lines)}."


def comparison_in_words(names, rows):
    """What the picture of a comparison shows; parameters as of `draw_comparison`."""
    told = [f"How often each sort of op came in {_listed(names)}."]
    common = sum(is_common for _, _, is_common in rows)
    told.append(f"{common} of {len(rows)} came equally often in all.")
    for label, counts, _ in sorted(rows, key=lambda row: row[2])[:MAX_ROWS]:
        told.append(f"{label}: {_listed([f'{count:,}' for count in counts])}.")
    if len(rows) > MAX_ROWS:
        told.append(f"And {len(rows) - MAX_ROWS} more.")
    return " ".join(told)


def _first_line(text):
    return text.partition("\n")[0].strip().rstrip(".:")


def _listed(words):
    return ", ".join(words[:-1]) + f" and {words[-1]}" if len(words) > 1 else "".join(words)


def _waits_reported(run, ops, begin_s, end_s):
    """The longest waits, those of ranks that wait alike together; first those without an end."""
    awaited = _awaited(run.trace)
    found = defaultdict(Counter)
    for op in ops:
        span = span_of(run.trace, op.rank)
        parts = blocked_parts(op, span[1] if span else end_s, run.transfers)
        waited_s = sum(
            max(0.0, min(end, end_s) - max(start, begin_s))
            for state, start, end in parts
            if state == "waiting"
        )
        is_open = bool(parts) and not op.done
        if waited_s > SHORT * (end_s - begin_s) or is_open:
            group = (
                op.call.partition("(")[0],
                op.site.place,
                awaited.get((op.rank, op.seq), ()),
                is_open,
            )
            found[group][op.rank] += waited_s
    if not found:
        return ["No rank waits for long."]
    in_order = sorted(found.items(), key=lambda item: (not item[0][3], -max(item[1].values())))
    told = [_wait_told(*group, waits) for group, waits in in_order[:MAX_WAITS]]
    left = len(in_order) - MAX_WAITS
    return [*told, f"And {left:,} more."] if left > 0 else told


def _wait_told(call, place, others, is_open, waits):
    """One sentence: ``Ranks 1 to 3 wait for rank 0 in recv (main, line 7), rank 3 longest: ...``"""
    who, is_one = ranks_in_words(waits).capitalize(), len(waits) == 1
    for_whom = f" for {ranks_in_words(others)}" if others else ""
    where = f"{for_whom} in {call} ({place})"
    if is_open:
        verb, end = ("waits", "goes") if is_one else ("wait", "go")
        return f"{who} {verb}{where} and never {end} on."
    (longest, time_s), *_ = waits.most_common(1)
    if is_one:
        return f"{who} waits {seconds_text(time_s)}{where}."
    return f"{who} wait{where}, rank {longest} longest: {seconds_text(time_s)}."


def _awaited(trace):
    """``{(rank, seq): ranks}``: for whom an op waits, as far as the trace tells.

    The other end of a message; the root of a broadcast or scatter; in other collectives those who
    never came, or the one who came last.
    """
    found = {(op.rank, op.seq): (op.peer,) for op in trace if op.is_p2p and op.peer is not None}
    for collective in trace.collectives:
        ops = collective.ops
        late = tuple(rank for rank in collective.group.ranks if rank not in ops)
        late = late or (max(ops, key=lambda rank: ops[rank].post_s),)
        for rank, op in ops.items():
            others = (op.peer,) if op.kind in ("broadcast", "scatter") else late
            found[rank, op.seq] = tuple(other for other in others if other != rank)
    return found


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
    return [*told, f"{lost:,} of them never received."] if lost else told


def _collectives_told(trace, ops):
    """How many collectives these ops are of, by kind, and the most that a rank brings."""
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

"""Write a run as Chrome trace JSON. Perfetto (https://ui.perfetto.dev) and chrome://tracing open
it.

In the trace, each rank is a process with a thread of the same name. This thread contains nested
slices: the rank function, the blocking calls, and the waits. Asynchronous ops are on further
threads, because slices of one thread may be nested but must not overlap. An arrow (a pair of flow
events) leads from each send to its receive, and from the last rank that called a collective to the
other ranks.

The file also contains the record that `simlib.load` reads. Trace viewers ignore keys that they do
not know.

Source: "Trace Event Format", the Chromium project's description of the JSON.
"""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ..draw.lanes import blocked, blocked_parts, span_of
from ..model.trace import Op, Trace, WireMessage
from ..record.safe_pickle import dumps_tree

KEY = "simlib"
VERSION = 1
PLAIN = [f.name for f in fields(Op) if f.name not in ("group", "site", "shapes", "splits")]
WIRE = [f.name for f in fields(WireMessage) if f.name != "group"]
MOST_BYTES = 10 << 20
"""A trace contains a rank's result only if the result has at most this many bytes."""
LEAST_NS = 2  # an arrow binds to a slice only if the slice takes time


def write_chrome_trace(run: Any, path: str | Path) -> Path:
    """Write the run as Chrome trace JSON. Its times are in microseconds.

    Parameters
    ----------
    run : Run
    path : str or Path

    Returns
    -------
    Path
        The file written.
    """
    path = Path(path)
    path.write_text(json.dumps(chrome_trace(run)), encoding="utf-8")
    return path


def chrome_trace(run: Any) -> dict[str, Any]:
    """Return the dict that `write_chrome_trace` writes."""
    slices = _Slices(run)
    events = slices.events + _flows(run.trace, slices.of_op)
    for event in events:
        for key in ("ts", "dur"):
            if key in event:
                event[key] /= 1000  # whole nanoseconds until here, so that slices nest exactly
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "name": run.name,
            "engine": run.engine,
            "world_size": run.world_size,
            "ops_not_recorded": run.trace.dropped,
            "ops_not_kept": sum(run.trace.forgotten.ops) if run.trace.forgotten else 0,
        },
        "traceEvents": slices.names + events,
        KEY: record_of(run),
    }


class _Slices:
    """Collects the slices of a run, the names of their threads, and each op's own slice by
    ``id(op)``."""

    def __init__(self, run: Any) -> None:
        self.run, self.trace = run, run.trace
        self.names: list[dict] = []
        self.events: list[dict] = []
        self.of_op: dict[Any, Any] = {}
        self.next_tid = run.world_size + 1
        last_s = self.trace.end_s
        for rank, own in enumerate(self.trace.by_rank()):
            self._add_rank(rank, own, last_s)

    def _add_rank(self, rank: int, ops: list[Op], last_s: float) -> None:
        # Perfetto takes pid 0 for the idle process, so rank 0 is process 1.
        pid = tid = rank + 1
        self._name("process", f"rank {rank}", pid, tid, rank)
        self._name("thread", f"rank {rank}", pid, tid, 0)
        span = span_of(self.trace, rank)
        until = span[1] if span else last_s
        inside = self._main_thread(pid, tid, ops, until)
        if span:
            begin = min([_ns(span[0])] + [event["ts"] for event in inside])
            end = max([_ns(span[1])] + [event["ts"] + event["dur"] for event in inside])
            args = {} if span[2] else {"returned": False}
            self.events.append(_slice(self.run.name, pid, tid, begin, end, args))
        self.events += inside
        self._pieces(rank, pid, until)
        self._beside(rank, pid, [op for op in ops if op.async_op], until)

    def _main_thread(self, pid: int, tid: int, ops: list[Op], until: float) -> Any:
        """Return slices of blocking calls, with the waits inside them, and of waits for
        asynchronous ops."""
        parts = []
        for op in ops:
            wait = blocked(op, until)
            if not op.async_op:
                parts.append((op.post_s, _end_s(op, until), op))
            elif wait:
                parts.append((*wait, op))
        events, free = [], 0
        for start_s, end_s, op in sorted(parts, key=lambda part: part[:2]):
            begin, free = _placed(start_s, end_s, free)
            name = f"wait for {op.call}" if op.async_op else op.call
            events.append(_slice(name, pid, tid, begin, free, _args(op)))
            if not op.async_op:
                self.of_op[id(op)] = events[-1]
            events += self._inside(op, until, begin, free)
        return events

    def _inside(self, op: Op, until: float, begin: int, end: int) -> Any:
        """Return a slice for each state of the rank while it was blocked in a call."""
        slices, free = [], begin
        for state, start_s, end_s in blocked_parts(op, until, self.run.transfers):
            first, last = min(max(_ns(start_s), free), end - LEAST_NS), min(_ns(end_s), end)
            if last - first >= LEAST_NS:
                slices.append(_slice(state, op.rank + 1, op.rank + 1, first, last, {}))
                free = last
        return slices

    def _pieces(self, rank: int, pid: int, until: float) -> Any:
        """Add the parts of the rank's work that the program has named, on a thread of their own."""
        pieces = [piece for piece in self.trace.pieces if piece.rank == rank]
        if not pieces:
            return
        tid, self.next_tid = self.next_tid, self.next_tid + 1
        self._name("thread", f"rank {rank}, pieces", pid, tid, 1)
        for piece in pieces:
            begin, end = map(_ns, piece.span(until))
            end = max(begin, end)
            slice_ = _slice(piece.label, pid, tid, begin, end, {"name": piece.name} | piece.numbers)
            self.events.append(slice_ | {"cat": "piece"})

    def _beside(self, rank: int, pid: int, ops: list[Op], until: float) -> Any:
        """Add a slice for each asynchronous op, from its call to its end. Use as few threads as
        possible."""
        free: list = []
        first_tid = self.next_tid
        for op in sorted(ops, key=lambda op: op.post_s):
            begin, end = _placed(op.post_s, _end_s(op, until))
            lane = next((i for i, since in enumerate(free) if since <= begin), len(free))
            tid = first_tid + lane
            if lane == len(free):
                free.append(0)
                self._name("thread", f"rank {rank}, in flight", pid, tid, lane + 2)
            free[lane] = end
            self.events.append(_slice(op.call, pid, tid, begin, end, _args(op)))
            self.of_op[id(op)] = self.events[-1]
        self.next_tid += len(free)

    def _name(self, what: str, name: str, pid: int, tid: int, index: int) -> Any:
        for key, value in (("name", name), ("sort_index", index)):
            event = {"ph": "M", "name": f"{what}_{key}", "pid": pid, "tid": tid}
            self.names.append(event | {"args": {key: value}})


def _slice(name: str, pid: int, tid: int, begin: int, end: int, args: dict) -> dict:
    return {
        "ph": "X",
        "name": name,
        "cat": "op",
        "pid": pid,
        "tid": tid,
        "ts": begin,
        "dur": end - begin,
        "args": args,
    }


def _placed(start_s: float, end_s: float, free: int = 0) -> tuple[int, int]:
    """Return begin and end in ns. The slice begins when the thread is free, and is long enough for
    an arrow."""
    begin = max(_ns(start_s), free)
    return begin, max(_ns(end_s), begin + LEAST_NS)


def _end_s(op: Op, until: float) -> float:
    return max(op.ends_by(until), op.post_s)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _args(op: Op) -> dict[str, Any]:
    """Return the data that Perfetto shows when you click an op."""
    args = {
        "bytes": op.nbytes,
        "peer": op.peer,
        "tag": op.tag if op.is_p2p else None,
        "dtype": op.dtype or None,
        "shapes": [list(shape) for shape in op.shapes] or None,
        "group": op.group.name,
        "line": op.site.place,
        "source": op.site.line_text or None,
        "finished": None if op.done else False,
    }
    return {key: value for key, value in args.items() if value is not None}


def _flows(trace: Trace, of_op: dict) -> list[dict]:
    """Return pairs of flow events. Each pair leads from one slice to another slice that waits for
    it."""
    pairs = [
        ("message", message.send, message.recv)
        for message in trace.messages
        if message.recv is not None and message.recv.done
    ]
    for collective in trace.collectives:
        ops = [op for _, op in sorted(collective.ops.items())]
        last = max(ops, key=lambda op: op.post_s)
        pairs += [(collective.kind, last, op) for op in ops if op is not last and op.done]
    events = []
    for number, (name, source, target) in enumerate(pairs, start=1):
        begin, end = of_op[id(source)], of_op[id(target)]
        flow = {"name": name, "cat": "flow", "id": number}
        events.append(flow | {"ph": "s"} | _where(begin, begin["ts"]))
        # A slice no longer encloses its own last moment, hence one nanosecond earlier.
        at = end["ts"] + end["dur"] - 1
        events.append(flow | {"ph": "f", "bp": "e"} | _where(end, at))
    return events


def _where(event: dict, ts: Any) -> dict:
    return {"pid": event["pid"], "tid": event["tid"], "ts": ts}


def record_of(run: Any) -> dict[str, Any]:
    """Return the data of a run that `load` needs, as plain data. Each site and group appears only
    once."""
    sites: dict[Any, int] = {}
    groups: dict[Any, int] = {}

    def entry_of(op: Op) -> dict[str, Any]:
        return {
            **{name: getattr(op, name) for name in PLAIN},
            "shapes": op.shapes,
            "splits": op.splits,
            "group": groups.setdefault(op.group, len(groups)),
            "site": sites.setdefault(op.site, len(sites)),
        }

    ops = list(map(entry_of, run.trace))
    findings = [
        {
            "kind": finding.kind,
            "message": finding.message,
            "sites": [[r, sites.setdefault(s, len(sites))] for r, s in finding.sites.items()],
        }
        for finding in run.findings
    ]
    graph = run.graph and {
        "waits": [[w.rank, entry_of(w.op), w.needs, w.any_of] for w in run.graph.waits.values()],
        "cycle": run.graph.cycle,
        "gone": list(run.graph.gone.items()),
    }
    wires = [
        {
            **{name: getattr(wire, name) for name in WIRE},
            "group": groups.setdefault(wire.group, len(groups)),
        }
        for wire in run.wire or ()
    ]
    return {
        "version": VERSION,
        "name": run.name,
        "engine": run.engine,
        "repeats": run.repeats,
        "seed": run.seed,
        "began_s": run.began_s,
        "failure": run.failure,
        "graph": graph,
        "findings": findings,
        "results": list(map(_kept, run.results)),
        "memory": run.memory and [ledger and asdict(ledger) for ledger in run.memory],
        "flops": run.flops,
        "work": run.work and [work and asdict(work) for work in run.work],
        "processes": run.processes,
        "profile": run.profile and [one and one.to_record() for one in run.profile],
        "shared": dict(run.shared),
        "classes": run.classes,
        "ran": list(run.ran),
        "world_size": run.world_size,
        "output": run.output,
        "spans": run.trace.spans,
        "deaths": list(run.trace.deaths.items()),
        "dropped": run.trace.dropped,
        "forgotten": run.trace.forgotten and run.trace.forgotten.to_record(),
        "clock_error_s": run.trace.clock_error_s,
        "groups": [(group.name, group.ranks, group.description) for group in groups],
        "clock_offsets_s": list(run.trace.clock_offsets_s.items()),
        "missing": run.trace.missing,
        "last_seen_s": list(run.trace.last_seen_s.items()),
        "sites": [asdict(site) for site in sites],
        "ops": ops,
        "wire": None if run.wire is None else wires,
        "pieces": [asdict(piece) for piece in run.trace.pieces],
        "transfers": [[*key, parts] for key, parts in run.transfers.items()],
    }


def _kept(result: Any) -> dict[str, str]:
    """Return a result (plain data, tensors, arrays) as text, or the reason why the trace does not
    contain it."""
    try:
        data = dumps_tree(result)
    except Exception as error:  # whatever a tensor of some sort, say, does not like
        return {"left_out": str(error)}
    if len(data) > MOST_BYTES:
        return {"left_out": f"{len(data) / 1e6:,.1f} MB are too much for a trace"}
    return {"tree": base64.b64encode(data).decode()}

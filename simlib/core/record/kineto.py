"""Read a trace that torch's profiler has written: Kineto's JSON, plain or gzipped.

Kineto writes times in microseconds since ``baseTimeNanoseconds`` (older ones since 1970). A span on
a GPU names the operator that launched it by an ``External id``, which both have.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..model.profile import COMMUNICATION, COMPUTE, COPY, DeviceSpan, Part

COMMUNICATES = ("nccl", "rccl", "msccl")
"""How the names of kernels begin that move data between GPUs."""
ON_GPU = {"kernel": COMPUTE, "gpu_memcpy": COPY, "gpu_memset": COPY}
CALLS = ("c10d::", "gloo:", "nccl:", "record_param_comms")
"""How operators are called that only post communication: how long it takes, they do not know."""


@dataclass(frozen=True)
class KinetoTrace:
    """What is read of one rank's file; times in seconds since the file's first event.

    Attributes
    ----------
    began_ns : int
        When the first event was, in nanoseconds since 1970.
    device_spans : list of DeviceSpan
        What ran on GPUs.
    operators : list of DeviceSpan
        What ran on the CPU: of each thread the operators that no other operator had called. The
        stream is the thread.
    marks : dict of str to list of (float, float)
        What the program has named by `torch.profiler.record_function`: its times.
    mark_threads : dict of str to int
        By the same names, the thread that did it last.
    """

    began_ns: int = 0
    device_spans: list[DeviceSpan] = field(default_factory=list)
    operators: list[DeviceSpan] = field(default_factory=list)
    marks: dict[str, list[Part]] = field(default_factory=dict)
    mark_threads: dict[str, int] = field(default_factory=dict)


def read_kineto(path: str | Path) -> KinetoTrace:
    """Read one file.

    Parameters
    ----------
    path : str or Path
        A ``.json`` or ``.json.gz`` of `torch.profiler.profile.export_chrome_trace`.

    Raises
    ------
    ValueError
        The file is no trace of torch's profiler.
    OSError
        It cannot be read.

    **Cost** O(n log n) for n events, all of them in memory.
    """
    path = Path(path)
    open_it: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with open_it(path, "rt", encoding="utf-8", errors="replace") as file:
            content = json.load(file)
        return _trace_of(content)
    except (ValueError, LookupError, TypeError, AttributeError, EOFError, gzip.BadGzipFile):
        raise ValueError(f"{path.name} is not a trace that torch's profiler wrote") from None


def _trace_of(content: dict[str, Any]) -> KinetoTrace:
    if "schemaVersion" not in content:
        raise ValueError("not Kineto's")
    events = [event for event in content["traceEvents"] if event.get("ph") == "X"]
    first = min((event["ts"] for event in events), default=0)
    began_ns = content.get("baseTimeNanoseconds", 0) + round(first * 1000)
    by_sort: dict[str, list] = defaultdict(list)
    for event in events:
        by_sort[event.get("cat", "")].append(event)
    posts = by_sort["cpu_op"] + by_sort["user_annotation"]
    names = {event["args"].get("External id"): event["name"] for event in posts}
    trace = KinetoTrace(began_ns)
    for sort, what in ON_GPU.items():
        for event in by_sort[sort]:
            trace.device_spans.append(_span_of(event, what, first, names))
    for event in by_sort["user_annotation"]:
        trace.marks.setdefault(event["name"], []).append(_times_of(event, first))
        trace.mark_threads[event["name"]] = event["tid"]
    trace.operators.extend(_outermost(by_sort["cpu_op"], first))
    return trace


def _times_of(event: dict[str, Any], first: float) -> Part:
    start_us = event["ts"] - first
    return start_us / 1e6, (start_us + event.get("dur", 0)) / 1e6


def _span_of(event: dict[str, Any], sort: str, first: float, names: dict) -> DeviceSpan:
    name, about = event["name"], event["args"]
    if sort == COMPUTE and name.lower().startswith(COMMUNICATES):
        sort = COMMUNICATION
    device, stream = about.get("device", event["pid"]), about.get("stream", event["tid"])
    op = names.get(about.get("External id"), "")
    return DeviceSpan(int(device), int(stream), name, sort, *_times_of(event, first), op)


def _outermost(events: list[dict[str, Any]], first: float) -> Iterable[DeviceSpan]:
    """The operators of each thread that lie in no other one, without those that communicate."""
    until: dict[Any, float] = {}
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        thread = event["tid"]
        if event["ts"] < until.get(thread, float("-inf")):
            continue
        until[thread] = event["ts"] + event["dur"]
        if not event["name"].startswith(CALLS):
            name = event["name"]
            yield DeviceSpan(-1, int(thread), name, COMPUTE, *_times_of(event, first), name)

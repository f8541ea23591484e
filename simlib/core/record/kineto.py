"""Read a trace that torch's profiler has written: Kineto's JSON, plain or gzipped.

Kineto writes times in microseconds since ``baseTimeNanoseconds`` (older ones since 1970). A span on
a GPU and the operator that launched it have the same ``External id``.
"""

from __future__ import annotations

import bisect
import functools
import gzip
import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from ..model.profile import COMMUNICATION, COMPUTE, COPY, DeviceSpan, Part

COMMUNICATES = ("nccl", "rccl", "msccl")
"""The beginnings of names of kernels that move data between GPUs."""
ON_GPU = {"kernel": COMPUTE, "gpu_memcpy": COPY, "gpu_memset": COPY}
ODD = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
"""The errors for a file or an event with wrong contents."""
MOST_US = 1e18
"""A limit above every clock of a trace: about 30,000 years."""
COLLECTIVE = "record_param_comms"
"""The operator in which NCCL's group records its calls."""
CALLS = ("c10d::", "gloo:", "nccl:", COLLECTIVE)
"""Names of operators that only post communication, and do not know how long it takes."""
MOST_BYTES = 2 << 30
"""The largest size of one file's text. The objects made from it need ten times as much memory."""


@dataclass(frozen=True)
class KinetoTrace:
    """The data from one rank's file; times in seconds since the file's first event.

    Attributes
    ----------
    began_ns : int
        The time of the first event, in nanoseconds since 1970.
    device_spans : list of DeviceSpan
        The work of GPUs.
    operators : list of DeviceSpan
        The work of the CPU: those operators of each thread that no other operator had called. Their
        ``stream`` is the thread.
    marks : dict of str to list of (float, float)
        The times of pieces that the program has named by `torch.profiler.record_function`.
    mark_threads : dict of str to int
        For each name in ``marks``, the last thread that ran such a piece.
    mark_works : dict of str to list of ((float, float) or None)
        For each name in ``marks``, and in the same order, the times at which GPUs worked on the
        piece.
    world : dict
        What the file says about the job: rank, world size, groups. simlib has not checked these
        facts.
    host : str
        The name of the host; empty if the file does not contain it.
    calls, works : list of dict
        Events in which the rank called torch.distributed, and events of Gloo's work. simlib has
        checked only the times.
    first_us : float
        The ``ts`` of the first event.
    kernel_times : dict of int to (float, float)
        By the ``External id`` of an operator: from the start of the first communicating kernel that
        the operator launched to the end of the last.
    busy : dict of int to list of (float, float)
        By thread: the times in which the thread was in an operator, in order.
    """

    began_ns: int = 0
    device_spans: list[DeviceSpan] = field(default_factory=list)
    operators: list[DeviceSpan] = field(default_factory=list)
    marks: dict[str, list[Part]] = field(default_factory=dict)
    mark_threads: dict[str, int] = field(default_factory=dict)
    mark_works: dict[str, list[Part | None]] = field(default_factory=dict)
    world: dict[str, Any] = field(default_factory=dict)
    host: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    works: list[dict[str, Any]] = field(default_factory=list)
    first_us: float = 0.0
    kernel_times: dict[int, Part] = field(default_factory=dict)
    busy: dict[int, list[Part]] = field(default_factory=dict)


def read_kineto(path: str | Path) -> KinetoTrace:
    """Read one file, without impossible events.

    Parameters
    ----------
    path : str or Path
        A ``.json`` or ``.json.gz`` of `torch.profiler.profile.export_chrome_trace`.

    Raises
    ------
    ValueError
        The file is no trace of torch's profiler.
    OSError
        simlib cannot read the file.

    **Cost** O(n log n) for n events, all of them in memory.
    """
    content = read_json(path)
    trace = trace_of(content) if isinstance(content, dict) else None
    if trace is None:
        raise ValueError(f"{Path(path).name} is not a trace that torch's profiler wrote")
    return trace


def read_json(path: str | Path) -> Any:
    """The contents of a JSON file, plain or gzipped; None if it contains no JSON.

    Raises
    ------
    ValueError
        The file has more than 2 GiB.
    OSError
        simlib cannot read the file.
    """
    path = Path(path)
    open_it: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with open_it(path, "rb") as file:
            text = _read(file, path)
        return json.loads(text.decode("utf-8", errors="replace"))
    except _TooLarge:
        raise
    except (ValueError, RecursionError, EOFError, gzip.BadGzipFile, zlib.error):
        return None


class _TooLarge(ValueError):
    pass


def _read(file: BinaryIO, path: Path) -> bytes:
    if path.suffix == ".gz" or path.stat().st_size <= MOST_BYTES:
        text = file.read(MOST_BYTES + 1)
        if len(text) <= MOST_BYTES:
            return text
    raise _TooLarge(
        f"{path.name} holds more than {MOST_BYTES >> 30} GiB of JSON. This is too much to read: "
        "profile fewer steps, for example with torch.profiler.schedule(wait=1, warmup=1, active=2)"
    )


def trace_of(content: dict[str, Any]) -> KinetoTrace | None:
    """The data in a file's JSON; None if it is not from torch's profiler."""
    try:
        return _trace_of(content)
    except (*ODD, RecursionError):
        return None


def _trace_of(content: dict[str, Any]) -> KinetoTrace:
    if not {"schemaVersion", "distributedInfo"} & content.keys():
        raise ValueError("not Kineto's")
    events = list(filter(_is_sound, content["traceEvents"]))
    first = min((event["ts"] for event in events), default=0)
    began_ns = int(content.get("baseTimeNanoseconds", 0)) + round(first * 1000)
    by_sort: dict[str, list] = defaultdict(list)
    for event in events:
        by_sort[event.get("cat", "")].append(event)
    operators, annotations = (
        [event for event in by_sort[sort] if isinstance(event.get("tid"), int)]
        for sort in ("cpu_op", "user_annotation")
    )
    names = dict(_each(lambda event: (_id_of(event), event["name"]), operators + annotations))
    trace = KinetoTrace(began_ns, first_us=first, host=str(content.get("host_name", ""))[:255])
    if isinstance(content.get("distributedInfo"), dict):
        trace.world.update(content["distributedInfo"])
    for sort, what in ON_GPU.items():
        read = functools.partial(_span_of, sort=what, first=first, names=names)
        trace.device_spans.extend(_each(read, by_sort[sort]))
    trace.kernel_times.update(_times_by_id(filter(_communicates, by_sort["kernel"]), first))
    worked = _times_by_id(by_sort["gpu_user_annotation"], first)
    launched = _launched(by_sort, first)
    for event in annotations:
        name = event["name"]
        trace.marks.setdefault(name, []).append(_times_of(event, first))
        trace.mark_threads[name] = event["tid"]
        number = next(_each(_id_of, [event]), -1)
        work = _work_of(trace.marks[name][-1], worked.get(number), launched)
        trace.mark_works.setdefault(name, []).append(work)
        if name.startswith("gloo:"):
            trace.works.append(event)
    trace.calls.extend(event for event in operators if event["name"].startswith(CALLS))
    for event in _outermost(operators):
        times = _times_of(event, first)
        trace.busy.setdefault(event["tid"], []).append(times)
        if not event["name"].startswith(CALLS):
            span = DeviceSpan(-1, event["tid"], event["name"], COMPUTE, *times, event["name"])
            trace.operators.append(span)
    return trace


def _is_sound(event: Any) -> bool:
    """Whether an event is a span that has a name, a start, and a length that is not negative."""
    if not isinstance(event, dict) or event.get("ph") != "X":
        return False
    start_us, length_us = event.get("ts"), event.get("dur")
    if not (isinstance(start_us, int | float) and isinstance(length_us, int | float)):
        return False
    has_words = isinstance(event.get("name"), str) and isinstance(event.get("cat", ""), str)
    return has_words and abs(start_us) < MOST_US and 0 <= length_us < MOST_US  # False for NaN


def _each(read: Callable[[dict[str, Any]], Any], events: Iterable[dict[str, Any]]) -> Iterator[Any]:
    """One value of each event, without events that lack it."""
    for event in events:
        try:
            yield read(event)
        except ODD:
            continue


def _id_of(event: dict[str, Any]) -> int:
    return int(event["args"]["External id"])


def _times_of(event: dict[str, Any], first: float) -> Part:
    start_us = event["ts"] - first
    return start_us / 1e6, (start_us + event["dur"]) / 1e6


def _communicates(event: dict[str, Any]) -> bool:
    return _is_communication(event["name"])


@functools.lru_cache(maxsize=4096)
def _is_communication(kernel: str) -> bool:
    return kernel.lower().startswith(COMMUNICATES)


def _times_by_id(events: Iterable[dict[str, Any]], first: float) -> dict[int, Part]:
    """By ``External id``: from the start of the first event to the end of the last."""
    found: dict[int, Part] = {}
    for number, (start_s, end_s) in _each(lambda e: (_id_of(e), _times_of(e, first)), events):
        start, end = found.get(number, (start_s, end_s))
        found[number] = min(start, start_s), max(end, end_s)
    return found


def _launched(by_sort: dict[str, list], first: float) -> list[tuple[float, float, float]]:
    """When each kernel and copy was launched, began and ended, in the order of the launches."""
    calls = by_sort["cuda_runtime"] + by_sort["cuda_driver"]
    moments = dict(_each(lambda e: (int(e["args"]["correlation"]), _times_of(e, first)[0]), calls))
    on_gpu = (event for sort in ON_GPU for event in by_sort[sort])
    numbered = _each(lambda e: (int(e["args"]["correlation"]), _times_of(e, first)), on_gpu)
    return sorted((moments[at], *times) for at, times in numbered if at in moments)


def _work_of(times: Part, worked: Part | None, launched: list[tuple]) -> Part | None:
    """The times of a GPU's work for a span: all work that any thread launched in the span.

    The profiler's own annotation lacks the work that other threads launch, such as the thread of
    backward.
    """
    low, high = (bisect.bisect_left(launched, (moment,)) for moment in times)
    parts = [part[1:] for part in launched[low:high]] + ([worked] if worked else [])
    if not parts:
        return None
    return min(start for start, _ in parts), max(end for _, end in parts)


def _span_of(event: dict[str, Any], sort: str, first: float, names: dict) -> DeviceSpan:
    name, about = event["name"], event.get("args", {})
    if sort == COMPUTE and _communicates(event):
        sort = COMMUNICATION
    device, stream = about.get("device", event["pid"]), about.get("stream", event["tid"])
    op = names.get(int(about.get("External id", -1)), "")
    return DeviceSpan(int(device), int(stream), name, sort, *_times_of(event, first), op)


def _outermost(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The operators of each thread that are not inside another operator, in order."""
    until: dict[Any, float] = {}
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        thread = event["tid"]
        if event["ts"] >= until.get(thread, float("-inf")):
            until[thread] = event["ts"] + event["dur"]
            yield event

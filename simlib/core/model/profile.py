"""The work of a device in a run, as a profiler recorded it: spans on its streams, and sums."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any

Part = tuple[float, float]
"""The first and the last second of a period."""
COMPUTE, COMMUNICATION, COPY = "compute", "communication", "copy"
MOST_SPANS = 20_000
"""A profile keeps this many spans of a rank, the first ones. Its sums include all spans."""


@dataclass(frozen=True, slots=True)
class DeviceSpan:
    """One kernel or copy on a GPU; or an operator, if the rank used no GPU.

    Attributes
    ----------
    device, stream : int
        The numbers that CUDA uses. For an operator, they are -1 and the number of its thread.
    name : str
        The name of the kernel.
    sort : {"compute", "communication", "copy"}
        Kernels of NCCL and RCCL are ``"communication"``. A memcpy or memset is a ``"copy"``.
    start_s, end_s : float
    op : str
        The operator that launched the kernel, such as ``"aten::addmm"``. Empty if the operator is
        unknown.
    """

    device: int
    stream: int
    name: str
    sort: str
    start_s: float
    end_s: float
    op: str = ""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The work of a rank's GPU while the rank was in its function; see ``run(profile=True)``.

    Attributes
    ----------
    on : {"gpu", "cpu"}
        ``"cpu"`` means that the rank used no GPU. Then the spans are the operators that the rank's
        own thread called, and the profile contains no communication.
    spans : list of DeviceSpan
        At most the first 20,000 spans, ordered by their start. Times are seconds since the first
        rank entered the function.
    left_out : int
        The number of further spans, which ``spans`` leaves out.
    computing_s : float
        Seconds in which any stream computed.
    communicating_s, exposed_s : float
        Seconds in which any stream ran a kernel that communicates, and the part of these seconds in
        which no stream computed.
    idle_s : float
        Seconds in the function in which no stream did anything.
    why_none : str
        The reason, if simlib could not profile the rank.
    """

    on: str = "cpu"
    spans: list[DeviceSpan] = field(default_factory=list)
    left_out: int = 0
    computing_s: float = 0.0
    communicating_s: float = 0.0
    exposed_s: float = 0.0
    idle_s: float = 0.0
    why_none: str = ""

    @classmethod
    def of(cls, on: str, spans: Iterable[DeviceSpan], begin_s: float, end_s: float) -> Profile:
        """The profile of a rank that was in its function from ``begin_s`` to ``end_s``."""
        spans = sorted(spans, key=lambda span: span.start_s)
        computing = union(times_of(spans, COMPUTE))
        communicating = union(times_of(spans, COMMUNICATION))
        busy = union((span.start_s, span.end_s) for span in spans)
        return cls(
            on=on,
            spans=spans[:MOST_SPANS],
            left_out=max(0, len(spans) - MOST_SPANS),
            computing_s=total(computing),
            communicating_s=total(communicating),
            exposed_s=total(without(communicating, computing)),
            idle_s=total(without([(begin_s, end_s)], busy)),
        )

    def since(self, origin_s: float) -> Profile:
        """The same profile, with times that count from ``origin_s``."""
        return replace(
            self,
            spans=[
                replace(span, start_s=span.start_s - origin_s, end_s=span.end_s - origin_s)
                for span in self.spans
            ],
        )

    @property
    def exposed(self) -> list[Part]:
        """When a stream communicated and no stream computed, according to the spans."""
        return without(times_of(self.spans, COMMUNICATION), times_of(self.spans, COMPUTE))

    @property
    def streams(self) -> dict[tuple[int, int], list[DeviceSpan]]:
        """``{(device, stream): spans}``, in order."""
        found: dict[tuple[int, int], list[DeviceSpan]] = {}
        for span in self.spans:
            found.setdefault((span.device, span.stream), []).append(span)
        return dict(sorted(found.items()))

    def to_record(self) -> dict[str, Any]:
        """The profile as plain data; each name is written once."""
        names: dict[str, int] = {}

        def plain(value: Any) -> Any:
            return names.setdefault(value, len(names)) if isinstance(value, str) else value

        rows = [list(map(plain, astuple(span))) for span in self.spans]
        return asdict(replace(self, spans=[])) | {"spans": rows, "names": list(names)}

    @classmethod
    def of_record(cls, record: dict[str, Any]) -> Profile:
        """The profile from the data that `to_record` returned."""
        names, rest = record["names"], {k: v for k, v in record.items() if k != "names"}
        spans = [
            DeviceSpan(device, stream, names[name], names[sort], start_s, end_s, names[op])
            for device, stream, name, sort, start_s, end_s, op in record["spans"]
        ]
        return cls(**rest | {"spans": spans})


def times_of(spans: Iterable[DeviceSpan], sort: str) -> list[Part]:
    """The times of all spans of a sort, each as ``(start_s, end_s)``."""
    return [(span.start_s, span.end_s) for span in spans if span.sort == sort]


def union(parts: Iterable[Part]) -> list[Part]:
    """The time that at least one part covers, as parts in order and without overlap."""
    found: list[Part] = []
    for start_s, end_s in sorted(parts):
        if found and start_s <= found[-1][1]:
            found[-1] = found[-1][0], max(end_s, found[-1][1])
        else:
            found.append((start_s, end_s))
    return found


def without(parts: Iterable[Part], others: Iterable[Part]) -> list[Part]:
    """The time that ``parts`` cover and ``others`` do not, as parts in order.

    **Cost** O(n log n) for n parts.
    """
    edges = []
    for is_other, own in enumerate((union(parts), union(others))):
        for start_s, end_s in own:
            edges += [(start_s, is_other, 1), (end_s, is_other, -1)]
    found, depth, since_s = [], [0, 0], 0.0
    for moment, is_other, step in sorted(edges):
        if depth == [1, 0] and since_s < moment:
            found.append((since_s, moment))
        depth[is_other] += step
        since_s = moment
    return found


def total(parts: Iterable[Part]) -> float:
    """Seconds of parts that do not overlap."""
    return sum(end_s - start_s for start_s, end_s in parts)

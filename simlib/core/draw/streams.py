"""The lanes of a rank's GPU, one for each of its streams, below the rank's own lane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..model.profile import COMMUNICATION, COMPUTE, COPY, Part, times_of, total, union, without
from .lanes import mostly

STREAM_STATES = ("kernel", "operator", "communication kernel", "exposed communication", "copy")
"""The states of a stream, in the order in which they are drawn."""
MOST_STREAMS = 4
"""A picture shows at most this many lanes of a rank's GPU."""
MOST_RANKS = 8
"""A picture with more ranks shows no streams."""
MOST_BOXES = 200
"""If a lane has more boxes in a state, each column shows only the most frequent state."""
Lanes = dict[str, dict[str, list[Part]]]
"""``{name of the lane: {state: [(start_s, end_s), ...]}}``."""


def streams_of(run: Any, rank: int, begin_s: float, end_s: float) -> Lanes:
    """The lanes of a rank's GPU between two moments; without a GPU, one lane of operators.

    If the GPU has more than `MOST_STREAMS` streams, the result has only the busiest streams.
    """
    profile = run.profile[rank] if run.profile else None
    if profile is None:
        return {}
    computing = union(times_of(profile.spans, COMPUTE))
    lanes, busy_s = {}, {}
    for (device, stream), spans in profile.streams.items():
        seen = [span for span in spans if span.start_s <= end_s and span.end_s >= begin_s]
        communicating = times_of(seen, COMMUNICATION)
        states = {
            "kernel" if profile.on == "gpu" else "operator": times_of(seen, COMPUTE),
            "communication kernel": communicating,
            "exposed communication": without(communicating, computing),
            "copy": times_of(seen, COPY),
        }
        name = f"GPU {device}: {stream}" if device else f"stream {stream}"
        name = name if profile.on == "gpu" else "operators"
        lanes[name] = {
            state: mostly(parts, begin_s, end_s, 2 * MOST_BOXES)
            if len(parts) > MOST_BOXES
            else parts
            for state, parts in states.items()
            if parts
        }
        busy_s[name] = total(union((span.start_s, span.end_s) for span in seen))
    shown = sorted(filter(busy_s.get, lanes), key=busy_s.__getitem__)[-MOST_STREAMS:]
    return {name: lane for name, lane in lanes.items() if name in shown}


def hidden_streams(run: Any, ranks: Sequence[int]) -> list[str]:
    """Sentences that say which streams of these ranks are not shown."""
    if not run.profile:
        return []
    if len(ranks) > MOST_RANKS:
        return [f"a picture shows the GPU streams of at most {MOST_RANKS} ranks: give ranks=[...]"]
    if any(len(run.profile[rank].streams) > MOST_STREAMS for rank in ranks if run.profile[rank]):
        return [f"the picture shows the {MOST_STREAMS} busiest streams of each rank"]
    return []

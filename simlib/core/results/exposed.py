"""How well each rank's device hid communication behind computing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..model.errors import InvalidCallError
from ..model.profile import COMMUNICATION, COMPUTE, times_of, total, union, without
from ..model.words import aligned, seconds_text
from .states import MAX_ROWS, Recorded, chosen_pieces, device_of


@dataclass(frozen=True, eq=False, repr=False)
class Exposed:
    """Seconds of each rank's device. Arrays have shape (world_size,), with NaN if unknown.

    Attributes
    ----------
    exposed_s : ndarray of float
        Seconds in which a stream ran an op of torch.distributed, or waited in the op for other
        ranks, while no stream computed.
    communicating_s : ndarray of float
        Seconds in which a stream ran such an op, whether or not other streams computed.
    computing_s : ndarray of float
        Seconds in which at least one stream computed.
    """

    exposed_s: np.ndarray
    communicating_s: np.ndarray
    computing_s: np.ndarray

    @property
    def share(self) -> float:
        """The share of all ranks' communication that was exposed; 0 if no rank communicated."""
        whole_s = float(np.nansum(self.communicating_s))
        return float(np.nansum(self.exposed_s)) / whole_s if whole_s else 0.0

    def table(self) -> str:
        """A text with a row for each rank, but at most 20 rows."""
        columns = self.exposed_s, self.communicating_s, self.computing_s
        rows: list[tuple[str, ...]] = [("rank", "exposed", "communication", "computing")]
        for rank, seconds in enumerate(zip(*columns, strict=True)):
            cells = ("-" if np.isnan(one) else seconds_text(one) for one in seconds)
            rows.append((str(rank), *cells))
        left_out = len(rows) - 1 - MAX_ROWS
        more = [f"... and {left_out:,} more ranks"] if left_out > 0 else []
        return "\n".join([*aligned(rows[: MAX_ROWS + 1]), *more])

    def __repr__(self) -> str:
        return self.table()


def exposed_in(run: Recorded, span: str | None, numbers: Mapping[str, int]) -> Exposed:
    """The `Exposed` of a run, or of its pieces with this name and these numbers.

    Raises
    ------
    InvalidCallError
        The run does not know what its devices did, or it has no such piece.
    """
    device = device_of(run.profile)
    if device is None or device.on == "cpu":
        raise InvalidCallError(
            "run.exposed() needs to know what the streams of each device did: simulate on a "
            "cluster with Device(asynchronous=True), or run on GPUs with profile=True. Where "
            "devices are synchronous, run.states says how long ranks waited and transferred"
        )
    chosen = chosen_pieces(run, span, numbers)
    if chosen is None:
        return Exposed(device.exposed_s, device.communicating_s, device.computing_s)
    sums = np.full((3, run.world_size), np.nan)
    for rank, pieces in enumerate(chosen):
        profile = run.profile[rank] if run.profile else None
        if profile is not None and not profile.left_out and all(piece.work for piece in pieces):
            times = [piece.span(piece.start_s) for piece in pieces]
            kinds = (times_of(profile.spans, kind) for kind in (COMMUNICATION, COMPUTE))
            parts = profile.exposed, *kinds
            sums[:, rank] = [_seconds_within(times, one) for one in parts]
    return Exposed(*sums)


def _seconds_within(times, parts):
    return total(union(parts)) - total(without(parts, times))

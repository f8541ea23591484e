"""The share of its device's full rate that each rank used: MFU and HFU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from ..draw.lanes import span_of
from ..model.errors import InvalidCallError
from ..model.profile import total, union
from ..model.words import aligned, seconds_text
from .states import MAX_ROWS, Recorded, chosen_pieces


@dataclass(frozen=True, eq=False, repr=False)
class Utilisation:
    """How well each rank used its device. Arrays have shape (world_size,), with NaN if unknown.

    Attributes
    ----------
    time_s : ndarray of float
        Seconds in which the device did the work. On an asynchronous device, a span lasts from the
        start of the first kernel or op that the span launched to the end of its last kernel or op.
    flops, recomputed_flops : ndarray of float
        Floating-point operations, and the part that activation checkpointing computed again.
    full_rate_s, recomputed_full_rate_s : ndarray of float
        Seconds that ``flops`` and ``recomputed_flops`` would take at the full rate of the device.
    """

    time_s: np.ndarray
    flops: np.ndarray
    recomputed_flops: np.ndarray
    full_rate_s: np.ndarray
    recomputed_full_rate_s: np.ndarray

    @property
    def mfu(self) -> np.ndarray:
        """Model flops utilisation of each rank, without recomputed operations."""
        return _share(self.full_rate_s - self.recomputed_full_rate_s, self.time_s)

    @property
    def hfu(self) -> np.ndarray:
        """Hardware flops utilisation of each rank, with recomputed operations."""
        return _share(self.full_rate_s, self.time_s)

    def table(self) -> str:
        """A text with a row for each rank, at most 20, and a row for their mean."""
        rows: list[tuple[str, ...]] = [("rank", "MFU", "HFU", "flops", "recomputed", "time")]
        columns = self.mfu, self.hfu, self.flops, self.recomputed_flops, self.time_s
        by_rank = np.column_stack(columns)
        rows += [_row(str(rank), one) for rank, one in enumerate(by_rank[:MAX_ROWS])]
        known = by_rank[~np.isnan(by_rank).any(axis=1)]
        if len(known):
            rows.append(_row("mean", known.mean(axis=0)))
        left_out = len(by_rank) - MAX_ROWS
        note = [f"... and {left_out:,} more ranks, counted in the mean"] if left_out > 0 else []
        return "\n".join([*aligned(rows), *note])

    def __repr__(self) -> str:
        return self.table()


def _share(part_s, time_s):
    return np.divide(part_s, time_s, out=np.full_like(time_s, np.nan), where=time_s > 0)


def _row(name, values):
    if np.isnan(values).any():
        return (name, *["-"] * len(values))
    mfu, hfu, flops, recomputed, time_s = values
    counts = f"{flops:.3g}", f"{recomputed:.3g}"
    return name, f"{mfu:.1%}", f"{hfu:.1%}", *counts, seconds_text(time_s)


def utilisation_in(run: Recorded, span: str | None, numbers: Mapping[str, int]) -> Utilisation:
    """The `Utilisation` of a run, or of its pieces with this name and these numbers.

    Raises
    ------
    InvalidCallError
        The device has no rates, the run was not simulated, or there is no such piece.
    """
    if not run.work or any(work and work.full_rate_s is None for work in run.work):
        raise InvalidCallError(
            "run.mfu() needs the rates of a modelled device, but this run has no such rates: "
            "simulate on a cluster whose device has a rate for each dtype of the computation, "
            'as in Device(rates={"bfloat16": 989e12, "float32": 67e12})'
        )
    sums = np.full((5, run.world_size), np.nan)
    chosen = chosen_pieces(run, span, numbers)
    for rank, work in enumerate(run.work):
        own = span_of(run.trace, rank)
        if work is None or own is None:
            continue
        done, times = [work], [own[:2]]
        if chosen is not None:
            done = [piece.work for piece in chosen[rank] if piece.work]
            times = [piece.span(piece.start_s) for piece in chosen[rank]]
        sums[0, rank] = total(union(times))
        for row, field in enumerate(fields(Utilisation)[1:], 1):
            sums[row, rank] = sum(getattr(one, field.name) for one in done)
    return Utilisation(*sums)

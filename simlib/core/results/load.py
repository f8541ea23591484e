"""A saved run, and the way back: the record that `Run.save` puts into its file, read by `load`.

Perfetto's slices have lost what is needed to draw a run again (who waited since when, which
collectives belong together), so the file has the ops themselves beside them, under a key that trace
viewers pass over.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..model.trace import Evicted, Group, Op, Piece, Site, Trace, WireMessage
from .chrome import KEY, PLAIN, VERSION
from .run import Run


def load(path: str | Path) -> Run:
    """Read a run that `Run.save` wrote.

    What ranks returned and the findings are not in the file: ``results`` are None.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    Run
        With the same trace, so with the same pictures, table of messages and player.

    Raises
    ------
    ValueError
        The file is no run of simlib's.
    OSError
        It cannot be read.
    """
    path = Path(path)
    try:
        record = json.loads(path.read_text(encoding="utf-8"))[KEY]
        if record["version"] == VERSION:
            return run_of(record)
    except (ValueError, LookupError, TypeError):
        raise ValueError(f"{path.name} is not a run that run.save() wrote") from None
    raise ValueError(f"{path.name} was written by another version of simlib: save it anew")


def run_of(record: dict[str, Any]) -> Run:
    """The `Run` of a record."""
    if record["world_size"] < 1:
        raise ValueError("a run has at least one rank")
    groups = [Group(name, tuple(ranks)) for name, ranks in record["groups"]]
    sites = [Site(**site) for site in record["sites"]]
    ops = [op_of(entry, groups, sites) for entry in record["ops"]]
    spans = [tuple(span) for span in record["spans"]]
    error_s = record.get("clock_error_s", 0.0)
    pieces = [Piece(**piece) for piece in record.get("pieces", ())]
    deaths = dict(map(tuple, record.get("deaths", ())))
    trace = Trace(record["world_size"], ops, spans, record["dropped"], error_s, pieces, deaths)
    if record.get("forgotten"):
        trace.forgotten = Evicted.of_record(record["forgotten"])
    nothing = [None] * trace.world_size
    run = Run(record["name"], trace, nothing, record["output"], engine=record["engine"])
    run.repeats = record.get("repeats", False)
    if "transfers" in record:
        run.transfers = {
            (rank, seq): [tuple(part) for part in parts] for rank, seq, parts in record["transfers"]
        }
    if record["wire"] is not None:
        run.wire = [
            WireMessage(**{**entry, "group": groups[entry["group"]]}) for entry in record["wire"]
        ]
    return run


def op_of(entry: dict[str, Any], groups: list[Group], sites: list[Site]) -> Op:
    """An `Op` from its record."""
    return Op(
        **{name: entry[name] for name in PLAIN if name in entry},  # an older file has fewer
        shapes=deep_tuple(entry["shapes"]),
        splits=deep_tuple(entry["splits"]),
        group=groups[entry["group"]],
        site=sites[entry["site"]],
    )


def deep_tuple(value: Any) -> Any:
    """A value with tuples for its lists, as ops hold them."""
    return tuple(map(deep_tuple, value)) if isinstance(value, list) else value

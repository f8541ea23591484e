"""A saved run, and the way back: the record that `Run.save` puts into its file, read by `load`.

Perfetto's slices have lost what is needed to draw a run again (who waited since when, which
collectives belong together), so the file has the ops themselves beside them, under a key that trace
viewers pass over.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from ..diagnose.findings import Finding
from ..diagnose.matching import Wait
from ..diagnose.verdicts import WaitGraph
from ..model.ledger import GpuMemory, Ledger
from ..model.profile import Profile
from ..model.trace import Evicted, Group, Op, Piece, Site, Trace, WireMessage, Work
from ..record.safe_pickle import loads_tree
from .chrome import KEY, PLAIN, VERSION
from .run import Run


def load(path: str | Path) -> Run:
    """Read a run that `Run.save` wrote.

    A result that is no plain data, no tensor and no array is not in the file: a `NotKept` says so
    in its place. Nor are earlier ``attempts``, and the other run of a race.

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


def load_chakra(folder: str | Path) -> Run:
    """Read the traces of a job in Chakra's format, as `Run.to_chakra` or others wrote them.

    A trace is a graph. One that a single thread can have gone through, working, calling and
    waiting, is a run; one of several streams that compute side by side is none. Moments are those
    that the durations in the files add up to; `Run.replay` says how long it takes on a network.

    Parameters
    ----------
    folder : str or Path
        With a file ``NAME.N.et`` for each rank N, and ``comm_groups.json`` where there are groups.

    Returns
    -------
    Run
        Without results and output.

    Raises
    ------
    ValueError
        A file is missing, is no trace of Chakra's, or has streams side by side.
    OSError
        It cannot be read.
    """
    from ..formats.chakra import read_trace

    folder = Path(folder)
    trace, about = read_trace(folder)
    nothing = [NotKept("Chakra's format has no results")] * trace.world_size
    engine = about.get("engine")
    return Run(
        str(about.get("name", folder.name)),
        trace,
        nothing,
        [""] * trace.world_size,
        engine=engine if engine in ("simulated", "replayed") else "real",
    )


def run_of(record: dict[str, Any]) -> Run:
    """The `Run` of a record."""
    if record["world_size"] < 1:
        raise ValueError("a run has at least one rank")
    groups = [Group(name, tuple(ranks), *more) for name, ranks, *more in record["groups"]]
    sites = [
        Site(**{**site, "callers": deep_tuple(site.get("callers", []))}) for site in record["sites"]
    ]
    ops = [op_of(entry, groups, sites) for entry in record["ops"]]
    spans = [tuple(span) for span in record["spans"]]
    error_s = record.get("clock_error_s", 0.0)
    pieces = [
        Piece(**piece | {"work": _work_of(piece.get("work"))}) for piece in record.get("pieces", ())
    ]
    deaths = dict(map(tuple, record.get("deaths", ())))
    trace = Trace(record["world_size"], ops, spans, record["dropped"], error_s, pieces, deaths)
    trace.clock_offsets_s = dict(map(tuple, record.get("clock_offsets_s", ())))
    trace.missing = tuple(record.get("missing", ()))
    if record.get("forgotten"):
        trace.forgotten = Evicted.of_record(record["forgotten"])
    # An older file has fewer keys.
    unknown = {"left_out": "the file is of an older simlib"}
    results = list(map(_result_of, record.get("results", [unknown] * trace.world_size)))
    run = Run(record["name"], trace, results, record["output"], engine=record["engine"])
    plain = "repeats seed began_s failure flops processes shared classes ran"
    for name in plain.split():
        setattr(run, name, record.get(name, getattr(run, name)))
    run.findings = [
        Finding(one["kind"], one["message"], {rank: sites[s] for rank, s in one["sites"]})
        for one in record.get("findings", ())
    ]
    if record.get("graph"):
        waits = [
            Wait(rank, op_of(op, groups, sites), tuple(needs), any_of)
            for rank, op, needs, any_of in record["graph"]["waits"]
        ]
        run.graph = WaitGraph(
            waits={wait.rank: wait for wait in waits},
            cycle=tuple(record["graph"]["cycle"]),
            gone=dict(map(tuple, record["graph"]["gone"])),
        )
    if record.get("memory"):
        run.memory = [ledger and _ledger_of(ledger) for ledger in record["memory"]]
    if record.get("work"):
        run.work = list(map(_work_of, record["work"]))
    if record.get("profile"):
        run.profile = [one and Profile.of_record(one) for one in record["profile"]]
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


class NotKept:
    """What stands in a loaded run for a result that could not be saved; its words say why."""

    def __init__(self, why: str) -> None:
        self.why = why

    def __repr__(self) -> str:
        return f"<not kept: {self.why}>"


def _result_of(entry: dict[str, str]) -> Any:
    if "left_out" in entry:
        return NotKept(entry["left_out"])
    return loads_tree(base64.b64decode(entry["tree"]))


def _work_of(entry: dict[str, Any] | None) -> Work | None:
    return Work(**entry) if entry else None


def _ledger_of(entry: dict[str, Any]) -> Ledger | GpuMemory:
    if "reserved" in entry:
        return GpuMemory(**entry)
    history = [tuple(moment) for moment in entry["history"]]
    by_dtype = {dtype: _ledger_of(one) for dtype, one in entry["by_dtype"].items()}
    return Ledger(**entry | {"history": history, "by_dtype": by_dtype})


def deep_tuple(value: Any) -> Any:
    """A value with tuples for its lists, as ops hold them."""
    return tuple(map(deep_tuple, value)) if isinstance(value, list) else value

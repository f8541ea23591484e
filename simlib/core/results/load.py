"""`load` reads the record that `Run.save` puts into its file, and traces of torch's profiler.

Perfetto's slices are not enough to draw a run again. The slices do not show when a rank began to
wait, or which ops belong to the same collective. So the file also contains the ops themselves,
under a key that trace viewers ignore.
"""

from __future__ import annotations

import base64
import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..diagnose.findings import Finding
from ..diagnose.matching import Wait
from ..diagnose.verdicts import WaitGraph
from ..environment import without_collector
from ..formats.kineto import RankTrace, join, read_rank
from ..model.ledger import GpuMemory, Ledger
from ..model.profile import Profile
from ..model.trace import Evicted, Group, Op, Piece, Site, Trace, WireMessage, Work
from ..record.kineto import read_json
from ..record.safe_pickle import loads_tree
from .chrome import KEY, PLAIN, VERSION
from .run import Run

TRACES = (".json", ".json.gz")
"""In a folder, `load` reads the files with these endings as traces."""


def load(path: str | Path | Sequence[str | Path]) -> Run:
    """Read a run that `Run.save` wrote, or traces that torch's profiler wrote for a job's ranks.

    The file of a run contains only results that are plain data, tensors or arrays. Every other
    result is replaced by a `NotKept`. The file does not contain the earlier ``attempts`` and the
    second run of a race.

    Parameters
    ----------
    path : str or Path, or a sequence of them
        The file of a run. For traces of torch's profiler, pass their folder, a pattern such as
        ``"traces/*.json.gz"``, or the files, one for each rank.

    Returns
    -------
    Run
        From the file of a run, simlib makes a run with the same trace, and so with the same
        pictures, table of messages and player. From traces, simlib makes a run with the calls in
        the traces, the profile of each rank, and a span ``"step"`` for each step of the profiler.
        simlib also corrects the differences between the clocks of the hosts. See
        ``run.trace.clock_offsets_s``.

    Raises
    ------
    ValueError
        A file is neither a run nor a trace, or the files do not belong to one job.
    OSError
        A file cannot be read.
    """
    files = _files_of(path)
    with without_collector():
        read = [_read(file, len(files) == 1) for file in files]
        ranks = [one for one in read if isinstance(one, RankTrace)]
        if isinstance(read[0], Run):
            return read[0]
        found = join(ranks)
    size = found.trace.world_size
    run = Run(_name_of(path, files), found.trace, [None] * size, [""] * size)
    run.profile = found.profiles
    run.ran = sorted(rank.rank for rank in ranks)
    run.findings = [Finding("record", note, {}) for note in found.notes]
    return run


def _read(file: Path, is_alone: bool) -> Run | RankTrace:
    """Read one file. Its JSON is freed from memory before simlib reads the next file."""
    content = read_json(file)
    if content is None:
        raise ValueError(
            f"{file.name} is incomplete or contains no JSON: copy the file again, or leave it "
            "out. Its rank then counts as missing"
        )
    if isinstance(content, dict) and KEY in content:
        if not is_alone:
            raise ValueError(f"{file.name} is a whole run: load this file alone")
        return _saved_run(file, content)
    return read_rank(file, content, is_alone)


def _files_of(path: str | Path | Sequence[str | Path]) -> list[Path]:
    """The files that a path means, ordered by their names."""
    if not isinstance(path, str | Path):
        files = list(map(Path, path))
    elif Path(path).is_dir():
        files = [file for file in Path(path).iterdir() if file.name.endswith(TRACES)]
    elif "*" in str(path) and not Path(path).exists():
        files = list(map(Path, glob.glob(str(path), recursive=True)))
    else:
        files = [Path(path)]
        if not files[0].exists():
            raise FileNotFoundError(f"there is no file or folder {path}")
    if not files:
        raise ValueError(
            f"there is no trace in {path}: a trace's name ends in {' or '.join(TRACES)}. For dumps "
            "of the flight recorder, use simlib.diagnose"
        )
    return sorted(files)


def _name_of(path: str | Path | Sequence[str | Path], files: list[Path]) -> str:
    """The name of the run: the name of its folder or of its file."""
    if isinstance(path, str | Path) and Path(path).is_dir():
        return Path(path).resolve().name
    return files[0].name.partition(".")[0] if len(files) == 1 else files[0].resolve().parent.name


def _saved_run(path: Path, content: dict[str, Any]) -> Run:
    try:
        record = content[KEY]
        if record["version"] == VERSION:
            return run_of(record)
    except (ValueError, LookupError, TypeError):
        raise ValueError(f"{path.name} is not a run that run.save() wrote") from None
    raise ValueError(f"{path.name} was written by another version of simlib: save it again")


def load_chakra(folder: str | Path) -> Run:
    """Read the traces of a job in Chakra's format, which `Run.to_chakra` and other tools write.

    A trace is a graph, and its nodes are work, calls and waits. simlib can read a trace if one
    thread could have executed all its nodes one after the other. simlib cannot read a trace of
    streams that compute side by side. The files contain durations, and simlib adds these up to find
    the time of each event. `Run.replay` computes the times on a network.

    Parameters
    ----------
    folder : str or Path
        A folder with a file ``NAME.N.et`` for each rank N, and ``comm_groups.json`` if the job has
        groups.

    Returns
    -------
    Run
        A run without results and output.

    Raises
    ------
    ValueError
        A file is missing, is not a Chakra trace, or has streams side by side.
    OSError
        A file cannot be read.
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
    trace.last_seen_s = dict(map(tuple, record.get("last_seen_s", ())))
    if record.get("forgotten"):
        trace.forgotten = Evicted.of_record(record["forgotten"])
    # An older file has fewer keys.
    unknown = {"left_out": "an older simlib wrote the file"}
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
    """Make an `Op` from its record."""
    return Op(
        **{name: entry[name] for name in PLAIN if name in entry},  # an older file has fewer
        shapes=deep_tuple(entry["shapes"]),
        splits=deep_tuple(entry["splits"]),
        group=groups[entry["group"]],
        site=sites[entry["site"]],
    )


class NotKept:
    """In a loaded run, this object replaces a result that `Run.save` could not store. Its text says
    why."""

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
    """A value with tuples in place of its lists, as ops have them."""
    return tuple(map(deep_tuple, value)) if isinstance(value, list) else value

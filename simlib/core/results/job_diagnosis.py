"""What went wrong in a real job, from the dumps of its flight recorders: `simlib.diagnose`."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..diagnose.verdicts import WaitGraph
from ..draw.display import Displayed
from ..formats.dump_files import read_folder
from ..formats.dump_verdict import Judge
from ..formats.flight_recorder import add_from_log, read_dumps
from ..formats.nccl_log import read_nccl_logs
from ..record.oplog_reader import name_groups
from .run import Run


@dataclass(slots=True, repr=False)
class JobDiagnosis(Displayed):
    """What the records of a job tell.

    Attributes
    ----------
    kind : str
        ``"healthy"``: every recorded call is over. ``"mismatch"``: calls that meet differ.
        ``"deadlock"``: ranks wait for each other, or for ranks that do not come. ``"slow"``: they
        wait for ranks that came as late before. ``"stuck"``: all members of a group have made the
        same call, and it does not end.
    message : str
        The verdict in words.
    ranks : tuple of int
        Where to look first: ranks that differ from the others, or for which others wait.
    notes : list of str
        What else the records say, and what they do not.
    graph : WaitGraph or None
        Who waits for whom.
    sites : dict of int to Site
        Where the ranks were of which the verdict speaks.
    run : Run
        The calls as a run, for its pictures and tables.
    """

    kind: str
    message: str
    ranks: tuple[int, ...]
    notes: list[str]
    graph: WaitGraph | None
    sites: dict
    run: Run

    def __str__(self) -> str:
        return "\n".join([self.message, *(f"Note: {note}" for note in self.notes)])

    __repr__ = __str__

    def in_words(self) -> str:
        """What the picture of waits shows."""
        return self.graph.in_words() if self.graph else self.message

    def _repr_png_(self) -> Any:
        return self.graph._repr_png_() if self.graph else None

    def to_html(self, path: str | Path) -> Path:
        """Write the verdict, the waits and the calls as one page; see `Run.to_html`."""
        return self.run.to_html(path)

    def to_record(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        waits = self.graph.waits.values() if self.graph else ()
        return {
            "kind": self.kind,
            "message": self.message,
            "ranks": list(self.ranks),
            "notes": self.notes,
            "world_size": self.run.world_size,
            "missing": list(self.run.trace.missing),
            "waits": list(map(_wait_record, waits)),
            "cycle": list(self.graph.cycle) if self.graph else [],
        }


def _wait_record(wait: Any) -> dict[str, Any]:
    return {
        "rank": wait.rank,
        "for": list(wait.needs),
        "call": wait.op.call,
        "group": wait.op.group.description or wait.op.group.name,
        "file": wait.op.site.file,
        "line": wait.op.site.lineno,
    }


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Without looks for garbage: of a million objects of a job nearly all are in use."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def diagnose(path: str | Path) -> JobDiagnosis:
    """Say why a job hangs, from the dumps of torch's flight recorder that its ranks left.

    Parameters
    ----------
    path : str or Path
        A folder with the dumps of a job, pickle or JSON, of NCCL or Gloo, by any names. Some may be
        missing. Logs of NCCL in the folder are read as well: they say roots and reduce ops.

    Returns
    -------
    JobDiagnosis

    Raises
    ------
    ValueError
        There is no dump, or those that are there cannot be judged: a sentence says why.
    OSError
        The folder cannot be read.

    **Cost** O(number of calls) in time and memory.
    """
    with _without_collector():
        folder = read_folder(path)
        recorded = read_dumps(folder.dumps)
        log = read_nccl_logs(folder.logs) if folder.logs else None
        if log is not None:
            add_from_log(recorded, log)
        found = Judge(recorded, folder.written_ns).verdict()
    name_groups(recorded.trace.ops)
    size = recorded.trace.world_size
    run = Run(Path(path).resolve().name, recorded.trace, [None] * size, [""] * size)
    if found.error is not None:
        run.ended_in(found.error)
    unread = [f"{words}. Its rank counts as one without a dump" for words in folder.unread]
    network = [log.in_words()] if log is not None else []
    notes = [*unread, *found.notes, *filter(None, network)]
    sites = found.error.sites if found.error is not None else {}
    return JobDiagnosis(found.kind, found.message, found.ranks, notes, run.graph, sites, run)

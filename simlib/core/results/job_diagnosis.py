"""The cause of a real job's failure, from the dumps of its flight recorders: `simlib.diagnose`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import draw
from ..diagnose.verdicts import WaitGraph
from ..draw.display import Displayed
from ..environment import without_collector
from ..formats.dump_files import Moves, read_folder
from ..formats.dump_verdict import Judge
from ..formats.flight_recorder import add_from_log, read_dumps
from ..formats.live_look import look_at
from ..formats.nccl_log import read_nccl_logs
from ..record.oplog_reader import name_groups
from .document import lines_of, waits_document
from .run import Run

APART_S = 2.0
"""simlib looks twice at a job that still runs, this many seconds apart."""


@dataclass(slots=True, repr=False)
class JobDiagnosis(Displayed):
    """The verdict on a job, from its records.

    Attributes
    ----------
    kind : str
        ``"healthy"`` means that every recorded call has completed. ``"mismatch"`` means that calls
        that belong together differ. ``"deadlock"`` means that ranks wait for each other, or for
        ranks that never call. ``"slow"`` means that ranks wait for a rank that was already this
        late in earlier calls, and then arrived. ``"stuck"`` means that all members of a group have
        made the same call, and the call does not end.
    message : str
        The verdict in words.
    ranks : tuple of int
        Look at these ranks first. They differ from the other ranks, or other ranks wait for them.
    notes : list of str
        Further facts from the records, and what the records lack.
    graph : WaitGraph or None
        Which rank waits for which.
    sites : dict of int to Site
        The line of each rank that the verdict mentions.
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
        """Describe the picture of waits in words."""
        return self.graph.in_words() if self.graph else self.message

    def _repr_png_(self) -> Any:
        return self.graph._repr_png_() if self.graph else None

    def to_html(self, path: str | Path) -> Path:
        """Write the verdict, the waits and the calls as one page; see `Run.to_html`."""
        title = f"{self.run.name}: {self.run.world_size:,} ranks of a job"
        return draw.save_page(
            path,
            lambda: draw.page_of(title, [self.run], more=draw.parts_of(self.run), said=str(self)),
        )

    def to_record(self) -> dict[str, Any]:
        """The diagnosis as plain data, for JSON."""
        return {
            "kind": self.kind,
            "message": self.message,
            "ranks": list(self.ranks),
            "notes": self.notes,
            "world_size": self.run.world_size,
            "missing": list(self.run.trace.missing),
            "lines": lines_of(self.sites),
            **waits_document(self.graph),
        }


def diagnose(path: str | Path) -> JobDiagnosis:
    """Find out why a job hangs. simlib reads the dumps of torch's flight recorder.

    Parameters
    ----------
    path : str or Path
        A folder with the dumps of a job. The dumps are pickle or JSON files of NCCL or Gloo, with
        any names. Some dumps may be missing. simlib also reads logs of NCCL in the folder, because
        these logs contain the roots and reduce ops that dumps lack.

    Returns
    -------
    JobDiagnosis

    Raises
    ------
    ValueError
        The folder contains no dump, or simlib cannot judge its dumps. The message says why.
    OSError
        The folder cannot be read.

    **Cost** O(number of calls) in time and memory.
    """
    return _diagnose(path, Moves())


def _diagnose(path: str | Path, moves: Moves) -> JobDiagnosis:
    with without_collector():
        folder = read_folder(path)
        recorded = read_dumps(folder.dumps)
        log = read_nccl_logs(folder.logs) if folder.logs else None
        if log is not None:
            add_from_log(recorded, log)
        folder.dumps.clear()  # or the next look for garbage goes through them
        found = Judge(recorded, folder.written_ns, moves).verdict()
    name_groups(recorded.trace.ops)
    size = recorded.trace.world_size
    run = Run(Path(path).resolve().name, recorded.trace, [None] * size, [""] * size)
    if found.error is not None:
        run.ended_in(found.error)
    unread = [f"{words}. So simlib has no dump of this rank" for words in folder.unread]
    network = [log.in_words()] if log is not None else []
    notes = [*unread, *found.notes, *filter(None, network)]
    sites = found.error.sites if found.error is not None else {}
    return JobDiagnosis(found.kind, found.message, found.ranks, notes, run.graph, sites, run)


def diagnose_job(
    pid: int | None = None, folder: str | Path | None = None, apart_s: float = APART_S
) -> JobDiagnosis:
    """Find out why a running job of torchrun on this host hangs. The job continues as before.

    Parameters
    ----------
    pid : int or None
        Process id of torchrun or of a rank. With None, simlib looks for the only job of this user
        on this host.
    folder : str, Path or None
        A new folder for the dumps. With None, simlib writes to ``dumps-of-PID`` in the current
        folder.
    apart_s : float
        Seconds between two looks at the job. A rank that makes progress between the two looks does
        not hang.

    Raises
    ------
    ValueError
        There is no such job, the job does not answer, or simlib cannot judge its dumps.
    OSError
        The folder cannot be written.
    """
    look = look_at(pid, folder, apart_s)
    found = _diagnose(look.folder, look.moves)
    found.notes[:0] = [*look.places(found.ranks), *look.notes]
    return found

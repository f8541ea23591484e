"""Look twice at a running job: store the dumps of its ranks in a folder, and note more facts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..model.words import ranks_in_words
from .dump_files import Moves, is_json
from .flight_recorder import is_over, own_places
from .job_processes import LiveJob, find_job
from .live_dumps import Dump, Progress, asked_by, frames_of

MOST_PLACES = 4


@dataclass(slots=True)
class Look:
    """The result of two looks at a job.

    Attributes
    ----------
    folder : Path
        The folder with the dumps of the second look.
    moves : Moves
        The ranks that made progress between both looks.
    notes : list of str
        Sentences about the ranks that sent no dump, and about the folder of the dumps.
    frames : dict of int to list of dict
        The lines of code at which ranks were between the two looks, as far as known.
    """

    folder: Path
    moves: Moves
    notes: list[str]
    frames: dict[int, list[dict[str, Any]]]

    def places(self, first: tuple[int, ...]) -> Iterator[str]:
        """A note with the lines at which ranks are, first the lines of ``first``."""
        at: dict[str, list[int]] = {}
        for rank in sorted(self.frames, key=lambda rank: (rank not in first, rank)):
            for file, line, _ in own_places(self.frames[rank]):
                at.setdefault(f"{Path(file).name}, line {line}", []).append(rank)
        places = [
            f"{ranks_in_words(ranks)} {'is' if len(ranks) == 1 else 'are'} at {place}"
            for place, ranks in at.items()
        ]
        if len(places) > MOST_PLACES:
            places[MOST_PLACES:] = ["stack_*.txt in the folder shows the other ranks"]
        if places:
            yield f"now {'; '.join(places)}"


def look_at(pid: int | None, folder: str | Path | None, apart_s: float) -> Look:
    """Ask the ranks of a job for their dumps twice, ``apart_s`` seconds apart.

    Raises
    ------
    ValueError
        The job does not exist, or simlib cannot ask its ranks.
    OSError
        The folder cannot be written.
    """
    job = find_job(pid)
    kept = _Kept(_free_folder(folder, job))
    way = asked_by(job)
    kept.before = _answered(job, way.look())
    time.sleep(apart_s)
    kept.frames = way.stacks(kept.keep_stack)
    now = _answered(job, way.look(kept.keep_dump))
    moved = tuple(sorted(rank for rank in now if now[rank] != kept.before.get(rank)))
    moves = Moves(moved, apart_s, is_all=way.asked | job.ranks.keys() <= set(moved))
    where = f"the dumps are in {kept.folder}; `simlib diagnose {kept.folder}` reads them again"
    return Look(kept.folder, moves, [*_absent_told(job, now), where], kept.frames)


def _answered(job: LiveJob, answers: dict[int, Progress]) -> dict[int, Progress]:
    if not answers:
        raise ValueError(f"no rank of job {job.pid} answered: are its processes stopped?")
    return answers


def _free_folder(folder: str | Path | None, job: LiveJob) -> Path:
    """A folder that does not exist yet, or is empty."""
    if folder is not None:
        path = Path(folder)
        if path.exists() and any(path.iterdir()):
            raise ValueError(f"{path} is not empty: give a new folder for the dumps")
        return path
    path, number = Path(f"dumps-of-{job.pid}"), 1
    while path.exists():
        number += 1
        path = Path(f"dumps-of-{job.pid}-{number}")
    return path


class _Kept:
    """Writes the ranks' answers into a folder when they arrive."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.before: dict[int, Progress] = {}
        self.frames: dict[int, list[dict[str, Any]]] = {}

    def keep_stack(self, rank: int, stack: str) -> list[dict[str, Any]]:
        """Write a stack; returns its frames."""
        self._write(f"stack_{rank}.txt", stack.encode())
        return frames_of(stack)

    def keep_dump(self, rank: int, dump: Dump) -> None:
        """Write a dump.

        If the rank has made no progress, the stack has the line of its last call. Dumps of Gloo's
        recorder from a debug server have no lines.
        """
        if not is_json(dump.data):
            self._write(f"rank_{rank}", dump.data)
            return
        data = dump.data
        if dump.progress == self.before.get(rank) and self._is_in_last(rank, dump):
            dump.content["entries"][-1]["frames"] = self.frames[rank]
            data = json.dumps(dump.content).encode()
        self._write(f"rank_{rank}.json", data)

    def _is_in_last(self, rank: int, dump: Dump) -> bool:
        frames = self.frames.get(rank)
        if not frames or not dump.content["entries"]:
            return False
        last = dump.content["entries"][-1]
        is_open = not (is_over(last) or last.get("frames"))
        return is_open and "/torch/distributed/" in frames[0]["filename"]

    def _write(self, name: str, data: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_bytes(data)


def _absent_told(job: LiveJob, now: dict[int, Progress]) -> Iterator[str]:
    silent = sorted(job.ranks.keys() - now.keys())
    if silent:
        pids = ", ".join(str(job.ranks[rank].pid) for rank in silent[:MOST_PLACES])
        yield f"{ranks_in_words(silent)} of this host did not answer (processes {pids})"
    elsewhere = set(range(job.world_size)) - job.ranks.keys() - now.keys()
    if elsewhere:
        yield (
            f"no process of {ranks_in_words(elsewhere)} runs on this host, and no dump arrived. If "
            "these ranks run on other hosts, run this command there, too. Then put all dumps into "
            "one folder"
        )

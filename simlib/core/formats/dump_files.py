"""Find the flight-recorder dumps in a folder, read them as plain data, and find their ranks.

A dump may come from anybody. So simlib executes nothing in a dump, and checks its size before it
reads the file.
"""

from __future__ import annotations

import functools
import io
import json
import os
import pickle
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..model.words import ranks_in_words
from ..record.safe_pickle import TreeUnpickler

MOST_BYTES = 512 << 20
"""The largest dump that simlib reads. A ring of 2,000 entries with deep stacks takes some 10 MB."""
MOST_RANKS = 1 << 20
NEEDED = ("entries", "pg_config")
BROKEN = (
    *(ValueError, LookupError, TypeError, AttributeError, EOFError, RecursionError, MemoryError),
    *(OverflowError, pickle.UnpicklingError),
)
"""The errors that a file with wrong contents can raise."""


@dataclass(frozen=True, slots=True)
class DumpFile:
    """One dump: the file's name, and the dict that the recorder wrote."""

    name: str
    content: dict[str, Any]
    members: dict[str, tuple[int, ...]]
    """The ranks of each process group, by name. Empty if the recorder did not know the ranks."""


@dataclass(slots=True)
class Folder:
    """The contents of a job's folder.

    Attributes
    ----------
    dumps : dict of int to DumpFile
        The dump of each rank.
    unread : list of str
        A sentence for each file that looks like a dump and could not be read.
    logs : list of Path
        Text files with logs of NCCL.
    written_ns : int
        The date of the newest dump, in nanoseconds since 1970.
    """

    dumps: dict[int, DumpFile] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)
    written_ns: int = 0


@dataclass(frozen=True, slots=True)
class Moves:
    """The ranks of a running job that made progress between two looks at it.

    Attributes
    ----------
    ranks : tuple of int
    apart_s : float
        Seconds between the two looks.
    is_all : bool
        Whether these are all ranks that simlib knows to be alive.
    """

    ranks: tuple[int, ...] = ()
    apart_s: float = 0.0
    is_all: bool = False

    def __str__(self) -> str:
        return f"{ranks_in_words(self.ranks)} made calls while simlib waited {self.apart_s:g} s"


def read_folder(path: str | Path) -> Folder:
    """Read all dumps in a folder and its subfolders, or one dump.

    Parameters
    ----------
    path : str or Path

    Raises
    ------
    ValueError
        The folder has no dump, or simlib cannot find out which rank wrote which dump.
    OSError
        The folder cannot be read.

    **Cost** O(bytes of the files).
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {path}")
    folder, read = Folder(), []
    for file in [path] if path.is_file() else sorted(_files_in(path)):
        content = _content_of(file, folder)
        if content is not None:
            read.append(content)
            folder.written_ns = max(folder.written_ns, file.stat().st_mtime_ns)
    if not read:
        why = f": {folder.unread[0]}" if folder.unread else ""
        why = why or ". For traces of torch's profiler, use simlib.load"
        raise ValueError(f"no flight-recorder dump could be read in {path}{why}")
    _check_is_one_job(read)
    for rank, dump in zip(_ranks_of(read), read, strict=True):
        folder.dumps[rank] = dump
    return folder


def _files_in(folder: Path) -> Iterable[Path]:
    for where, _, names in os.walk(folder):
        for name in names:
            file = Path(where, name)
            if file.is_file():  # and no pipe, of which nothing would come
                yield file


def _content_of(file: Path, folder: Folder) -> DumpFile | None:
    """The dump in a file, or None. If the file should contain a dump, note that it does not."""
    with file.open("rb") as opened:
        start = opened.read(4096)
    if b"NCCL INFO" in start or b"NCCL WARN" in start:
        folder.logs.append(file)
    if not start:
        folder.unread.append(f"{file.name} is empty")
    if not (is_json(start) or start[:1] == b"\x80"):
        return None
    nbytes = file.stat().st_size
    if nbytes > MOST_BYTES:
        words = f"{nbytes / 1e9:.1f} GB, but a dump has at most {MOST_BYTES / 1e9:.1f} GB"
        folder.unread.append(f"{file.name} has {words}")
        return None
    try:
        content = plain(file.read_bytes())
    except BROKEN as error:
        folder.unread.append(f"{file.name} is incomplete or not a dump ({_words_of(error)})")
        return None
    if not isinstance(content, dict) or not all(key in content for key in NEEDED):
        return None  # another JSON file beside the dumps
    try:
        return DumpFile(file.name, content, _members_of(content["pg_config"]))
    except BROKEN as error:
        folder.unread.append(f"{file.name} is not a dump of a flight recorder ({_words_of(error)})")
        return None


def plain(data: bytes) -> Any:
    """The plain data in a dump, pickle or JSON. A broken dump raises one of `BROKEN`."""
    return json.loads(data) if is_json(data) else TreeUnpickler(io.BytesIO(data)).load()


def is_json(data: bytes) -> bool:
    """Whether the beginning of a dump shows that it is JSON. Otherwise it is a pickle."""
    return data[:4096].lstrip()[:1] == b"{"


def _words_of(error: BaseException) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__


def _members_of(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The ranks of each group, which the recorder writes as a text: ``"[0, 1]"``."""
    return {str(name): _ranks_in(about["ranks"]) for name, about in config.items()}


@functools.lru_cache(maxsize=4096)  # thousands of dumps name the same groups
def _ranks_in(text: str) -> tuple[int, ...]:
    ranks = json.loads(text)
    if not all(isinstance(rank, int) and 0 <= rank < MOST_RANKS for rank in ranks):
        raise ValueError(f"{text[:40]} are not ranks of a group")
    return tuple(ranks)


def world_of(dump: DumpFile) -> tuple[int, ...]:
    """The ranks of the default group; empty if the dump does not list them."""
    for name, about in dump.content["pg_config"].items():
        if about.get("desc") == "default_pg":
            return dump.members[str(name)]
    return dump.members.get("", ())


def _check_is_one_job(dumps: Sequence[DumpFile]) -> None:
    sizes: dict[int, str] = {}
    for dump in dumps:
        if world_of(dump):
            sizes.setdefault(len(world_of(dump)), dump.name)
    if len(sizes) > 1:
        (one, name), (other, other_name), *_ = sizes.items()
        raise ValueError(
            f"these dumps are from several jobs: {name} is from a job of {one:,} ranks, "
            f"but {other_name} is from a job of {other:,} ranks. Put each job into its own folder"
        )


def _ranks_of(dumps: Sequence[DumpFile]) -> list[int]:
    """The rank that wrote each dump, from its groups, or else from numbers in the file's name.

    A process records the groups of which it is a member, so its rank is in all of them. In sends
    and receives it also records its own place in the group.
    """
    able = [_able_to_be(dump) for dump in dumps]
    if all(len(ranks) == 1 for ranks in able):
        found = [next(iter(ranks)) for ranks in able]
        _check_differ(found, dumps)
        return found
    numbers = [list(map(int, re.findall(r"\d+", _stem(dump.name))))[::-1] for dump in dumps]
    for place in range(max(map(len, numbers))):
        if all(place < len(own) for own in numbers):
            found = [own[place] for own in numbers]
            fit = all(not may or rank in may for rank, may in zip(found, able, strict=True))
            if fit and len(set(found)) == len(found):
                return found
    last = [own[0] if own else -1 for own in numbers]
    _check_differ(last, dumps)
    raise ValueError(
        f"simlib cannot find out which rank wrote {dumps[0].name}: end the name of each dump with "
        "its rank, as in nccl_trace_rank_3"
    )


def _stem(name: str) -> str:
    return re.sub(r"(\.(json|pkl|pickle|pt|bin))+$", "", name)


def _check_differ(ranks: Sequence[int], dumps: Sequence[DumpFile]) -> None:
    names: dict[int, str] = {}
    for rank, dump in zip(ranks, dumps, strict=True):
        if rank in names and rank >= 0:
            raise ValueError(
                f"{names[rank]} and {dump.name} are both from rank {rank}: are they from two "
                "jobs, or from two moments? Put each dump into its own folder"
            )
        names[rank] = dump.name


def _able_to_be(dump: DumpFile) -> set[int]:
    """The ranks that could have written a dump; empty if the dump does not show it."""
    able: set[int] | None = None
    for ranks in filter(None, dump.members.values()):
        able = set(ranks) if able is None else able.intersection(ranks)
        if len(able) == 1:
            return able
    for entry in dump.content["entries"]:
        own = _own_place(entry)
        if own is not None:
            ranks = dump.members.get(_group_of(entry), ())
            if own < len(ranks):
                return {ranks[own]}
    return able or set()


def _own_place(entry: Any) -> int | None:
    """The writer's own place in the group of a send or recv: ``"nccl:recv 3<-0"``."""
    if not isinstance(entry, dict) or not entry.get("is_p2p"):
        return None
    found = re.search(r":(?:send (\d{1,7})->|recv (\d{1,7})<-)", str(entry.get("profiling_name")))
    return int(found[1] or found[2]) if found else None


def _group_of(entry: dict[str, Any]) -> str:
    name = entry.get("process_group", ("",))
    return str(name[0]) if isinstance(name, list | tuple) and name else ""

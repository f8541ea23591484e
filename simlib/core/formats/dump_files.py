"""Find the flight-recorder dumps in a folder, read them as plain data, and tell whose each is.

A dump is somebody's file: nothing in it is called, and its size is looked at before it is read.
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

from ..record.safe_pickle import TreeUnpickler

MOST_BYTES = 512 << 20
"""Of one dump; a ring of 2,000 entries with deep stacks takes some 10 MB."""
MOST_RANKS = 1 << 20
NEEDED = ("entries", "pg_config")
BROKEN = (
    *(ValueError, LookupError, TypeError, AttributeError, EOFError, RecursionError, MemoryError),
    *(OverflowError, pickle.UnpicklingError),
)
"""What is raised by a file that does not hold what it should."""


@dataclass(frozen=True, slots=True)
class DumpFile:
    """One dump: the file's name, and the dict that the recorder wrote."""

    name: str
    content: dict[str, Any]
    members: dict[str, tuple[int, ...]]
    """The ranks of each process group, by its name; empty where the recorder did not know them."""


@dataclass(slots=True)
class Folder:
    """What a folder of a job holds.

    Attributes
    ----------
    dumps : dict of int to DumpFile
        By rank.
    unread : list of str
        Files that look like dumps and could not be read: a sentence each.
    logs : list of Path
        Text files in which NCCL has logged.
    written_ns : int
        The date of the newest dump, in nanoseconds since 1970.
    """

    dumps: dict[int, DumpFile] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)
    written_ns: int = 0


def read_folder(path: str | Path) -> Folder:
    """Read all dumps in a folder and the folders within; or one dump.

    Parameters
    ----------
    path : str or Path

    Raises
    ------
    ValueError
        There is no dump, or nobody can tell which rank wrote which.
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
        raise ValueError(f"no dump of a flight recorder could be read in {path}{why}")
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
    """A file's dump; None where it holds none, which is noted if it should."""
    with file.open("rb") as opened:
        start = opened.read(4096)
    if b"NCCL INFO" in start or b"NCCL WARN" in start:
        folder.logs.append(file)
    is_json, is_pickle = start.lstrip()[:1] == b"{", start[:1] == b"\x80"
    if not start:
        folder.unread.append(f"{file.name} is empty")
    if not (is_json or is_pickle):
        return None
    nbytes = file.stat().st_size
    if nbytes > MOST_BYTES:
        words = f"{nbytes / 1e9:.1f} GB, and a dump has at most {MOST_BYTES / 1e9:.1f} GB"
        folder.unread.append(f"{file.name} has {words}")
        return None
    try:
        data = file.read_bytes()
        content = json.loads(data) if is_json else TreeUnpickler(io.BytesIO(data)).load()
    except BROKEN as error:
        folder.unread.append(f"{file.name} is cut short or no dump ({_words_of(error)})")
        return None
    if not isinstance(content, dict) or not all(key in content for key in NEEDED):
        return None  # another JSON file beside the dumps
    try:
        return DumpFile(file.name, content, _members_of(content["pg_config"]))
    except BROKEN as error:
        folder.unread.append(f"{file.name} is no dump of a flight recorder ({_words_of(error)})")
        return None


def _words_of(error: BaseException) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__


def _members_of(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The ranks of each group, which the recorder writes as a text: ``"[0, 1]"``."""
    return {str(name): _ranks_in(about["ranks"]) for name, about in config.items()}


@functools.lru_cache(maxsize=4096)  # thousands of dumps name the same groups
def _ranks_in(text: str) -> tuple[int, ...]:
    ranks = json.loads(text)
    if not all(isinstance(rank, int) and 0 <= rank < MOST_RANKS for rank in ranks):
        raise ValueError(f"{text[:40]} are no ranks of a group")
    return tuple(ranks)


def world_of(dump: DumpFile) -> tuple[int, ...]:
    """The ranks of the default group; empty where the dump does not say them."""
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
            f"these dumps are of several jobs: {name} is of {one:,} ranks, {other_name} of "
            f"{other:,}. Give each job a folder of its own"
        )


def _ranks_of(dumps: Sequence[DumpFile]) -> list[int]:
    """The rank that wrote each dump: by the groups it is in, else by the numbers in its name.

    A process records the groups that it is a member of, so it is in all of them; and it names its
    own place in the group where it sends or receives.
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
        f"which rank wrote {dumps[0].name} cannot be told: let the name of each dump end with its "
        "rank, as in nccl_trace_rank_3"
    )


def _stem(name: str) -> str:
    return re.sub(r"(\.(json|pkl|pickle|pt|bin))+$", "", name)


def _check_differ(ranks: Sequence[int], dumps: Sequence[DumpFile]) -> None:
    names: dict[int, str] = {}
    for rank, dump in zip(ranks, dumps, strict=True):
        if rank in names and rank >= 0:
            raise ValueError(
                f"{names[rank]} and {dump.name} are both of rank {rank}: are they of two jobs, or "
                "of two moments? Give each a folder of its own"
            )
        names[rank] = dump.name


def _able_to_be(dump: DumpFile) -> set[int]:
    """The ranks that could have written a dump; empty where it says nothing of that."""
    able: set[int] | None = None
    for ranks in filter(None, dump.members.values()):
        able = set(ranks) if able is None else able & set(ranks)
    for entry in dump.content["entries"]:
        own = _own_place(entry)
        ranks = dump.members.get(_group_of(entry), ())
        if own is not None and own < len(ranks):
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

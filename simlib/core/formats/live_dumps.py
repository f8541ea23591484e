"""Ask the ranks of a running job for the contents of their flight recorders.

torch offers two ways. The job itself must have opened one of them:

- A debug server in each rank, `torch.distributed.debug.start_debug_server`. The job's store knows
  the addresses of all servers. The servers send the dumps of all ranks, on any host, and Python's
  stacks.
- A pipe of each rank by NCCL, ``TORCH_NCCL_DEBUG_INFO_PIPE_FILE``. Any text in the pipe makes this
  one rank write its dump into a file. A thread of the rank looks into the pipe once a second.

Any program may answer. So sizes and times are limited, and only the safe reader reads the answers.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import os
import re
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from .dump_files import BROKEN, plain
from .flight_recorder import is_over
from .job_processes import LiveJob, RankProcess

STORE_S = 120.0
"""Seconds in which the job's store must name all debug servers.

Most of this time is for loading torch from a slow disk. The store itself gets 30 s.
"""
CONNECT_S = 5.0
ANSWER_S = 30.0
"""Seconds in which a rank must answer."""
ALL_S = 120.0
"""Seconds in which all ranks together must answer one question."""
LOOK_S = 0.02
"""Seconds between two looks at the files that ranks write."""
AT_ONCE = 16
"""simlib asks at most this many ranks at the same time."""
MOST_BYTES = 128 << 20
"""The most bytes of an answer. A ring of 2,000 entries with deep stacks takes about 10 MB."""
MOST_STACK_BYTES = 1 << 20
MOST_FRAMES = 100
"""The most frames that Python writes of a thread."""
MOST_ADDRESS_BYTES = 300
"""The most bytes of an address. A host's name has at most 253 letters."""
RECORDERS = ("dump_nccl_trace_pickle", "fr_trace_json")
"""Handlers of a debug server: of NCCL's recorder, if torch has it, and of Gloo's."""
ASK_STORE = """
import datetime, json, signal, sys
import torch.distributed as dist

signal.alarm(30)
host, port, world_size, longest = sys.argv[1], *map(int, sys.argv[2:])
store = dist.TCPStore(host, port, is_master=False, timeout=datetime.timedelta(seconds=5))
store = dist.PrefixStore("debug_server", store)
known = [rank for rank in range(world_size) if store.check([f"rank{rank}"])]
values = {rank: store.get(f"rank{rank}") for rank in known}
print(json.dumps({r: v.decode(errors="replace") for r, v in values.items() if len(v) <= longest}))
"""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a rank.

    Attributes
    ----------
    calls : int
        The number of calls in its recorder.
    last : int or None
        The number of its last call.
    over : int
        How many of these calls have completed. If a host is far ahead of its GPU, only this number
        grows.
    """

    calls: int
    last: int | None
    over: int


@dataclass(frozen=True, slots=True)
class Dump:
    """A rank's answer, its contents, and the progress of the rank."""

    data: bytes
    content: dict[str, Any]
    progress: Progress


Keep = Callable[[int, Dump], None]
"""A function that simlib calls with a rank and its dump when the dump has arrived."""


def dump_of(data: bytes) -> Dump | None:
    """A dump; None if it is incomplete."""
    try:
        content = plain(data)
        entries = content["entries"]
        last = entries[-1].get("record_id") if entries else None
        over = sum(map(is_over, entries))
    except BROKEN:
        return None
    progress = Progress(len(entries), last if isinstance(last, int) else None, over)
    return Dump(data, content, progress)


class DebugServers:
    """The debug servers of the ranks of a job.

    Attributes
    ----------
    asked : frozenset of int
        All ranks that have a server.
    """

    def __init__(self, addresses: dict[int, tuple[str, int]]) -> None:
        self.asked = frozenset(addresses)
        self._addresses = addresses
        self._recorders = RECORDERS

    @classmethod
    def of(cls, job: LiveJob) -> DebugServers | None:
        """The servers that the job's store knows; None if there are none."""
        found = {rank: _host_and_port(text) for rank, text in _known_to_store(job).items()}
        addresses = {rank: address for rank, address in found.items() if address is not None}
        return cls(addresses) if addresses else None

    def look(self, keep: Keep | None = None) -> dict[int, Progress]:
        """The progress of each rank that sends a dump, all from the same recorder."""
        found: dict[int, Progress] = {}
        for handler in self._recorders:
            answers = self._ask_all(handler, MOST_BYTES, functools.partial(_kept, keep))
            found = {rank: one for rank, one in answers.items() if one is not None}
            self._recorders = (handler,)
            if any(one.calls for one in found.values()):
                break
        return found

    def stacks(self, keep: Callable[[int, str], T]) -> dict[int, T]:
        """Call ``keep`` with the present stack of each rank's main thread, as Python writes it."""
        return self._ask_all(
            "dump_traceback",
            MOST_STACK_BYTES,
            lambda rank, data: keep(rank, data.decode(errors="replace")),
        )

    def _ask_all(
        self, handler: str, most_bytes: int, take: Callable[[int, bytes], T]
    ) -> dict[int, T]:
        """Call ``take`` with the answers. Do not ask a rank again that does not answer."""
        until_s = time.monotonic() + ALL_S
        taken: dict[int, T] = {}
        lock = threading.Lock()

        def ask(rank: int) -> None:
            data = _ask(self._addresses[rank], handler, most_bytes, until_s)
            if data is not None:
                with lock:  # one at a time: a dump that is read is many times its bytes
                    taken[rank] = take(rank, data)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(ask, self._addresses))
        self._addresses = {rank: self._addresses[rank] for rank in sorted(taken)}
        return {rank: taken[rank] for rank in self._addresses}


def _kept(keep: Keep | None, rank: int, data: bytes) -> Progress | None:
    dump = dump_of(data)
    if dump is not None and keep is not None:
        keep(rank, dump)
    return dump.progress if dump is not None else None


def _known_to_store(job: LiveJob) -> dict[int, str]:
    """The entries of debug servers in the job's store, by rank.

    A separate process asks, because it can be ended. torch's client would wait without a limit for
    a port that accepts a connection and stays silent.
    """
    host, port = job.address
    about = [host, str(port), str(job.world_size), str(MOST_ADDRESS_BYTES)]
    try:
        socket.create_connection(job.address, CONNECT_S).close()  # takes less than a process
        asked = subprocess.run(
            [sys.executable, "-P", "-c", ASK_STORE, *about],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=STORE_S,
            check=True,
        )
        found = json.loads(asked.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):  # it has gone, or is not one of torch
        return {}
    return {int(rank): text for rank, text in found.items()}


def _host_and_port(text: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if not host or not port:
        return None
    # not every host can resolve its own name
    return ("localhost" if host == socket.gethostname().lower() else host), port


def _ask(address: tuple[str, int], handler: str, most_bytes: int, until_s: float) -> bytes | None:
    """The answer of one rank. Empty if it refuses, None if it does not answer in time."""
    until_s = min(until_s, time.monotonic() + ANSWER_S)
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        return None
    try:
        connection = http.client.HTTPConnection(*address, timeout=min(CONNECT_S, left_s))
        with contextlib.closing(connection):
            connection.connect()
            with _shut_at(until_s, connection.sock):
                data = _exchange(connection, handler, most_bytes)
    except (OSError, ValueError, http.client.HTTPException):  # a bad address, or no answer
        return None
    return data if time.monotonic() < until_s else None  # else what came may be cut short


@contextlib.contextmanager
def _shut_at(until_s: float, line: socket.socket):
    """Close a connection at this time, because its own time limit begins again with each byte."""

    def shut() -> None:
        with contextlib.suppress(OSError):  # the other side was faster
            line.shutdown(socket.SHUT_RDWR)

    line.settimeout(None)
    timer = threading.Timer(until_s - time.monotonic(), shut)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _exchange(
    connection: http.client.HTTPConnection, handler: str, most_bytes: int
) -> bytes | None:
    connection.request("POST", f"/handler/{handler}")
    answer = connection.getresponse()
    if answer.status != http.client.OK:
        return b""
    data = bytearray()
    while piece := answer.read1(1 << 20):
        data += piece
        if len(data) > most_bytes:
            return None
    return bytes(data)


class Pipes:
    """The pipes of a job's ranks on this host that have opened one.

    Attributes
    ----------
    asked : frozenset of int
        The ranks on this host that have opened a pipe.
    """

    def __init__(self, ranks: Iterable[RankProcess]) -> None:
        self._ranks = list(ranks)
        self.asked = frozenset(one.rank for one in self._ranks)

    @classmethod
    def of(cls, job: LiveJob) -> Pipes | None:
        """The pipes of a job; None if there are none."""
        ranks = [rank for rank in job.ranks.values() if _pipe(rank) is not None]
        return cls(ranks) if ranks else None

    def look(self, keep: Keep | None = None, timeout_s: float = ANSWER_S) -> dict[int, Progress]:
        """The progress of each rank that writes its dump within ``timeout_s`` seconds.

        Ranks that do not write a dump are not asked again.
        """
        no_dump = {one.rank: _stamp(_target(one)) for one in self._ranks}
        seen = dict(no_dump)
        waiting = [one for one in self._ranks if _write(_pipe(one))]
        found: dict[int, Progress] = {}
        until_s = time.monotonic() + timeout_s
        while waiting and time.monotonic() < until_s:
            time.sleep(LOOK_S)
            for one in list(waiting):
                before, seen[one.rank] = seen[one.rank], _stamp(_target(one))
                if seen[one.rank] == no_dump[one.rank] or seen[one.rank] != before:
                    continue  # an older dump, or one that is being written
                progress = _kept(keep, one.rank, _read(_target(one)))
                if progress is None:
                    no_dump[one.rank] = seen[one.rank]
                else:
                    found[one.rank] = progress
                    waiting.remove(one)
        self._ranks = [one for one in self._ranks if one.rank in found]
        return found

    def stacks(self, keep: Callable[[int, str], T]) -> dict[int, T]:
        """Returns None, because a pipe sends no stacks."""
        return {}


def _pipe(rank: RankProcess) -> Path | None:
    stem = rank.environ.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
    return rank.file(f"{stem}{rank.rank}.pipe") if stem else None


def _target(rank: RankProcess) -> Path:
    """The file into which torch writes the dump of a rank."""
    stem = rank.environ.get("TORCH_FR_DUMP_TEMP_FILE")
    stem = stem or rank.environ.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    if not stem:
        home = rank.environ.get("HOME", "/tmp")
        cache = rank.environ.get("XDG_CACHE_HOME") or f"{home}/.cache"
        stem = f"{cache}/torch/comm_lib_trace_rank_"
    return rank.file(f"{stem}{rank.rank}")


def _write(pipe: Path | None) -> bool:
    """Whether a rank reads the pipe, and so was asked through it."""
    try:
        if pipe is None or not stat.S_ISFIFO(os.stat(pipe).st_mode):
            return False
        file = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)  # which fails where nobody reads
    except OSError:
        return False
    try:
        return os.write(file, b"1\n") > 0
    except OSError:
        return False
    finally:
        os.close(file)


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        about = os.stat(path)
    except OSError:
        return ()
    return about.st_ino, about.st_mtime_ns, about.st_size


def _read(path: Path) -> bytes:
    """A file's bytes; none if it is too large, or not a file."""
    try:
        about = os.stat(path)
        if stat.S_ISREG(about.st_mode) and about.st_size <= MOST_BYTES:
            return path.read_bytes()
    except OSError:
        pass
    return b""


def asked_by(job: LiveJob) -> DebugServers | Pipes:
    """The way to ask the ranks of a job.

    Raises
    ------
    ValueError
        The ranks of the job have opened no way to ask them.
    """
    ways: tuple[Callable, ...] = (DebugServers.of, Pipes.of)
    found = next(filter(None, (way(job) for way in ways)), None)
    if found is None:
        raise ValueError(
            f"the ranks of job {job.pid} cannot be asked for their dumps: start it again with "
            "`torch.distributed.debug.start_debug_server()` after init_process_group, or, if its "
            "backend is NCCL, with TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/tmp/pipe_ in its environment"
        )
    return found


def frames_of(stack: str) -> list[dict[str, Any]]:
    """The frames of the main thread, innermost first. Python writes this thread last.

    They have the form of a recorder's frames.
    """
    last = stack.rstrip().rpartition("\n\n")[2]
    found = re.findall(r'^  File "(.*)", line (\d{1,9}) in (.*)$', last, re.MULTILINE)
    return [
        {"filename": file, "line": int(line), "name": function}
        for file, line, function in found[:MOST_FRAMES]
    ]

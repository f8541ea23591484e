"""The records of a job's ranks, and `JobMonitor`, which reads them in a kernel or on rank 0.

An op log is a file. A rank writes it on its host, and any host that sees the folder can read it. A
rank's answer is plain data if possible, else a pickle. Reading a pickle can run any code, so simlib
reads a pickle only if no other account can have written it. A verdict is plain data.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import pickle
import struct
import time
from collections.abc import Callable
from typing import Any

from ...core.diagnose import failures
from ...core.diagnose.matching import Wait
from ...core.diagnose.monitor import DeadlockDetector, RunMonitor
from ...core.diagnose.verdicts import WaitGraph
from ...core.model import errors
from ...core.model.trace import Group, Op, Site
from ...core.record.oplog import CAPACITY, COMMITTED, ENTERED, FUTURES, HEADER, READERS, OpLogWriter
from ...core.record.oplog_reader import OpLogReader
from ...core.record.safe_pickle import dumps_tree, is_plain, loads_tree

SLEEPS = READERS
"""The readers' field of the header. It is free here, because no log of a job rolls over. The rank's
supervisor writes two numbers into it. The upper number counts the supervisor's looks. The lower
number is 0 if the main thread is awake; else it is 1 plus the number of times that the thread has
gone to sleep. See `DeadlockDetector` for waits inside C++."""
_NUMBER = struct.Struct("q")
_MOMENT = struct.Struct("d")


def create(path):
    """Create a log and return its memory, which is mapped from the file.

    If the rank is killed, the records stay in the file.

    The file reserves 256 MB, but it uses only as much of the disk as its records need.
    """
    with open(path, "w+b") as file:
        file.truncate(CAPACITY)
        return mmap.mmap(file.fileno(), CAPACITY)


def writer(memory, *more):
    """Return the writer of a log that `LogFile` reads. It writes definitions as plain data, so that
    every reader can read them."""
    return OpLogWriter(memory, *more, dumps=dumps_tree)


def open_memory(path):
    """Map the memory of an existing log."""
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), CAPACITY)


def has_futures_taken(memory):
    """Whether C++ code of the rank has asked for the future of an op."""
    return bool(_NUMBER.unpack_from(memory, FUTURES)[0])


def entered_s(memory):
    """Return when the rank entered its function, on its host's clock; None before that."""
    moment_s = _MOMENT.unpack_from(memory, ENTERED)[0]
    return moment_s if moment_s > 0 else None


def write_sleeps(memory, look, count):
    """Write down how often the rank has gone to sleep up to this look. ``count`` is None if the
    rank is awake."""
    low = 0 if count is None else (count + 1) & 0xFFFFFFFF
    _NUMBER.pack_into(memory, SLEEPS, look << 32 | low)


def trim(path):
    """Free the disk space that a finished log has reserved but not used."""
    os.truncate(path, used_bytes(path))


def used_bytes(path):
    """Return how many bytes of a log's file are in use."""
    with open(path, "rb") as file:
        header = file.read(HEADER)
    if len(header) < HEADER:
        return len(header)
    return max(HEADER, _NUMBER.unpack_from(header, COMMITTED)[0])


def _empty() -> bytes:
    memory = bytearray(HEADER)
    OpLogWriter(memory)
    return bytes(memory)


EMPTY = _empty()
"""The header of an empty log."""


class LogFile(OpLogReader):
    """Reads a log from its file, and opens the file again for every look. If it mapped the memory
    of another host's file, it would not see new records.

    A look sees the log as it was at one moment, because a record is complete before the header
    counts it. The matcher reads the logs of different ranks at different moments, but this does no
    harm. If ranks seem to wait for each other, they really do. For one of these ranks to continue,
    another rank must have posted an op before its own wait began. The log of that other rank would
    already contain this op.

    Parameters
    ----------
    path : Path
    rank : int

    Attributes
    ----------
    offset_s : float
        The number of seconds by which the rank's clock is ahead of rank 0's clock.
    sleeps : (int, int or None)
        The number of the supervisor's last look, and how often the rank had gone to sleep by then.
        The second number is None if the rank was awake.
    """

    def __init__(self, path, rank):
        self._path = path
        self.offset_s = 0.0
        self.sleeps = (0, None)
        self._is_torn = False
        super().__init__(EMPTY, rank, loads=loads_tree)

    def refresh(self, anew=False):
        """Read the present contents of the file. With ``anew``, read them even if the header has
        not changed."""
        try:
            with open(self._path, "rb", buffering=0) as file:
                header = file.read(HEADER)
                if len(header) < HEADER:
                    return
                look, low = divmod(_NUMBER.unpack_from(header, SLEEPS)[0], 1 << 32)
                self.sleeps = look, low - 1 if low else None
                is_same = header[:SLEEPS] == self._memory[:SLEEPS]
                if is_same and not (anew or self._is_torn):
                    return
                committed = _NUMBER.unpack_from(header, COMMITTED)[0]
                body = file.read(max(0, committed - HEADER))
        except FileNotFoundError:
            return
        if committed >= HEADER and len(body) == committed - HEADER:
            self._memory = header + body
            self._is_torn = False

    @property
    def state(self):
        """Return the same as `OpLogReader.state`, for the present contents of the file."""
        self.refresh()
        return super().state

    def close(self):
        """Do nothing, because each look opens and closes the file."""

    def _moment(self, offset):
        moment_s = super()._moment(offset)
        return None if moment_s is None else moment_s - self.offset_s

    def op_at(self, offset, seq, origin_s, cells):
        """Return the same op as `OpLogReader.op_at`, with its times on rank 0's clock."""
        return super().op_at(offset, seq, origin_s + self.offset_s, cells)

    def read_on(self):
        """Do the same as `OpLogReader.read_on`, as far as the log can be read."""
        try:
            super().read_on()
        except (EOFError, struct.error, pickle.UnpicklingError):
            self._is_torn = True  # NFS hands pages on in any order: the next look has it


PLAIN = b"plain data\n"
"""An answer in plain data begins with these bytes. No pickle begins with them."""


def dump_answer(answer: Any, otherwise: Callable[[Any], bytes] = pickle.dumps) -> bytes:
    """Return an answer as bytes. If the answer is not plain data, ``otherwise`` makes the bytes."""
    return PLAIN + dumps_tree(answer) if is_plain(answer) else otherwise(answer)


def load_answer(content: bytes, may_call: bool) -> Any:
    """Return the answer that these bytes contain. With ``may_call``, the bytes may be a pickle.

    Raises
    ------
    UnpicklingError
        The answer is a pickle, and ``may_call`` is False.
    """
    if content.startswith(PLAIN):
        return loads_tree(content[len(PLAIN) :])
    if not may_call:
        raise pickle.UnpicklingError("the file is not plain data, and another account wrote it")
    return pickle.loads(content)


PARTS = {part.__name__: part for part in (Group, Op, Site, Wait, WaitGraph)}
PART = "a part:"
"""A mark before the name of a class. It begins a tuple of this name and the values of the
fields."""
ERRORS = {
    error.__name__: error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, errors.SimlibError)
}


def dump_verdict(error: errors.SimlibError) -> bytes:
    """Return a verdict as bytes for `loads`. The bytes do not contain the verdict's run, because
    readers make the run from the logs."""
    more = {name: _tree(value) for name, value in vars(error).items() if name != "run"}
    return dumps_tree((type(error).__name__, str(error), more))


def load_verdict(content: bytes) -> errors.SimlibError:
    """Return the verdict that these bytes contain.

    Raises
    ------
    Exception
        The bytes contain no verdict. The exception may be of any class.
    """
    name, message, more = loads_tree(content)
    error = ERRORS[name](message)
    for field, value in more.items():
        if field not in vars(error):
            raise KeyError(field)
        setattr(error, field, _value(value))
    return error


def _tree(value: Any) -> Any:
    sort = type(value)
    if PARTS.get(sort.__name__) is sort:
        parts = {one.name: _tree(getattr(value, one.name)) for one in dataclasses.fields(sort)}
        return (PART, sort.__name__, parts)
    if sort is dict:
        return {key: _tree(one) for key, one in value.items()}
    if sort in (list, tuple):
        return sort(map(_tree, value))
    return value


def _value(tree: Any) -> Any:
    sort = type(tree)
    if sort is tuple and tree[:1] == (PART,):
        _, name, fields = tree
        return PARTS[name](**{field: _value(one) for field, one in fields.items()})
    if sort is dict:
        return {key: _value(one) for key, one in tree.items()}
    if sort in (list, tuple):
        return sort(map(_value, tree))
    return tree


STACK_LIMIT_S = 1.0
LOOK_S = 0.02
CHUNK = 1 << 20


class JobMonitor(RunMonitor):
    """Reads the records that the ranks of a job write into its folder, from any host.

    Parameters
    ----------
    folder : JobFolder
    while_waiting : callable
        simlib calls this function again and again while it waits for ranks.
    """

    detector: DeadlockDetector

    def __init__(self, folder, while_waiting=lambda: None):
        job = folder.about()
        super().__init__(
            job["function"], job["world_size"], job["cells"], job["timeout_s"], job["check"]
        )
        self._folder = folder
        self._while_waiting = while_waiting
        self.survives = job.get("on_death") == "continue"
        self.kill = {int(rank): time_s for rank, time_s in job.get("kill", {}).items()}
        ranks = range(self.world_size)
        self.logs = [LogFile(folder.file("log", rank), rank) for rank in ranks]
        self._asleep = {}
        self.detector = DeadlockDetector(
            self.logs, self.cells, self._asleep.get, callers=self.with_callers
        )
        self.places = {}
        self.native = [b"" for _ in ranks]
        self._read = [0 for _ in ranks]

    def take_in(self, show=lambda rank, lines: None):
        """Read new records. Call ``show(rank, lines)`` with each rank's new complete lines of
        output."""
        for rank in range(self.world_size):
            self._read_place(rank)
            self._read_answer(rank)
            show(rank, self._read_output(rank))
            before = self.logs[rank].sleeps
            self.logs[rank].refresh()
            self._asleep[rank] = _slept_on(before, self.logs[rank].sleeps)

    def _read_place(self, rank):
        if rank not in self.places:
            place = self._folder.read_json("json", rank)
            if place is not None:
                self.places[rank] = place
                self.logs[rank].offset_s = place["offset_s"]

    def _read_answer(self, rank):
        if rank in self.answers or rank in self.deaths:
            return
        answer = self._folder.read("answer", rank)
        death = self._folder.read_json("exit", rank)
        if answer is not None:
            try:
                self.answers[rank] = load_answer(answer, may_call=not self._folder.is_recorded)
            except Exception as error:  # it arrived, but cannot be rebuilt here
                report = f"{type(error).__name__}: {error}"
                self.answers[rank] = "unpicklable", ("result", report)
        elif death is not None:
            self.deaths[rank] = death["code"]
            self.death_words[rank] = failures.death_of(rank, death["code"], death.get("why", ""))
            if death.get("time_s") is not None:
                self.died_s[rank] = death["time_s"] - self.logs[rank].offset_s
            self.native[rank] = self._folder.read("err", rank) or b""

    def _read_output(self, rank):
        """Return the lines of output that a rank has completed since the last look, as bytes."""
        lines = []
        file = self._folder.open("out", rank)
        if file is None:
            return lines
        with file:
            file.seek(self._read[rank])
            while chunk := file.read(CHUNK):
                self._read[rank] += len(chunk)
                lines += self.outputs[rank].add(chunk)
        return lines

    def ask_for_stacks(self, ranks):
        """Ask supervisors for the stacks of computing ranks; return the learner's frames in
        them."""
        if self._folder.is_recorded or self._folder.has("end"):
            return {rank: [] for rank in ranks}  # they are gone
        sizes = {rank: len(self._folder.read("err", rank) or b"") for rank in ranks}
        for rank in ranks:
            self._folder.file("stack-wanted", rank).touch()
        found = dict.fromkeys(ranks, [])
        deadline = time.monotonic() + STACK_LIMIT_S
        while not all(found.values()) and time.monotonic() < deadline:
            for rank in ranks:
                text = self._folder.read("err", rank) or b""
                found[rank] = failures.frames_in(text[sizes[rank] :], whole=True)
            self._while_waiting()
            time.sleep(LOOK_S)
        return found

    def read_to_the_end(self):
        """Read all records of the ranks, and return the largest error of their clocks."""
        for log in self.logs:
            log.refresh(anew=True)
        return max((place["error_s"] for place in self.places.values()), default=0.0)


def _slept_on(before, now):
    """Return how often a rank has gone to sleep; None if it did not sleep between two looks."""
    (look, count), (later, same) = before, now
    return same if later > look and count == same else None

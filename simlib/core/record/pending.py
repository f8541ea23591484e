"""What is under way on a rank: buffers of open requests, and ops that end on a GPU.

Nobody may touch the buffers of a request before it is waited for.

An op on a GPU ends by an event, and nobody waits for the GPU. A request of NCCL is waited for by
the stream, not by the rank: `wait` returns at once, and the op ends some time later. So an event
is put into the stream behind it. Now and then the rank asks the events that the GPU has passed when
that was: at an op, before it waits, and at its end.

Here, too, is how to tell a tensor that has no data, and so no memory that ops might race for.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

MAX_WORK = 1000
"""Of how many candidates it is tried at most whether two tensors in pieces have them in common."""


# Tensors without data: torch's own, of any size. Their storages differ, and all begin at one
# address that holds nothing. So one look tells them, and any number of them takes no memory.

places: dict[int, Tensor] = {}
"""The common address, if there is one -> what keeps its memory."""


def is_without_data(tensor: Tensor) -> bool:
    """Whether a tensor has no data.

    **Cost** half a microsecond; nothing where there has been no such tensor.
    """
    if not places or not has_memory(type(tensor)) or tensor.layout is not torch.strided:
        return False
    return is_storage_without_data(tensor.untyped_storage())


def has_memory(kind: Any) -> bool:
    """Whether tensors of a class have memory of their own, unlike those that wrap others."""
    return kind.__torch_dispatch__ is Tensor.__torch_dispatch__


def is_storage_without_data(storage: torch.UntypedStorage) -> bool:
    """Whether a storage is that of a tensor without data."""
    return storage.data_ptr() in places


# What is under way


class Buffer(NamedTuple):
    """A tensor that an op is going to read or write: made before the op begins.

    Attributes
    ----------
    tensor : Tensor
    is_written : bool
    version : int or None
        What its version will be when the op is through, if nobody else writes it; None where that
        says nothing.
    """

    tensor: torch.Tensor
    is_written: bool
    version: int | None

    @classmethod
    def of(cls, tensor: torch.Tensor, is_written: bool, own_writes: int = 0) -> Buffer:
        """A tensor that the op itself writes so often through torch.

        Gloo copies some results into their tensors so: a thread of its own, or `wait`.
        """
        version = _version(tensor)
        return cls(tensor, is_written, None if version is None else version + own_writes)


def buffers_of(args: Sequence, is_written: bool, own_writes: int = 0) -> list[Buffer]:
    """The tensors among the arguments of a collective as `Buffer`."""
    found = []
    for arg in args:
        if isinstance(arg, torch.Tensor):
            found.append(Buffer.of(arg, is_written, own_writes))
        elif isinstance(arg, list):
            found += buffers_of(arg, is_written, own_writes)
    return found


class Pending:
    """The requests of one rank that are not waited for yet, and their buffers.

    Noticed are writes through torch, by the tensor's version, where the tensor is no view (views of
    one tensor share its version); and two requests on the same memory, one of which writes.
    Tensors with steps between their elements may lie within each other without sharing any.
    Not noticed on real ranks: reads, and writes by numpy, by ``.data`` or by native code. A request
    whose future somebody has taken is over when that future is complete: whether the program has
    waited for the future, nobody sees.

    Attributes
    ----------
    requests : dict
        Those that are open -> where their buffers are, and their versions in the end.
    """

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self.requests: dict[Any, tuple] = {}
        self._places = Places()
        self._lock = threading.Lock()  # futures end in threads of the transport

    def clear(self) -> None:
        """Forget all requests."""
        self.requests.clear()
        self._places = Places()

    def add(self, work: Any, buffers: list[Buffer]) -> None:
        """A request has been posted; ``buffers`` is a list of `Buffer`."""
        places = self.compare(work, buffers)
        with self._lock:
            for place in places:
                self._places.add(place, work)
        counted = buffers if len(buffers) == 1 else _that_count(buffers)
        versions = [(b.tensor, b.version) for b in counted if b.version is not None]
        self.requests[work] = places, versions

    def compare(self, work: Any, buffers: list[Buffer]) -> list[Place]:
        """Look whether an op uses memory of an open request; returns where its buffers are."""
        places = [Place.of(buffer.tensor, buffer.is_written) for buffer in buffers]
        places = [place for place in places if place.first < place.end]
        with self._lock:
            met = {other: None for place in places for other in self._places.overlapping(place)}
        for other in met:
            if not other.has_come():
                self._report("overlap", work.start, other.start)
        return places

    def forget(self, work: Any) -> list[tuple[torch.Tensor, int]]:
        """A request is over; returns its tensors, and what their versions should be."""
        places, versions = self.requests.pop(work, ((), ()))
        with self._lock:
            for place in places:
                self._places.remove(place, work)
        return versions

    def waited(self, work: Any) -> None:
        """The learner has waited for a request: look whether its buffers were left alone."""
        versions = self.forget(work)
        for tensor, version in versions:
            if tensor._version != version:
                self._report("written", work.start, 0)
                break

    def _report(self, how, start, other):
        place = self._recorder.line_of(sys._getframe(1).f_back)
        self._recorder.log.tell_race(how, start, other, place)


class Place(NamedTuple):
    """Memory of a tensor.

    Attributes
    ----------
    first, end : int
        Addresses of its first byte, and behind its last.
    is_written : bool
        Whether its owner writes it.
    pieces : tuple or None
        Shape, steps in bytes, and bytes of an element, where bytes between may be of others.
    """

    first: int
    end: int
    is_written: bool
    pieces: tuple | None = None

    @classmethod
    def of(cls, tensor: torch.Tensor, is_written: bool) -> Place:
        """Where a tensor lies; an empty place where it has no such memory."""
        if tensor.layout is not torch.strided or is_without_data(tensor):
            return cls(0, 0, is_written)
        first = tensor.data_ptr()
        if tensor.is_contiguous():  # one without elements, too
            return cls(first, first + tensor.nbytes, is_written)
        itemsize = tensor.element_size()
        steps = tuple(step * itemsize for step in tensor.stride())
        ways = zip(tensor.shape, steps, strict=True)
        end = first + sum((size - 1) * step for size, step in ways) + itemsize
        return cls(first, end, is_written, (tuple(tensor.shape), steps, itemsize))

    def clashes_with(self, other: Place) -> bool:
        """Whether one of two owners writes memory of the other's.

        **Cost** O(1) without pieces. With them a few microseconds, and some hundred at most; where
        that does not tell, the answer is no.
        """
        if not (self.is_written or other.is_written):
            return False
        if self.first >= other.end or other.first >= self.end:
            return False
        if self.pieces is None and other.pieces is None:
            return True
        try:
            return np.shares_memory(_Memory(self), _Memory(other), max_work=MAX_WORK)  # type: ignore[arg-type]
        except np.exceptions.TooHardError:
            return False


class _Memory:
    """A place as numpy describes arrays; what is in it is not read."""

    def __init__(self, place):
        shape, steps, itemsize = place.pieces or ((place.end - place.first,), (1,), 1)
        self.__array_interface__ = {
            "version": 3,
            "data": (place.first, True),
            "shape": shape,
            "strides": steps,
            "typestr": f"|V{itemsize}",
        }


class Places:
    """Runs of memory, to be found by address.

    They are kept by their size in powers of two, each sort in order of first bytes: what may
    overlap begins less than one such size before.

    **Cost** O(sizes in use + log(runs) + met) to look, and the move of a list to add or remove.
    """

    def __init__(self) -> None:
        self._by_size: dict[
            int, list
        ] = {}  # power of two -> list of (first byte, id of owner, place, owner)

    def add(self, place: Place, owner: Any) -> None:
        """Note memory, and whose it is."""
        runs = self._by_size.setdefault((place.end - place.first).bit_length(), [])
        insort(runs, (place.first, id(owner), place, owner), key=_address)

    def remove(self, place: Place, owner: Any) -> None:
        """Forget it."""
        power = (place.end - place.first).bit_length()
        runs = self._by_size[power]
        at = bisect_left(runs, (place.first, id(owner)), key=_address)
        del runs[at]
        if not runs:
            del self._by_size[power]

    def overlapping(self, place: Place) -> Iterator[Any]:
        """The owners of memory that this place shares, where one of the two is written."""
        for power, runs in self._by_size.items():
            at = bisect_left(runs, (place.first - (1 << power), 0), key=_address)
            while at < len(runs) and runs[at][0] < place.end:
                *_, other, owner = runs[at]
                if place.first < other.end and place.clashes_with(other):
                    yield owner
                at += 1


def _address(entry):
    return entry[:2]


def _that_count(buffers):
    """The buffers of an op whose versions in the end are known.

    Tensors of one memory may share their version, though none is a view: where the op writes one,
    such as a result that holds what the rank brings, only that one's is. Where it writes several,
    none is.
    """
    together = defaultdict(list)
    for buffer in buffers:
        together[_storage(buffer.tensor)].append(buffer)
    for same in together.values():
        written = [buffer for buffer in same if buffer.is_written] or same
        if len(written) == 1 or not written[0].is_written:
            yield from written


def _storage(tensor):
    """What tensors of one memory have in common."""
    is_plain = tensor.layout is torch.strided
    return tensor.untyped_storage().data_ptr() if is_plain else id(tensor)


def _version(tensor):
    """What grows with every write through torch; None where that says nothing.

    Of a tensor on a GPU it says nothing: how often a backend writes it by torch is not known.
    """
    counts = tensor._base is None and not tensor.is_inference() and not tensor.is_cuda
    return tensor._version if counts else None


LAST_S, LOOK_S = 1.0, 0.001
"""How long a rank that has left its function waits to see its ops end, and how often it looks."""


EVERY, AT_LEAST_S = 32, 0.001
"""After how many ops, or seconds, a rank looks which events its GPU has passed: it costs some us
for each."""


def record_event(device: torch.device, event: torch.cuda.Event | None = None) -> torch.cuda.Event:
    """An event behind what the device's current stream has been given so far.

    ``event`` is one that nobody asks any more, to be used again: making one costs more.
    """
    if event is None:
        event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


class StreamEnds:
    """The ops of one rank whose end is an event that a GPU has yet to pass.

    Parameters
    ----------
    log : OpLogWriter
    record : callable
        ``(device, event or None)`` -> an event, as of `torch.cuda`: it has ``query()`` and
        ``elapsed_time(later)``.
    clock : callable
        The log's.

    Attributes
    ----------
    open : dict
        Device -> deque of (op, event, when it was recorded). It is empty as long as no op was on a
        GPU: then nobody needs to `look`.

    Notes
    -----
    Events tell how long after another one they were passed. When the one before was, by the rank's
    own clock, is known or estimated; and no event is passed before it is recorded. So an estimate
    is at worst too early, by what a stream had to do when the first event was put into it, and is
    exact from the first event on that is recorded where the stream has nothing left to do.
    """

    holds_rank_up = True
    """Whether a rank may have to wait in `wait`, as NCCL's options have it."""

    def __init__(
        self, log: Any, record: Callable = record_event, clock: Callable = time.perf_counter
    ) -> None:
        self._log = log
        self._record = record
        self._clock = clock
        self.open: dict[torch.device, deque] = {}
        self._lock = threading.Lock()  # each GPU has a thread of autograd's
        self._posted, self._looked_s = 0, -math.inf  # since the last look, and when it was
        # Events that have told all they had to tell, by device: an event stays with its own.
        self._free: dict[torch.device, list] = defaultdict(list)
        self._passed: dict[
            torch.device, tuple[Any, float]
        ] = {}  # device -> (the last event that was passed, when)

    def __bool__(self) -> bool:
        return any(self.open.values())

    def clear(self) -> None:
        """Forget the ops of a run."""
        self.open.clear()

    @staticmethod
    def device_of(tensors: Sequence[torch.Tensor]) -> torch.device | None:
        """The GPU on which an op of these tensors ends; None: it ends when it was waited for."""
        return tensors[0].device if len(tensors) and tensors[0].is_cuda else None

    def begin(self, device: torch.device) -> None:
        """An op is about to be posted on this device: there is an event before it."""
        if device not in self._passed:
            recorded_s = self._clock()
            self._passed[device] = self._record_one(device), recorded_s

    def mark(self, start: int, device: torch.device) -> None:
        """The op ends when the device's stream has come to here; `begin` was called before it."""
        recorded_s = self._clock()
        event = self._record_one(device)
        self.open.setdefault(device, deque()).append((start, event, recorded_s))

    def _record_one(self, device):
        try:
            free = self._free[device].pop()
        except IndexError:  # another thread may have been quicker
            free = None
        return self._record(device, free)

    def look_in_turn(self) -> None:
        """An op comes: `look` at every so many, and where the last look is some time ago."""
        self._posted += 1
        if self._posted >= EVERY or self._clock() - self._looked_s > AT_LEAST_S:
            self.look()

    def look(self) -> None:
        """Write down the ends of ops that GPUs have passed."""
        with self._lock:
            self._posted, self._looked_s = 0, self._clock()
            for device, ops in list(self.open.items()):  # other threads may `mark`
                self._look_at(device, ops)

    def _look_at(self, device, ops):
        while ops and ops[0][1].query():
            before, before_s = self._passed[device]
            if not before.query():  # of another stream, which has not come so far
                break
            start, event, recorded_s = ops.popleft()
            end_s = before_s + before.elapsed_time(event) / 1000
            end_s = min(max(end_s, recorded_s), self._clock())
            self._passed[device] = event, end_s
            self._free[device].append(before)
            self._log.ended(start, end_s)

    def last_look(self, sleep: Callable[[float], Any] = time.sleep) -> None:
        """Look until all ends are known; a GPU that does not come to them is not waited for.

        Of one that has failed (by a device-side assert, say) no end is ever told.
        """
        until_s = self._clock() + LAST_S
        with contextlib.suppress(RuntimeError):
            self.look()
            while self and self._clock() < until_s:
                sleep(LOOK_S)
                self.look()

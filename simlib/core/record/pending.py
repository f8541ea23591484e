"""The ops under way on a rank: buffers of open requests, and ops that end on a GPU.

No code may touch the buffers of a request before the wait for it.

An op on a GPU ends by an event, and no thread waits for the GPU. For a request of NCCL, the stream
waits instead of the rank: `wait` returns at once, and the op ends later. So simlib puts an event
into the stream behind the op. At some of its ops, before a wait, and at its end, the rank asks
which events the GPU has passed, and when.

This module also recognises tensors that have no data, and so no memory for races between ops.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

_STRIDED, _new = torch.strided, tuple.__new__
FEW = 4
"""simlib compares an op with so many open buffers one by one, and with more by an index."""
MAX_WORK = 1000
"""simlib tries at most this many candidates to find out whether tensors in pieces overlap."""


# Tensors without data: torch's own, of any size. Their storages differ, and all begin at one
# address that holds nothing. So one look tells them, and any number of them takes no memory.

places: dict[int, Tensor] = {}
"""The common address, if there is one -> the object that keeps its memory."""


def is_without_data(tensor: Tensor) -> bool:
    """Whether a tensor has no data.

    **Cost** half a microsecond, or nothing if no such tensor was ever made.
    """
    if not places or not has_memory(type(tensor)) or tensor.layout is not torch.strided:
        return False
    return is_storage_without_data(tensor.untyped_storage())


def has_memory(kind: Any) -> bool:
    """Whether tensors of a class have their own memory, unlike tensors that wrap others."""
    return kind.__torch_dispatch__ is Tensor.__torch_dispatch__


def is_storage_without_data(storage: torch.UntypedStorage) -> bool:
    """Whether a storage belongs to a tensor without data."""
    return storage.data_ptr() in places


# What is under way


class Buffer(NamedTuple):
    """A tensor that an op will read or write. It is made before the op begins.

    Attributes
    ----------
    tensor : Tensor
    is_written : bool
    version : int or None
        The version of the tensor after the op, if no other code writes the tensor. None if versions
        show nothing for this tensor.
    """

    tensor: torch.Tensor
    is_written: bool
    version: int | None

    @classmethod
    def of(cls, tensor: torch.Tensor, is_written: bool, own_writes: int = 0) -> Buffer:
        """A tensor that the op itself writes ``own_writes`` times through torch.

        Gloo copies some results into their tensors in this way, in its own thread or in `wait`.
        """
        version = version_of(tensor)
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
    """The requests of one rank for which it has not waited yet, and their buffers.

    simlib notices two things. The first is a write through torch, by the tensor's version, if the
    tensor is not a view (views of one tensor share its version). The second is two requests on the
    same memory, if one of them writes. Tensors with steps between their elements may be interleaved
    without sharing an element. On real ranks, simlib notices no reads, and no writes by numpy, by
    ``.data`` or by native code. If the future of a request was taken, the request is over when this
    future is complete, because no record shows whether the program has waited for the future.

    Attributes
    ----------
    requests : dict
        The open requests -> the places of their buffers, and their versions at the end.
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
        """A request was posted; ``buffers`` is a list of `Buffer`."""
        places = self.compare(work, buffers, is_kept=True)
        counted = buffers if len(buffers) == 1 else _that_count(buffers)
        versions = [(b.tensor, b.version) for b in counted if b.version is not None]
        self.requests[work] = places, versions

    def add_one(
        self, work: Any, tensor: torch.Tensor, is_written: bool, version: int | None
    ) -> None:
        """The same for a request with one buffer, which had this version before."""
        place = Place.of(tensor, is_written)
        kept = [place] if place[0] < place[1] else []
        with self._lock:
            met = self._places.overlapping(place) if kept else ()
            if kept:
                self._places.add(place, work)
        if met:
            self._tell_of(met, work)
        self.requests[work] = kept, [] if version is None else [(tensor, version)]

    def compare_one(self, work: Any, tensor: torch.Tensor, is_written: bool) -> None:
        """As `compare`, for an op with one buffer."""
        place = Place.of(tensor, is_written)
        with self._lock:
            met = self._places.overlapping(place) if place[0] < place[1] else ()
        if met:
            self._tell_of(met, work)

    def compare(self, work: Any, buffers: list[Buffer], is_kept: bool = False) -> list[Place]:
        """Check whether an op uses memory of an open request; returns the places of its buffers.

        If the op ``is_kept``, later ops are compared with it, until `forget`.
        """
        places: list[Place] = []
        met: list = []
        with self._lock:
            for buffer in buffers:
                place = Place.of(buffer.tensor, buffer.is_written)
                if place.first < place.end:
                    places.append(place)
                    met += self._places.overlapping(place)
            for place in places if is_kept else ():
                self._places.add(place, work)
        if met:
            self._tell_of(met, work)
        return places

    def _tell_of(self, met, work):
        for other in dict.fromkeys(met):
            if not other.has_come():
                self._report("overlap", work.start, other.start)

    def forget(self, work: Any) -> list[tuple[torch.Tensor, int]]:
        """A request is over; returns its tensors, and their expected versions."""
        places, versions = self.requests.pop(work, ((), ()))
        if places:
            with self._lock:
                for place in places:
                    self._places.remove(place, work)
        return versions

    def waited(self, work: Any) -> None:
        """The learner has waited for a request: check whether its buffers are unchanged."""
        for tensor, version in self.forget(work):
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
        The address of the first byte, and the address after the last byte.
    is_written : bool
        Whether the owner writes the memory.
    pieces : tuple or None
        Shape, steps in bytes, and bytes of an element, if there may be gaps between elements.
    """

    first: int
    end: int
    is_written: bool
    pieces: tuple | None = None

    @classmethod
    def of(cls, tensor: torch.Tensor, is_written: bool) -> Place:
        """The place of a tensor; an empty place if it has no such memory."""
        if tensor.layout is not _STRIDED or (places and is_without_data(tensor)):
            return cls(0, 0, is_written)
        first = tensor.data_ptr()
        if tensor.is_contiguous():  # one without elements, too
            return _new(cls, (first, first + tensor.nbytes, is_written, None))
        itemsize = tensor.element_size()
        steps = tuple(step * itemsize for step in tensor.stride())
        ways = zip(tensor.shape, steps, strict=True)
        end = first + sum((size - 1) * step for size, step in ways) + itemsize
        return cls(first, end, is_written, (tuple(tensor.shape), steps, itemsize))

    def clashes_with(self, other: Place) -> bool:
        """Whether one of the two owners writes memory of the other.

        **Cost** O(1) without pieces. With pieces, it takes a few microseconds, and at most some
        hundred. If this is not enough to decide, the result is False.
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
    """A place in numpy's form for arrays. Its contents are not read."""

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
    """Runs of memory that can be found by address.

    The latest few runs are in a list. All others are sorted by their size in powers of two, and for
    each such size by their first bytes. A run that may overlap begins less than one such size
    earlier.

    **Cost** O(sizes in use + log(runs) + met) to look; moving a list to add or remove.
    """

    def __init__(self) -> None:
        self._latest: list[tuple[Place, Any]] = []
        self._by_size: dict[
            int, list
        ] = {}  # power of two -> list of (first byte, id of owner, place, owner)

    def add(self, place: Place, owner: Any) -> None:
        """Note memory and its owner."""
        self._latest.append((place, owner))
        if len(self._latest) > FEW:
            for one in self._latest:
                self._sort_in(*one)
            self._latest.clear()

    def _sort_in(self, place, owner):
        runs = self._by_size.setdefault((place.end - place.first).bit_length(), [])
        insort(runs, (place.first, id(owner), place, owner), key=_address)

    def remove(self, place: Place, owner: Any) -> None:
        """Forget it."""
        for at, (one, _) in enumerate(self._latest):
            if one is place:
                del self._latest[at]
                return
        power = (place.end - place.first).bit_length()
        runs = self._by_size[power]
        at = bisect_left(runs, (place.first, id(owner)), key=_address)
        del runs[at]
        if not runs:
            del self._by_size[power]

    def overlapping(self, place: Place) -> list:
        """The owners of memory that this place shares, if one of the two is written."""
        (first, end, *_), found = place, []
        for other, owner in self._latest:
            if first < other[1] and other[0] < end and place.clashes_with(other):
                found.append(owner)
        if self._by_size:
            found += self._sorted_overlapping(place)
        return found

    def _sorted_overlapping(self, place):
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
    """The buffers of an op whose versions at the end are known.

    Tensors of the same memory may share their version, even if none is a view. If the op writes one
    of them, only the version of this one is known. An example is a result in the memory of the
    rank's own data. If the op writes several of them, no version is known.
    """
    together = defaultdict(list)
    for buffer in buffers:
        together[_storage(buffer.tensor)].append(buffer)
    for same in together.values():
        written = [buffer for buffer in same if buffer.is_written] or same
        if len(written) == 1 or not written[0].is_written:
            yield from written


def _storage(tensor):
    """A key that tensors of one memory share."""
    is_plain = tensor.layout is torch.strided
    return tensor.untyped_storage().data_ptr() if is_plain else id(tensor)


def version_of(tensor):
    """A number that grows with every write through torch. None if the number shows nothing.

    For a tensor on a GPU it says nothing, because a backend writes it by torch an unknown number of
    times.
    """
    counts = tensor._base is None and not tensor.is_inference() and not tensor.is_cuda
    return tensor._version if counts else None


LAST_S, LOOK_S = 1.0, 0.001
"""Seconds that a rank waits for its ops' ends after its function, and seconds between two looks."""


EVERY, AT_LEAST_S = 32, 0.001
"""After this many ops, or this many seconds, a rank checks which events its GPU has passed. A check
of an event costs some us."""


def record_event(device: torch.device, event: torch.cuda.Event | None = None) -> torch.cuda.Event:
    """An event behind all present work of the device's current stream.

    ``event`` is an old event that is no longer needed. Using it again costs less than making a new
    event.
    """
    if event is None:
        event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


class StreamEnds:
    """The ops of one rank that end by an event which a GPU has not passed yet.

    Parameters
    ----------
    log : OpLogWriter
    record : callable
        ``(device, event or None)`` -> an event, as of `torch.cuda`: it has ``query()`` and
        ``elapsed_time(later)``.
    clock : callable
        The log's clock.

    Attributes
    ----------
    open : dict
        Device -> deque of (op, event, time of its recording). It is empty if no op was on a GPU.
        Then `look` is not needed.

    Notes
    -----
    Events say how long after another event they were passed. For the event before, the time on the
    rank's own clock is known or estimated. No event is passed before it is recorded. So an estimate
    may be too early by the work that was in the stream when the first event was put into it. It is
    exact from the first event on that is recorded while the stream has no more work.
    """

    holds_rank_up = True
    """Whether a rank may have to wait in `wait`, by NCCL's options."""

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
        """The GPU on which an op of these tensors ends; None if the op completes on `wait()`."""
        return tensors[0].device if len(tensors) and tensors[0].is_cuda else None

    def begin(self, device: torch.device) -> None:
        """An op will be posted on this device now: make sure that there is an event before it."""
        if device not in self._passed:
            recorded_s = self._clock()
            self._passed[device] = self._record_one(device), recorded_s

    def mark(self, start: int, device: torch.device) -> None:
        """The op ends when the device's stream reaches this point. Call `begin` before it."""
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
        """Called for each op. Call `look` after `EVERY` ops, or if the last look is too long
        ago."""
        self._posted += 1
        if self._posted >= EVERY or self._clock() - self._looked_s > AT_LEAST_S:
            self.look()

    def look(self) -> None:
        """Record the ends of the ops that GPUs have completed."""
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
        """Look until all ends are known. Do not wait for a GPU that does not reach them.

        A GPU that has failed, for example by a device-side assert, never reports an end.
        """
        until_s = self._clock() + LAST_S
        with contextlib.suppress(RuntimeError):
            self.look()
            while self and self._clock() < until_s:
                sleep(LOOK_S)
                self.look()

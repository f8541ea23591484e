"""The buffers of requests that are open: nobody may touch them before they are waited for."""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from collections import defaultdict
from typing import NamedTuple

import numpy as np
import torch

MAX_WORK = 1000
"""Of how many candidates it is tried at most whether two tensors in pieces have them in common."""


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
    def of(cls, tensor, is_written, own_writes=0):
        """A tensor that the op itself writes so often through torch.

        Gloo copies some results into their tensors so: a thread of its own, or `wait`.
        """
        version = _version(tensor)
        return cls(tensor, is_written, None if version is None else version + own_writes)


def buffers_of(args, is_written, own_writes=0):
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
    Not noticed on real ranks: reads, and writes by numpy, by ``.data`` or by native code.

    Attributes
    ----------
    requests : dict
        Those that are open -> where their buffers are, and their versions in the end.
    """

    def __init__(self, recorder):
        self._recorder = recorder
        self.requests = {}
        self._places = Places()

    def clear(self):
        """Forget all requests."""
        self.requests.clear()
        self._places = Places()

    def add(self, work, buffers):
        """A request has been posted; ``buffers`` is a list of `Buffer`."""
        places = self.compare(work, buffers)
        for place in places:
            self._places.add(place, work)
        counted = buffers if len(buffers) == 1 else _that_count(buffers)
        versions = [(b.tensor, b.version) for b in counted if b.version is not None]
        self.requests[work] = places, versions

    def compare(self, work, buffers):
        """Look whether an op uses memory of an open request; returns where its buffers are."""
        places = [Place.of(buffer.tensor, buffer.is_written) for buffer in buffers]
        places = [place for place in places if place.first < place.end]
        met = {other: None for place in places for other in self._places.overlapping(place)}
        for other in met:
            self._report("overlap", work.start, other.start)
        return places

    def waited(self, work):
        """The learner has waited for a request: look whether its buffers were left alone."""
        places, versions = self.requests.pop(work, ((), ()))
        for place in places:
            self._places.remove(place, work)
        for tensor, version in versions:
            if tensor._version != version:
                self._report("written", work.start, 0)
                break

    def _report(self, how, start, other):
        place = self._recorder.place(sys._getframe(2))
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
    def of(cls, tensor, is_written):
        """Where a tensor lies; an empty place where it has no such memory."""
        if tensor.layout is not torch.strided:
            return cls(0, 0, is_written)
        first = tensor.data_ptr()
        if tensor.is_contiguous():  # one without elements, too
            return cls(first, first + tensor.nbytes, is_written)
        itemsize = tensor.element_size()
        steps = tuple(step * itemsize for step in tensor.stride())
        ways = zip(tensor.shape, steps, strict=True)
        end = first + sum((size - 1) * step for size, step in ways) + itemsize
        return cls(first, end, is_written, (tuple(tensor.shape), steps, itemsize))

    def clashes_with(self, other):
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
            return np.shares_memory(_Memory(self), _Memory(other), max_work=MAX_WORK)
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

    def __init__(self):
        self._by_size = {}  # power of two -> list of (first byte, id of owner, place, owner)

    def add(self, place, owner):
        """Note memory, and whose it is."""
        runs = self._by_size.setdefault((place.end - place.first).bit_length(), [])
        insort(runs, (place.first, id(owner), place, owner), key=_address)

    def remove(self, place, owner):
        """Forget it."""
        power = (place.end - place.first).bit_length()
        runs = self._by_size[power]
        at = bisect_left(runs, (place.first, id(owner)), key=_address)
        del runs[at]
        if not runs:
            del self._by_size[power]

    def overlapping(self, place):
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

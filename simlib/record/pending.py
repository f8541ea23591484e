"""The buffers of requests that are open: nobody may touch them before they are waited for."""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from typing import NamedTuple

import torch


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


class Pending:
    """The requests of one rank that are not waited for yet, and their buffers.

    Noticed are writes through torch, by the tensor's version, where the tensor is no view (views of
    one tensor share its version); and two requests on overlapping memory, one of which writes.
    Not noticed on real ranks: reads, and writes by numpy, by ``.data`` or by native code.
    """

    def __init__(self, recorder):
        self._recorder = recorder
        self._requests = {}  # request -> (where its buffers are, their versions in the end)
        self._places = Places()

    def __len__(self):
        return len(self._requests)

    def clear(self):
        """Forget all requests."""
        self._requests.clear()
        self._places = Places()

    def add(self, work, buffers):
        """A request has been posted; ``buffers`` is a list of `Buffer`."""
        places = self.compare(work, buffers)
        for place in places:
            self._places.add(*place, work)
        versions = [(b.tensor, b.version) for b in buffers if b.version is not None]
        self._requests[work] = places, versions

    def compare(self, work, buffers):
        """Look whether an op uses memory of an open request; returns where its buffers are."""
        places = [_place(buffer.tensor, buffer.is_written) for buffer in buffers]
        met = {other: None for place in places for other in self._places.overlapping(*place)}
        for other in met:
            self._report("overlap", work.start, other.start)
        return [place for place in places if place[0] < place[1]]

    def waited(self, work):
        """The learner has waited for a request: look whether its buffers were left alone."""
        places, versions = self._requests.pop(work, ((), ()))
        for place in places:
            self._places.remove(*place, work)
        for tensor, version in versions:
            if tensor._version != version:
                self._report("written", work.start, 0)
                break

    def _report(self, how, start, other):
        place = self._recorder.place(sys._getframe(2))
        self._recorder.log.define(("race", start, other), "race", (how, start, other, place))


class Places:
    """Runs of memory, to be found by address.

    They are kept by their size in powers of two, each sort in order of first bytes: what may
    overlap begins less than one such size before.

    **Cost** O(sizes in use + log(runs) + found) to look, and the move of a list to add or remove.
    """

    def __init__(self):
        self._by_size = {}  # power of two -> list of (first, end, writes, id of owner, owner)

    def add(self, first, end, writes, owner):
        """Note a run of memory, and whether its owner writes it."""
        entry = first, end, writes, id(owner), owner
        insort(self._by_size.setdefault((end - first).bit_length(), []), entry, key=_address)

    def remove(self, first, end, writes, owner):
        """Forget a run."""
        power = (end - first).bit_length()
        runs = self._by_size[power]
        at = bisect_left(runs, (first, id(owner)), key=_address)
        del runs[at]
        if not runs:
            del self._by_size[power]

    def overlapping(self, first, end, writes):
        """The owners of runs that overlap this one, where one of the two is written."""
        for power, runs in self._by_size.items():
            at = bisect_left(runs, (first - (1 << power), 0), key=_address)
            while at < len(runs) and runs[at][0] < end:
                other_first, other_end, other_writes, _, owner = runs[at]
                if first < other_end and other_first < end and (writes or other_writes):
                    yield owner
                at += 1


def _address(entry):
    return entry[0], entry[3]


def _version(tensor):
    """What grows with every write through torch; None where that says nothing."""
    return tensor._version if tensor._base is None and not tensor.is_inference() else None


def _place(tensor, writes):
    """First byte, end, and whether an op writes it; an empty place where it is in pieces."""
    if tensor.layout is not torch.strided or not tensor.is_contiguous():
        return 0, 0, writes
    first = tensor.data_ptr()
    return first, first + tensor.nbytes, writes

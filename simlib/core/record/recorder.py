"""What one rank writes down: its ops with the learner's lines, and what its requests hold.

`Recorder` belongs to the rank; all its process groups write through it.
"""

from __future__ import annotations

import functools
import os
import site
import sysconfig
import time

import torch
import torch.distributed as dist

from ..environment import FOLDER
from .fingerprints import word_for
from .pending import Pending
from .stream_ends import StreamEnds

_NOT_LEARNERS = (
    os.path.dirname(torch.__file__) + os.sep,
    str(FOLDER) + os.sep,
    *{sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")},
    *{folder + os.sep for folder in (*site.getsitepackages(), site.getusersitepackages())},
    "<frozen ",
    "<string>",
    "<eval_with_key>",
)
REDUCE_NAMES = {
    hash(getattr(dist.ReduceOp, name)): name
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
}


HELD_BACK_S = 2.0
"""How long an op that seems to disagree is held back; the kernel judges within a fraction of it."""


@functools.cache
def is_learners(filename):
    """Whether a file is the learner's: no library's, nor Python's own."""
    return not filename.startswith(_NOT_LEARNERS)


class Recorder:
    """What all groups of one rank share: its op log, and where the learner's lines are.

    Parameters
    ----------
    log : OpLogWriter
    is_alone : callable
        Whether nobody else can make ops of this rank now, and so end a wait of it.
    before_op : callable, optional
        Called before an op is written down: a simulated rank lets those behind it go first, a real
        one that was made slow sleeps.

    Attributes
    ----------
    before_wait : callable or None
        The same before it waits for a request.
    stream_ends : StreamEnds
        Ops that end on a GPU.
    survives : bool
        Whether the run goes on when another rank dies.
    waits_are_limited : bool
        Whether a group then gives up by itself what takes too long: no wait is for ever.
    """

    def __init__(self, log, is_alone, before_op=None):
        self.log = log
        self.is_alone = is_alone
        self.before_op = before_op
        self.before_wait = None
        self.pending = Pending(self)
        self.stream_ends = StreamEnds(log)
        self.requests = {}  # under way, by their place in the log
        self.last_number = None
        self.fingerprints = None
        self.survives = False
        self.waits_are_limited = False
        self._words = {}
        self._met = {}
        self._sites = {}  # (id of code, instruction) -> (number, code, which keeps the id its own)

    def site(self, frame):
        """The number of the learner's line that is being run in this frame, or led to it."""
        code, instruction = frame.f_code, frame.f_lasti
        known = self._sites.get((id(code), instruction))
        if known is not None:
            return known[0]
        place = self.place(frame)
        number = self.log.numbers.get(place)
        if number is None:
            number = self.log.define(place, "site", place)
        if is_learners(code.co_filename):  # what led to a library's line differs
            self._sites[id(code), instruction] = number, code
        return number

    @staticmethod
    def place(frame):
        """(file, line, function) of the innermost frame that is the learner's."""
        while frame is not None:
            file = frame.f_code.co_filename
            if is_learners(file):
                return file, frame.f_lineno, function_of(frame.f_code)
            frame = frame.f_back
        return "", 0, ""

    def signature(self, tensors, reduce_op, splits):
        """The number of what must agree between ranks, and the payload in bytes."""
        if len(tensors) == 1:
            (tensor,) = tensors
            key = tensor.shape, tensor.dtype, reduce_op, splits
            nbytes = count_bytes(tensor)
        else:
            shapes = tuple(tensor.shape for tensor in tensors)
            key = shapes, tensors[0].dtype if tensors else None, reduce_op, splits
            nbytes = sum(map(count_bytes, tensors))
        number = self.log.numbers.get(key)
        if number is None:
            words = _signature_in_words(tensors, reduce_op, splits)
            number = self.log.define(key, "signature", words)
        return number, nbytes

    def begin(self, fingerprints):
        """A run begins; ``fingerprints`` is its table, or None where nothing is checked."""
        self.fingerprints = fingerprints

    def end(self):
        """The run has ended: forget it."""
        self.log.clear()
        self.pending.clear()
        self.stream_ends.clear()
        self.requests.clear()
        self.last_number = None
        self.fingerprints = None
        self.survives = self.waits_are_limited = False
        self._met.clear()
        self._sites.clear()

    def check_fingerprint(self, start, meeting, *what):
        """Hold an op back that disagrees with those who came to the same meeting before it.

        ``meeting`` names what ranks count alike: the collectives of a group, the messages of two
        ranks with a tag; ``what`` is what must agree. The kernel ends the run while this waits.
        """
        if self.fingerprints is None:
            return
        met = self._met.get(meeting)
        if met is None:
            met = self._met[meeting] = [word_for(meeting), 0]
        met[1] += 1
        word = self._words.get(what)
        if word is None:
            word = self._words[what] = word_for(what)
        if not self.fingerprints.agrees(met[0], met[1], word):
            self.log.wait_begin(start)
            time.sleep(HELD_BACK_S)
            self.log.wait_failed()

    def gpu_of(self, tensors):
        """The GPU on which an op of these tensors ends; None: it ends when it was waited for."""
        if not len(tensors) or not tensors[0].is_cuda:
            return None
        device = tensors[0].device
        self.stream_ends.begin(device)
        return device

    def group(self, definition):
        """The number of a group, defined as (name within torch, ranks)."""
        number = self.log.numbers.get(definition)
        if number is None:
            name, ranks = definition
            everyone = range(len(ranks))  # short to write down and to compare
            ranks = everyone if ranks == tuple(everyone) else ranks
            number = self.log.define(definition, "group", (name, ranks))
        return number


def function_of(code):
    """The name of the function that code is in: of a comprehension or a lambda, the one around."""
    names = [name for name in code.co_qualname.split(".") if not name.startswith("<")]
    return names[-1] if names else code.co_name


def count_bytes(tensor):
    """Bytes of a tensor, as they travel."""
    try:
        return tensor.nbytes
    except RuntimeError:  # sparse: what travels are its indices and values
        return tensor._indices().nbytes + tensor._values().nbytes


def _signature_in_words(tensors, reduce_op, splits):
    shapes = tuple(tuple(tensor.shape) for tensor in tensors)
    dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else ""
    name = None if reduce_op is None else REDUCE_NAMES.get(reduce_op, "custom")
    return shapes, dtype, name, splits

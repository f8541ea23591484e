"""The side of a rank: the rank's connection to the relay, and the transport of its groups."""

from __future__ import annotations

import threading
from datetime import timedelta

import torch
import torch.distributed as dist

from ...core.engines.request import exactly
from ...core.record.group import RecordingGroup
from ...core.record.recorder import REDUCE_NAMES, count_bytes
from ...core.record.safe_pickle import loads_tree
from ...core.record.torch_inside import make_default_group, use_meeting
from ...core.record.transports import FOREVER
from ...core.record.transports.backends import like_gloo
from ...core.record.transports.plain_group import REDUCING, PlainGroup, put, stand_in_backend
from .relay import LENGTH, framed

NOBODY_SETS_S = timedelta(seconds=1)
"""The longest time for which a rank may wait for a missing key of its own store. Nobody else would
set it."""


class Connection:
    """The only connection of a rank to all other ranks.

    A thread receives the answers of the broker. The data of an answer are copied into the learner's
    tensors only when the rank waits for the op.
    """

    def __init__(self, sock):
        self._sock = sock
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self._asked = {}
        self._numbers = 0
        self._is_closed = False
        threading.Thread(target=self._listen, name="simlib-broker", daemon=True).start()

    def ask(self, words, takes=(), result=()):
        """Begin an op. Return its `BrokeredRequest`."""
        with self._lock:
            number = self._numbers = self._numbers + 1
            request = self._asked[number] = BrokeredRequest(takes, result)
        try:
            data = framed((number, words))
            with self._sending:
                self._sock.sendall(data)
        except OSError:
            self._close()
        if self._is_closed:
            request.answered("Connection closed by peer: the broker is gone.", (), None)
        return request

    def _listen(self):
        try:
            while True:
                (length,) = LENGTH.unpack(exactly(self._sock, LENGTH.size))
                number, failure, tensors, source = loads_tree(exactly(self._sock, length))
                self._asked.pop(number).answered(failure, tensors, source)
        except (OSError, EOFError):
            self._close()

    def _close(self):
        self._is_closed = True
        for request in list(self._asked.values()):
            request.answered("Connection closed by peer: the broker is gone.", (), None)


class BrokeredRequest:
    """An op that has begun, and perhaps completed. A recorded request passes its calls on to this
    object."""

    def __init__(self, takes, result):
        self._takes = takes
        self._result = result
        self._has_come = threading.Event()
        self._lock = threading.Lock()
        self._failure = None
        self._tensors = ()
        self._source = None
        self._future = None

    def answered(self, failure, tensors, source):
        """Take the result of the op, which the broker has reported."""
        with self._lock:
            if self._has_come.is_set():
                return
            self._failure, self._tensors, self._source = failure, tensors, source
            self._has_come.set()
            if self._future is not None:
                self._complete_future()

    def wait(self, timeout=None):
        """Block until the op completes, and return True. Raise an error if the op has failed."""
        limit_s = timeout.total_seconds() if timeout else None
        if not self._has_come.wait(limit_s):
            raise RuntimeError(
                f"Timed out waiting {1000 * limit_s:.0f}ms for an operation to complete"
            )
        if self._failure is not None:
            raise RuntimeError(self._failure)
        with self._lock:
            self._take()
        return True

    def _take(self):
        tensors, self._tensors = self._tensors, ()
        if len(tensors):
            put(tensors, self._takes)

    def is_completed(self):
        """Whether the op is complete now."""
        if self._has_come.is_set() and self._failure is None:
            self.wait()
        return self._has_come.is_set()

    def is_success(self):
        """Whether the op is complete and has not failed."""
        return self.is_completed() and self._failure is None

    def get_future(self):
        """Return a future for which C++ code may wait. The future gets the data when they
        arrive."""
        with self._lock:
            if self._future is None:
                self._future = torch.futures.Future()
                if self._has_come.is_set():
                    self._complete_future()
        return self._future

    def _complete_future(self):
        if self._failure is not None:
            self._future.set_exception(RuntimeError(self._failure))
        else:
            self._take()
            self._future.set_result(self._result)

    def exception(self):
        """Return the error of a failed op, else None."""
        return None if self._failure is None else RuntimeError(self._failure)

    def result(self):
        """Return the tensors of the op."""
        return self._result

    def synchronize(self):
        """Do the same as `wait`."""
        self.wait()

    def _source_rank(self):
        return self._source


class BrokeredGroup(PlainGroup):
    """A group of ranks whose calls go to the broker.

    Parameters
    ----------
    connection : Connection
    name : str
        The group's name in torch.
    ranks : tuple of int
        The group's members, as ranks of the world.
    position : int
        This rank's position in the group.
    """

    def __init__(self, connection, name, ranks, position):
        self._connection = connection
        self._name = name
        self._group = ranks
        self._position = position

    def send(self, tensors, dst, tag=0):
        (tensor,) = tensors
        words = "send", self._name, self._group, dst, tag, tensor.detach().contiguous()
        return self._connection.ask(words)

    def recv(self, tensors, src, tag=0):
        (tensor,) = tensors
        sort = tensor.dtype, tensor.numel()
        words = "recv", self._name, self._group, src, tag, sort
        return self._connection.ask(words, tensors, tensors)

    def _collective(self, kind, brings, takes, opts, payload, splits=None):
        root = getattr(opts, "rootRank", None)
        reduce_op = REDUCE_NAMES[hash(opts.reduceOp)] if kind in REDUCING else None
        if kind == "broadcast":
            brings, takes = (brings, ()) if root == self._position else ((), takes)
        if kind in ("reduce", "gather") and root != self._position:
            takes = ()
        sort = (
            payload[0].dtype if payload else None,
            tuple(tuple(tensor.shape) for tensor in payload),
            splits,
        )
        nbytes = sum(map(count_bytes, payload))
        plain = [tensor.detach() for tensor in brings]
        expected = [(tensor.dtype, tensor.numel()) for tensor in takes]
        words = kind, self._name, self._group, root, reduce_op, plain, sort, expected, nbytes
        return self._connection.ask(words, takes, list(takes) or list(payload))


def brokered_member(recorder, connection):
    """Return a function that makes a graded rank a member of a group, for `backend.install`."""
    backend = stand_in_backend()

    def create(options, ranks, name):
        rank, size = options.group_rank, options.group_size
        transport = like_gloo(BrokeredGroup(connection, name, ranks, rank), backend)
        return RecordingGroup(recorder, transport, rank, size, name, ranks)

    return create


def join_world(connection, rank, world_size):
    """Make the default group. Return its store, which belongs to this rank alone.

    Ranks need no common store, because the members of a new group meet at the broker.
    """

    def meet(rank, store, group_name, how_many, *args, **kwargs):
        connection.ask(("meet", group_name, how_many)).wait()

    use_meeting(meet)
    store = dist.HashStore()
    store.set_timeout(NOBODY_SETS_S)
    make_default_group(rank, {one: one for one in range(world_size)}, store, FOREVER)
    return store

"""The broker of a graded world: the one connection that each of its ranks has to the others.

The kernel that grades holds the other ends. A thread there carries tensors from rank to rank
(`exchange`) and counts them itself, so a rank's record of what it sent can be compared with it.
"""

from __future__ import annotations

import contextlib
import pickle
import selectors
import socket
import struct
import threading

from ...core.record import safe_pickle
from .exchange import Exchange, difference

LENGTH = struct.Struct("<Q")
LARGEST = 300 << 20
"""Bytes of one message to the broker."""
CHUNK = 1 << 18
PATIENCE_S = 20
"""Seconds for a rank to take an answer: its thread does nothing else."""


def framed(message):
    """A message as bytes: plain data and tensors, read by `safe_pickle.loads_tree`."""
    data = safe_pickle.dumps_tree(message)
    return LENGTH.pack(len(data)) + data


class Broker:
    """Carries what the ranks of one world send to each other.

    Parameters
    ----------
    world_size : int

    Attributes
    ----------
    theirs : list of socket
        The ranks' ends, until all have `began`.
    """

    def __init__(self, world_size):
        pairs = [socket.socketpair() for _ in range(world_size)]
        self._ours = [ours for ours, _ in pairs]
        self.theirs = [theirs for _, theirs in pairs]
        self._world_size = world_size
        self._lock = threading.Lock()
        self._exchange = Exchange(world_size, self._answer)
        self._unread = [bytearray() for _ in range(world_size)]
        self._selector = selectors.DefaultSelector()
        self._wake, wakes = socket.socketpair()
        self._selector.register(wakes, selectors.EVENT_READ, None)
        for rank, ours in enumerate(self._ours):
            ours.settimeout(PATIENCE_S)
            self._selector.register(ours, selectors.EVENT_READ, rank)
        self._wakes = wakes
        self._thread = threading.Thread(target=self._carry, name="simlib-broker", daemon=True)
        self._thread.start()

    def of_rank(self, rank):
        """What a rank is sent: the descriptor of its end."""
        return (self.theirs[rank].fileno(),)

    def began(self):
        """All ranks have been started, and have their ends."""
        for theirs in self.theirs:
            theirs.close()
        self.theirs = []

    def begin_run(self):
        """Another run begins; nothing of the last is left."""
        with self._lock:
            self._exchange = Exchange(self._world_size, self._answer)

    def complaint(self, trace):
        """A sentence where the record of a rank is not what was carried for it, else None."""
        with self._lock:
            for rank, carried in enumerate(self._exchange.carried):
                found = difference(carried, trace.of_rank(rank))
                if found is not None:
                    return f"rank {rank} has a record that is not its own: {found}"
        return None

    def close(self):
        """Carry no more."""
        self._wake.close()
        self._thread.join()
        self._selector.close()
        for one in (self._wakes, *self._ours, *self.theirs):
            one.close()

    def _carry(self):
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                with self._lock:
                    self._read(key.data)

    def _read(self, rank):
        try:
            data = self._ours[rank].recv(CHUNK)
        except OSError:
            data = b""
        if not data:
            self._drop(rank)
            return
        unread = self._unread[rank]
        unread += data
        try:
            while len(unread) >= LENGTH.size:
                (length,) = LENGTH.unpack_from(unread)
                if length > LARGEST:
                    raise ValueError(f"a message of {length:,} bytes")
                end = LENGTH.size + length
                if len(unread) < end:
                    return
                message = safe_pickle.loads_tree(bytes(unread[LENGTH.size : end]))
                del unread[:end]
                number, words = message
                self._exchange.post(rank, number, words)
        except Exception:  # a rank's own words: anything may be wrong with them
            self._drop(rank)

    def _drop(self, rank):
        """A rank has ended, or says what no rank says: nothing is carried for it any more."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(self._ours[rank])
            with contextlib.suppress(OSError):
                self._ours[rank].shutdown(socket.SHUT_RDWR)
            self._exchange.died(rank)

    def _answer(self, rank, *words):
        if rank in self._exchange.dead:
            return
        try:
            self._ours[rank].sendall(framed(words))
        except (OSError, pickle.PicklingError):
            self._drop(rank)

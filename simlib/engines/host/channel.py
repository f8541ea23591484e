"""Whole pickled messages over a socket between the kernel and one rank."""

from __future__ import annotations

import pickle
import struct

_LENGTH = struct.Struct("<Q")
FRAME = struct.Struct("=ii")
"""Before each piece of output that several ranks send down one pipe: the rank, and its length."""


def send_bytes(sock, payload):
    """Send one message, given as bytes."""
    sock.sendall(_LENGTH.pack(len(payload)))
    sock.sendall(payload)


def send(sock, message):
    """Send one message: any object that plain pickle takes."""
    send_bytes(sock, pickle.dumps(message, protocol=5))


def receive(sock, loads=pickle.loads):
    """Receive one message; EOFError when the other side is gone."""
    (length,) = _LENGTH.unpack(_exactly(sock, _LENGTH.size))
    return loads(_exactly(sock, length))


def _exactly(sock, length):
    payload = bytearray(length)
    view = memoryview(payload)
    while view:
        count = sock.recv_into(view)
        if not count:
            raise EOFError("the other side of the channel is gone")
        view = view[count:]
    return payload

"""A switch that passes on every frame some time later: ``delay.py DELAY_S PORT PORT ...``.

It replaces `netem`, with which `tc` delays frames, because some Linux systems lack `netem`. It runs
as a separate program in the namespace of the switch, and needs only the standard library.
"""

import contextlib
import heapq
import itertools
import selectors
import socket
import struct
import sys
import time

# From <linux/if_packet.h> and <asm-generic/socket.h>; Python has no names for them.
SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
ETH_P_ALL = 3
VNET_HEADER = 10  # before each frame: how its checksum and its segments are still to be made
BUFFER = 1 << 25


def open_port(name):
    """Return a socket that gets every frame that arrives at a port, and that sends frames out of
    this port."""
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    port.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    port.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    port.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, BUFFER)
    port.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)
    port.setblocking(False)
    port.bind((name, ETH_P_ALL))
    return port


def outlets(frame, port, ports, port_of):
    """Return the ports to which a frame goes: the port with the target's address, or all other
    ports if this port is unknown."""
    target, source = struct.unpack_from("6s6s", frame, VNET_HEADER)
    port_of[source] = port
    known = port_of.get(target)
    return [other for other in ports if other is not port] if known is None else [known]


def forward(delay_s, names):
    """Pass on frames for ever, each after the delay."""
    ports = [open_port(name) for name in names]
    ready = selectors.SelectSelector()  # epoll would round the pause up to a millisecond
    for port in ports:
        ready.register(port, selectors.EVENT_READ)
    port_of, waiting, order = {}, [], itertools.count()
    print("ready", flush=True)
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for key, _ in ready.select(pause):
            with contextlib.suppress(BlockingIOError):
                frame = key.fileobj.recv(1 << 17)
                due = time.monotonic() + delay_s
                for port in outlets(frame, key.fileobj, ports, port_of):
                    heapq.heappush(waiting, (due, next(order), port, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, port, frame = heapq.heappop(waiting)
            with contextlib.suppress(BlockingIOError):  # the queue is full: lost, as on a switch
                port.send(frame)


if __name__ == "__main__":
    forward(float(sys.argv[1]), sys.argv[2:])

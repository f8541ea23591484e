"""Addresses of this host, and which of another one answer; no MPI, no torch."""

from __future__ import annotations

import ipaddress
import socket
from concurrent.futures import ThreadPoolExecutor

import psutil

from ...core.model.errors import InvalidCallError

TRY_S = 3.0
"""Seconds in which an address has to answer."""


def interface_towards(address):
    """The name of this host's network interface from which an address is reached.

    On the host that has the address it is the interface with that address. Gloo is told it by
    ``GLOO_SOCKET_IFNAME``.
    """
    family = _family(address)
    own = own_address_towards(address)
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.family == family and entry.address.split("%")[0] == own for entry in entries):
            return name
    raise InvalidCallError(f"no network interface of this host has the address {own}")


def own_address_towards(address):
    """This host's address from which another one is reached."""
    with socket.socket(_family(address), socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # of a datagram: it chooses a route and sends nothing
        return probe.getsockname()[0]


def listen():
    """A socket that listens on a free port of every address."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.bind(("", 0))
    listening.listen(socket.SOMAXCONN)
    return listening


def free_port():
    """The number of a port on which nobody listens just now."""
    with listen() as listening:
        return listening.getsockname()[1]


def own_addresses():
    """This host's IPv4 addresses, those of real networks first, loopback last."""
    found = [
        ipaddress.ip_address(entry.address)
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family == socket.AF_INET
    ]
    return [str(address) for address in sorted(found, key=lambda a: (a.is_loopback, a))]


def _family(address):
    return socket.AF_INET if ipaddress.ip_address(address).version == 4 else socket.AF_INET6


def which_answer(addresses, port):
    """Those of the addresses at which somebody listens on a port; all are tried at once."""
    with ThreadPoolExecutor(len(addresses)) as pool:
        answers = list(pool.map(lambda address: _does_answer(address, port), addresses))
    return [address for address, does in zip(addresses, answers, strict=True) if does]


def answered_by_all(addresses, reached):
    """The first of the addresses that every rank reaches, or None; ``reached``: each rank's.

    With another one, some would be told to talk by a network that others are not in.
    """
    return next((one for one in addresses if all(one in those for those in reached)), None)


def _does_answer(address, port):
    try:
        socket.create_connection((address, port), TRY_S).close()
    except OSError:
        return False
    return True

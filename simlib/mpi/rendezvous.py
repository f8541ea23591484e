"""Where the ranks of an MPI job meet: a store of torch's on rank 0, at an address all can reach.

The name of a host is no help: Debian maps it to 127.0.1.1, which every other host takes for
itself. So rank 0 tells all its addresses, every rank tries which of them answer, and the first
that answers everybody is taken.
"""

from __future__ import annotations

import ipaddress
import socket
from datetime import timedelta

import psutil
import torch.distributed as dist
from mpi4py import MPI

from ..errors import InvalidCallError

TRY_S = 3.0
"""Seconds in which an address has to answer."""
STORE_TIMEOUT = timedelta(minutes=5)


def meet(comm):
    """The store of a job, the same on every rank.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        All its ranks call this.

    Returns
    -------
    store : torch.distributed.TCPStore
    address : str
        The address of rank 0 that every rank has reached.

    Raises
    ------
    InvalidCallError
        If no address of rank 0 answers all ranks.
    """
    listening = _listen() if comm.rank == 0 else None
    told = (_addresses(), listening.getsockname()[1]) if comm.rank == 0 else None
    addresses, port = comm.bcast(told)
    reached = [_answers(address, port) for address in addresses]
    reached_by_all = comm.allreduce([reached], op=MPI.SUM)
    for address, answers in zip(addresses, zip(*reached_by_all, strict=True), strict=True):
        if all(answers):
            return _store(comm, address, port, listening), address
    hosts = comm.allgather(socket.gethostname())
    deaf = sorted({host for host, row in zip(hosts, reached_by_all, strict=True) if not any(row)})
    raise InvalidCallError(
        f"no address of {hosts[0]}, where rank 0 is, answers all ranks ({', '.join(addresses)}; "
        f"port {port}); from {', '.join(deaf) or 'no host'} none answers at all: open "
        "the ports between the hosts, or put them into one network"
    )


def interface_towards(address):
    """The name of this host's network interface from which an address is reached.

    On the host that has the address it is the interface with that address. Gloo is told it by
    ``GLOO_SOCKET_IFNAME``.
    """
    family = _family(address)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # of a datagram: it chooses a route and sends nothing
        own = probe.getsockname()[0]
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.family == family and entry.address.split("%")[0] == own for entry in entries):
            return name
    raise InvalidCallError(f"no network interface of this host has the address {own}")


def _listen():
    """A socket that listens on a free port of every address."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.bind(("", 0))
    listening.listen(socket.SOMAXCONN)
    return listening


def _addresses():
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


def _answers(address, port):
    try:
        socket.create_connection((address, port), TRY_S).close()
    except OSError:
        return False
    return True


def _store(comm, address, port, listening):
    """The store: rank 0 serves it on the socket that has answered."""
    if comm.rank == 0:
        store = dist.TCPStore(
            address, port, comm.size, is_master=True, wait_for_workers=False,
            timeout=STORE_TIMEOUT, master_listen_fd=listening.detach(), use_libuv=True,
        )  # fmt: skip
        comm.barrier()
        return store
    comm.barrier()
    return dist.TCPStore(address, port, comm.size, timeout=STORE_TIMEOUT, wait_for_workers=False)

"""Where the ranks of an MPI job meet: a store of torch's on rank 0, at an address all can reach.

The name of a host is no help: Debian maps it to 127.0.1.1, which every other host takes for
itself. So rank 0 tells all its addresses, every rank tries which of them answer, and the first
that answers everybody is taken.
"""

from __future__ import annotations

import socket
from datetime import timedelta

import torch.distributed as dist

from ...core.model.errors import InvalidCallError
from .addresses import answered_by_all, listen, own_addresses, which_answer

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
    listening = listen() if comm.rank == 0 else None
    place = (own_addresses(), listening.getsockname()[1]) if comm.rank == 0 else None
    addresses, port = comm.bcast(place)
    reached = comm.allgather(which_answer(addresses, port))
    address = answered_by_all(addresses, reached)
    if address is not None:
        return _store(comm, address, port, listening), address
    hosts = comm.allgather(socket.gethostname())
    deaf = sorted({host for host, those in zip(hosts, reached, strict=True) if not those})
    raise InvalidCallError(
        f"no address of {hosts[0]}, where rank 0 is, answers all ranks ({', '.join(addresses)}; "
        f"port {port}); from {', '.join(deaf) or 'no host'} none answers at all: open "
        "the ports between the hosts, or put them into one network"
    )


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

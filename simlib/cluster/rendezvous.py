"""How a process finds its rank, how the ranks of a job meet, and how far their clocks differ.

Ranks meet at a store of torch on rank 0's host, at an address that all can reach. The name of a
host is not enough. Debian maps a host's own name to 127.0.1.1, and other hosts that use this
address reach only themselves. So rank 0 sends all its addresses, and every rank tries which of them
answer. The first address that answers all ranks is used.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta

import psutil
import torch
import torch.distributed as dist

from ..core.model.errors import InvalidCallError, JobError
from .launchers import LAUNCHERS, SRUN

TRY_S = 3.0
"""Seconds in which an address must answer."""


def interface_towards(address):
    """Return the name of the network interface through which this host reaches an address.

    If the address belongs to this host, the result is the interface with this address. Gloo reads
    the name of its interface from ``GLOO_SOCKET_IFNAME``.
    """
    family = _family(address)
    own = own_address_towards(address)
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.family == family and entry.address.split("%")[0] == own for entry in entries):
            return name
    raise InvalidCallError(f"no network interface of this host has the address {own}")


def own_address_towards(address):
    """Return the address from which this host reaches another address."""
    with socket.socket(_family(address), socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # of a datagram: it chooses a route and sends nothing
        return probe.getsockname()[0]


def listen():
    """Return a socket that listens on a free port, at every address of this host."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.bind(("", 0))
    listening.listen(socket.SOMAXCONN)
    return listening


def free_port():
    """Return the number of a port on which no process listens now."""
    with listen() as listening:
        return listening.getsockname()[1]


def own_addresses():
    """Return this host's IPv4 addresses. Addresses of real networks come first, and loopback comes
    last."""
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
    """Try all addresses at once, and return those that answer on a port."""
    with ThreadPoolExecutor(len(addresses)) as pool:
        answers = list(pool.map(lambda address: _does_answer(address, port), addresses))
    return [address for address, does in zip(addresses, answers, strict=True) if does]


def answered_by_all(addresses, reached):
    """Return the first address that every rank reaches, or None.

    ``reached`` contains, for each rank, the addresses that the rank reaches. With any other
    address, some ranks would use a network to which other ranks have no connection.
    """
    return next((one for one in addresses if all(one in those for those in reached)), None)


def _does_answer(address, port):
    try:
        socket.create_connection((address, port), TRY_S).close()
    except OSError:
        return False
    return True


STORE_TIMEOUT = timedelta(minutes=5)


def meet(comm):
    """Connect all ranks to one store, and return it.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        All ranks of ``comm`` must call this function.

    Returns
    -------
    store : torch.distributed.TCPStore
    address : str
        The address of rank 0 that every rank has reached.

    Raises
    ------
    InvalidCallError
        No address of rank 0 answers all ranks.
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
    told = f" {', '.join(deaf)} can reach none of these addresses." if deaf else ""
    raise InvalidCallError(
        f"no address of {hosts[0]}, where rank 0 runs, can be reached by all ranks "
        f"({', '.join(addresses)}; port {port}).{told} Open the ports "
        "between the hosts, or put the hosts into one network"
    )


def _store(comm, address, port, listening):
    """Return the store. Rank 0 serves the store on the socket that has answered."""
    if comm.rank == 0:
        store = dist.TCPStore(
            address, port, comm.size, is_master=True, wait_for_workers=False,
            timeout=STORE_TIMEOUT, master_listen_fd=listening.detach(), use_libuv=True,
        )  # fmt: skip
        comm.barrier()
        return store
    comm.barrier()
    return dist.TCPStore(address, port, comm.size, timeout=STORE_TIMEOUT, wait_for_workers=False)


ENVIRONMENTS = tuple(dict.fromkeys(pair for each in LAUNCHERS for pair in each.identity))
SURE = tuple(dict.fromkeys(each.identity[-1][0] for each in LAUNCHERS))
MEET_S = 60.0
LOOK_S, LEAVE_S = 0.02, 0.1


@dataclass
class Place:
    """The rank of this process, and the size of its job. ``comm`` is MPI's world, or None without
    MPI."""

    rank: int
    size: int
    comm: object = None
    library: str = ""


def find_place(uses_mpi, mpi4py=None, survives=False):
    """Find the rank of this process: ask MPI or, without mpi4py, read environment variables.

    Parameters
    ----------
    uses_mpi : bool
    mpi4py : str, optional
        The version of mpi4py in the notebook. If it is given, all hosts must have mpi4py. Otherwise
        ranks that ask MPI and ranks that do not would wait for each other for ever.
    survives : bool
        Whether ranks continue when another rank dies. With MPI they do not continue, so simlib then
        reads only environment variables.

    Raises
    ------
    JobError
        Neither MPI nor the environment gives a rank, or MPI does not work on this host.
    """
    place = _ask_mpi(mpi4py) if uses_mpi and not survives else None
    return place or _ask_environment(uses_mpi)


def _ask_mpi(mpi4py):
    """Return the `Place` from MPI; None if mpi4py is not installed and not needed."""
    host = os.uname().nodename
    try:
        from mpi4py import MPI
    except ModuleNotFoundError:
        if mpi4py is not None:
            raise JobError(
                f"{host} has no mpi4py, but the notebook has mpi4py {mpi4py}: install mpi4py "
                f"{mpi4py} on every host"
            ) from None
        return None
    except (ImportError, RuntimeError) as error:
        raise JobError(
            f"mpi4py finds no MPI library on {host} ({str(error).splitlines()[0]}): install "
            "the same MPI there, at the same path"
        ) from None
    comm = MPI.COMM_WORLD
    library = " ".join(MPI.Get_library_version().split())[:40]
    return Place(comm.rank, comm.size, comm, library)


def _ask_environment(uses_mpi):
    # srun without MPI sets its own only, and hands on what an mpiexec around the notebook has set.
    for rank, size in ENVIRONMENTS if uses_mpi else (SRUN.identity[-1], *ENVIRONMENTS):
        if rank in os.environ and size in os.environ:
            return Place(int(os.environ[rank]), int(os.environ[size]))
    raise JobError(
        "a process of the job does not know its rank: there is no mpi4py, and the environment has "
        f"none of {', '.join(SURE)}. Install mpi4py on every node"
    )


def check_size(place, world_size):
    """Refuse a world whose size differs from ``world_size``."""
    if place.size == world_size:
        return
    who = "the environment" if place.comm is None else "MPI"
    here = f"rank {place.rank} of {place.size}"
    found = f"the job has {world_size} ranks, but {who} says that this is {here}"
    if place.size > 1:
        raise JobError(f"{found}. Does launcher= give its own number of ranks, as -n does?")
    if place.comm is None:
        raise JobError(
            f"{found}. Is the notebook itself a process of mpiexec or srun? Start the notebook "
            "without them"
        )
    raise JobError(
        f"{found}. mpiexec belongs to another MPI than the one mpi4py has loaded "
        f"({place.library}): name the right mpiexec with launcher=..., or install mpi4py for its "
        "MPI"
    )


def meet_in_job(place, folder):
    """Return the store of the job. Also choose the interface through which Gloo reaches the other
    ranks.

    As with torchrun, a script finds an address for its own store in the environment. It is a free
    port of rank 0's host.
    """
    if place.comm is not None:
        store, address = meet(place.comm)
    else:
        store, address = _meet_by_files(place, folder)
    os.environ["GLOO_SOCKET_IFNAME"] = interface_towards(address)
    os.environ["MASTER_ADDR"] = address
    if place.rank == 0:
        store.set("free port", str(free_port()))
    os.environ["MASTER_PORT"] = store.get("free port").decode()
    return store


def serve_store(folder):
    """Serve the store in which ranks without MPI meet. Write its address into the folder.

    The supervisor of rank 0 serves the store, because the supervisor may outlive its rank.
    """
    listening = listen()
    port = listening.getsockname()[1]
    store = dist.TCPStore(
        "localhost", port, is_master=True, wait_for_workers=False,
        timeout=timedelta(seconds=MEET_S), master_listen_fd=listening.detach(), use_libuv=True,
    )  # fmt: skip
    folder.write_json({"addresses": own_addresses(), "port": port}, "meeting.json")
    return store


def _meet_by_files(place, folder):
    """Meet through the job's folder: each rank reports the addresses of the store that answer it.

    All ranks use the first address that answers every rank.
    """
    meeting = _read_meeting(folder)
    addresses, port = meeting["addresses"], meeting["port"]
    reached = which_answer(addresses, port)
    if not reached:
        raise JobError(
            f"rank {place.rank} on {os.uname().nodename} cannot reach rank 0 at any of its "
            f"addresses ({', '.join(addresses)}, port {port}): open the ports between the hosts"
        )
    store = dist.TCPStore(reached[0], port, place.size, wait_for_workers=False)
    store.set(f"reached/{place.rank}", json.dumps(reached))
    if place.rank == 0:
        store.set("address", _common_address(addresses, store, place.size))
    return store, store.get("address").decode()


def _common_address(addresses, store, world_size):
    reached = [json.loads(store.get(f"reached/{rank}")) for rank in range(world_size)]
    address = answered_by_all(addresses, reached)
    if address is None:
        raise JobError(
            f"no address of {os.uname().nodename}, where rank 0 runs, can be reached by all ranks "
            f"({', '.join(addresses)}): put the hosts into one network"
        )
    return address


def _read_meeting(folder):
    """Return the addresses at which rank 0 listens. Wait until rank 0 has written them."""
    deadline = time.monotonic() + MEET_S
    while time.monotonic() < deadline:
        meeting = folder.read_json("meeting.json")
        if meeting is not None:
            return meeting
        time.sleep(LOOK_S)
    raise JobError(
        f"{folder.file('meeting.json')} did not appear within {MEET_S:g} s: do all hosts share "
        "this folder?"
    )


def leave_together(place, folder):
    """Wait until every rank has ended or died. The wait leaves the processor to others."""
    if place.comm is None:
        while not folder.have_all_ended(place.size):
            time.sleep(LEAVE_S)
        return
    from mpi4py import MPI

    request = place.comm.Ibarrier()
    while not request.Test():
        time.sleep(LOOK_S)
    MPI.Finalize()


ROUNDS, FEW = 200, 10
ENOUGH_S = 0.2
"""After a few rounds, a host stops asking after this many seconds. On slow networks, all rounds
would take long."""
MORE, LAST = 1.0, 0.0


def align(group, store, rank, hosts):
    """Measure how far this rank's clock is ahead of rank 0's clock, and the error of this offset.

    Ranks on one host share a clock. On every other host, the first rank asks rank 0 for its time,
    again and again. Rank 0 reads its clock at some moment between the question and the answer.
    simlib takes the middle as this moment, and half of the shortest round trip as the error. Cost:
    up to 200 round trips per host, one host after the other; no more than 10 if they take longer
    than 0.2 s.

    Parameters
    ----------
    group : object
        An object with ``send`` and ``recv`` as in `dist.ProcessGroup`. simlib does not record its
        messages.
    store : dist.Store
    rank : int
    hosts : list of str
        The host of each rank.

    Returns
    -------
    offset_s, error_s : float
    """
    first = {host: hosts.index(host) for host in hosts if host != hosts[0]}
    message = torch.zeros(1, dtype=torch.float64)
    if rank == 0:
        for client in first.values():
            has_more = True
            while has_more:
                group.recv([message], client, 0).wait()
                has_more = message.item() == MORE
                message[0] = time.perf_counter()
                group.send([message], client, 0).wait()
            store.get(f"clock/{client}")
        return 0.0, 0.0
    if hosts[rank] == hosts[0]:
        return 0.0, 0.0
    client = first[hosts[rank]]
    if rank == client:
        store.set(f"clock/{client}", json.dumps(_ask(group, message)))
    return tuple(json.loads(store.get(f"clock/{client}")))


def _ask(group, message):
    """Ask rank 0 for its time many times. Return the offset and its error."""
    found = []
    enough_s = time.perf_counter() + ENOUGH_S
    is_last = False
    while not is_last:
        sent_s = time.perf_counter()
        is_last = len(found) + 1 >= (FEW if sent_s > enough_s else ROUNDS)
        message[0] = LAST if is_last else MORE
        group.send([message], 0, 0).wait()
        group.recv([message], 0, 0).wait()
        received_s = time.perf_counter()
        found.append(((received_s - sent_s) / 2, (sent_s + received_s) / 2 - message.item()))
    error_s, offset_s = min(found)
    return offset_s, error_s

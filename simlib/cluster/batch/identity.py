"""Who this process is among the ranks of its job, and where they meet."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist

from ...core.model.errors import JobError
from ..launch.addresses import (
    answered_by_all,
    free_port,
    interface_towards,
    listen,
    own_addresses,
    which_answer,
)
from ..launch.launchers import LAUNCHERS, SRUN

ENVIRONMENTS = tuple(dict.fromkeys(pair for each in LAUNCHERS for pair in each.identity))
SURE = tuple(dict.fromkeys(each.identity[-1][0] for each in LAUNCHERS))
MEET_S = 60.0
LOOK_S, LEAVE_S = 0.02, 0.1


@dataclass
class Place:
    """This process in its job; ``comm`` is MPI's world, None where MPI is not asked."""

    rank: int
    size: int
    comm: object = None
    library: str = ""


def find_place(uses_mpi, mpi4py=None, survives=False):
    """Ask MPI who this process is, or, where there is no mpi4py, the environment.

    Parameters
    ----------
    uses_mpi : bool
    mpi4py : str, optional
        The version that the notebook has. Then all hosts must have it: ranks that ask MPI and ranks
        that do not would wait for each other for ever.
    survives : bool
        Whether ranks go on when another one dies. MPI does not: only the environment is asked.

    Raises
    ------
    JobError
        If neither knows, or MPI does not work on this host.
    """
    place = _ask_mpi(mpi4py) if uses_mpi and not survives else None
    return place or _ask_environment(uses_mpi)


def _ask_mpi(mpi4py):
    """The place that MPI tells; None where there need be no mpi4py, and is none."""
    host = os.uname().nodename
    try:
        from mpi4py import MPI
    except ModuleNotFoundError:
        if mpi4py is not None:
            raise JobError(
                f"{host} has no mpi4py, the notebook {mpi4py}: install the same on every host"
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
    """Refuse a world of another size than was asked for."""
    if place.size == world_size:
        return
    who = "the environment" if place.comm is None else "MPI"
    found = f"{world_size} ranks were asked for, but {who} says: rank {place.rank} of {place.size}"
    if place.size > 1:
        raise JobError(f"{found}. Does the launcher get a number of its own, say by -n?")
    if place.comm is None:
        raise JobError(
            f"{found}. Is the notebook itself a process of mpiexec or srun? Start it without them"
        )
    raise JobError(
        f"{found}. mpiexec belongs to another MPI than the one mpi4py has loaded "
        f"({place.library}): name the right mpiexec by launcher=..., or install mpi4py for its MPI"
    )


def meet(place, folder):
    """The store of the job; Gloo is told the interface by which the ranks reach each other.

    A script finds where its own store can be, as torchrun tells it: a free port of rank 0's host.
    """
    if place.comm is not None:
        from ..launch.rendezvous import meet as meet_by_mpi

        store, address = meet_by_mpi(place.comm)
    else:
        store, address = _meet_by_files(place, folder)
    os.environ["GLOO_SOCKET_IFNAME"] = interface_towards(address)
    os.environ["MASTER_ADDR"] = address
    if place.rank == 0:
        store.set("free port", str(free_port()))
    os.environ["MASTER_PORT"] = store.get("free port").decode()
    return store


def serve_store(folder):
    """The store in which ranks meet that have no MPI; where it is, is written into the folder.

    The supervisor of rank 0 serves it: it may outlive its rank.
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
    """Each rank says which addresses of the store answer it; the first that answers all counts."""
    meeting = _read_meeting(folder)
    addresses, port = meeting["addresses"], meeting["port"]
    reached = which_answer(addresses, port)
    if not reached:
        raise JobError(
            f"rank {place.rank} on {os.uname().nodename} reaches rank 0 by none of its addresses "
            f"({', '.join(addresses)}, port {port}): open the ports between the hosts"
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
            f"no address of {os.uname().nodename}, where rank 0 is, answers all ranks "
            f"({', '.join(addresses)}): put the hosts into one network"
        )
    return address


def _read_meeting(folder):
    """Where rank 0 listens, as soon as it has written it down."""
    deadline = time.monotonic() + MEET_S
    while time.monotonic() < deadline:
        meeting = folder.read_json("meeting.json")
        if meeting is not None:
            return meeting
        time.sleep(LOOK_S)
    raise JobError(
        f"nobody has written {folder.file('meeting.json')} for {MEET_S:g} s: is this folder "
        "the same on all hosts?"
    )


def leave_together(place, folder):
    """Wait, without spinning, until every rank has come to its end, or has died."""
    if place.comm is None:
        while not folder.have_all_ended(place.size):
            time.sleep(LEAVE_S)
        return
    from mpi4py import MPI

    request = place.comm.Ibarrier()
    while not request.Test():
        time.sleep(LOOK_S)
    MPI.Finalize()

"""Ranks as short programs that compute, send and wait, on the simulated network.

A program is a generator. It yields seconds of compute, or a list of messages for which the rank
waits. So the model of a step lists the actions of each rank in order, like the code of a rank.
Messages share links as in `simulate`. This file contains the programs of steps with parameter
servers, and `pipeline_parallel` contains the programs of pipelines.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

import numpy as np

from ..clockwork.network import Network, Transfer
from ..collectives.schedules import split
from ..model.cluster import Cluster, Topology
from ..model.errors import InvalidCallError, as_int, check_count, check_number, check_type
from ..model.words import seconds_text
from .case import Placement, Seconds, Tabled, count_of, refuse_unless_seconds, table_text

ANY = None
Program: TypeAlias = Iterator["float | list[Message]"]
"""The program of a rank. It yields seconds of compute, or messages for which the rank waits."""


class Message:
    """One posted side of a message. ``end_s`` is the time of arrival, and None before arrival."""

    __slots__ = ("src", "dst", "tag", "nbytes", "end_s", "waiting")

    def __init__(self, src: int | None, dst: int, tag: int, nbytes: int | None) -> None:
        self.src, self.dst, self.tag, self.nbytes = src, dst, tag, nbytes
        self.end_s = None
        self.waiting = None


class Machine:
    """Runs one program on each rank of a topology.

    Attributes
    ----------
    clocks : list of float
        The time that each rank has reached.

    Notes ----- A message starts when both sides have posted it. Ranks that are ready at the same
    moment continue in the order of their numbers. **Cost** O(1) network events for each message.
    """

    def __init__(self, topology: Topology) -> None:
        self._network = Network(topology)
        self._now_s = 0.0
        self._programs: list[Program | None] = [None] * topology.world_size
        self._left = [()] * topology.world_size  # messages that each rank still waits for
        self._sends: list[dict[int, list[Message]]] = [
            {} for _ in self._programs
        ]  # by dst: tag -> posted and not met
        self._receives: list[dict[int, list[Message]]] = [{} for _ in self._programs]
        self._sides: dict[Transfer, tuple[Message, Message]] = {}  # transfer -> both its sides
        self._ready = [(0.0, rank) for rank in range(topology.world_size)]
        self.clocks = [0.0] * topology.world_size

    def isend(self, src: int, dst: int, nbytes: int, tag: int = 0) -> Message:
        """Post a send at the present time of the sender's clock."""
        return self._post(self._sends, self._receives, Message(src, dst, tag, nbytes))

    def irecv(self, dst: int, src: int | None = ANY, tag: int = 0) -> Message:
        """Post a receive from one rank or from any rank. ``src`` is set when it matches a send."""
        return self._post(self._receives, self._sends, Message(src, dst, tag, None))

    def _post(self, own, others, message):
        for other in others[message.dst].get(message.tag, ()):
            if ANY in (message.src, other.src) or message.src == other.src:
                others[message.dst][message.tag].remove(other)
                self._start(message, other)
                return message
        own[message.dst].setdefault(message.tag, []).append(message)
        return message

    def _start(self, one, other):
        send, receive = (one, other) if one.nbytes is not None else (other, one)
        receive.src, receive.nbytes = send.src, send.nbytes
        transfer = self._network.start(self._now_s, send.src, send.dst, send.nbytes)
        self._sides[transfer] = send, receive

    def run(self, programs: Iterable[Program]) -> list[float]:
        """Run all programs, a generator for each rank, to their ends. Returns ``clocks``."""
        self._programs = list(programs)
        while self._ready or self._network.next_event_s < inf:
            due_s = self._ready[0][0] if self._ready else inf
            if self._network.next_event_s <= due_s:
                self._arrive(self._network.advance(self._network.next_event_s))
                continue
            self._now_s, rank = heapq.heappop(self._ready)
            self._go_on(rank)
        stuck = [rank for rank, program in enumerate(self._programs) if program is not None]
        if stuck:
            raise InvalidCallError(f"ranks {stuck} of this step wait forever for a message")
        return self.clocks

    def _go_on(self, rank):
        self.clocks[rank] = self._now_s
        try:
            asked = next(self._programs[rank])
        except StopIteration:
            self._programs[rank] = None
            return
        if isinstance(asked, list):
            self._left[rank] = [message for message in asked if message.end_s is None]
            for message in self._left[rank]:
                message.waiting = rank
            if self._left[rank]:
                return
            asked = 0.0
        heapq.heappush(self._ready, (self._now_s + asked, rank))

    def _arrive(self, transfers):
        for transfer in transfers:
            for side in self._sides.pop(transfer):
                side.end_s = transfer.end_s
                rank = side.waiting
                if rank is None:
                    continue
                self._left[rank].remove(side)
                if not self._left[rank]:
                    heapq.heappush(self._ready, (side.end_s, rank))


# -- parameter servers: workers send gradients to them, and get parameters back --------------------

MAX_MESSAGES = 200_000


@dataclass(frozen=True, eq=False, repr=False)
class ServerSteps(Tabled):
    """Training steps of workers that share parameter servers.

    Attributes
    ----------
    workers, servers, steps : int
        Each worker makes ``steps`` steps.
    asynchronous : bool
    end_s : ndarray of float, shape (steps, workers)
        The second at which each worker has received the new parameters of a step. The first step
        begins at 0.
    compute_s : ndarray of float, shape (steps, workers)
        Seconds that each worker computes in each step.
    staleness : ndarray of int, shape (servers, gradients)
        The staleness of each gradient that a server applied, in order. The staleness is the number
        of updates that the server made after it had sent the worker the parameters for this
        gradient. In synchronous steps it is 0, because one update applies all gradients.
    """

    workers: int
    servers: int
    steps: int
    asynchronous: bool
    end_s: np.ndarray
    compute_s: np.ndarray
    staleness: np.ndarray

    @property
    def time_s(self) -> float:
        """The second at which the last worker is done with all steps."""
        return float(self.end_s.max())

    @property
    def step_s(self) -> float:
        """Seconds of a worker's step, on average over all workers and steps."""
        return float(self.end_s[-1].mean() / self.steps)

    @property
    def gradients_per_s(self) -> float:
        """Gradients that servers apply per second: the sum of the rates of all workers.

        simlib computes each worker's rate over the worker's own time. So a straggler that ends last
        does not lower the rates of the others.
        """
        through_s = self.end_s[-1]
        return float((self.steps / through_s).sum()) if through_s.all() else np.inf

    @property
    def updates_per_s(self) -> float:
        """Updates of the parameters per second. Asynchronous servers make an update per
        gradient."""
        return self.gradients_per_s / (1 if self.asynchronous else self.workers)

    @property
    def mean_staleness(self) -> float:
        """The mean staleness of all gradients, in updates."""
        return float(self.staleness.mean())

    def table(self) -> str:
        """The steps as plain text: a row for each worker, at most 20."""
        rows: list[tuple[str, ...]] = [("worker", "computes", "step", "waits")]
        for worker in range(self.workers):
            computes_s = self.compute_s[:, worker].mean()
            step_s = self.end_s[-1, worker] / self.steps
            share = 1 - computes_s / step_s if step_s else 0.0
            rows.append((str(worker), *map(seconds_text, (computes_s, step_s)), f"{share:.1%}"))
        sort = "asynchronous" if self.asynchronous else "synchronous"
        counts = ("worker", self.workers), ("server", self.servers), ("step", self.steps)
        said = ", ".join(f"{count:,} {name}{'s' * (count != 1)}" for name, count in counts)
        lines = [
            f"{sort}, {said}: "
            f"{seconds_text(self.time_s)}, {self.updates_per_s:.4g} updates per second, "
            f"staleness {self.mean_staleness:.2f}",
        ]
        return table_text(lines, rows)


def parameter_server_time(
    model_bytes: float,
    workers: int,
    servers: int,
    cluster: Cluster,
    *,
    forward_s: Seconds,
    backward_s: Seconds,
    update_s: float = 0.0,
    asynchronous: bool = False,
    steps: int = 1,
    placement: Placement = "block",
    itemsize: int = 4,
) -> ServerSteps:
    """Time steps with parameter servers, and find their updates per second and staleness.

    Ranks 0 to ``workers - 1`` are workers. The ranks after them are servers, each with an equal
    part of the parameters. A worker computes, sends each server its part of the gradient, and waits
    for new parameters from all servers. A synchronous server receives gradients from all workers at
    the same time, makes one update, and sends the new parameters to all workers. An asynchronous
    server receives gradients one by one from any worker, in the order in which the workers send
    them. It makes an update with each gradient, and sends its new parameters to that worker by
    `isend`, while it receives the next gradient. Messages share links as in `simulate`.

    Parameters
    ----------
    model_bytes : int
        Bytes of all parameters; the gradients have the same number of bytes.
    workers, servers : int
    cluster : Cluster
        The cluster must have room for at least ``workers + servers`` ranks.
    forward_s, backward_s : float or array of float, shape (workers,) or (steps, workers)
        Seconds of compute. Pass one number for all workers, one number for each worker, or one
        number for each worker in every step. For example, multiply the seconds by `jitter_factors`.
    update_s : float
        Seconds that a server takes for one update of its part.
    asynchronous : bool
    steps : int
        Steps of each worker.
    placement
        Placement of workers and servers, as in `Topology`. If each node has two ranks, and the
        number of servers equals the number of workers, ``"round_robin"`` puts a server in the node
        of each worker.
    itemsize : int
        Bytes of one parameter. simlib cuts parts between parameters.

    Returns
    -------
    ServerSteps

    Raises
    ------
    InvalidCallError
        An argument is invalid, or there are more than 200,000 messages.

    Examples
    --------
    Each of four workers computes for 0.1 s and sends 100 MB to one server over 10 Gbit/s. All
    gradients arrive over the server's one link, which takes longer than the compute. Four servers
    have four links:

    >>> import simlib
    >>> cluster = simlib.clusters.ethernet_10g(nodes=8)
    >>> for servers in (1, 4):
    ...     step = simlib.scale.parameter_server_time(
    ...         100e6, 4, servers, cluster, forward_s=0.04, backward_s=0.06
    ...     )
    ...     print(f"{step.time_s:.3f} s")
    0.740 s
    0.260 s

    If updates are asynchronous, no worker waits for a straggler, but gradients are stale:

    >>> times = {"forward_s": [0.1, 0.1, 0.1, 0.4], "backward_s": 0.1, "steps": 20}
    >>> for way in (False, True):
    ...     step = simlib.scale.parameter_server_time(
    ...         1e6, 4, 1, cluster, asynchronous=way, **times
    ...     )
    ...     print(f"{step.gradients_per_s:.1f} gradients/s, staleness {step.mean_staleness:.1f}")
    7.9 gradients/s, staleness 0.0
    16.9 gradients/s, staleness 2.5

    **Cost** simlib follows 2 * workers * servers * steps messages through the network. The
    computation takes 0.2 s for 8,000 messages, or 8 s if 500 messages share one link at the same
    time.

    **Source** Dean et al. 2012 (DistBelief); Li et al. 2014 (Scaling distributed machine learning
    with the parameter server, OSDI).
    """
    workers, servers = count_of("workers", workers), count_of("servers", servers)
    steps = count_of("steps", steps)
    total = as_int("model_bytes", model_bytes)
    check_type("cluster", cluster, Cluster)
    _check(workers, servers, steps, total, itemsize, asynchronous)
    compute_s = sum(
        _of_each_step(name, value, steps, workers)
        for name, value in (("forward_s", forward_s), ("backward_s", backward_s))
    )
    check_number("update_s", update_s)
    parts = split(total, servers, itemsize)
    machine = Machine(Topology(cluster, workers + servers, placement))
    end_s = np.zeros((steps, workers))
    staleness: list[list[int]] = [[] for _ in range(servers)]
    serve = _serve_each if asynchronous else _serve_all
    machine.run(
        [_work(machine, worker, workers, parts, compute_s, end_s) for worker in range(workers)]
        + [
            serve(_Server(machine, workers + i, workers, int(part), steps, update_s), gradients)
            for i, (part, gradients) in enumerate(zip(parts, staleness, strict=True))
        ]
    )
    return ServerSteps(
        workers, servers, steps, asynchronous, end_s, compute_s, np.array(staleness)
    )  # fmt: skip


def _check(workers, servers, steps, total, itemsize, asynchronous):
    check_type("asynchronous", asynchronous, bool)
    check_count("itemsize", itemsize)
    check_count("model_bytes", total, low=itemsize * servers)
    if total % itemsize:
        raise InvalidCallError(
            f"{total} bytes are not a whole number of parameters of {itemsize} bytes"
        )
    messages = 2 * workers * servers * steps
    if messages > MAX_MESSAGES:
        raise InvalidCallError(
            f"2 * workers * servers * steps is {messages:,} messages, but simlib follows at most "
            f"{MAX_MESSAGES:,}: give fewer steps, workers or servers"
        )


def _of_each_step(name, value, steps, workers):
    """Seconds of each worker in each step: ndarray of float, shape (steps, workers)."""
    value = np.array(value, dtype=float)
    if value.shape not in ((), (workers,), (steps, workers)):
        raise InvalidCallError(
            f"{name} has shape {value.shape}: give one number of seconds, one for each of "
            f"{workers} workers, or shape {(steps, workers)}"
        )
    refuse_unless_seconds(name, value)
    return np.broadcast_to(value, (steps, workers))


def _work(machine, worker, workers, parts, compute_s, end_s):
    """The program of a worker, for all its steps."""
    servers = range(workers, workers + len(parts))
    for step in range(len(end_s)):
        yield compute_s[step, worker]
        coming = [machine.irecv(worker, server) for server in servers]
        going = [
            machine.isend(worker, server, int(nbytes))
            for server, nbytes in zip(servers, parts, strict=True)
        ]
        yield coming + going
        end_s[step, worker] = machine.clocks[worker]


@dataclass(frozen=True)
class _Server:
    """One server, with its rank and its part of the parameters."""

    machine: Machine
    rank: int
    workers: int
    nbytes: int
    steps: int
    update_s: float

    def recv(self, worker=ANY):
        return self.machine.irecv(self.rank, worker)

    def send(self, worker):
        return self.machine.isend(self.rank, worker, self.nbytes)


def _serve_all(server, staleness):
    """The program of a synchronous server: one update with all gradients in a step."""
    workers = range(server.workers)
    for _ in range(server.steps):
        yield [server.recv(worker) for worker in workers]
        staleness += [0] * len(workers)
        yield server.update_s
        yield [server.send(worker) for worker in workers]


def _serve_each(server, staleness):
    """The program of an asynchronous server: one update per gradient, in order of arrival."""
    sent_at, sending = [0] * server.workers, []
    for update in range(server.workers * server.steps):
        gradient = server.recv()
        yield [gradient]
        staleness.append(update - sent_at[gradient.src])
        yield server.update_s
        sent_at[gradient.src] = update + 1
        sending.append(server.send(gradient.src))
    yield sending

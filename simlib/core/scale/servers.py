"""Steps with parameter servers: workers send gradients to servers, and get parameters back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..collectives.schedules import split
from ..model.cluster import Cluster, Topology
from ..model.errors import InvalidCallError, as_int, check_count, check_number, check_type
from ..model.words import aligned, seconds_text
from .programs import Machine

MAX_MESSAGES = 200_000


@dataclass(frozen=True, eq=False, repr=False)
class ServerSteps:
    """Training steps of workers that share parameter servers.

    Attributes
    ----------
    workers, servers, steps : int
        Each worker takes so many steps.
    asynchronous : bool
    end_s : ndarray of float, shape (steps, workers)
        When each worker has the parameters that a step gives; the first step begins at 0.
    compute_s : ndarray of float, shape (steps, workers)
        Seconds in which each worker computes.
    staleness : ndarray of int, shape (servers, gradients)
        Of each gradient that a server applied, in order: how many updates it had made since it
        sent that worker its parameters. Synchronous: one update of all gradients, so 0.
    """

    workers: int
    servers: int
    steps: int
    asynchronous: bool
    end_s: np.ndarray
    compute_s: np.ndarray
    staleness: np.ndarray

    @property
    def time_s(self):
        """When the last worker is done with all steps."""
        return float(self.end_s.max())

    @property
    def step_s(self):
        """Seconds of a worker's step, on average over all workers and steps."""
        return float(self.end_s[-1].mean() / self.steps)

    @property
    def gradients_per_s(self):
        """Gradients that come into the parameters in a second: the sum of all workers' rates.

        Each over its own time, so a straggler that is the last to end does not count for all.
        """
        through_s = self.end_s[-1]
        return float((self.steps / through_s).sum()) if through_s.all() else np.inf

    @property
    def updates_per_s(self):
        """Updates of the parameters in a second: asynchronous, one for each gradient."""
        return self.gradients_per_s / (1 if self.asynchronous else self.workers)

    @property
    def mean_staleness(self):
        """Of all gradients: how many updates each one is late."""
        return float(self.staleness.mean())

    def table(self):
        """The steps as plain text: a row for each worker, at most 20."""
        rows = [("worker", "computes", "step", "waits")]
        for worker in range(self.workers):
            computes_s = self.compute_s[:, worker].mean()
            step_s = self.end_s[-1, worker] / self.steps
            share = 1 - computes_s / step_s if step_s else 0.0
            rows.append((str(worker), *map(seconds_text, (computes_s, step_s)), f"{share:.1%}"))
        left_out = len(rows) - 21
        sort = "asynchronous" if self.asynchronous else "synchronous"
        counts = ("worker", self.workers), ("server", self.servers), ("step", self.steps)
        said = ", ".join(f"{count:,} {name}{'s' * (count != 1)}" for name, count in counts)
        lines = [
            f"{sort}, {said}: "
            f"{seconds_text(self.time_s)}, {self.updates_per_s:.4g} updates per second, "
            f"staleness {self.mean_staleness:.2f}",
            "",
            *aligned(rows[:21]),
        ]
        return "\n".join(lines + [f"... and {left_out:,} more"] * (left_out > 0))

    def __repr__(self):
        return self.table()


def parameter_server_time(
    model_bytes,
    workers,
    servers,
    cluster,
    *,
    forward_s,
    backward_s,
    update_s=0.0,
    asynchronous=False,
    steps=1,
    placement="block",
    itemsize=4,
):
    """Steps with parameter servers: their time, updates per second, and staleness.

    Ranks 0 to ``workers - 1`` are workers; the servers come after them, each with an equal part of
    the parameters. A worker computes, sends each server its part of the gradient, and waits for new
    parameters of all. Synchronous: a server receives from all workers at once, makes one update,
    and sends to all. Asynchronous: it receives from any source, one after the other in the order in
    which they are sent; it makes an update of each gradient, and sends that worker what it has then
    (by `isend`: it receives the next meanwhile). Links are shared as in `simulate`.

    Parameters
    ----------
    model_bytes : int
        Bytes of all parameters; gradients have as many.
    workers, servers : int
    cluster : Cluster
        Of at least ``workers + servers`` ranks.
    forward_s, backward_s : float or array of float, shape (workers,) or (steps, workers)
        Seconds of compute: of all workers, of each, or of each in every step, as with
        `jitter_factors`.
    update_s : float
        Seconds that a server takes for one update of its part.
    asynchronous : bool
    steps : int
        Of each worker.
    placement
        Of workers and servers, as in `Topology`. On nodes of two, ``"round_robin"`` puts a server
        beside each worker where there are as many.
    itemsize : int
        Bytes of one parameter; parts are cut between parameters.

    Returns
    -------
    ServerSteps

    Raises
    ------
    InvalidCallError
        Also where there are more than 200,000 messages.

    Examples
    --------
    Four workers of 0.1 s send 100 MB each to one server over 10 Gbit/s. All gradients come in over
    its one link, so the server takes longer than the compute. Four servers have four links:

    >>> import simlib
    >>> cluster = simlib.clusters.ethernet_10g(nodes=8)
    >>> for servers in (1, 4):
    ...     step = simlib.scale.parameter_server_time(
    ...         100e6, 4, servers, cluster, forward_s=0.04, backward_s=0.06
    ...     )
    ...     print(f"{step.time_s:.3f} s")
    0.740 s
    0.260 s

    Nobody waits for a straggler where updates are asynchronous, and gradients are stale:

    >>> times = {"forward_s": [0.1, 0.1, 0.1, 0.4], "backward_s": 0.1, "steps": 20}
    >>> for way in (False, True):
    ...     step = simlib.scale.parameter_server_time(
    ...         1e6, 4, 1, cluster, asynchronous=way, **times
    ...     )
    ...     print(f"{step.gradients_per_s:.1f} gradients/s, staleness {step.mean_staleness:.1f}")
    7.9 gradients/s, staleness 0.0
    16.9 gradients/s, staleness 2.5

    **Cost** 2 * workers * servers * steps messages, each followed through the network: 0.2 s for
    8,000 of them, 8 s where 500 at a time share one link.

    **Source** Dean et al. 2012 (DistBelief); Li et al. 2014 (Scaling distributed machine learning
    with the parameter server, OSDI).
    """
    workers, servers, steps = (
        as_int(name, value)
        for name, value in (("workers", workers), ("servers", servers), ("steps", steps))
    )
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
    end_s, staleness = np.zeros((steps, workers)), [[] for _ in range(servers)]
    serve = _serve_each if asynchronous else _serve_all
    machine.run(
        [_work(machine, worker, workers, parts, compute_s, end_s) for worker in range(workers)]
        + [
            serve(machine, workers + i, workers, int(parts[i]), steps, update_s, staleness[i])
            for i in range(servers)
        ]
    )
    return ServerSteps(
        workers, servers, steps, asynchronous, end_s, compute_s, np.array(staleness)
    )  # fmt: skip


def _check(workers, servers, steps, total, itemsize, asynchronous):
    check_type("asynchronous", asynchronous, bool)
    for name, count in (
        ("workers", workers),
        ("servers", servers),
        ("steps", steps),
        ("itemsize", itemsize),
    ):
        check_count(name, count)
    check_count("model_bytes", total, low=itemsize * servers)
    if total % itemsize:
        raise InvalidCallError(f"{total} bytes are no whole number of parameters of {itemsize}")
    messages = 2 * workers * servers * steps
    if messages > MAX_MESSAGES:
        raise InvalidCallError(
            f"{messages:,} messages would have to be followed one by one: give fewer steps, "
            f"workers or servers, up to {MAX_MESSAGES:,} (2 * workers * servers * steps)"
        )


def _of_each_step(name, value, steps, workers):
    """Seconds of each worker in each step: ndarray of float, shape (steps, workers)."""
    value = np.array(value, dtype=float)
    fits = value.shape in ((), (workers,), (steps, workers))
    if not fits or not (np.isfinite(value) & (value >= 0)).all():
        raise InvalidCallError(
            f"{name} is of shape {value.shape}: give seconds, none below 0 or infinite, one for "
            f"all, one for each of {workers} workers, or of shape {(steps, workers)}"
        )
    return np.broadcast_to(value, (steps, workers))


def _work(machine, worker, workers, parts, compute_s, end_s):
    """What a worker does in all its steps."""
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


def _serve_all(machine, server, workers, nbytes, steps, update_s, staleness):
    """What a synchronous server does: one update of all gradients in a step."""
    for _ in range(steps):
        yield [machine.irecv(server, worker) for worker in range(workers)]
        staleness += [0] * workers
        yield update_s
        yield [machine.isend(server, worker, nbytes) for worker in range(workers)]


def _serve_each(machine, server, workers, nbytes, steps, update_s, staleness):
    """What an asynchronous server does: an update of each gradient, first come, first served."""
    sent_at, sending = [0] * workers, []
    for update in range(workers * steps):
        gradient = machine.irecv(server)
        yield [gradient]
        staleness.append(update - sent_at[gradient.src])
        yield update_s
        sent_at[gradient.src] = update + 1
        sending.append(machine.isend(server, gradient.src, nbytes))
    yield sending

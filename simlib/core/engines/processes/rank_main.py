"""One rank: a process that runs the learner's function. It serves several runs if it is clean."""

from __future__ import annotations

import contextlib
import functools
import math
import mmap
import multiprocessing
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from ...environment import NO_GPUS, loopback
from ...record import backend, returned, safe_pickle
from ...record.oplog import CAPACITY, FingerprintTable, OpLogWriter
from ...record.recorder import Recorder
from ...record.this_rank import here
from ...record.transports.backends import BACKENDS
from ..confinement import confinement
from ..rank_process.gpu_memory import reset_peaks, tell_peaks
from ..rank_process.isolation import Baseline, begin_random_numbers
from ..rank_process.profiling import RankProfiler
from ..rank_process.setup import (
    Output,
    die_with_the_kernel,
    flush,
    is_alone,
    rank_environ,
    show_errors_of_commands,
)
from ..rank_process.slow_rank import slowed
from ..request import SERVED, Request


@dataclass(kw_only=True)
class RunRequest(Request):
    """One run on a world of processes.

    Attributes
    ----------
    check : bool
        Whether ranks compare ops before the ops begin.
    survives : bool
        Whether the other ranks continue when a rank dies.
    slow : dict
        By rank, a number or a `Jitter`.
    segment : int
        Bytes of a segment of the log if the run is watched, so that the log rolls over. Else 0.
    number : int
        The number of this world's runs so far, so that groups of different runs never meet.
    profile_folder : str
        The folder for the ranks' profiles; empty if nobody wants them.
    """

    check: bool
    survives: bool
    slow: dict
    segment: int = 0
    number: int = 0
    profile_folder: str = ""


@dataclass(frozen=True)
class Ends:
    """The file descriptors with which a rank reaches what it shares with the kernel."""

    control: Any
    lifeline: Any
    stdout: Any
    stderr: Any
    log: Any


@dataclass(frozen=True)
class Gpus:
    """The GPUs that a rank sees. By default it sees none.

    Attributes
    ----------
    variables : Mapping of str to str or None
        Variables of the rank's environment: those of `NO_GPUS`. None removes a variable.
    own : bool
        Whether the current GPU of rank r is GPU r. If there are fewer GPUs than ranks, ranks share
        GPUs.
    """

    variables: Mapping[str, str | None] = field(default_factory=NO_GPUS.copy)
    own: bool = False

    def show(self) -> None:
        """Set the variables. A rank does this first, because CUDA reads them once."""
        for name, value in self.variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def take(self, rank: int) -> None:
        """Make the rank's GPU the current GPU. The first GPU is already the current one."""
        count = torch.cuda.device_count() if self.own else 1
        if count > 1:
            torch.cuda.set_device(rank % count)


def rank_main(rank, world_size, backend_name, gpus, ties, ends):
    """Serve runs until the kernel closes the control socket.

    ``ties`` connect the rank to the others, see `worlds.SharedRendezvous`: the store (a descriptor
    or a path) and the table of fingerprints, or the one descriptor of a `Broker`.
    """
    gpus.show()
    confined = confinement()
    confined.process_begins()
    die_with_the_kernel(ends.lifeline.detach())
    SERVED.append("a run")
    output = Output(ends.stdout.detach(), ends.stderr.detach())
    show_errors_of_commands()
    writer = OpLogWriter(mmap.mmap(ends.log.detach(), CAPACITY), dumps=safe_pickle.dumps)
    kernel = Connection(ends.control.detach())
    torch.set_num_threads(1)
    recorder = Recorder(writer, is_alone)
    plain = functools.partial(_join, BACKENDS[backend_name], gpus)
    rendezvous, fingerprints = confined.join(recorder, rank, world_size, ties, plain)
    membership = backend.Membership(rendezvous)
    multiprocessing.set_start_method(None, force=True)  # the server's is not the learner's
    baseline = Baseline()
    own_pid = os.getpid()
    confined.code_begins(of_one_rank=True)
    kernel.send(("ready", None))
    while True:
        try:
            word, request = kernel.recv()
        except (EOFError, OSError):
            os._exit(0)
        if word == "run":
            membership.begin(request.number)
            recorder.begin(fingerprints if request.check else None)
            recorder.survives = request.survives
            recorder.timeout_s = request.timeout_s or math.inf
            if request.segment:
                writer.roll_over(request.segment)
            own = kernel.recv()
            request.per_rank_args = None if own is None else {rank: own}
            profiler = RankProfiler(request.profile_folder, rank)
            answer = _run(request, rank, world_size, recorder, profiler)
            if os.getpid() != own_pid:
                os._exit(0)  # a child that the learner forked has come back from the function
            kernel.send_bytes(answer)
            if profiler.folder:
                profiler.write()
                with contextlib.suppress(OSError):  # the kernel waits no more
                    kernel.send(("profiled", None))
        else:
            kernel.send(("clean", _clean(baseline, recorder, membership, output)))


def _join(spoken, gpus, recorder, rank, world_size, store, table):
    """Join the others by a `Backend`; returns the store, and the rank's `FingerprintTable`."""
    os.environ["GLOO_SOCKET_IFNAME"] = loopback()
    gpus.take(rank)
    backend.install(backend.member(recorder, spoken), spoken)
    rendezvous = dist.FileStore(_store_path(store), world_size)
    backend.join_world(rendezvous, rank, world_size)
    return rendezvous, FingerprintTable(table.detach(), world_size, rank)


def _store_path(store):
    return store if isinstance(store, str) else f"/proc/self/fd/{store.detach()}"


def _run(request, rank, world_size, recorder, profiler):
    """Run the learner's function once; returns the answer for the kernel, as bytes."""
    request.enter_context(os.environ, **rank_environ(rank, [0] * world_size))
    begin_random_numbers(request.seeds.of_rank(rank))
    writer = recorder.log

    def call():
        function, args, kwargs = request.function_and_args(rank)
        here.log = writer
        slow = request.slow.get(rank)
        reset_peaks()
        profiler.start()
        writer.enter()
        try:
            with slowed(slow, rank, recorder) if slow is not None else contextlib.nullcontext():
                return function(rank, world_size, *args, **kwargs)
        finally:
            writer.leave(recorder.is_alone())
            profiler.function_ends()
            flush()
            recorder.stream_ends.last_look()
            tell_peaks(writer)

    return returned.answer_of(call, request.execution_context.is_script)


def _clean(baseline, recorder, membership, output):
    """Undo all changes of the run. Returns why this rank cannot serve again, or None."""
    try:
        output.restore()
        membership.end()
        reason = baseline.restore()
    except Exception as error:
        return returned.short(error)
    recorder.end()
    return reason

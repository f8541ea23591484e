"""The process that simulates, with one thread for each rank. It serves again if it is clean."""

from __future__ import annotations

import faulthandler
import gc
import operator
import os
import resource
import signal
import threading
import traceback
from multiprocessing.connection import Connection

import torch

from ...clockwork.simulation import Simulation
from ...environment import NO_GPUS
from ...model.cluster import Topology
from ...record import backend, safe_pickle
from ...record.torch_inside import keep_stand_in_for_cuda, wrap_backward
from ...record.transports.plain_group import stand_in_backend
from ..confinement import confinement
from ..rank_process.isolation import Baseline
from ..rank_process.setup import die_with_the_kernel
from ..request import FRAME, SERVED
from . import per_rank
from .followers import followed
from .memory_meter import tell_of_shards
from .one_cpu import share_one_cpu
from .per_rank.shared_names import SharedNames
from .ranks import Ranks
from .shared import own_stores, share_what_ddp_gathers

STACK_BYTES = 4 << 20
OPEN_MAX = 10_240
"""The most descriptors that macOS gives a process. The hard limit there may be infinite."""


def child_main(control, lifeline, stdout, stderr, memory):
    """Serve simulations until the kernel closes the control socket. Arguments are descriptors."""
    os.environ.update(NO_GPUS)  # before anything asks torch for a GPU
    confined = confinement()
    confined.process_begins()
    die_with_the_kernel(lifeline.detach())
    SERVED.append("a simulation")
    output, native = stdout.detach(), stderr.detach()
    memory = memory.detach()
    for fd in (1, 2):
        os.dup2(native, fd)
    kernel = Connection(control.detach())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable(native, all_threads=False)
    faulthandler.register(signal.SIGUSR1, native, all_threads=False)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = OPEN_MAX if most == resource.RLIM_INFINITY else most
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))  # a mapped log is a descriptor
    torch.set_num_threads(1)
    keep_stand_in_for_cuda()
    threading.stack_size(STACK_BYTES)
    process = Process(per_rank.separate_threads(FramedOutput(output), share_one_cpu()))
    backend.install(process.create_group)
    baseline = Baseline()
    confined.code_begins(of_one_rank=False)
    kernel.send(("ready", None))
    while True:
        try:
            word, request = kernel.recv()
        except (EOFError, OSError):
            os._exit(0)
        if word == "run":
            try:
                report = process.run(request, memory)
            except Exception:  # ours: nothing of the learner's runs in this thread
                report = safe_pickle.dumps(("failed", traceback.format_exc()))
            kernel.send_bytes(report)
        else:
            kernel.send(("clean", process.why_not_clean() or baseline.restore()))


class FramedOutput:
    """The pipe to the kernel. Ranks write to it, and threads for commands of ranks."""

    def __init__(self, fd):
        self._fd = fd
        self._lock = threading.Lock()

    def __call__(self, rank, text):
        data = text.encode("utf-8", "backslashreplace")
        with self._lock:
            for start in range(0, len(data), 1 << 16):
                piece = data[start : start + (1 << 16)]
                rest = FRAME.pack(rank, len(piece)) + piece
                while rest:
                    rest = rest[os.write(self._fd, rest) :]


class Process:
    """This process's ranks, in one simulation after the other.

    Parameters
    ----------
    streams : tuple
        ``sys.stdout`` and ``sys.stderr`` in the form for every rank.
    """

    def __init__(self, streams):
        self.simulation = None
        self.streams = streams
        self.backend = stand_in_backend()
        self.modules = per_rank.ModulesInTurn(SharedNames())
        tell_of_shards(lambda: getattr(per_rank.local, "meter", None))
        self._parked = 0
        self._gc_thresholds = gc.get_threshold()
        _leave_only_the_rank(self)
        _wait_where_backward_returns(self)
        share_what_ddp_gathers()
        own_stores(lambda: self.simulation.ranks.store)

    def run(self, request, memory):
        """Simulate once; returns the report for the kernel, as bytes."""
        topology = Topology(request.cluster, request.world_size, request.placement)
        classes = request.options.classes
        self.simulation = simulation = Simulation(topology, request.options, classes)
        simulation.ranks = Ranks(simulation, request, memory, self)
        request.enter_context(os.environ.base)
        self._collect_garbage_for(request.world_size)
        try:
            report = simulation.ranks.run()
        finally:
            simulation.ranks.state.leave()
        self._parked = len(report["unfinished"]) + len(report["deaths"])
        if classes is not None:
            report = followed(simulation, report)
        return safe_pickle.dumps(("rest", report))

    def _collect_garbage_for(self, ranks):
        """One garbage collector serves all ranks. It runs as often per rank as in a separate
        process."""
        youngest, *older = self._gc_thresholds
        gc.set_threshold(youngest * ranks, *older)

    def why_not_clean(self):
        """Why this process must not serve again, or None."""
        self.simulation = None
        gc.collect()
        return "a rank has not returned" if self._parked else None

    def create_group(self, options, ranks, name):
        """The calling rank's `RecordingGroup`, for `backend.install`."""
        return self.simulation.ranks.create_group(options, ranks, name)


def _leave_only_the_rank(process):
    """``os._exit`` in a rank ends that rank, not the process that simulates all of them."""
    exit_in_reality, own_pid = os._exit, per_rank.real_process_id()

    def exit_of_rank(status):
        rank = getattr(per_rank.local, "rank", None)
        if rank is None or per_rank.real_process_id() != own_pid:
            exit_in_reality(status)
        process.simulation.ranks.die(rank, operator.index(status) & 0xFF)

    os._exit = exit_of_rank


def _wait_where_backward_returns(process):
    """DDP waits for its futures in C++, at the end of `backward`. Let virtual time pass here
    instead."""

    def waiting(run_backward):
        def run_and_wait(*args, **kwargs):
            local = per_rank.local
            if not hasattr(local, "rank"):
                return run_backward(*args, **kwargs)
            local.backward_depth = getattr(local, "backward_depth", 0) + 1
            try:
                result = run_backward(*args, **kwargs)
            except BaseException:
                if local.backward_depth == 1:
                    process.simulation.forget_futures(local.rank)
                raise
            finally:
                local.backward_depth -= 1
            if not local.backward_depth:  # checkpoints run backward within backward
                process.simulation.wait_for_futures(local.rank)
            return result

        return run_and_wait

    wrap_backward(waiting)

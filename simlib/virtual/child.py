"""The process that simulates: one thread for each rank, again and again while it stays clean."""

from __future__ import annotations

import _thread
import contextlib
import faulthandler
import functools
import gc
import linecache
import math
import mmap
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import traceback

import torch
import torch.distributed as dist

from .. import answers, group
from ..cluster import Topology
from ..oplog import OpLogWriter, make_site
from ..processes import channel
from ..processes.isolation import Baseline, torch_seed
from ..processes.rank import die_with_the_kernel
from ..recorder import Recorder, is_learners
from . import per_rank
from .ddp import share_what_ddp_gathers
from .flops import FlopCounts
from .instruments import Instruments
from .member import Member, stand_in_backend
from .memory import MemoryMeter
from .simulation import Simulation
from .store import SimulatedStore
from .watches import Watches

FRAME = struct.Struct("=ii")
"""Before each piece of output: the rank, and the number of bytes."""
RUNNING = struct.Struct("qq")
"""At the beginning of the shared memory: which rank has the baton, and the id of its thread."""
PAGE = mmap.ALLOCATIONGRANULARITY
STACK_BYTES = 4 << 20


def child_main(control, lifeline, stdout, stderr, memory):
    """Serve simulations until the kernel closes the control socket; arguments are descriptors."""
    die_with_the_kernel(lifeline.detach())
    output, native = stdout.detach(), stderr.detach()
    memory = memory.detach()
    for fd in (1, 2):
        os.dup2(native, fd)
    sock = socket.socket(fileno=control.detach())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable(native, all_threads=False)
    faulthandler.register(signal.SIGUSR1, native, all_threads=False)
    torch.set_num_threads(1)
    threading.stack_size(STACK_BYTES)
    per_rank.separate_threads(functools.partial(_write_framed, output))
    process = Process()
    group.install(process.create_group)
    baseline = Baseline()
    channel.send(sock, ("ready", None))
    while True:
        try:
            word, request = channel.receive(sock)
        except (EOFError, ConnectionError):
            os._exit(0)
        if word == "run":
            channel.send_bytes(sock, process.run(request, memory))
        else:
            channel.send(sock, ("clean", process.why_not_clean() or baseline.restore()))


def _write_framed(fd, rank, text):
    data = text.encode("utf-8", "backslashreplace")
    for start in range(0, len(data), 1 << 16):
        piece = data[start : start + (1 << 16)]
        rest = FRAME.pack(rank, len(piece)) + piece
        while rest:
            rest = rest[os.write(fd, rest) :]


class Process:
    """This process's ranks, in one simulation after the other."""

    def __init__(self):
        self.simulation = None
        self.backend = stand_in_backend()
        self._parked = 0
        self._gc_thresholds = gc.get_threshold()
        _leave_only_the_rank(self)
        _wait_where_backward_returns(self)
        share_what_ddp_gathers()

    def run(self, request, memory):
        """Simulate once; returns the report for the kernel, as bytes."""
        topology = Topology(request["cluster"], request["world_size"], request["placement"])
        self.simulation = simulation = Simulation(topology, request["options"])
        simulation.ranks = Ranks(simulation, request, memory, self.backend)
        _enter_surroundings(request)
        self._collect_garbage_for(request["world_size"])
        report = simulation.ranks.run()
        self._parked = len(report["unfinished"]) + len(report["deaths"])
        simulation.ranks.close()
        return pickle.dumps(("rest", report))

    def _collect_garbage_for(self, ranks):
        """One collector serves all ranks: it runs as often for each as in a process of its own."""
        youngest, *older = self._gc_thresholds
        gc.set_threshold(youngest * ranks, *older)

    def why_not_clean(self):
        """Why this process must not serve again, or None."""
        self.simulation = None
        gc.collect()  # the next one may be as large
        return "a rank has not returned" if self._parked else None

    def create_group(self, options, ranks, name):
        """The calling rank's `RecordingGroup`, for `group.install`."""
        return self.simulation.ranks.create_group(options, ranks, name)


def _enter_surroundings(request):
    """Take on the kernel's folder, environment, import path and cells."""
    base = os.environ.base
    base.clear()
    base.update(request["environ"])
    base.setdefault("MASTER_ADDR", "127.0.0.1")
    base.setdefault("MASTER_PORT", "29500")
    os.chdir(request["cwd"])
    sys.path[:] = request["path"]
    sys.argv[:] = request["argv"]
    linecache.cache.update(request["cells"])


def _leave_only_the_rank(process):
    """``os._exit`` in a rank ends that rank, not the process that simulates all of them."""
    exit_in_reality, own_pid = os._exit, os.getpid()

    def exit_of_rank(status):
        rank = getattr(per_rank.local, "rank", None)
        if rank is None or os.getpid() != own_pid:
            exit_in_reality(status)
        process.simulation.ranks.die(rank, status)

    os._exit = exit_of_rank


def _wait_where_backward_returns(process):
    """DDP waits for its futures at the end of `backward`, in C++; here is where time passes."""
    run_backward = torch.autograd.graph._engine_run_backward

    def run_and_wait(*args, **kwargs):
        result = run_backward(*args, **kwargs)
        rank = getattr(per_rank.local, "rank", None)
        if rank is not None:
            process.simulation.keep_promises(rank)
        return result

    torch.autograd.graph._engine_run_backward = run_and_wait
    torch.autograd._engine_run_backward = run_and_wait


class Ranks:
    """The rank threads of one simulation.

    Attributes
    ----------
    answers : dict
        rank -> what its function came to, see `answers.answer_of`.
    deaths : dict
        rank -> exit code of a rank that left by ``os._exit``, or was killed.
    """

    def __init__(self, simulation, request, memory, backend):
        self._simulation = simulation
        self._backend = backend
        self._request = request
        self.answers = {}
        self.deaths = {}
        self._size = size = request["world_size"]
        self._everyone = {rank: rank for rank in range(size)}
        self._idents = {}
        self._meters = [None] * size
        self._flop_counts = FlopCounts()
        self._native_ids = [0] * size
        region = request["region"]
        self._memories = [mmap.mmap(memory, region, offset=PAGE + r * region) for r in range(size)]
        self._head = mmap.mmap(memory, PAGE)
        scheduler = simulation.scheduler
        for rank, piece in enumerate(self._memories):
            log = OpLogWriter(piece, functools.partial(scheduler.clocks.__getitem__, rank))
            simulation.logs.append(log)
        self._recorders = [Recorder(log, lambda: True) for log in simulation.logs]
        self._store = SimulatedStore(scheduler)
        self._torch_state = per_rank.TorchState(size, torch_seed())
        scheduler.on_resume = self._resume
        for rank, time_s in simulation.options.kill.items():
            scheduler.at(time_s, functools.partial(self._kill, rank))

    def run(self):
        """Let all ranks run until none can go on; returns what the kernel has to know."""
        scheduler = self._simulation.scheduler
        for rank in range(self._size):
            _thread.start_new_thread(self._thread, (rank,))
            scheduler.ready(rank, 0.0)
        with Watches(lambda: getattr(per_rank.local, "meter", None)):
            scheduler.run()
        unfinished = [r for r in range(self._size) if r not in self.answers | self.deaths]
        return {
            "answers": self.answers,
            "deaths": self.deaths,
            "killed": sorted(set(self.deaths) & set(self._simulation.options.kill)),
            "unfinished": unfinished,
            "frames": self._frames(unfinished),
            "wire": self._simulation.wire_messages(),
            "failure": self._failure(),
            "memory": [meter and meter.ledger() for meter in self._meters],
        }

    def _failure(self):
        failure = self._simulation.scheduler.failure
        return "".join(traceback.format_exception(failure)) if failure is not None else None

    def close(self):
        """Give back what the ranks shared, where none of their threads is left."""
        if len(self.answers) == self._size:
            self._simulation.scheduler.close()
            for memory in (*self._memories, self._head):
                memory.close()

    def _frames(self, ranks):
        """The learner's frames, outermost first, of ranks that stand still."""
        stacks = sys._current_frames()
        found = {}
        for rank in ranks:
            frame, frames = stacks.get(self._idents.get(rank)), []
            while frame is not None:
                code = frame.f_code
                if is_learners(code.co_filename):
                    frames.append((code.co_filename, frame.f_lineno, code.co_name))
                frame = frame.f_back
            found[rank] = frames[::-1]
        return found

    def _thread(self, rank):
        """A rank from its beginning to its end."""
        local, scheduler = per_rank.local, self._simulation.scheduler
        self._idents[rank] = threading.get_ident()
        self._native_ids[rank] = threading.get_native_id()
        local.rank = rank
        local.clock = functools.partial(scheduler.clocks.__getitem__, rank)
        local.advance = functools.partial(self._simulation.advance, rank)
        local.sleep = functools.partial(self._simulation.sleep, rank)
        local.environ = {
            name: str(value)
            for name, value in (
                ("RANK", rank),
                ("WORLD_SIZE", self._size),
                ("LOCAL_RANK", rank % self._request["cluster"].ranks_per_node),
                ("LOCAL_WORLD_SIZE", min(self._size, self._request["cluster"].ranks_per_node)),
            )
        }
        scheduler.begin(rank)
        answer = answers.answer_of(functools.partial(self._call, rank), self._request["is_script"])
        self.answers[rank] = answer
        local.__dict__.clear()
        scheduler.leave()

    def _call(self, rank):
        self._join(rank)
        function, args, kwargs = pickle.loads(self._request["payload"])
        log = self._simulation.logs[rank]
        log.enter()
        self._simulation.begin_to_measure(rank)
        try:
            with self._equip(rank):
                return function(rank, self._size, *args, **kwargs)
        finally:
            sys.stdout.flush()
            self._simulation.settle(rank)
            log.leave()

    def _equip(self, rank):
        """The instruments that see what the rank's function does with tensors, or none."""
        simulation, device = self._simulation, self._simulation.topology.cluster.device
        options, flops_per_s = simulation.options, getattr(device, "flops_per_s", math.inf)
        counts_flops = options.compute == "flops" and flops_per_s < math.inf
        if not (counts_flops or options.memory):
            return contextlib.nullcontext()
        advance = simulation.advance
        if options.memory:
            limit = getattr(device, "memory_bytes", math.inf)
            meter = self._meters[rank] = per_rank.local.meter = MemoryMeter(
                rank,
                per_rank.local.clock,
                None if limit == math.inf else limit,
                lambda: self._site_of(rank),
            )
        simulation.instruments[rank] = Instruments(
            (lambda flops: advance(rank, flops / flops_per_s)) if counts_flops else None,
            self._flop_counts,
            meter if options.memory else None,
        )
        return simulation.instruments[rank]

    def _site_of(self, rank):
        place = self._recorders[rank].place(1)
        return make_site("allocating", place, self._request["cell_numbers"])

    def _join(self, rank):
        """The default group, as `init_process_group` makes it, without its n entries a rank."""
        c10d = dist.distributed_c10d
        store = dist.PrefixStore("world", self._store)
        world, _ = c10d._new_process_group_helper(
            self._size, rank, [], "gloo", store, group_name="0", timeout=group.FOREVER
        )
        c10d._update_default_pg(world)
        c10d._world.pg_group_ranks[world] = self._everyone
        c10d._world.group_count = 1

    def create_group(self, options, ranks, name):
        """The calling rank's side of a group; beyond the world, its members wait for each other."""
        recorder = self._recorders[per_rank.local.rank]
        simulation = self._simulation
        rank, size = options.group_rank, options.group_size
        channel = simulation.channel(name, ranks)
        if name:
            channel.gather(per_rank.local.rank)
        member = Member(simulation, channel, rank, recorder.log)
        return group.RecordingGroup(recorder, self._backend, member, rank, size, name, ranks)

    def _resume(self, rank):
        """This rank's thread goes on."""
        RUNNING.pack_into(self._head, 0, rank, self._native_ids[rank])
        self._torch_state.enter(rank)
        if rank in self.deaths:
            self._park()

    def die(self, rank, code):
        """The calling rank ends here, without a result."""
        sys.stdout.flush()
        self.deaths[rank] = code
        self._simulation.logs[rank].wait_failed()
        self._park()

    def _park(self):
        """Stop this thread for good, and let the others go on."""
        self._simulation.scheduler.leave()
        lock = _thread.allocate_lock()
        lock.acquire()
        lock.acquire()

    def _kill(self, rank):
        """As asked for by ``kill=``: the rank does nothing any more."""
        if rank not in self.answers:
            self.deaths.setdefault(rank, -signal.SIGKILL)

"""The ranks of one simulation. Each has a thread, from its beginning to its end."""

from __future__ import annotations

import _thread
import contextlib
import functools
import math
import mmap
import os
import signal
import struct
import sys
import threading
import traceback
from dataclasses import dataclass, field

import cloudpickle
import torch.distributed as dist

from ...clockwork.simulated_group import SimulatedGroup
from ...clockwork.streams import StreamEndsOf
from ...environment import FOLDER, is_learners
from ...model.cluster import Cluster
from ...model.trace import make_site
from ...record import group, returned, safe_pickle
from ...record.oplog import OpLogWriter
from ...record.recorder import Recorder
from ...record.torch_inside import make_default_group
from ...record.transports import FOREVER
from ...record.transports.backends import SIMULATED, like_gloo
from ..rank_process.setup import environ_on_equal_nodes
from ..request import Request
from . import dataless, per_rank
from .allocator import CachingAllocator
from .dispatch_mode import DispatchMode
from .memory_meter import MemoryHooks, MemoryMeter
from .op_time import op_times_of
from .shared import SimulatedStore
from .work_meter import WorkMeter

RUNNING = struct.Struct("qq")
"""The first fields of the shared memory: the rank with the baton, and its thread's id."""
PAGE = mmap.ALLOCATIONGRANULARITY

_HERE = os.path.dirname(__file__) + os.sep
_ENGINE = (_HERE, str(FOLDER / "core" / "clockwork") + os.sep)
_AROUND_RANKS = (__file__, _HERE + "child.py", os.path.dirname(per_rank.__file__) + os.sep)
"""The files of the engine that surround the learner's code. A rank in these files does not work."""


def _is_within_engine(frame):
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_ENGINE) and not file.startswith(_AROUND_RANKS):
            return True
        frame = frame.f_back
    return False


@dataclass(kw_only=True)
class SimulationRequest(Request):
    """One simulation, in the form that the simulating process gets.

    Attributes
    ----------
    world_size : int
    cluster : Cluster
    local_size : int
        The number of ranks of one host, as their environment says.
    placement : str or list of int
        As for `simulate`.
    options : Options
    cell_numbers : dict of str to int
        File name of a notebook cell -> its execution count.
    region : int
        Bytes of shared memory for the log of each rank.
    """

    world_size: int
    cluster: Cluster
    local_size: int
    placement: object
    options: object
    cell_numbers: dict = field(default_factory=dict)
    region: int = 0


class Ranks:
    """The rank threads of one simulation.

    Attributes
    ----------
    answers : dict
        rank -> its function's result or exception, see `returned.answer_of`.
    deaths : dict
        rank -> exit code of a rank that left by ``os._exit``, or was killed.
    store : SimulatedStore
    """

    def __init__(self, simulation, request, memory, process):
        self._simulation = simulation
        self._backend, self._streams = process.backend, process.streams
        self._modules = process.modules
        self._request = request
        self._pid = per_rank.real_process_id()
        self.answers = {}
        self.deaths = {}
        self._died_s, self._killed = {}, set()
        self._size = size = request.world_size
        self._everyone = {rank: rank for rank in range(size)}
        self._idents = {}
        self._op_times = op_times_of(simulation.topology.cluster.device)
        self._meters = [None] * size
        self._meter_lock = threading.RLock()
        self._values_asked = [{} for _ in range(size)]
        region = request.region
        self._running = sorted(simulation.taking_part)
        self._memories = [
            mmap.mmap(memory, region, offset=PAGE + place * region)
            for place in range(len(self._running))
        ]
        scheduler = simulation.scheduler
        simulation.time.logs += [None] * size
        self._recorders = {}
        always = functools.partial(bool, True)  # nobody else makes ops of a rank
        for rank, piece in zip(self._running, self._memories, strict=True):
            log = simulation.time.logs[rank] = OpLogWriter(
                piece, functools.partial(scheduler.clocks.__getitem__, rank), safe_pickle.dumps
            )
            is_measured = simulation.time.is_measured
            settle = simulation.time.settle if is_measured else scheduler.settle
            self._recorders[rank] = recorder = Recorder(
                log, always, functools.partial(settle, rank)
            )
            if simulation.streams is not None:
                recorder.stream_ends = StreamEndsOf(simulation.streams[rank], log)
            recorder.survives = simulation.options.on_death == "continue"
            recorder.timeout_s = request.timeout_s or math.inf
            if is_measured:
                recorder.before_wait = recorder.before_op
        self._work = [None] * size
        self.store = SimulatedStore(scheduler)
        running = memoryview(mmap.mmap(memory, PAGE))[: RUNNING.size].cast("q")
        self._seeds = [request.seeds.of_rank(rank) for rank in range(size)]
        self.state = state = per_rank.StateInTurn(
            self._seeds, self._modules, per_rank.ModesInTurn(size)
        )
        self._turns = per_rank.Turns(running, self.deaths, state, self._park)
        scheduler.on_resume = self._turns.enter
        simulation.time.beside = [per_rank.WorkBeside(rank) for rank in range(size)]
        for rank, time_s in simulation.options.kill.items():
            scheduler.unless_over(time_s, functools.partial(self._kill, rank))

    def run(self):
        """Let all ranks run until no rank can continue. Returns the facts for the kernel."""
        scheduler = self._simulation.scheduler
        if not self._simulation.options.data:
            dataless.prepare_torch()
        per_rank.foreign_threads.clear()
        scheduler.open()
        for rank in self._running:
            _thread.start_new_thread(self._thread, (rank,))
            scheduler.ready(rank, scheduler.now_s)
        with MemoryHooks(lambda: getattr(per_rank.local, "meter", None)):
            scheduler.run()
        self.state.look()
        unfinished = [r for r in self._running if r not in self.answers | self.deaths]
        return {
            "answers": self.answers,
            "deaths": self.deaths,
            "killed": sorted(self._killed),
            "died_s": self._died_s,
            "unfinished": unfinished,
            "frames": self._frames(unfinished),
            "wire": self._simulation.wire_messages(),
            "failure": self._failure(),
            "foreign_threads": list(per_rank.foreign_threads),
            "memory": [meter and meter.ledger() for meter in self._meters],
            "flops": [work.flops if work else 0 for work in self._work],
            "streams": self._simulation.work_of_streams(),
            "shared": self._modules.shared,
            "set_by_many": self._modules.names.of_many(),
            "values_asked": self._values_asked,
            "processes": [beside.processes for beside in self._simulation.time.beside],
        }

    def retell_work(self, rank, extents):
        """Move the pieces of a rank's work to other moments, see `WorkMeter.retell`."""
        if self._work[rank] is not None:
            self._work[rank].retell(extents)

    def _failure(self):
        failure = self._simulation.scheduler.failure
        return "".join(traceback.format_exception(failure)) if failure is not None else None

    def _frames(self, ranks):
        """The learner's frames of waiting ranks, outermost first."""
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
        self._idents[rank] = self._recorders[rank].thread = threading.get_ident()
        self._turns.native_ids[rank] = threading.get_native_id()
        local.rank = rank
        local.log = self._simulation.time.logs[rank]
        local.clock = functools.partial(self._simulation.time.clock, rank)
        local.advance = functools.partial(self._simulation.time.advance, rank)
        local.sleep = functools.partial(self._simulation.time.sleep, rank)
        local.beside = self._simulation.time.beside[rank]
        local.beside.take_part = functools.partial(self._has_threads, rank)
        local.settle = functools.partial(scheduler.settle, rank)
        local.streams = self._simulation.streams and self._simulation.streams[rank]
        local.before_output = functools.partial(self._before_output, rank)
        local.about_to_change = self.state.modes.about_to_change
        if not per_rank.own_folder():
            self._modules.shared["the working folder"] = "this system gives a thread none"
        local.beside.handed_on = {
            "attributes": {},
            "environ": environ_on_equal_nodes(rank, self._size, self._request.local_size),
            "generators": {},
            "process_id": threading.get_native_id(),
            "seed": self._seeds[rank],
        }
        local.__dict__.update(local.beside.handed_on)
        scheduler.begin(rank)
        is_script = self._request.execution_context.is_script
        self.answers[rank] = returned.answer_of(functools.partial(self._call, rank), is_script)
        local.__dict__.clear()
        scheduler.leave()

    def _has_threads(self, rank):
        """From now on, the rank's clock includes the computing of its threads before each op."""
        recorder = self._recorders[rank]
        recorder.before_op = functools.partial(self._simulation.time.settle, rank)

    def _call(self, rank):
        self._join(rank)
        # Else cloudpickle gives all ranks one and the same class, with the globals of the last.
        cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.clear()
        function, args, kwargs = self._request.function_and_args(rank)
        log = self._simulation.time.logs[rank]
        log.enter()
        self._simulation.time.begin_to_measure(rank)
        try:
            with self._equip(rank):
                result = function(rank, self._size, *args, **kwargs)
            if self._simulation.streams is not None:
                self._simulation.streams[rank].drain()
            if self._simulation.scripts is not None:
                self._simulation.scripts[rank].add("leave")
            return result
        finally:
            per_rank.flush(self._streams)
            if per_rank.real_process_id() != self._pid:
                os._exit(0)  # a child that the learner forked has come back from the function
            per_rank.local.beside.end()
            self._simulation.time.settle(rank)
            if self._work[rank] is not None:
                self._work[rank].tell()
            log.leave()

    def _equip(self, rank):
        """The dispatch mode that observes the ops of the rank's function, or an empty context."""
        simulation, device = self._simulation, self._simulation.topology.cluster.device
        options, op_times = simulation.options, self._op_times
        takes_time = options.compute == "flops" and op_times is not None
        beside, meter = simulation.time.beside[rank], None
        streams = simulation.streams and simulation.streams[rank]
        if not (takes_time or options.memory or streams or not options.data):
            beside.make_mode = contextlib.nullcontext
            return contextlib.nullcontext()
        if options.memory:
            meter = beside.meter = per_rank.local.meter = self._meter(rank, device)

        if takes_time or streams:
            log = simulation.time.logs[rank]
            self._work[rank] = work = WorkMeter(log, streams, has_rates=takes_time)
            per_rank.local.count_within = work.within

        def counted(take, lock=None):
            def on_op(cost):
                if cost.flops:
                    work.count(cost.flops, cost.full_rate_s)
                take(cost.seconds)

            on_read = streams and (lambda: streams.hold(streams.record()))
            on_op = on_op if takes_time else None
            counting = on_op, op_times, meter, lock, on_read
            if options.data:
                return DispatchMode(*counting)
            return dataless.DatalessMode(functools.partial(self._value_asked, rank), *counting)

        beside.make_mode = functools.partial(counted, beside.add, beside.lock)
        mode = counted(functools.partial(simulation.time.work, rank))
        simulation.dispatch_modes[rank], per_rank.local.before_read = mode, mode.before_read
        return mode

    def _value_asked(self, rank, frame):
        place = self._recorders[rank].place(frame)
        asked = self._values_asked[rank]
        asked[place] = asked.get(place, 0) + 1

    def _meter(self, rank, device):
        limit = getattr(device, "memory_bytes", math.inf)
        is_like_gpu = getattr(device, "asynchronous", False)
        streams = self._simulation.streams
        self._meters[rank] = MemoryMeter(
            rank,
            functools.partial(self._simulation.scheduler.clocks.__getitem__, rank),
            None if is_like_gpu or limit == math.inf else limit,
            lambda: self._site_of(rank),
            self._meter_lock,
            CachingAllocator(limit) if is_like_gpu else None,
            getattr(device, "workspace_bytes", 0),
            (lambda: streams[rank].current) if streams else int,
        )
        return self._meters[rank]

    def _site_of(self, rank):
        place = self._recorders[rank].place(sys._getframe(1))
        return make_site("allocating", place, self._request.cell_numbers)

    def _join(self, rank):
        """Make the default group as `init_process_group` does, but without n entries for each
        rank."""
        store = dist.PrefixStore("world", self.store)
        make_default_group(rank, self._everyone, store, FOREVER)

    def create_group(self, options, ranks, name):
        """The calling rank's side of a group. Members of other groups than the world wait here."""
        recorder = self._recorders[per_rank.local.rank]
        simulation = self._simulation
        rank, size = options.group_rank, options.group_size
        channel = simulation.channel(name, ranks)
        if name:
            channel.gather(per_rank.local.rank)
        member = SimulatedGroup(simulation, channel, rank, recorder.log)
        transport = like_gloo(member, self._backend, SIMULATED)
        return group.RecordingGroup(recorder, transport, rank, size, name, ranks)

    def _before_output(self, rank):
        """A rank prints nothing after its time of death.

        This does not apply while the engine's own code runs, because a learner's ``__del__`` may
        print at any moment.
        """
        scheduler = self._simulation.scheduler
        if scheduler.clocks[rank] > scheduler.now_s and not _is_within_engine(sys._getframe(1)):
            scheduler.settle(rank)

    def die(self, rank, code):
        """The calling rank ends here, without a result."""
        per_rank.flush(self._streams)
        per_rank.local.beside.end()
        self._simulation.scheduler.settle(rank)
        self._note_death(rank, code, 0.0)
        self._simulation.time.logs[rank].wait_failed()
        self._park()

    def _note_death(self, rank, code, detection_s):
        scheduler, options = self._simulation.scheduler, self._simulation.options
        self.deaths[rank] = code
        self._died_s[rank] = scheduler.now_s
        if self._simulation.streams is not None:
            self._simulation.streams[rank].die()
        if options.on_death == "continue":
            self._simulation.die(rank, detection_s)
        elif options.is_restarted:
            scheduler.stop()

    def _park(self):
        """Stop this thread for ever, and let the others continue."""
        self._simulation.scheduler.leave()
        lock = _thread.allocate_lock()
        lock.acquire()
        lock.acquire()

    def _kill(self, rank):
        """``kill=`` has killed the rank: it does nothing any more."""
        if rank not in self.answers and rank not in self.deaths:
            self._killed.add(rank)
            detection_s = self._simulation.options.detection_s
            self._note_death(rank, -signal.SIGKILL, detection_s)

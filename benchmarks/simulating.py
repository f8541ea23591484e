"""What simulating costs: calls, operations, thousands of ranks."""

from __future__ import annotations

import _thread
import statistics
import time

import cloudpickle
import psutil

import simlib
from simlib.core.clockwork.network import Network
from simlib.core.clockwork.scheduler import Scheduler
from simlib.core.model.cluster import Topology

from . import simulated
from .simulated import ddp_step, nothing, ping_pong, ring_step, ring_steps
from .table import heading, line, spread

MOST = 4096


def simulating(rounds):
    """Print the tables of simulated ranks."""
    cloudpickle.register_pickle_by_value(simulated)
    simlib.simulate(nothing, 2)
    _calls(rounds)
    _operations(rounds)
    _thousands()


def _seconds(function, world_size, args=()):
    """Wall seconds of one call, and its `Run`."""
    begin = time.perf_counter()
    run = simlib.simulate(function, world_size, args)
    return time.perf_counter() - begin, run


def _calls(rounds):
    heading("Simulating a function that does nothing, warm")
    for world_size, goal_s in ((4, 0.030), (1024, 2)):
        simlib.simulate(nothing, world_size)
        found = [_seconds(nothing, world_size)[0] for _ in range(rounds)]
        held = statistics.median(found) <= goal_s
        line(f"{world_size:,} ranks, ms", spread(found, 1e3, 1), f"<= {goal_s * 1e3:,.0f}", held)


def _operations(rounds):
    """A simulation's own share is told by clocks in the first and the last rank to run."""
    heading("Operations per second through dist.*")
    sizes = (64, 300, 40_000, 25_000), (1024, 30, 15_000, 12_000)
    for world_size, steps, goal, cpu_goal in sizes:
        for what, program in (("ring", ring_steps), ("ping-pong in pairs", ping_pong)):
            ops = 2 * steps * world_size
            inside, whole, bare, messages, ratios = [], [], [], [], []
            for _ in range(rounds):
                before_s = _cpu_s()
                seconds, run = _seconds(program, world_size, (steps,))
                cpu_s = _cpu_s() - before_s
                messages.append(ops / 2 / cpu_s)
                begins, ends = zip(*run.results, strict=True)
                inside.append(ops / (max(ends) - min(begins)))
                whole.append(ops / seconds)
                before_s = time.process_time()
                bare.append(_turns_per_second(world_size, steps))
                ratios.append(cpu_s / (time.process_time() - before_s))
            held = statistics.median(inside) >= goal
            line(f"{world_size:,} ranks, {what}", spread(inside, digits=0), f">= {goal:,}", held)
            line("  with start, trace and checks", spread(whole, digits=0))
            line("  control: bare hand-overs per second", spread(bare, digits=0))
            held = statistics.median(messages) >= cpu_goal
            line("  messages per CPU second", spread(messages, digits=0), f">= {cpu_goal:,}", held)
            line("  CPU of a message / of a bare hand-over", spread(ratios, digits=1))


def _cpu_s():
    """CPU seconds so far of this process and of the processes that it has started."""
    this = psutil.Process()
    times = [process.cpu_times() for process in (this, *this.children(recursive=True))]
    return sum(time.user + time.system for time in times)


def _turns_per_second(world_size, turns):
    """The control: threads that only hand the baton on, each so often; turns per second."""
    cluster = simlib.clusters.ethernet_10g(nodes=world_size, ranks_per_node=1)
    scheduler = Scheduler(world_size, Network(Topology(cluster, world_size)))
    scheduler.open()

    def take_turns(rank):
        scheduler.begin(rank)
        for turn in range(turns):
            scheduler.ready(rank, turn + 1.0)
            scheduler.block(rank)
        scheduler.leave()

    for rank in range(world_size):
        _thread.start_new_thread(take_turns, (rank,))
        scheduler.ready(rank, 0.0)
    begin = time.perf_counter()
    scheduler.run()
    return turns * world_size / (time.perf_counter() - begin)


def _thousands():
    heading(f"{MOST:,} ranks")
    for what, program in (("a step of a ring by hand", ring_step), ("a step of DDP", ddp_step)):
        seconds, run = _seconds(program, MOST)
        line(f"{what}, s", f"{seconds:.1f}", "<= 120", seconds <= 120)
        most = max(run.results)
        line("  memory of the simulating process, GB", f"{most / 1e9:.2f}", "<= 4", most <= 4e9)

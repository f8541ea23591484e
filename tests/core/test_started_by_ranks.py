"""What a rank's threads compute and hold is the rank's; processes are told of."""

from __future__ import annotations

import _thread
import asyncio
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import multiprocessing

import simlib

FLOPS_PER_S = 1e9
CLUSTER = simlib.clusters.ethernet_10g(2, device=simlib.Device(FLOPS_PER_S))
FLOPS = 2 * 100**3  # of one product


def product():
    a = torch.ones(100, 100)
    return a @ a


def in_a_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def in_a_thread_of_a_thread(work):
    in_a_thread(lambda: in_a_thread(work))


def in_a_bare_thread(work):
    lock = _thread.allocate_lock()
    lock.acquire()
    _thread.start_new_thread(lambda: (work(), lock.release()), ())
    lock.acquire()


def in_a_pool(work):
    with ThreadPoolExecutor(2) as threads:
        threads.submit(work).result()


def by_asyncio(work):
    asyncio.run(asyncio.to_thread(work))


def by_torch(work):
    torch.jit.wait(torch.jit.fork(work))


WAYS = [in_a_thread, in_a_thread_of_a_thread, in_a_bare_thread, in_a_pool, by_asyncio, by_torch]


def simulated(function, **options):
    return simlib.simulate(function, 2, cluster=CLUSTER, **options)


@pytest.mark.parametrize("way", WAYS)
def test_flops_and_memory_of_a_thread_are_its_ranks(way):
    alone = simulated(lambda rank, n: product())
    run = simulated(lambda rank, n: way(product))
    assert run.time_s == alone.time_s == pytest.approx(FLOPS / FLOPS_PER_S)
    assert [one.peak_bytes for one in run.memory] == [one.peak_bytes for one in alone.memory]
    assert run.flops == [FLOPS] * 2


def test_many_threads_take_their_sum_in_any_order():
    def main(rank, world_size):
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda _: product(), range(20)))

    assert len({simulated(main).time_s for _ in range(3)}) == 1
    assert simulated(main).time_s == pytest.approx(20 * FLOPS / FLOPS_PER_S)


def test_of_a_thread_compute_takes_its_ranks_time_and_fetching_none():
    run = simulated(lambda rank, n: in_a_thread(lambda: simlib.compute(seconds=0.002)))
    assert run.time_s == 0.002
    run = simulated(lambda rank, n: in_a_thread(lambda: torch.arange(10.0).reshape(2, 5).clone()))
    assert run.time_s == 0


def forks():
    if not (pid := os.fork()):
        os._exit(0)
    os.waitpid(pid, 0)


def a_process_of_torchs():
    process = multiprocessing.get_context("fork").Process(target=int)
    process.start()
    process.join()


@pytest.mark.parametrize(
    "start", [forks, a_process_of_torchs, lambda: subprocess.run(["true"], check=True)]
)
def test_processes_that_a_rank_starts_are_told_of(start):
    assert simulated(lambda rank, n: start() if rank else None).processes == [0, 1]
    assert simulated(lambda rank, n: in_a_thread(start) if rank else None).processes == [0, 1]


def spawns(method):
    process = multiprocessing.get_context(method).Process(target=print, args=("out",))
    process.start()
    process.join()


def by_a_command_to_its_own_stdout():
    subprocess.run("echo out; echo out >&2", shell=True, stdout=sys.stdout, check=True)


def by_an_executed_child():
    os.spawnlp(os.P_WAIT, "sh", "sh", "-c", "echo out; test $RANK = $LOCAL_RANK && echo out")


def by_posix_spawn():
    os.waitpid(os.posix_spawnp("echo", ["echo", "out"], os.environ), 0)


@pytest.mark.parametrize("engine", [simlib.run, simlib.simulate])
@pytest.mark.parametrize(
    "start, lines",
    [
        (lambda: spawns("fork"), 1),
        (lambda: spawns("spawn"), 1),
        (lambda: in_a_thread(lambda: subprocess.run(["echo", "out"], check=True)), 1),
        (lambda: in_a_thread(lambda: print("out")), 1),
        (lambda: in_a_thread(lambda: os.system("test $RANK = 1 && echo out")), 1),
        (by_a_command_to_its_own_stdout, 2),
        (by_an_executed_child, 2),
        (by_posix_spawn, 1),
    ],
)
def test_what_a_process_of_a_rank_prints_is_the_ranks(engine, start, lines):
    def main(rank, n):
        print("before", rank)
        if rank:
            start()
        print("after", rank)

    first, second = engine(main, 2).output
    assert first == "before 0\nafter 0\n"
    assert second == "before 1\n" + "out\n" * lines + "after 1\n"

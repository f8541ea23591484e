"""Processes that rest go when nothing has run for minutes; the minutes pass by hand here."""

import gc
import math
import multiprocessing
import os
import threading
from multiprocessing import forkserver

import psutil
import pytest
import torch
import torch.distributed as dist

import simlib
from simlib.core.engines import session
from simlib.core.engines.processes.worlds import pool
from simlib.core.engines.session import IDLE_VARIABLE, MINUTES, IdleTimer, minutes, warm_up
from simlib.core.engines.virtual.process import simulators
from simlib.core.engines.workers.server import server_context
from simlib.core.environment import VARIABLE as CONFINEMENT


class ByHand:
    """A `threading.Timer` whose time is up when the test says so."""

    def __init__(self, seconds, function):
        self.seconds, self.is_up = seconds, function
        self.runs = False

    def start(self):
        self.runs = True

    def cancel(self):
        self.runs = False


class Clock:
    """Makes such timers."""

    def __init__(self):
        self.timers = []

    def __call__(self, seconds, function):
        self.timers.append(ByHand(seconds, function))
        return self.timers[-1]

    @property
    def running(self):
        return [one for one in self.timers if one.runs]


class Resting:
    """Something that counts how often it was sent to sleep."""

    slept = 0

    def sleep(self):
        self.slept += 1


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def no_server(monkeypatch):
    """The server of this process stays; the list says how often it was to be stopped."""
    stopped = []
    monkeypatch.setattr(session, "stop_server", lambda: stopped.append(True))
    # Worlds of earlier tests may be there still.
    monkeypatch.setattr(session, "_has_other_children", lambda: False)
    return stopped


def test_what_rests_goes_when_the_time_is_up_and_each_run_begins_it_anew(clock, no_server):
    idle, resting = IdleTimer(clock), Resting()
    for number in range(1, 4):
        with idle.busy(resting):
            assert not clock.running
        assert len(clock.timers) == number and clock.running == clock.timers[-1:]
    (timer,) = clock.running
    assert timer.seconds == 60 * MINUTES and not resting.slept
    timer.is_up()
    assert resting.slept == 1 and no_server == [True]


def test_a_time_that_is_up_while_a_run_begins_ends_nothing(clock, no_server):
    idle, resting = IdleTimer(clock), Resting()
    with idle.busy(resting):
        pass
    (timer,) = clock.timers
    with idle.busy(resting):
        timer.is_up()
    timer.is_up()
    assert not resting.slept and not no_server


def test_time_begins_when_the_last_of_several_runs_has_ended_or_failed(clock, no_server):
    idle, one, other = IdleTimer(clock), Resting(), Resting()
    with pytest.raises(ValueError), idle.busy(one):
        with idle.busy(other):
            pass
        assert not clock.timers
        raise ValueError
    clock.timers[0].is_up()
    assert one.slept == other.slept == 1


@pytest.mark.parametrize(
    ("said", "expected"),
    [("", MINUTES), ("3", 3), ("0.5", 0.5), ("0", math.inf), ("-1", math.inf), ("ten", MINUTES)],
)
def test_a_hub_chooses_the_minutes(monkeypatch, clock, said, expected):
    monkeypatch.setenv(IDLE_VARIABLE, said)
    assert minutes() == expected
    with IdleTimer(clock).busy(Resting()):
        pass
    assert len(clock.timers) == (expected < math.inf)


def test_a_kernel_that_grades_keeps_its_server(monkeypatch):
    monkeypatch.setenv(CONFINEMENT, "1")
    assert minutes() == math.inf


def test_the_timer_does_not_keep_a_program_from_ending():
    idle = IdleTimer()
    with idle.busy(Resting()):
        pass
    assert idle._timer.daemon
    idle._timer.cancel()


def all_reduce(rank, world_size):
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()


@pytest.fixture
def own_idleness(monkeypatch, clock):
    """Both engines of this process keep time by the test's clock."""
    idle = IdleTimer(clock)
    monkeypatch.setattr(session, "idle_timer", lambda: idle)
    yield idle
    idle._stop_timer()


def test_no_process_stays_and_both_engines_come_back(own_idleness, clock):
    def results_of_both():
        return simlib.run(all_reduce, 2).results, simlib.simulate(all_reduce, 3).results

    expected = results_of_both()
    pool()._prepare_spare(2, False)
    server = psutil.Process(forkserver._forkserver._forkserver_pid)
    processes = [server, *server.children(recursive=True)]
    assert pool()._resting and pool()._spare and simulators()._resting
    clock.running[-1].is_up()
    assert not [one for one in processes if one.is_running()]
    assert not pool().has_server and not simulators().has_served
    pool()._prepare_spare(2, False)  # its timer had gone off, and waited for the lock
    assert pool()._spare is None
    gc.collect()
    left_open = len(os.listdir("/proc/self/fd"))

    assert results_of_both() == expected
    clock.running[-1].is_up()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == left_open


def test_the_server_stays_while_it_has_a_process_of_the_learner_s(own_idleness, clock):
    simlib.run(all_reduce, 2)
    event = multiprocessing.get_context("forkserver").Event()
    own = server_context().Process(target=event.wait)
    own.start()
    pid = forkserver._forkserver._forkserver_pid
    clock.running[-1].is_up()
    assert psutil.pid_exists(pid) and own.is_alive()
    event.set()
    own.join()
    assert own.exitcode == 0


def test_a_server_that_was_only_warmed_goes_as_well(own_idleness, clock):
    warm_up()
    pid = forkserver._forkserver._forkserver_pid
    (timer,) = clock.running
    timer.is_up()
    assert not psutil.pid_exists(pid)


def test_a_run_that_begins_waits_until_all_has_ended(clock, no_server):
    idle, began = IdleTimer(clock), []

    def begin():
        with idle.busy(Resting()):
            began.append(True)

    class Slow(Resting):
        def sleep(self):
            other.start()
            assert idle._lock.locked() and not began

    other = threading.Thread(target=begin)
    with idle.busy(Slow()):
        pass
    clock.running[-1].is_up()
    other.join()
    assert began

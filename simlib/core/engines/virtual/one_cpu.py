"""Run all ranks of a simulation on one CPU, because only one rank runs at a time.

If the system wakes a thread on another CPU, this CPU is asleep and its caches are cold. That costs
more than all other work of a change of ranks. So simlib binds the simulating process to one CPU
while no other process uses this CPU. Ranks and their children do not notice this: they see all
CPUs.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import time

import torch

WINDOW_S = 0.25
"""Seconds between two checks whether the process has its CPU to itself."""
ENOUGH = 0.8
"""A process with its own CPU gets at least this share of it. If two processes share, it gets
half."""


def share_one_cpu():
    """Let threads share a CPU well, unnoticed by the ranks. Call it once in the child.

    If a thread wakes another thread, the other thread begins when the first thread waits. Ranks see
    all CPUs, and get them when they fork or want several threads. Returns a context manager. A
    command that is started within it has all CPUs, too.
    """
    if not hasattr(os, "sched_setaffinity"):
        return contextlib.nullcontext
    usual = os.sched_getscheduler(0)
    if usual == os.SCHED_OTHER:
        _run_on(os.sched_getaffinity(0), os.SCHED_BATCH)
    everything, ask, own_pid = os.sched_getaffinity(0), os.sched_getaffinity, os.getpid()

    def of_all(pid):
        return set(everything) if pid in (0, own_pid) else ask(pid)

    def take_all():
        _run_on(everything, usual)

    @contextlib.contextmanager
    def all_cpus():
        mine, policy = ask(0), os.sched_getscheduler(0)
        take_all()
        try:
            yield
        finally:
            _run_on(mine, policy)

    set_threads = torch.set_num_threads

    def set_num_threads(number):
        if number > 1:
            take_all()  # the threads that this one will start are where it may be
        set_threads(number)

    torch.set_num_threads = set_num_threads
    os.sched_getaffinity = of_all
    os.register_at_fork(after_in_child=take_all)
    return all_cpus


class OneCpu:
    """Binds a simulating process to a CPU. It does nothing if the system cannot choose CPUs.

    Parameters
    ----------
    pid : int
    thread_now : callable
        The id of its thread that is running.
    clock, cpu_clock : callable, optional
        Seconds that have passed, and seconds that the process has computed.
    """

    def __init__(self, pid, thread_now, clock=time.monotonic, cpu_clock=None):
        self._pid = pid
        self._thread_now = thread_now
        self._clock = clock
        self._pause_s = 1.0
        self._is_held, self._next_s = False, math.inf
        with contextlib.suppress(OSError, AttributeError):  # it has ended, or this is no Linux
            self._everything = os.sched_getaffinity(pid)
            self._cpu_clock = cpu_clock or _cpu_clock_of(pid)
            self._hold(pid)

    def look(self):
        """Unbind the process if others need the CPU, too, and try again later. Call this often."""
        if self._clock() >= self._next_s:
            with contextlib.suppress(OSError):  # it has ended
                self._look()

    def _look(self):
        now = self._clock()
        if not self._is_held:
            self._hold(self._thread_now())
        elif self._cpu_clock() - self._computed_s < ENOUGH * (now - self._began_s):
            self.let_go()
            self._next_s = now + self._pause_s
            self._pause_s *= 2
        else:
            self._begin_window()

    def let_go(self):
        """Let the process have all its CPUs again."""
        if self._is_held:
            self._is_held = False
            self._keep_to(self._everything)

    def _hold(self, thread):
        self._keep_to({_last_cpu_of(self._pid, thread)})
        self._is_held = True
        self._begin_window()

    def _begin_window(self):
        self._began_s, self._computed_s = self._clock(), self._cpu_clock()
        self._next_s = self._began_s + WINDOW_S

    def _keep_to(self, cpus):
        """Let all threads of the process, and its children, run only on these CPUs."""
        with contextlib.suppress(OSError):  # it has ended
            for thread in os.listdir(f"/proc/{self._pid}/task"):
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread), cpus)


def _run_on(cpus, policy):
    """The CPUs and the policy of the calling thread."""
    with contextlib.suppress(OSError):  # not allowed here: it is only slower
        os.sched_setaffinity(0, cpus)
        os.sched_setscheduler(0, policy, os.sched_param(0))


def _last_cpu_of(pid, thread):
    """The CPU on which a thread has run last (proc_pid_stat(5), field 39)."""
    with open(f"/proc/{pid}/task/{thread}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[36])


def _cpu_clock_of(pid):
    """A clock of the computing of all threads of a process, in seconds."""
    clock = ctypes.c_int()
    error = ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock))
    if error:
        raise OSError(error, os.strerror(error))
    return functools.partial(time.clock_gettime, clock.value)

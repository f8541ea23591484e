"""Let Python and the system lack what Linux has and macOS lacks, see docs/install.md.

Every Python with this folder in its PYTHONPATH imports this module first. simlib then finds
another `sys.platform` and no /proc. Other packages still find Linux, because they need it here.
"""

import builtins
import ctypes
import io
import multiprocessing.util
import os
import resource
import sys

LINUXS_FUNCTIONS = {
    "prctl", "unshare", "setns", "tgkill", "malloc_usable_size", "clock_getcpuclockid"
}  # fmt: skip
OPEN_MAX = 10_240
"""The most descriptors of a process of macOS, although its hard limit is infinite."""


def _asks_simlib():
    frame = sys._getframe(2)
    while frame.f_globals.get("__name__") == "pathlib":
        frame = frame.f_back
    return frame.f_globals.get("__name__", "").startswith("simlib")


class _Sys:
    platform = "another"

    def __getattr__(self, name):
        return getattr(sys, name)

    def __setattr__(self, name, value):
        setattr(sys, name, value)


class _Library(ctypes.CDLL):
    def __getattr__(self, name):
        if name in LINUXS_FUNCTIONS and _asks_simlib():
            raise AttributeError(name)
        return super().__getattr__(name)


def _with_another_sys(usual):
    def find(name, *args, **named):
        return _Sys() if name == "sys" and _asks_simlib() else usual(name, *args, **named)

    return find


def _without_proc(usual):
    def call(path, *args, **named):
        if f"{path}/".startswith("/proc/") and _asks_simlib():
            path = "/none"
        return usual(path, *args, **named)

    return call


def _hard_limit_is_infinite(get, change):
    def limits(what):
        soft, most = get(what)
        return (soft, resource.RLIM_INFINITY if what == resource.RLIMIT_NOFILE else most)

    def set_limits(what, values):
        if what == resource.RLIMIT_NOFILE:
            if values[0] > OPEN_MAX or values[0] < 0:
                raise ValueError("current limit exceeds maximum limit")
            values = (values[0], get(what)[1])
        change(what, values)

    return limits, set_limits


for _name in dir(os):
    if _name == "memfd_create" or (_name.startswith("sched_") and _name != "sched_yield"):
        delattr(os, _name)
multiprocessing.util.abstract_sockets_supported = False
ctypes.CDLL = _Library
builtins.__import__ = _with_another_sys(builtins.__import__)
builtins.open = io.open = _without_proc(open)
os.path.isdir, os.listdir = _without_proc(os.path.isdir), _without_proc(os.listdir)
resource.getrlimit, resource.setrlimit = _hard_limit_is_infinite(
    resource.getrlimit, resource.setrlimit
)

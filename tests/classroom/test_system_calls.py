"""The filters of system calls: what they permit, and a host that is as it was afterwards."""

import ctypes
import errno
import fcntl
import os
import platform
import re
import socket
from pathlib import Path

import host_wide
import pytest
from ground import HONEST, right

from simlib.classroom.confinement import system_calls

HEADERS = {
    "x86_64": Path(f"/usr/include/{platform.machine()}-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
NEWUSER, F_SETLK = 0x10000000, 6
OTHER_NAMES = {"fstatat": "newfstatat"}
KINDS = pytest.mark.parametrize("kind", system_calls.KINDS)
LINUX = pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() not in system_calls.ARCHITECTURES,
    reason="filters are for Linux on x86_64 and aarch64",
)


@pytest.mark.parametrize("machine", HEADERS)
def test_numbers_are_those_of_the_kernels_headers(machine):
    if not HEADERS[machine].exists():
        pytest.skip("the kernel's headers are not installed")
    text = HEADERS[machine].read_text()
    known = {
        OTHER_NAMES.get(name, name): int(number)
        for name, number in re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)", text)
    }
    tables = (system_calls.PERMITTED, system_calls.OUTER_ONLY, system_calls.ABSENT)
    for table in tables:
        ours = system_calls.numbers_of(table, machine)
        assert {name: ours[name] for name in ours.keys() & known.keys()} == {
            name: known[name] for name in ours.keys() & known.keys()
        }
    assert known.keys() >= {"read", "clone", "mount", "seccomp"}


def test_no_filter_is_known_for_other_machines(monkeypatch):
    assert system_calls.filter_for("strict", "riscv64") is None
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert system_calls.enforce() is False


def under(kind, calls):
    """``{name: errno}`` of calls in a process held to a filter; 0 where a call succeeds."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            system_calls.enforce(kind)
            for name, call in calls.items():
                try:
                    call()
                    code = 0
                except OSError as error:
                    code = error.errno
                os.write(write, f"{name} {code}\n".encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as lines:
        found = {name: int(code) for name, code in map(str.split, lines)}
    os.waitpid(pid, 0)
    return found


def new_namespace():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEWUSER):
        raise OSError(ctypes.get_errno(), "unshare")


CALLS = {
    "pair": socket.socketpair,
    "tcp": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
    "unix": lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM),
    "raw": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1),
    "vsock": lambda: socket.socket(40, socket.SOCK_STREAM),
    "uevents": lambda: socket.socket(16, socket.SOCK_RAW, 15),
    "force": lambda: socket.socketpair()[0].setsockopt(socket.SOL_SOCKET, 32, 1 << 28),
    "flock": lambda: fcntl.flock(os.open("/", os.O_RDONLY), fcntl.LOCK_SH),
    "record_lock": lambda: fcntl.lockf(os.open(__file__, os.O_RDONLY), fcntl.LOCK_SH),
    "lease": lambda: fcntl.fcntl(os.open(__file__, os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_UNLCK),
    "memfd": lambda: os.memfd_create("x"),
    "namespace": new_namespace,
}
EVERYWHERE = dict.fromkeys(("raw", "vsock", "uevents"), errno.EACCES)
EVERYWHERE |= dict.fromkeys(("force", "lease"), errno.EPERM) | {"pair": 0, "memfd": errno.ENOSYS}
OPEN = dict.fromkeys(("tcp", "unix", "flock", "record_lock"), 0)
BY_KIND = {
    "outer": OPEN,  # where user namespaces are off for all, "namespace" fails all the same
    "cells": OPEN | {"namespace": errno.EPERM},
    "strict": dict.fromkeys(("tcp", "unix"), errno.EACCES)
    | dict.fromkeys(("flock", "record_lock", "namespace"), errno.EPERM),
}


@LINUX
@KINDS
def test_a_process_is_held_to_its_filter(kind):
    found = under(kind, CALLS)
    assert found.items() >= (EVERYWHERE | BY_KIND[kind]).items()


@LINUX
def test_the_strict_filter_goes_on_top_of_the_outer_one():
    found = under("outer", {"strict": lambda: system_calls.enforce("strict")} | CALLS)
    assert found.items() >= ({"strict": 0} | EVERYWHERE | BY_KIND["strict"]).items()


def host_state():
    """What the whole host shares, and submissions must leave alone."""
    return {
        "aio": int(Path("/proc/sys/fs/aio-nr").read_text()),
        "queues": len(os.listdir("/dev/mqueue")) if os.path.isdir("/dev/mqueue") else 0,
        "semaphores": Path("/proc/sysvipc/sem").read_text(),
        "messages": Path("/proc/sysvipc/msg").read_text(),
        "shared": shared_memory(),
    }


def shared_memory():
    """Rows of segments, but for those of root where answers run as others: MPI makes such."""
    head, *rows = Path("/proc/sysvipc/shm").read_text().splitlines()
    owner = head.split().index("uid")
    return [row for row in rows if os.geteuid() or row.split()[owner] != "0"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the calls are told by number")
def test_nothing_of_the_host_is_taken(grade_cases):
    before = host_state()
    grade_cases(host_wide.ALL | {"innocent": right(HONEST)})
    assert host_state() == before

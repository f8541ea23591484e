"""The system calls that code in the sandbox may use: lists of them, as seccomp filters.

There are three kinds of filters. ``"outer"`` is for the grader's own processes in the sandbox. They
may make namespaces and mounts, to confine each process of a student. ``"cells"`` is for a student's
cells, which may start their own ranks. ``"strict"`` is for ranks. Ranks communicate only through
inherited connections. They may use no sockets except socket pairs, and no locks on files that all
ranks see.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import platform
import struct
import sys

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH_* of linux/audit.h."""
KINDS = ("outer", "cells", "strict")

# Names with their numbers on x86_64 and on aarch64, from Linux's
# arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.

PERMITTED = """
read 0 63, write 1 64, pread64 17 67, pwrite64 18 68, readv 19 65, writev 20 66, preadv 295 69,
pwritev 296 70, sendfile 40 71, splice 275 76, copy_file_range 326 285, open 2 -, openat 257 56,
creat 85 -, close 3 57, close_range 436 436, lseek 8 62, dup 32 23, dup2 33 -, dup3 292 24,
pipe 22 -, pipe2 293 59, fcntl 72 25, ioctl 16 29, flock 73 32, stat 4 -, fstat 5 80, lstat 6 -,
newfstatat 262 79, statx 332 291, statfs 137 43, fstatfs 138 44, access 21 -, faccessat 269 48,
faccessat2 439 439, readlink 89 -, readlinkat 267 78, getdents 78 -, getdents64 217 61,
getcwd 79 17, chdir 80 49, fchdir 81 50, mkdir 83 -, mkdirat 258 34, rmdir 84 -, rename 82 -,
renameat 264 38, renameat2 316 276, link 86 -, linkat 265 37, symlink 88 -, symlinkat 266 36,
unlink 87 -, unlinkat 263 35, mknod 133 -, mknodat 259 33, chmod 90 -, fchmod 91 52,
fchmodat 268 53, fchmodat2 452 452, chown 92 -, fchown 93 55, lchown 94 -, fchownat 260 54,
umask 95 166, utime 132 -, utimes 235 -, utimensat 280 88, futimesat 261 -, truncate 76 45,
ftruncate 77 46, fallocate 285 47, fsync 74 82, fdatasync 75 83, fadvise64 221 223,
getxattr 191 8, lgetxattr 192 9, fgetxattr 193 10, listxattr 194 11, llistxattr 195 12,
flistxattr 196 13,

mmap 9 222, munmap 11 215, mprotect 10 226, mremap 25 216, madvise 28 233, brk 12 214,
msync 26 227, mlock 149 228, munlock 150 229, membarrier 324 283, pkey_mprotect 329 288,
pkey_alloc 330 289, pkey_free 331 290, get_mempolicy 239 236, mbind 237 235,

clone 56 220, fork 57 -, vfork 58 -, execve 59 221, execveat 322 281, exit 60 93,
exit_group 231 94, wait4 61 260, waitid 247 95, getpid 39 172, getppid 110 173, gettid 186 178,
set_tid_address 218 96, set_robust_list 273 99, get_robust_list 274 100, futex 202 98,
futex_waitv 449 449, rseq 334 293, getpgid 121 155, getpgrp 111 -, setpgid 109 154,
getsid 124 156, setsid 112 157, getuid 102 174, geteuid 107 175, getgid 104 176,
getegid 108 177, getresuid 118 148, getresgid 120 150, getgroups 115 158, prctl 157 167,
arch_prctl 158 -, uname 63 160, sysinfo 99 179, getcpu 309 168, getrandom 318 278,
getrlimit 97 163, setrlimit 160 164, prlimit64 302 261, getrusage 98 165, times 100 153,
capget 125 90, capset 126 91, setuid 105 146, setgid 106 144, setreuid 113 145, setregid 114 143,
setresuid 117 147, setresgid 119 149, setgroups 116 159, seccomp 317 277,
kill 62 129, tkill 200 130, tgkill 234 131, pidfd_open 434 434, pidfd_send_signal 424 424,
restart_syscall 219 128, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139,
rt_sigpending 127 136, rt_sigsuspend 130 133, rt_sigtimedwait 128 137, sigaltstack 131 132,
pause 34 -, alarm 37 -, setitimer 38 103, getitimer 36 102, sched_yield 24 124,
sched_getaffinity 204 123, sched_setaffinity 203 122, sched_getparam 143 121,
sched_setscheduler 144 119,
sched_getscheduler 145 120, sched_get_priority_max 146 125, sched_get_priority_min 147 126,
getpriority 140 141, setpriority 141 140, time 201 -, gettimeofday 96 169,
clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115, nanosleep 35 101,

poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72, epoll_create 213 -, epoll_create1 291 20,
epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22, epoll_pwait2 441 441, eventfd 284 -,
eventfd2 290 19, socket 41 198, socketpair 53 199, bind 49 200, listen 50 201, accept 43 202,
accept4 288 242, connect 42 203, getsockname 51 204, getpeername 52 205, getsockopt 55 209,
setsockopt 54 208, shutdown 48 210, sendto 44 206, recvfrom 45 207, sendmsg 46 211,
recvmsg 47 212, sendmmsg 307 269, recvmmsg 299 243
"""
OUTER_ONLY = "unshare 272 97, setns 308 268, mount 165 40, umount2 166 39"
ABSENT = """
clone3 435 435, memfd_create 319 279, memfd_secret 447 447, openat2 437 437, preadv2 327 286,
pwritev2 328 287, process_madvise 440 440, cachestat 451 451, map_shadow_stack 453 453,
io_uring_setup 425 425, userfaultfd 323 282, landlock_create_ruleset 444 444
"""
"""System calls that the filter reports as missing, so that programs use something else."""
FIRST_UNKNOWN = 454
"""Calls from this number on are newer than this list. The filter reports them as missing, too."""

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
NETLINK_ROUTE = 0
NEW_NAMESPACES = 0x7E020000
"""CLONE_NEW* of linux/sched.h."""
TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX. With these requests, a process can type input for another process."""
BY_FORCE = (32, 33)
"""SO_SNDBUFFORCE and SO_RCVBUFFORCE. With these options, a namespace's administrator gets buffers
beyond all limits."""
WATCHED_FILES = (1024, 1026)
"""F_SETLEASE, F_NOTIFY."""
LOCKED_FILES = (5, 6, 7, 36, 37, 38)
"""F_GETLK to F_OFD_SETLKW. These calls are forbidden because other processes can read a lock on a
shared file as a message."""

LOAD, RETURN, AND, JUMP = 0x20, 0x06, 0x54, 0x05
IF_EQUAL, IF_AT_LEAST, IF_ANY_BIT = 0x15, 0x35, 0x45
AT_NUMBER, AT_ARCHITECTURE, AT_ARGUMENTS = 0, 4, 16
ALLOW, ERROR = 0x7FFF0000, 0x00050000
NO_SUCH, FORBIDDEN, NO_ACCESS = (ERROR | code for code in (errno.ENOSYS, errno.EPERM, errno.EACCES))
PR_SET_NO_NEW_PRIVS, SET_MODE_FILTER, ALL_THREADS = 38, 1, 1


def numbers_of(table, machine):
    """Return ``{name: number}`` on a machine, from a table above. Leave out calls that the machine
    lacks."""
    column = 1 + list(ARCHITECTURES).index(machine)
    lines = (entry.split() for entry in table.split(",") if entry.strip())
    return {line[0]: int(line[column]) for line in lines if line[column] != "-"}


def filter_for(kind, machine=None):
    """Return a seccomp filter as bytes, an array of ``struct sock_filter``.

    Parameters
    ----------
    kind : str
        ``"outer"``, ``"cells"`` or ``"strict"``.
    machine : str, optional
        The name from `platform.machine`; by default this machine's.

    Returns
    -------
    bytes or None
        None if the numbers of the machine's system calls are unknown.
    """
    machine = machine or platform.machine()
    if kind not in KINDS:
        raise ValueError(f"no filter is called {kind!r}. The filters are {', '.join(KINDS)}")
    return assembled(kind, machine) if machine in ARCHITECTURES else None


@functools.cache
def assembled(kind, machine):
    """Return the filter of a kind for a known machine."""
    program = [
        (LOAD, 0, 0, AT_ARCHITECTURE),
        (IF_EQUAL, 1, 0, ARCHITECTURES[machine]),
        (RETURN, 0, 0, NO_SUCH),
        (LOAD, 0, 0, AT_NUMBER),
        *searched(spans(verdicts(kind, machine))),
    ]
    return b"".join(struct.pack("<HBBI", *line) for line in program)


def verdicts(kind, machine):
    """Return ``{number: program}`` for calls that the filter judges by their number alone."""
    found = dict.fromkeys(range(FIRST_UNKNOWN), ((RETURN, 0, 0, FORBIDDEN),))
    permitted = numbers_of(PERMITTED, machine)
    if kind == "outer":
        permitted |= numbers_of(OUTER_ONLY, machine)
    found |= dict.fromkeys(permitted.values(), ((RETURN, 0, 0, ALLOW),))
    found |= dict.fromkeys(numbers_of(ABSENT, machine).values(), ((RETURN, 0, 0, NO_SUCH),))
    return found | {permitted[name]: rule for name, rule in rules(kind).items()}


def rules(kind):
    """Return ``{name: program}`` for calls that the filter judges by their arguments."""
    found = {
        "ioctl": unless_one_of(1, TERMINAL_INPUT),
        "fcntl": unless_one_of(1, WATCHED_FILES),
        "setsockopt": unless_one_of(2, BY_FORCE),
        "socketpair": only_one_of(0, (AF_UNIX,)),
        # Gloo and getaddrinfo ask by netlink which addresses there are.
        "socket": (
            *argument(0),
            (IF_EQUAL, 0, 4, AF_NETLINK),
            *argument(2),
            (IF_EQUAL, 0, 1, NETLINK_ROUTE),
            (RETURN, 0, 0, ALLOW),
            (RETURN, 0, 0, NO_ACCESS),
            *only_one_of(0, (AF_UNIX, AF_INET, AF_INET6), plain_sockets()),
        ),
    }
    if kind != "outer":
        found["clone"] = (
            *argument(0),
            (IF_ANY_BIT, 0, 1, NEW_NAMESPACES),
            (RETURN, 0, 0, FORBIDDEN),
            (RETURN, 0, 0, ALLOW),
        )
    if kind == "strict":
        found["socket"] = ((RETURN, 0, 0, NO_ACCESS),)
        found["flock"] = ((RETURN, 0, 0, FORBIDDEN),)
        found["fcntl"] = unless_one_of(1, WATCHED_FILES + LOCKED_FILES)
    return found


def argument(number):
    """Return the instruction that loads the lower half of an argument. For the arguments checked
    here, Linux uses only this half."""
    return ((LOAD, 0, 0, AT_ARGUMENTS + 8 * number),)


def unless_one_of(number, values):
    """Forbid a call if its argument is one of these values."""
    checks = [
        line for value in values for line in ((IF_EQUAL, 0, 1, value), (RETURN, 0, 0, FORBIDDEN))
    ]
    return (*argument(number), *checks, (RETURN, 0, 0, ALLOW))


def only_one_of(number, values, then=((RETURN, 0, 0, ALLOW),)):
    """Continue with ``then`` if an argument is one of these values; otherwise refuse the call."""
    checks = [(IF_EQUAL, len(values) - at, 0, value) for at, value in enumerate(values)]
    return (*argument(number), *checks, (RETURN, 0, 0, NO_ACCESS), *then)


def plain_sockets():
    """Permit only streams and datagrams of protocols that every machine has. Other protocols would
    load modules of Linux."""
    streams, datagrams, packets = 1, 2, 5
    any_protocol, tcp, udp = 0, 6, 17
    protocol = only_one_of(2, (any_protocol, tcp, udp))
    kinds = only_one_of(1, (streams, datagrams, packets), protocol)
    return (kinds[0], (AND, 0, 0, 0xF), *kinds[1:])


def spans(found):
    """Return ``[(first number, program)]`` in order. Neighbouring numbers with the same program
    share one entry."""
    runs = []
    for number in sorted(found):
        if not runs or runs[-1][1] != found[number]:
            runs.append((number, found[number]))
    return [*runs, (FIRST_UNKNOWN, ((RETURN, 0, 0, NO_SUCH),))]


def searched(runs):
    """Return a program that finds the entry of a number by bisection, and then runs the program of
    this entry."""
    if len(runs) == 1:
        return runs[0][1]
    middle = len(runs) // 2
    below, above = searched(runs[:middle]), searched(runs[middle:])
    return (
        (IF_AT_LEAST, 0, 1, runs[middle][0]),
        (JUMP, 0, 0, len(below)),
        *below,
        *above,
    )


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def enforce(kind="strict"):
    """Apply a filter to this process and all its children, for ever.

    Returns
    -------
    bool
        False if simlib knows no filter for this machine. Then it has done nothing.

    Raises
    ------
    OSError
        Linux refuses the filter.
    """
    found = filter_for(kind)
    if found is None:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    number = numbers_of(PERMITTED, platform.machine())["seccomp"]
    words = [ctypes.c_ulong(word) for word in (1, 0, 0, 0)]
    program = _Program(len(found) // 8, found)
    refused = libc.prctl(PR_SET_NO_NEW_PRIVS, *words) or libc.syscall(
        ctypes.c_long(number),
        ctypes.c_ulong(SET_MODE_FILTER),
        ctypes.c_ulong(ALL_THREADS),
        ctypes.byref(program),
    )
    if refused:  # the id of a thread that could not be held to it, or -1
        code = ctypes.get_errno()
        raise OSError(code, f"no filter of system calls could be set: {os.strerror(code)}")
    return True


if __name__ == "__main__":  # in a container, which loads no filter of this form itself
    enforce("outer")
    os.execvp(sys.argv[1], sys.argv[1:])

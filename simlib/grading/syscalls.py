"""What code in the sandbox may not ask of the kernel, as a seccomp filter for bubblewrap.

Forbidden is what leads to other namespaces, into other processes, or to memory that belongs to no
process and so is counted nowhere (memfd, System V). Numbers are those of Linux's tables,
arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
"""

from __future__ import annotations

import errno
import platform
import struct

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH_* of linux/audit.h."""

NUMBERS = {
    "clone": (56, 220),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "shmget": (29, 194),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "clone3": (435, 435),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
}
"""By name: the number on x86_64, and on aarch64."""

UNKNOWN = {"clone3", "memfd_create", "memfd_secret"}
"""Those that are said not to exist, so that callers do without."""
NEW_NAMESPACES = 0x7E020000
"""CLONE_NEW* of linux/sched.h; `clone` is forbidden with these flags only."""
X32 = 0x40000000

LOAD, RETURN = 0x20, 0x06
IF_EQUAL, IF_AT_LEAST, IF_ANY_BIT = 0x15, 0x35, 0x45
ALLOW, ERROR = 0x7FFF0000, 0x00050000
AT_NUMBER, AT_ARCHITECTURE, AT_FIRST_ARGUMENT = 0, 4, 16


def seccomp_filter(machine=None):
    """The filter as bytes; None for a machine whose numbers are not known here."""
    machine = machine or platform.machine()
    if machine not in ARCHITECTURES:
        return None
    column = list(ARCHITECTURES).index(machine)
    no_such, forbidden = ERROR | errno.ENOSYS, ERROR | errno.EPERM
    program = [
        (LOAD, 0, 0, AT_ARCHITECTURE),
        (IF_EQUAL, 1, 0, ARCHITECTURES[machine]),
        (RETURN, 0, 0, no_such),
        (LOAD, 0, 0, AT_NUMBER),
        (IF_AT_LEAST, 0, 1, X32),
        (RETURN, 0, 0, no_such),
    ]
    for name, numbers in NUMBERS.items():
        if name != "clone":
            program.append((IF_EQUAL, 0, 1, numbers[column]))
            program.append((RETURN, 0, 0, no_such if name in UNKNOWN else forbidden))
    program += [
        (IF_EQUAL, 0, 3, NUMBERS["clone"][column]),
        (LOAD, 0, 0, AT_FIRST_ARGUMENT),
        (IF_ANY_BIT, 0, 1, NEW_NAMESPACES),
        (RETURN, 0, 0, forbidden),
        (RETURN, 0, 0, ALLOW),
    ]
    return b"".join(struct.pack("<HBBI", *line) for line in program)

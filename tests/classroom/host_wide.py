"""Answers that take what belongs to the whole host, or memory that nobody is charged with."""

from intruders import attempts, intruder

NUMBERS = """\
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
SCRATCH = ctypes.create_string_buffer(4096)
def asked(name, number, *words):
    if libc.syscall(number, *[w if isinstance(w, int) else ctypes.byref(w) for w in words]) >= 0:
        found.append(name)
"""
"""System calls by number (x86_64), with arguments that Linux takes from anybody."""

ALL = {
    "asynchronous_io": intruder(
        NUMBERS + "for _ in range(64): asked('io_setup', 206, 1024, ctypes.c_ulong(0))"
    ),
    "posix_queues": intruder(NUMBERS + "asked('mq_open', 240, SCRATCH, 0o102, 0o600, 0)"),
    "semaphores_and_queues": intruder(
        NUMBERS + "asked('semget', 64, 0, 32000, 0o1600)\nasked('msgget', 68, 0, 0o1600)\n"
        "asked('shmget', 29, 0, 1 << 20, 0o1600)"
    ),
    "watches": intruder(
        NUMBERS + "asked('inotify_init', 253)\nasked('inotify_init1', 294, 0)\n"
        "asked('fanotify_init', 300, 0x200, 0)\n"
        "import fcntl, os\n"
        "os.makedirs('/tmp/own', exist_ok=True)\n"
        + attempts(
            "fcntl.fcntl(os.open('/tmp/own', os.O_RDONLY), fcntl.F_NOTIFY, 2)",
            "fcntl.fcntl(os.open('/tmp/own/f', os.O_RDONLY | os.O_CREAT), fcntl.F_SETLEASE, 0)",
        )
    ),
    "keys": intruder(
        NUMBERS + "asked('keyctl', 250, 0, -3, 1)\n"
        "asked('add_key', 248, ctypes.create_string_buffer(b'user'), "
        "ctypes.create_string_buffer(b'name'), SCRATCH, 16, -4)"
    ),
    "timers": intruder(
        NUMBERS + "asked('timer_create', 222, 1, 0, SCRATCH)\nasked('timerfd_create', 283, 1, 0)"
    ),
    "sockets_of_other_families": intruder(
        "import socket\n"
        + attempts(
            "socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)",
            "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15)",
            "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)",
            "socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)",
            "socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM)",
            "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132)",
        )
    ),
    "what_looks_into_linux": intruder(
        NUMBERS + "asked('io_uring_setup', 425, 1, SCRATCH)\nasked('userfaultfd', 323, 1)\n"
        "asked('perf_event_open', 298, SCRATCH, 0, -1, -1, 0)\n"
        "asked('bpf', 321, 0, SCRATCH, 128)\nasked('personality', 135, -1)\n"
        "asked('kcmp', 312, 1, 1, 0, 0, 0)\nasked('syslog', 103, 10, 0, 0)\n"
        "asked('io_uring by 32 bits', 425 | 0x40000000, 1, SCRATCH)"
    ),
}

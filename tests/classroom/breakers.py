"""Answers that end processes, take all there is, or never stop, and their innocent neighbours.

Those of `CELLS` and `RANKS` end processes of the student's own and share a notebook; those of
`KERNELS` try to end the examiner, or take long, and share another; those that take all there is
have a notebook each.
"""

from ground import HONEST, Case, right

LIMITS = "broke the limits"
OWN = "import simlib.classroom.grading.shell as own\n"
DEAF = "import os, signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"


def in_the_cell(body, words="", status=LIMITS):
    """A `Case` whose cell does this before it defines an honest function."""
    return Case(f"{body}\n{HONEST}", status, words)


def in_the_ranks(body, words="", status="wrong"):
    """A `Case` whose ranks do this before they sum up honestly."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return Case(HONEST.replace("    total =", f"{lines}    total =", 1), status, words)


def harmless_in_the_cell(body):
    """A `Case` whose cell does this to all processes that it finds, which are its own."""
    return right(f"{body}\n{HONEST}")


CELLS = {
    "makes_files_without_end": in_the_cell(
        "try:\n    for n in range(20_000): open(f'{n}.txt', 'w').close()\n"
        "finally:\n    print(n, 'files')",
        "may write 8 MB and 2,000 files",
        "wrong",
    ),
    "exits": in_the_cell("import os\nos._exit(0)", "ended the process"),
    "never_ends": in_the_cell(f"{DEAF}while True: pass", "still running"),
    "floods": in_the_cell("while True: print('x' * 10_000)", "printed more than"),
    "floods_natively": in_the_cell("import os\nwhile True: os.write(2, b'x' * 65_536)", "printed"),
    "closes_everything": in_the_cell("import os\nos.closerange(0, 4096)", "ended the process"),
    "asks_to_stop": in_the_cell("raise KeyboardInterrupt", "KeyboardInterrupt", "wrong"),
    "is_no_json_any_more": in_the_cell(OWN + "own.dumps = lambda *a, **o: '[]'"),
    "says_what_is_no_answer": in_the_cell(
        OWN + "own.dumps = lambda *a, **o: '{\"error\": null}'",
        status="wrong",
    ),
    "ends_the_shell_later": Case(
        "import os, threading\nthreading.Timer(0.3, os._exit, [0]).start()\n"
        "def NAME(rank, world_size, x):\n    return x",
        "wrong",
    ),
    "fills_the_disk": in_the_cell(
        "for place in ('/tmp', '/dev/shm', '/home/student'):\n"
        "    try:\n"
        "        with open(place + '/full', 'wb') as file:\n"
        "            while True: file.write(bytes(1 << 20))\n"
        "    except OSError:\n        pass\nraise OSError('full')",
        "full",
        "wrong",
    ),
    "leaves_hooks": Case(
        "get_ipython().run_cell = lambda *a, **o: None\n"
        "type(get_ipython()).run_cell = lambda *a, **o: None\n"
        "def NAME(rank, world_size, x):\n    return x",
        "wrong",
    ),
}

RANKS = {
    "exit": in_the_ranks("import os\nos._exit(0)", "exited with code 0"),
    "crash": in_the_ranks("import ctypes\nctypes.string_at(0)"),
    "flood": in_the_ranks("while True: print('x' * 10_000)"),
}

HOG = "kept = []\nwhile not time.sleep(0.01): kept.append(bytearray(os.urandom(1)) * (4 << 20))"
FORKS = (
    "import os, time\n"
    "for _ in range(5000):\n"
    "    try:\n        pid = os.fork()\n"
    "    except OSError:\n        continue\n"
    "    if pid == 0:\n        time.sleep(98765)\n"
)
KERNELS = {
    "ranks_that_end_their_server": in_the_ranks(
        "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nos._exit(0)",
        "exited with code 0",
    ),
    "kills_all_in_the_cell": in_the_cell(
        "import os, signal\nos.kill(-1, signal.SIGKILL)", "No such process", "wrong"
    ),
    "kills_all_in_the_ranks": in_the_ranks("import os\nos.kill(-1, 9)", "No such process"),
    "takes_memory_in_the_cell": in_the_cell(f"import os, time\n{HOG}", "MB"),
    "takes_memory_in_the_ranks": in_the_ranks(f"import os, time\n{HOG}", "MB", LIMITS),
    "kills_all_later": Case(
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import time, os; time.sleep(4); os.kill(-1, 9)'],"
        " start_new_session=True)\ndef NAME(rank, world_size, x):\n    return x",
        "",
    ),
    "forks_in_the_cell": Case(FORKS + "def NAME(rank, world_size, x):\n    return x", ""),
    "forks_in_the_ranks": right(in_the_ranks(FORKS).source),
    "writes_rubbish_into_its_log": in_the_ranks(
        "import gc\nfrom simlib.core.record.oplog import OpLogWriter\n"
        "for one in gc.get_objects():\n    if isinstance(one, OpLogWriter):\n"
        "        one._memory[:4096] = bytes(range(256)) * 16\n"
        "import os\nos._exit(0)",
        "",
        "",
    ),
    "never_ends_in_the_ranks": in_the_ranks(f"{DEAF}while True: pass", "never returns"),
    "stops_all": harmless_in_the_cell(
        "import os, signal\n"
        "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "    if int(pid) not in (1, os.getpid()):\n"
        "        try:\n            os.kill(int(pid), signal.SIGSTOP)\n"
        "        except OSError:\n            pass"
    ),
}

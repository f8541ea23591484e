"""Answers that look for a way out of the sandbox. Each says what it reached, or is right.

The cell raises an error with what it found, so a point means that it found nothing.
"""

from ground import HONEST, right

SECRET = "told to nobody"
"""What the grader's environment holds."""


def intruder(body):
    """A `Case` whose cell runs ``body``, which adds to the list ``found``."""
    return right(f"found = []\n{body}\nassert not found, str(found)[:500]\n{HONEST}")


def attempt(statement):
    """Source that notes a statement which succeeds."""
    return (
        f"try:\n    {statement}\n    found.append({statement!r})\nexcept Exception as e:\n    pass"
    )


def attempts(*statements):
    """Several of them."""
    return "\n".join(map(attempt, statements))


OTHERS = """\
import ctypes, os
libc = ctypes.CDLL(None)
for pid in map(int, filter(str.isdigit, os.listdir('/proc'))):
    if pid == os.getpid(): continue
    if libc.ptrace(16, pid, 0, 0) == 0: found.append(pid)
    for name in ('mem', 'fd/1', 'fd/2'):
        try:
            os.close(os.open(f'/proc/{pid}/{name}', os.O_WRONLY | os.O_NONBLOCK))
            found.append((pid, name, open(f'/proc/{pid}/cmdline').read()[-60:]))
        except OSError:
            pass
"""
"""Looks into every process but its own."""

ALL = {
    "other_peoples_files": intruder(
        "import os, glob, sys\n"
        "found += [one for one in ('CANARY', '/var', '/srv', '/mnt') "
        "if os.path.exists(one)]\n"
        "found += glob.glob('/tmp/*/**/*.ipynb', recursive=True)\n"
        "found += glob.glob('/*/authoring') + glob.glob('/*/*/authoring')\n"
        "ours = 'bin boot course dev etc home lib lib32 lib64 proc sbin scratch tmp usr'.split()\n"
        "ours += [one.split('/')[1] for one in (sys.prefix, sys.base_prefix)]\n"
        "found += [one for one in os.listdir('/') if one not in ours]"
    ),
    "hidden_cells_and_solutions": intruder(
        "import glob\n"
        "for name in glob.glob('/course/**/*', recursive=True):\n"
        "    if name.endswith(('.ipynb',)) or '97_sums' in name: found.append(name)"
    ),
    "what_the_grader_knows": intruder(
        "import os, glob\n"
        f"found += [n for n in os.environ if {SECRET!r} in os.environ[n] or n[:8] == 'GRADING_']"
        "\nfor name in glob.glob('/proc/[0-9]*/environ'):\n"
        "    try:\n        text = open(name, 'rb').read()\n"
        "    except OSError:\n        continue\n"
        f"    if {SECRET.encode()!r} in text or b'GRADING_' in text: found.append(name)"
    ),
    "memory_of_the_examiner": intruder(
        "import os\n"
        "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "    try:\n"
        "        if '-m\\0ipykernel' in open(f'/proc/{pid}/cmdline').read():\n"
        "            open(f'/proc/{pid}/mem', 'rb').close()\n"
        "            found.append(pid)\n"
        "    except OSError:\n        pass"
    ),
    "sockets_of_the_kernel": intruder(
        "import glob\nfound += glob.glob('/tmp/simlib-grading*/run/*')"
    ),
    "writes_outside": intruder(
        attempts(
            "open('/course/simlib/__init__.py', 'a')",
            "open('/course/simlib/new.py', 'w')",
            "open('/usr/new', 'w')",
            "open('/etc/new', 'w')",
            "open('/new', 'w')",
            "open('/dev/new', 'w')",
            "open('CANARY/new', 'w')",
            "open(__import__('sys').prefix + '/new', 'w')",
            "open(torch.__file__, 'a')",
        )
    ),
    "keeps_a_file_for_later": intruder(
        "import glob, os\n"
        "for place in glob.glob('/tmp/simlib-grading*/run'):\n"
        + "\n".join(
            "    " + line
            for line in attempts("os.chmod(place, 0o777); open(place + '/big', 'w')").splitlines()
        )
    ),
    "network": intruder(
        "import socket\n"
        + attempts(
            "socket.create_connection(('127.0.0.1', PORT), 2)",
            "socket.create_connection(('192.0.2.1', 80), 2)",
            "socket.socket(socket.AF_UNIX).connect('\\0simlib-canary-PORT')",
            "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
        )
    ),
    "a_silent_connection_to_the_server_of_ranks": intruder(
        "import socket\n"
        "for line in open('/proc/net/unix').read().splitlines()[1:]:\n"
        "    address = line.split()[-1]\n"
        "    try:\n"
        "        one = socket.socket(socket.AF_UNIX)\n"
        "        one.connect('\\0' + address[1:] if address[0] == '@' else address)\n"
        "        found.append(address)\n"
        "    except OSError:\n        pass"
    ),
    "more_rights": intruder(
        "import os, ctypes, subprocess\nlibc = ctypes.CDLL(None)\n"
        "if os.geteuid() == 0: found.append('root')\n"
        "status = dict(l.split(':\\t') for l in open('/proc/self/status').read().splitlines()"
        " if ':\\t' in l)\n"
        "if int(status['CapEff'], 16) or status['NoNewPrivs'] != '1': found.append(status)\n"
        + attempts("os.setuid(0)", "os.chroot('/tmp')", "os.setgroups([0])")
        + "\nfor name in ('unshare -U true', 'unshare -Urm true', 'mount -t tmpfs x /tmp'):\n"
        "    if subprocess.run(name.split(), capture_output=True).returncode == 0:\n"
        "        found.append(name)"
    ),
    "memory_that_nobody_counts": intruder(
        "import ctypes, os\nlibc = ctypes.CDLL(None)\n"
        "if libc.shmget(0, 1 << 20, 0o1600) >= 0: found.append('shmget')\n"
        + attempts("os.memfd_create('x')")
    ),
    "other_processes": intruder(OTHERS),
    "other_processes_in_the_ranks": right(
        HONEST.replace(
            "    total =",
            "    found = []\n"
            + "".join(f"    {line}\n" for line in OTHERS.splitlines())
            + "    assert not found, str(found)[:500]\n    total =",
            1,
        )
    ),
}

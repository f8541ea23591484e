"""The program that answers the doctor's questions on a host. The doctor sends it there as text.

It needs only the standard library, so it runs in any Python of the host. It reads one question per
line of JSON, and prints one answer per line. It ends when its input ends, or after `LONGEST_S`.
"""

import fcntl
import hashlib
import json
import os
import platform
import pwd
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

MARK = "simlib-doctor: "  # before an answer: what a login script prints is none
LONGEST_S = 90
COMMAND_S = 10
NAME_S = 3
TRY_S = 3


def clock():
    """Return this host's time, in seconds."""
    return time.time()


def facts(root, mpiexec, folder, token, reply, names, proxy=None):
    """Return all facts about this host alone."""
    sys.path.insert(0, root)
    return {
        "name": socket.gethostname(),
        "account": account(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "packages": {name: version_of(name) for name in ("torch", "mpi4py")},
        "simlib": simlib(),
        "other_simlib": other_simlib(),
        "mpi": mpi(mpiexec, proxy),
        "library": printed(
            [sys.executable, "-c", "from mpi4py import rc; rc.initialize = False\n"
             "from mpi4py import MPI; print(MPI.Get_library_version())"]
        ),
        "file": exchange(folder, token, reply),
        "names": {name: addresses_of(name) for name in [*names, socket.gethostname()]},
        "address": own_address(),
    }  # fmt: skip


def account():
    """Return the name and number of the account. The name is missing if the system knows none."""
    uid = os.getuid()
    try:
        return [pwd.getpwuid(uid).pw_name, uid]
    except KeyError:
        return [None, uid]


def version_of(package):
    """Return the version of an installed package without importing it; None if the package is
    missing."""
    try:
        from importlib import metadata

        return metadata.version(package)
    except Exception:
        return None


def simlib():
    """Return ``[version, path, digest of the sources]`` of simlib; None if simlib is missing.

    If simlib cannot be read, return ``[None, path, the error]``.
    """
    import importlib.util

    found = importlib.util.find_spec("simlib")
    if found is None or not found.origin:
        return None
    folder = os.path.dirname(found.origin)
    try:
        return [version_in(folder), folder, digest_of(folder)]
    except OSError as error:
        return [None, folder, error.strerror]


def other_simlib():
    """Return one sentence if another project's package simlib is installed here, else None."""
    try:
        from rank_by_rank import other_simlib
    except ImportError:  # simlib is missing, or older than this module
        return None
    return other_simlib()


def version_in(folder):
    """Return the version of simlib in a folder, as its sources give it."""
    with open(os.path.join(folder, "core", "environment.py"), encoding="utf-8") as file:
        version = re.search(r'^VERSION = "(.*?)"', file.read(), re.MULTILINE)
    return version and version.group(1)


def digest_of(folder):
    """Return a digest of all sources in a folder."""
    digest = hashlib.sha256()
    for place, inside, files in os.walk(folder):
        inside.sort()
        for name in sorted(files):
            if name.endswith(".py"):
                with open(os.path.join(place, name), "rb") as file:
                    digest.update(file.read())
    return digest.hexdigest()


def mpi(mpiexec, proxy):
    """Return what the mpiexec at a path says about itself, whether its proxy is there, and the
    mpiexec on the PATH."""
    if mpiexec is None:
        return None
    beside = os.path.join(os.path.dirname(mpiexec), proxy or "")
    return {
        "version": printed([mpiexec, "--version"]) if is_program(mpiexec) else None,
        "proxy": is_program(beside),
        "other": shutil.which("mpiexec"),
    }


def is_program(path):
    """Whether this account can run the file at a path."""
    return os.path.isfile(path) and os.access(path, os.X_OK)


def printed(argv):
    """``[exit code, output]`` of a program."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=COMMAND_S,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return [-1, str(error)]
    return [done.returncode, done.stdout.decode("utf-8", "replace")]


def exchange(folder, token, reply):
    """Read a file in the shared folder, and write another one. Return ``[whether the first was
    right, the error]``."""
    try:
        with open(os.path.join(folder, "question")) as file:
            seen = file.read() == token
        with open(os.path.join(folder, reply), "x") as file:  # any account could leave a link there
            file.write(token)
    except OSError as error:
        return [False, error.strerror]
    return [seen, None]


def addresses_of(name):
    """Return the IPv4 addresses of a name on this host; None if the host does not find them in
    time."""
    found = []

    def look_up():
        try:
            entries = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
            found.append(sorted({entry[4][0] for entry in entries}))
        except OSError:
            pass

    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(NAME_S)
    return found[0] if found else None


def own_address():
    """Return this host's address and interface at which ssh arrived, and the address from which it
    came."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    if len(words) < 4:
        return [None, None, None]
    return [words[2], interface_of(words[2]), words[0]]


def interface_of(address):
    """Return the name of the interface with an IPv4 address; None if the system does not know
    it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        for _, name in socket.if_nameindex():
            try:
                request = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(own.fileno(), 0x8915, request)  # SIOCGIFADDR
            except OSError:  # an interface without an address; a system that does not tell
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def listen(kept):
    """Listen on a free port of every address until the probe ends. Return the port."""
    kept.append(socket.socket())
    kept[-1].bind(("", 0))
    kept[-1].listen(64)
    return kept[-1].getsockname()[1]


def connect(places):
    """Try ports of other hosts, all at once. Return ``{name: the error, or None}``."""
    wrong = {}

    def attempt(name, address, port):
        try:
            socket.create_connection((address, port), TRY_S).close()
            wrong[name] = None
        except TimeoutError:
            wrong[name] = "no answer"
        except OSError as error:
            wrong[name] = error.strerror or str(error)

    threads = [threading.Thread(target=attempt, args=place) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def main():
    """Answer questions until there are no more."""
    signal.alarm(LONGEST_S)
    kept = []
    questions = {
        "clock": clock,
        "facts": facts,
        "listen": lambda: listen(kept),
        "connect": connect,
    }
    while True:
        line = sys.stdin.buffer.readline()
        if not line:
            return
        question, values = json.loads(line.decode())
        sys.stdout.write(MARK + json.dumps(questions[question](**values)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

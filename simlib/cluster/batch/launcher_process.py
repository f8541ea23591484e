"""Starts a job's launcher, waits for its end, keeps its limit, tidies up after it.

A program of its own, which outlives the notebook: ``python -I launcher_process.py [--detached]
FOLDER``. It imports nothing of simlib, so it starts at once; what it has to know of launchers is in
``launch.json``.

It starts itself again, as ``launcher_process.py --look FOLDER`` where the launcher runs, to see
which hosts still answer: when all ranks have joined, and when the job ends otherwise than it
should. The first look is kept in ``reach.json``; the second is compared with it, and hosts that
answered then and answer no more are named in ``lost.json``. A host that was never seen from here,
behind a firewall say, is not named. A host answers if a connection to its port of ssh is accepted
or refused: its kernel does so, also on a busy machine.
"""

import contextlib
import errno
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time

LOOK_S = 0.1
OBEY_S = 5.0
"""How long ranks that were asked to end may take; then the launcher is killed."""
LINGER_S = 5.0
"""How long a launcher may take to end of itself once the ranks end; one that waits for a host which
no longer answers never would."""
LEAVE_S = 2.0
"""How long such a launcher may take to end when it is told to. A plan may give more of both."""
SILENCE_S = 10.0
"""Rank 0's supervisor shows once a second that it is there; so late may a busy machine be."""
REACH_S = 8.0
"""How long the look at the hosts may take."""
PORT = 22
TRY_S = 3.0
OPEN, REFUSED, SILENT, CUT = "open", "refused", "silent", "cut"
"""What comes of a connection: ``cut`` is where this host has no network of its own any more."""
OF_NO_NETWORK = (errno.ENETUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL)


def main(folder):
    """Run the command of ``launch.json`` and write ``state.json`` before and after."""
    with open(os.path.join(folder, "launch.json")) as file:
        plan = json.load(file)
    here = {"host": os.uname().nodename, "pid": os.getpid(), "began": time.time()}
    write_state(folder, {"state": "active", **here})
    environ = {**os.environ, **plan["environ"]}
    with (
        open(os.path.join(folder, "launcher.out"), "wb") as out,
        open(os.path.join(folder, "launcher.err"), "wb") as err,
    ):
        try:
            launcher = subprocess.Popen(
                plan["command"], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                cwd="/", env=environ, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            err.write(f"{error}\n".encode())
            write_state(folder, {"state": "ended", "code": 127, "why": "code"})
            return
        signal.signal(signal.SIGTERM, lambda *_: touch(folder, "cancel"))
        hosts = Hosts(folder, plan)
        watch = Watch(launcher, folder, plan, hosts)
        why = watch.until_the_end()
    end_attempt(folder)
    end_left(watch.started)
    if launcher.returncode:
        hosts.look_again()
    hosts.await_look()
    trim_logs(folder, plan["log"])
    write_state(folder, {"state": "ended", "code": launcher.returncode, "why": why})


class Watch:
    """Waits for the launcher, and ends it where it is to end and does not.

    ``started`` is then what it had started on this machine.
    """

    def __init__(self, launcher, folder, plan, hosts):
        self._launcher = launcher
        self._folder = folder
        self._plan = plan
        self._hosts = hosts
        self._limit = time.monotonic() + plan["time_limit"]
        self._linger_s = plan.get("linger_s", LINGER_S)
        self._leave_s = plan.get("leave_s", LEAVE_S)
        self._hopeless = re.compile(plan["hopeless"].encode(), re.MULTILINE)
        self._ends_since = None
        self._beat = None, time.monotonic()
        self.started = {}

    def until_the_end(self):
        """Wait; returns what ended it: ``code`` (it has ended by itself), ``cancel``, ``limit``,
        ``hopeless``, ``silent`` (no word from rank 0's host) or ``late`` (the ranks have ended)."""
        why, deadline, obey_s = "code", None, self._plan["obey_s"]
        while True:
            try:
                self._launcher.wait(LOOK_S)
                return why
            except subprocess.TimeoutExpired:
                pass
            now = time.monotonic()
            if deadline is None:
                why = self._why_now(now)
                if why != "code":
                    touch(self._folder, "end")  # the ranks see it, on whatever host they are
                    self._hosts.look_again()
                    self.started = started_by(self._launcher.pid)
                    self._launcher.terminate()
                    obey_s = self._leave_s if why in ("silent", "late") else obey_s
                    deadline = now + obey_s
            elif now > deadline:
                os.killpg(self._launcher.pid, signal.SIGKILL)
                deadline = now + obey_s

    def _why_now(self, now):
        """Why the launcher is to be ended now; ``code`` where it is not."""
        os.close(os.open(self._folder, os.O_RDONLY))  # NFS then looks anew for what was not there
        if any(map(os.path.exists, self._plan["cancelled_by"])):
            return "cancel"
        if now > self._limit:
            return "limit"
        if is_hopeless(self._folder, self._hopeless):
            return "hopeless"
        if self._ends_since is None and os.path.exists(os.path.join(self._folder, "end")):
            self._ends_since = now
            self._hosts.look_again()
        if self._ends_since is not None:
            return "late" if now > self._ends_since + self._linger_s else "code"
        self._hosts.look_first()
        return "silent" if self._is_silent(now) else "code"

    def _is_silent(self, now):
        """Whether rank 0's supervisor, who would end the job, has not been heard of for too long.

        It touches ``beat`` each second. What clocks say does not matter, only that it changes.
        """
        if self._plan["timeout_s"] is None:
            return False
        try:
            with open(os.path.join(self._folder, "beat"), "rb") as file:
                beat = os.fstat(file.fileno()).st_mtime_ns
        except FileNotFoundError:
            return False
        if beat != self._beat[0]:
            self._beat = beat, now
        return now > self._beat[1] + max(self._plan["timeout_s"], SILENCE_S)


class Hosts:
    """Which hosts answer: `look_at_hosts` looks, where the launcher runs, while this goes on."""

    def __init__(self, folder, plan):
        self._folder = folder
        self._words = plan["reach"]
        self._places = [f"rank-{rank}.json" for rank in range(plan["world_size"])]
        self._looks = []

    def look_first(self):
        """Once all ranks have joined, see whether their hosts can be seen at all."""
        if not self._words:
            return
        while self._places and os.path.exists(os.path.join(self._folder, self._places[-1])):
            self._places.pop()
        if not self._places and not self._looks and not self._are_one():
            self._look()

    def _are_one(self):
        """Whether all ranks are on one host: then there is nobody to be lost by the others."""
        with open(os.path.join(self._folder, "rank-0.json")) as file:
            is_alone = json.load(file)["is_alone"]
        self._words = None if is_alone else self._words
        return is_alone

    def look_again(self):
        """See which of them can be seen no more; nothing where there was no first look."""
        if len(self._looks) == 1:
            self.await_look()
            self._look()

    def await_look(self):
        """Wait until the last look is over."""
        for look in self._looks[-1:]:
            try:
                look.wait(REACH_S)
            except subprocess.TimeoutExpired:
                look.kill()
                look.wait()

    def _look(self):
        nothing = subprocess.DEVNULL
        words = [*self._words, self._folder]
        self._looks.append(
            subprocess.Popen(words, stdin=nothing, stdout=nothing, stderr=nothing, cwd="/")
        )


def is_hopeless(folder, hopeless):
    """Whether no rank has joined yet, and the launcher has said that one cannot be started.

    The others would wait for it; some launchers let them.
    """
    if os.path.exists(os.path.join(folder, "rank-0.json")):
        return False
    with open(os.path.join(folder, "launcher.err"), "rb") as file:
        return bool(hopeless.search(file.read(1 << 16)))


def end_attempt(folder):
    """End the ranks of the last attempt: where its program has died, nobody else would."""
    attempts = [name for name in os.listdir(folder) if name.startswith("attempt-")]
    if attempts:
        touch(os.path.join(folder, max(attempts, key=lambda name: int(name[8:]))), "end")


def started_by(leader):
    """``{pid: start}`` of all that a process has started, and what that has, on this machine
    (Linux)."""
    parents, starts = {}, {}
    for pid in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        state, parent, start = stat_of(pid) or ("Z", 0, 0)
        if state not in "ZX":
            parents[int(pid)], starts[int(pid)] = parent, start
    found, new = {}, {leader}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new and pid not in found}
        found |= {pid: starts[pid] for pid in new}
    return found


def stat_of(pid):
    """The state of a process, its parent, and when it started; None where it has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[1]), int(fields[19])


def end_left(processes):
    """Kill what is left of them: an ssh, say, to a host that no longer answers."""
    for pid, start in processes.items():
        stat = stat_of(pid)
        if stat is not None and stat[2] == start:  # else another one has its number
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def trim_logs(folder, layout):
    """Give back the room that logs have not used whose supervisors were killed."""
    header, committed = layout
    for name in os.listdir(folder):
        if name.startswith("rank-") and name.endswith(".log"):
            with contextlib.suppress(OSError), open(os.path.join(folder, name), "r+b") as file:
                start = file.read(header)
                if len(start) == header:  # else its rank was ended before it had one
                    used = struct.unpack_from("q", start, committed)[0]
                    file.truncate(max(header, used))


def touch(folder, name):
    open(os.path.join(folder, name), "a").close()


def write_state(folder, state):
    write_json(state, os.path.join(folder, "state.json"))


def look_at_hosts(path):
    """Look at the hosts; write down what was found, or how it differs from the first look."""
    places = read_places(path)
    from concurrent.futures import ThreadPoolExecutor  # here alone, so that the rest starts at once

    with ThreadPoolExecutor(max(1, len(places))) as pool:
        found = dict(zip(places, pool.map(look_at, places.values()), strict=True))
    first = os.path.join(path, "reach.json")
    if not os.path.exists(first):
        write_json(found, first)
        return
    with open(first) as file:
        before = json.load(file)
    write_json(lost(before, found), os.path.join(path, "lost.json"))


def read_places(path):
    """The address of each host, by its name, as the ranks there have told them."""
    places = {}
    for name in os.listdir(path):
        if name.startswith("rank-") and name.endswith(".json"):
            with open(os.path.join(path, name)) as file:
                place = json.load(file)
            places[place["host"]] = place["address"]
    return places


def look_at(address):
    """Try to connect; returns what came of it."""
    try:
        socket.create_connection((address, PORT), TRY_S).close()
    except ConnectionRefusedError:
        return REFUSED
    except OSError as error:
        return CUT if error.errno in OF_NO_NETWORK else SILENT
    return OPEN


def lost(before, now):
    """``{host: what came of it now}`` of the hosts that answered before and do not any more.

    Where this host has no network itself, it is the one that is lost, if a rank was on it.
    """
    worse = {
        host: found
        for host, found in now.items()
        if (before.get(host) in (OPEN, REFUSED) and found in (SILENT, CUT))
        or (before.get(host) == OPEN and found == REFUSED)
    }
    here = os.uname().nodename
    if CUT in worse.values() and here in now:
        return {here: CUT}
    return worse


def write_json(value, path):
    place, name = os.path.split(path)
    draft = os.path.join(place, f".{name}.launch")
    with open(draft, "w") as file:
        json.dump(value, file)
    os.replace(draft, path)


if __name__ == "__main__":
    if sys.argv[1] == "--look":
        look_at_hosts(sys.argv[2])
        sys.exit()
    if sys.argv[1] == "--detached":
        if os.fork():
            os._exit(0)
        os.setsid()
    main(sys.argv[-1])

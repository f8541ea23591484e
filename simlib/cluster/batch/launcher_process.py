"""Starts a job's launcher, waits for its end, keeps its time limit, and cleans up after it.

It is a separate program, which outlives the notebook: ``python -I launcher_process.py [--detached]
FOLDER``. It imports nothing from simlib, so it starts at once. It reads the facts about launchers
that it needs from ``launch.json``.

To find out which hosts answer, it starts itself a second time on the machine of the launcher, as
``launcher_process.py --look FOLDER``. It does so when all ranks have joined, when nothing has moved
for a third of ``timeout_s``, and when the job goes wrong. It writes the first result into
``reach.json``, and compares later results with this one. Into ``lost.json`` it writes the hosts
that answered before and no longer answer. A host that never answered, for example behind a
firewall, is not named. A host answers if its ssh port accepts or refuses a connection. The kernel
of the host does this even if the machine is busy.
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
"""Seconds in which ranks must end when they are asked. After that, the launcher is killed."""
LINGER_S = 5.0
"""Seconds in which a launcher must end by itself after the ranks have ended. A launcher that waits
for a lost host would never end."""
LEAVE_S = 2.0
"""Seconds in which such a launcher must end after a signal. ``launch.json`` may allow more time for
both."""
SILENCE_S = 10.0
"""Rank 0's supervisor shows once a second that it is alive. On a busy machine, this sign may be
late by up to this many seconds."""
TIMEOUT_S = 120
"""The time, in seconds, that replaces ``timeout_s`` in a job without one. After a third of it, a
wait counts as long."""
REACH_S = 20.0
"""The most seconds that the check of the hosts may take."""
PORT = 22
TRY_S = 3.0
GREETING_S = 12.0
"""Seconds in which an ssh server must send its greeting. On a busy machine, the server starts
slowly."""
OPEN, REFUSED, SILENT, CUT = "open", "refused", "silent", "cut"
"""The possible results of an attempt to connect. ``cut`` means that this host itself has lost its
network."""
OF_NO_NETWORK = (errno.ENETUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL)


def main(folder):
    """Run the command in ``launch.json``. Write ``state.json`` before and after this."""
    plan = read_json(os.path.join(folder, "launch.json"))
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
    end_left(watch.started)
    if why == "deleted":  # and with it all that would be written down
        return
    end_attempt(folder)
    if launcher.returncode:
        hosts.look_again()
        hosts.look_by_name()
    hosts.await_look()
    trim_logs(folder, plan["log"])
    write_state(folder, {"state": "ended", "code": launcher.returncode, "why": why})


class Watch:
    """Waits until the launcher ends. Ends the launcher if it must end but does not do so by itself.

    Afterwards, ``started`` contains the launcher's children on this machine.
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
        """Wait for the launcher's end and return its cause.

        The causes are ``code`` (the launcher ended by itself), ``cancel``, ``limit``, ``hopeless``,
        ``silent`` (rank 0's host gives no sign), ``late`` (the ranks ended before the launcher) and
        ``deleted`` (somebody deleted the folder; the ranks notice this, too).
        """
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
                    if why != "deleted":
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
        """Return the reason to end the launcher now; ``code`` if there is no reason."""
        try:
            # NFS then looks again for what was not there
            os.close(os.open(self._folder, os.O_RDONLY))
            os.stat(os.path.join(self._folder, "launch.json"))
            said = self._said()
        except FileNotFoundError:
            return "deleted"
        except OSError as error:
            if error.errno != errno.ESTALE:  # of NFS, where another host has deleted it
                raise
            return "deleted"
        if any(map(os.path.exists, self._plan["cancelled_by"])):
            return "cancel"
        if now > self._limit:
            return "limit"
        if self._is_hopeless(said):
            return "hopeless"
        if self._ends_since is None and os.path.exists(os.path.join(self._folder, "end")):
            self._ends_since = now
            self._hosts.look_again()
        if self._ends_since is not None:
            return "late" if now > self._ends_since + self._linger_s else "code"
        self._hosts.look_first()
        self._hosts.look_while_waiting(self._thirds(now))
        return "silent" if self._is_silent(now) else "code"

    def _said(self):
        with open(os.path.join(self._folder, "launcher.err"), "rb") as file:
            return file.read(1 << 16)

    def _is_hopeless(self, said):
        """Whether the output says that a rank cannot start, or cannot write into the folder.

        The other ranks would wait for this rank, and some launchers would not end them.
        """
        if self._plan["unwritten"].encode() in said:
            return True
        has_begun = os.path.exists(os.path.join(self._folder, "rank-0.json"))
        return not has_begun and bool(self._hopeless.search(said))

    def _thirds(self, now):
        """Return how many thirds of ``timeout_s`` passed without progress. If there is a judge, it
        counts them."""
        try:
            counted = read_json(os.path.join(self._folder, "waiting.json"))["thirds"]
        except FileNotFoundError:
            counted = 0
        third_s = max((self._plan["timeout_s"] or TIMEOUT_S) / 3, SILENCE_S)
        return max(counted, int(self._silence_s(now) // third_s))

    def _is_silent(self, now):
        """Whether rank 0's supervisor has been silent for too long. It could not end the job
        then."""
        limit_s = self._plan["timeout_s"]
        return limit_s is not None and self._silence_s(now) > max(limit_s, SILENCE_S)

    def _silence_s(self, now):
        """Return for how many seconds rank 0's supervisor has been silent.

        The supervisor touches the file ``beat`` each second. Clocks of hosts may differ, so only
        changes of the file count, and not its time.
        """
        try:
            with open(os.path.join(self._folder, "beat"), "rb") as file:
                beat = os.fstat(file.fileno()).st_mtime_ns
        except FileNotFoundError:
            return 0
        if beat != self._beat[0]:
            self._beat = beat, now
        return now - self._beat[1]


class Hosts:
    """Finds out which hosts answer, by `look_at_hosts` on the machine where the launcher runs."""

    def __init__(self, folder, plan):
        self._folder = folder
        self._words = plan["reach"]
        self._places = [f"rank-{rank}.json" for rank in range(plan["world_size"])]
        self._names = plan["hosts"]
        self._looks = []
        self._thirds = 0
        self._is_last = False

    def look_first(self):
        """After all ranks have joined, find out which of their hosts can be reached at all."""
        if not self._words:
            return
        while self._places and os.path.exists(os.path.join(self._folder, self._places[-1])):
            self._places.pop()
        if not self._places and not self._looks and not self._are_one():
            self._look()

    def _are_one(self):
        """Whether all ranks are on one host. Then no rank can lose another one's host."""
        is_alone = read_json(os.path.join(self._folder, "rank-0.json"))["is_alone"]
        self._words = None if is_alone else self._words
        return is_alone

    def look_while_waiting(self, thirds):
        """Look each time that ``thirds`` changes, but never without a first look."""
        if thirds != self._thirds and self._looks and self._looks[-1].poll() is not None:
            self._thirds = thirds
            self._look()

    def look_again(self):
        """Find the hosts that no longer answer. Do this only once, and never without a first
        look."""
        if self._looks and not self._is_last:
            self._is_last = True
            self.await_look()
            self._look()

    def look_by_name(self):
        """Find mute hosts, if no rank has joined and the launcher names no host."""
        if self._looks or not self._words or not self._names:
            return
        with open(os.path.join(self._folder, "launcher.err")) as file:
            said = file.read(1 << 16)
        if not any(name in said for name in self._names):
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


def end_attempt(folder):
    """End the ranks of the last attempt. No other process does this if the attempt's program has
    died."""
    attempts = [name for name in os.listdir(folder) if name.startswith("attempt-")]
    if attempts:
        touch(os.path.join(folder, max(attempts, key=lambda name: int(name[8:]))), "end")


def started_by(leader):
    """``{pid: start}`` of all descendants of a process on this machine
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
    """Return the state, parent and start time of a process; None if the process has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[1]), int(fields[19])


def end_left(processes):
    """Kill those of these processes that still run, for example an ssh to a lost host."""
    for pid, start in processes.items():
        stat = stat_of(pid)
        if stat is not None and stat[2] == start:  # else another one has its number
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def trim_logs(folder, layout):
    """Free the unused space of logs whose supervisors were killed."""
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
    """Try to reach the hosts. Write down the result, or how it differs from the first result."""
    places = read_places(path)
    if not places:
        names = read_json(os.path.join(path, "launch.json"))["hosts"]
        mute = [host for host, is_mute in at_once(is_mute_at, names, names).items() if is_mute]
        write_json(mute, os.path.join(path, "mute.json"))
        return
    found = at_once(look_at, places, places.values())
    first = os.path.join(path, "reach.json")
    if not os.path.exists(first):
        write_json(found, first)
        return
    write_json(lost(read_json(first), found), os.path.join(path, "lost.json"))


def read_places(path):
    """Return ``{name of a host: its address}``, as the ranks on the hosts have recorded them."""
    places = {}
    for name in os.listdir(path):
        if name.startswith("rank-") and name.endswith(".json"):
            place = read_json(os.path.join(path, name))
            places[place["host"]] = place["address"]
    return places


def at_once(look, hosts, addresses):
    """``{host: result of a connection to its address}``."""
    from concurrent.futures import ThreadPoolExecutor  # here alone, so that the rest starts at once

    with ThreadPoolExecutor(max(1, len(hosts))) as pool:
        return dict(zip(hosts, pool.map(look, addresses), strict=True))


def look_at(address):
    """Try to connect to an address, and return the result."""
    try:
        socket.create_connection((address, PORT), TRY_S).close()
    except ConnectionRefusedError:
        return REFUSED
    except OSError as error:
        return CUT if error.errno in OF_NO_NETWORK else SILENT
    return OPEN


def is_mute_at(name):
    """Whether a host accepts a connection, but its ssh server sends no greeting."""
    try:
        with socket.create_connection((name, PORT), TRY_S) as there:
            there.settimeout(GREETING_S)
            try:
                return not there.recv(1)
            except TimeoutError:
                return True
    except OSError:  # of that ssh tells itself, and by whichever name
        return False


def lost(before, now):
    """``{host: new result}`` of hosts that answered before and no longer answer.

    If this host itself has no network, and a rank was on it, this host is the lost one.
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


def read_json(path):
    with open(path) as file:
        return json.load(file)


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

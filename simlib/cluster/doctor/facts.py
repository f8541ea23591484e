"""`gather` collects all facts that the checks judge, from all hosts at the same time.

A `Dialog` is one ssh to a host, where the probe runs. `run_together` runs the program `hello` under
mpiexec, with a time limit.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ...core.environment import ROOT
from ...core.model.errors import InvalidCallError, JobError
from ..batch.mpiexec import Mpiexec, mpi_of
from ..launchers import FORWARDED, mpi_named
from . import hello, probe

CONNECT_S = 5
"""Seconds in which a host must accept a connection."""
FIRST_ANSWER_S = 15
"""Seconds in which the probe must start on a host, even with a slow name server and a slow
login."""
ANSWER_S = 30

BOOT = "import sys; i = sys.stdin.buffer; exec(i.read(int(i.readline())))"
CHOOSE = (
    'for p in "$@"; do if command -v "$p" >/dev/null 2>&1; then exec "$p" -c "$BOOT"; fi; done; '
    "echo simlib-doctor-no-python >&2; exit 127"
)
NO_PYTHON = "simlib-doctor-no-python"


class NoAnswer(Exception):
    """The host has not answered. The error's text is the output that came instead."""


class Dialog:
    """Asks one host questions through one ssh that stays open. If the host is None, asks this
    machine without ssh.

    Raises
    ------
    NoAnswer
        The host cannot be reached. The text contains ssh's output.
    """

    def __init__(self, host=None):
        self.host = host
        try:
            self._process = subprocess.Popen(
                command_of(host), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
        except OSError as error:  # there is no ssh here
            raise NoAnswer(str(error)) from None
        self._lines, self._errors = queue.Queue(), []
        self._readers = [
            threading.Thread(target=self._read_answers, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        program = Path(probe.__file__).read_bytes()
        try:
            self._write(b"%d\n" % len(program) + program)
            self.ask("clock", limit_s=FIRST_ANSWER_S)
        except BaseException:
            self.close()
            raise

    def ask(self, question, limit_s=ANSWER_S, **values):
        """Ask the probe a question, and return its answer."""
        self._write(json.dumps([question, values]).encode() + b"\n")
        try:
            line = self._lines.get(timeout=limit_s)
        except queue.Empty:
            raise NoAnswer(f"no answer to {question!r} for {limit_s} s") from None
        if line is None:
            self._readers[1].join(1)
            said = b"".join(self._errors).decode("utf-8", "replace").strip()
            raise NoAnswer(said or "the connection ended")
        try:
            return json.loads(line[len(probe.MARK) :])
        except ValueError:
            raise NoAnswer("the connection ended in the middle of an answer") from None

    def close(self):
        """End the dialog, and the process that carries it."""
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(1)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _write(self, content):
        with suppress(BrokenPipeError):  # then no answer comes, which says why
            self._process.stdin.write(content)
            self._process.stdin.flush()

    def _read_answers(self):
        for line in self._process.stdout:
            text = line.decode("utf-8", "replace")
            if text.startswith(probe.MARK):
                self._lines.put(text)
        self._lines.put(None)

    def _read_errors(self):
        for line in self._process.stderr:
            self._errors.append(line)


def command_of(host):
    """Return the command that runs the probe. It uses the path of this Python if the host has one
    there, else the host's own Python.

    The host gets the variables that mpiexec would pass on.
    """
    if host is None:
        return [sys.executable, "-c", BOOT]
    taken = [f"{name}={os.environ[name]}" for name in FORWARDED if name in os.environ]
    words = ["env", f"BOOT={BOOT}", *taken, "/bin/sh", "-c", CHOOSE, "sh"]
    words += [sys.executable, "python3", "/usr/bin/python3"]
    options = ["-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}"]
    return ["ssh", *options, host, shlex.join(words)]


LIMIT_S = 20
"""After this many seconds, the program under mpiexec counts as hanging. Normally it takes two
seconds."""
LEAVE_S = 3


def run_together(to, hosts):
    """Run `hello` with one rank on each host, or with two ranks on a single host.

    Parameters
    ----------
    to : simlib.Mpiexec
    hosts : list of str
        The hosts of ``to``; empty for this machine.

    Returns
    -------
    dict
        ``hosts``; ``wanted``, the number of ranks; ``steps``, the steps that ranks have reported;
        ``said``, the output of launcher and Python; ``code``, the exit code, or None if the doctor
        had to end the launcher.
    """
    wanted = max(2, len(hosts))
    program = [sys.executable, "-c", Path(hello.__file__).read_text(), str(LIMIT_S + LEAVE_S)]
    answer = {"hosts": hosts, "wanted": wanted, "steps": [], "said": "", "code": None}
    try:
        command = to.command(wanted, program)
        # The folder need not be there on the hosts: "/" is.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True, cwd="/", env={**os.environ, **to.environ()},
        )  # fmt: skip
    except (JobError, OSError) as error:
        return {**answer, "said": str(error), "code": 127}
    try:
        out, err = process.communicate(timeout=LIMIT_S)
        answer["code"] = process.returncode
    except subprocess.TimeoutExpired:
        out, err = _end(process)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    lines = out.decode("utf-8", "replace").splitlines()
    others = []
    for line in lines:
        try:
            answer["steps"].append(dict(json.loads(line)))
        except (ValueError, TypeError):
            others.append(line)
    answer["said"] = "\n".join([err.decode("utf-8", "replace"), *others]).strip()
    return answer


def _end(process):
    """End a launcher that hangs. First give the launcher a chance to end its ranks."""
    process.terminate()
    try:
        return process.communicate(timeout=LEAVE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()


CLOCK_ROUNDS = 5  # the quickest answer tells most
FILE_S = 3  # a network filesystem may show a new file late


@dataclass
class Facts:
    """The facts that the doctor found.

    Attributes
    ----------
    hosts : list of str
        The named hosts; empty for this machine alone.
    here : dict
        The probe's facts of this machine.
    of : dict of str to dict
        The probe's facts of each host that gave an answer.
    refused : dict of str to str
        For each host that gave no answer, the output of ssh or of the host.
    clocks : dict of str to tuple
        For each host, how many seconds its clock is ahead of this machine's clock, and the error of
        this number.
    written : set of str
        The hosts whose files this machine sees in the shared folder.
    unreached : dict of str to dict
        For each host, the hosts that it could not reach, with the system's error messages.
    mpiexec, mpi : str or None
        The path of mpiexec, and the name of its MPI.
    mpi_wrong : str or None
        Why there is no usable mpiexec.
    together : dict or None
        The outcome of a program under mpiexec (see `together`), with its hosts.
    """

    hosts: list
    folder: str = ""
    here: dict = field(default_factory=dict)
    of: dict = field(default_factory=dict)
    refused: dict = field(default_factory=dict)
    clocks: dict = field(default_factory=dict)
    written: set = field(default_factory=set)
    unreached: dict = field(default_factory=dict)
    mpiexec: str | None = None
    mpi: str | None = None
    mpi_wrong: str | None = None
    together: dict | None = None

    def on(self, host):
        """Return the facts about a host, or about this machine if no hosts were named."""
        return self.of[host] if self.hosts else self.here


def gather(hosts, launcher, folder, can_run, show):
    """Collect all facts.

    Parameters
    ----------
    hosts : list of str
        An empty list means this machine alone.
    launcher : str, list of str or None
        As for `simlib.Mpiexec`.
    folder : str
        The folder that the hosts should share.
    can_run : callable
        A function from facts to the hosts on which to try a program under mpiexec, or None.
    show : callable
        A function that shows words in a terminal, as of `bar`.

    Returns
    -------
    Facts
    """
    facts = Facts(hosts, os.path.abspath(folder))
    _find_mpiexec(facts, launcher)
    place = tempfile.mkdtemp(prefix=".simlib-doctor-", dir=facts.folder)
    os.chmod(place, 0o1777)  # another account is a finding of its own
    token = secrets.token_hex(8)
    Path(place, "question").write_text(token)
    question = {
        "root": str(ROOT),
        "mpiexec": facts.mpiexec,
        "proxy": mpi_named(facts.mpi).proxy if facts.mpi else None,
        "folder": place,
        "token": token,
        "names": hosts,
    }
    dialogs = {}
    try:
        with ThreadPoolExecutor(len(hosts) + 1) as pool:
            list(pool.map(lambda host: _ask(facts, dialogs, host, question), [None, *hosts]))
            _ask_connections(facts, dialogs, pool)
    finally:
        for dialog in dialogs.values():
            dialog.close()
        _look_for_files(facts, Path(place), token)
        shutil.rmtree(place, ignore_errors=True)
    run_on = can_run(facts)
    if run_on is not None:
        on_one = 2 if len(run_on) == 1 else 1
        to = Mpiexec(hosts=run_on or None, ranks_per_node=on_one, launcher=launcher)
        show("a small program runs under mpiexec", 0)
        facts.together = run_together(to, run_on)
    return facts


def _find_mpiexec(facts, launcher):
    try:
        words = Mpiexec(launcher=launcher).words()
        facts.mpiexec = shutil.which(words[0])
        facts.mpi = mpi_of(words).name
    except (JobError, OSError) as error:
        facts.mpi_wrong = str(error)


def _ask(facts, dialogs, host, question):
    """Ask one host for its facts and its clock. If the host is None, ask this machine."""
    question = {**question, "reply": f"answer-{facts.hosts.index(host) if host else 'here'}"}
    try:
        dialog = dialogs[host] = Dialog(host)
        if host is None:
            facts.here = dialog.ask("facts", **question)
            return
        facts.of[host] = dialog.ask("facts", **question)
        facts.clocks[host] = min((_clock(dialog) for _ in range(CLOCK_ROUNDS)), key=lambda c: c[1])
    except NoAnswer as error:
        if host is None:
            raise InvalidCallError(f"the doctor could not check this machine: {error}") from None
        facts.of.pop(host, None)
        facts.refused[host] = str(error)


def _clock(dialog):
    """Return ``(offset, error)`` of a host's clock. Use one question and its answer, as NTP
    does."""
    sent_s, begin_s = time.time(), time.monotonic()
    theirs_s = dialog.ask("clock")
    trip_s = time.monotonic() - begin_s
    return theirs_s - (sent_s + trip_s / 2), trip_s / 2


def _ask_connections(facts, dialogs, pool):
    """Let every host, and this machine, try a free port of each other host."""
    there = {host: dialog for host, dialog in dialogs.items() if host is None or host in facts.of}
    if len(there) < 2:
        return
    try:
        ports = {host: dialog.ask("listen") for host, dialog in there.items()}
    except NoAnswer:
        return

    def attempt(host):
        places = []
        for other in there:
            address = address_of(facts, other, seen_by=host)
            if other != host and address:
                places.append([other or "", address, ports[other]])
        try:
            answers = there[host].ask("connect", places=places)
        except NoAnswer:
            return
        facts.unreached[host] = {name: words for name, words in answers.items() if words}

    list(pool.map(attempt, there))


def address_of(facts, host, seen_by):
    """Return the address by which another host reaches a host. None means this machine."""
    if host is None:
        return facts.of[seen_by]["address"][2] if seen_by in facts.of else None
    return facts.of[host]["address"][0]


def _look_for_files(facts, place, token):
    """Find the hosts whose files are here. Wait a little for files that should be here."""
    wanted = {host for host, answers in facts.of.items() if answers["file"] == [True, None]}
    until_s = time.monotonic() + FILE_S
    while True:
        for host in wanted - facts.written:
            path = place / f"answer-{facts.hosts.index(host)}"
            if path.exists() and path.read_text() == token:
                facts.written.add(host)
        if facts.written == wanted or time.monotonic() > until_s:
            return
        time.sleep(0.05)

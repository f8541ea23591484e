"""`Ssh` hands a job to a cluster that this machine reaches only by ssh. `Line` is the connection.

simlib keeps one ssh open for each host. If the connection breaks, simlib makes a new one. A message
is a line of JSON, which says how many bytes follow. An answer has the same form. While the remote
side works on the answer, it sends empty lines. simlib ignores the output of the remote start files,
which comes before the first word of `remote_agent`.
"""

from __future__ import annotations

import functools
import io
import json
import os
import pickle
import re
import secrets
import select
import shlex
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from ...core.model.errors import InvalidCallError, JobError
from ...core.record.safe_pickle import loads_tree
from .batch_system import Queued
from .failures import cause_in
from .folder import JOBS, JobFolder
from .mpiexec import Mpiexec, words_of

OPTIONS = (
    "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10",
    "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3",
)  # fmt: skip
HELLO = b"simlib is here: "
START_S = 90.0
"""Seconds in which the remote side must load torch, even from a slow filesystem."""
LATER_S = 2.0
"""Seconds for which a request waits while simlib makes the connection again."""
ANSWER_S = 20.0
"""simlib gives up the connection if no byte of a message or an answer moves for this many
seconds."""
RETRY_S = 2.0
CHUNK = 1 << 16
NO_PYTHON = r"No such file or directory|not found|Permission denied$|cannot execute"
NO_SIMLIB = r"No module named '?(simlib|torch)|No module named \S*remote|unknown option -P"


class UnreachableError(JobError):
    """simlib cannot reach the remote side. The text of the error says why."""

    was_sent = False
    """Whether the whole message was sent. If so, the remote side may already have carried it
    out."""


class Line:
    """Asks the remote side, one message at a time.

    Parameters
    ----------
    host : str
        The host, in the form that ssh takes.
    ssh, python : sequence of str
        The commands to use as ssh on this machine, and as Python on the remote host.
    """

    def __init__(self, host: str, ssh: Sequence[str], python: Sequence[str]) -> None:
        self.host = host
        self._ssh = list(ssh)
        self._python = list(python)
        self._lock = threading.Lock()
        self._process: Any = None
        self._errors: Any = None
        self._is_ready = False
        self._was_ready = False
        self._began = 0.0
        self._failed: tuple[float, str] = (-RETRY_S, "")
        self._buffer = bytearray()

    def ask(
        self, message: dict, body: bytes = b"", wait_s: float | None = None
    ) -> tuple[dict, bytes]:
        """Send a message; returns the answer.

        Parameters
        ----------
        message : dict
        body : bytes
        wait_s : float, optional
            Seconds to wait for the connection. The default is short if there was a connection
            before.

        Raises
        ------
        UnreachableError
            simlib gets no connection, or the connection has broken. ``was_sent`` says whether the
            message may have arrived.
        JobError
            The remote side refuses the message.
        """
        with self._lock:
            self._connect(LATER_S if self._was_ready and wait_s is None else wait_s or START_S)
            try:
                head = json.dumps({**message, "nbytes": len(body)}).encode() + b"\n"
                self._send(head + body)
                answer, content = self._answer()
            except BaseException:
                self._drop()
                raise
        if "error" in answer:
            raise JobError(answer["error"])
        return answer, content

    def _connect(self, wait_s: float) -> None:
        if self._process is not None and self._is_ready and self._process.poll() is None:
            return
        if self._process is None or self._is_ready:
            self._drop()
            failed_at, words = self._failed
            if time.monotonic() < failed_at + RETRY_S:
                raise UnreachableError(words)
            self._start()
        try:
            while not self._until_newline(wait_s).startswith(HELLO):
                pass
        except TimeoutError:
            if time.monotonic() > self._began + START_S:
                self._drop()
            raise UnreachableError(f"{self.host} has not answered yet") from None
        except BaseException:
            self._drop()
            raise
        self._is_ready = self._was_ready = True

    def _start(self) -> None:
        program = shlex.join(["-P", "-m", "simlib.cluster.batch.remote_agent"])
        command = f"exec {' '.join(map(quoted, self._python))} {program}"
        self._errors = tempfile.TemporaryFile()
        self._buffer.clear()
        self._began = time.monotonic()
        try:
            self._process = subprocess.Popen(
                [*self._ssh, *OPTIONS, self.host, command], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True, bufsize=0,
            )  # fmt: skip
        except OSError as error:
            raise UnreachableError(f"there is no ssh here: {error}") from None
        os.set_blocking(self._process.stdin.fileno(), False)

    def _drop(self) -> None:
        """End the connection, and keep ssh's last output for `_lost`."""
        process, self._process, self._is_ready = self._process, None, False
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                pipe.close()
            process.terminate()
            threading.Thread(target=process.wait, daemon=True).start()

    def _send(self, content: bytes) -> None:
        left = memoryview(content)
        pipe = self._process.stdin.fileno()
        while left:
            if not select.select([], [pipe], [], ANSWER_S)[1]:
                raise self._lost(f"{self.host} no longer answers")
            try:
                left = left[os.write(pipe, left[:CHUNK]) :]
            except BrokenPipeError:
                raise self._lost() from None

    def _answer(self) -> tuple[dict, bytes]:
        try:
            while not (head := self._until_newline(ANSWER_S)):  # it is at work
                pass
            answer = json.loads(head)
            return answer, self._exactly(answer["nbytes"])
        except UnreachableError as error:
            error.was_sent = True
            raise

    def _until_newline(self, wait_s: float) -> bytes:
        while b"\n" not in self._buffer:
            self._read_on(wait_s)
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer[:] = rest
        return line

    def _exactly(self, length: int) -> bytes:
        while len(self._buffer) < length:
            self._read_on(ANSWER_S)
        content = bytes(self._buffer[:length])
        del self._buffer[:length]
        return content

    def _read_on(self, wait_s: float) -> None:
        pipe = self._process.stdout.fileno()
        if not select.select([pipe], [], [], wait_s)[0]:
            if self._is_ready:
                raise self._lost(f"{self.host} no longer answers")
            raise TimeoutError
        content = os.read(pipe, CHUNK)
        if not content:
            raise self._lost()
        self._buffer += content

    def _lost(self, words: str | None = None) -> UnreachableError:
        """Return the error for a connection that has broken."""
        words = words or self._why()
        self._failed = time.monotonic(), words
        return UnreachableError(words)

    def _why(self) -> str:
        """Return in words why ssh has ended."""
        with_errors = self._process
        try:
            with_errors.wait(1)
        except subprocess.TimeoutExpired:
            pass
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace").strip()
        python = shlex.join(self._python)
        sentence, line = cause_in(said)
        if with_errors.returncode == 255:  # ssh itself
            return (
                sentence
                or f"the connection to {self.host} was lost ({line or 'ssh gave no reason'})"
            )
        if re.search(NO_SIMLIB, said):
            return (
                f"{python} on {self.host} cannot load this simlib ({said.splitlines()[-1]}): "
                "install the same environment there, and name its Python with python=..."
            )
        if re.search(NO_PYTHON, said, re.MULTILINE):
            return (
                f"{self.host} has no Python {python}: name the Python of the course's environment "
                "on that host with python=..."
            )
        last = said.splitlines()[-1] if said else f"exit code {with_errors.returncode}"
        return f"the remote side on {self.host} has ended ({last})"


def quoted(word: str) -> str:
    """Return a word, quoted for the remote shell. The shell still treats ``~/`` as the home
    folder."""
    return f"~/{shlex.quote(word[2:])}" if word.startswith("~/") else shlex.quote(word)


@functools.cache
def line_to(host: str, ssh: tuple[str, ...], python: tuple[str, ...]) -> Line:
    """Return the connection that all jobs of this kernel share."""
    return Line(host, ssh, python)


LEFT_OUT = {".git", ".venv", ".jupyter", "__pycache__", ".ipynb_checkpoints", JOBS}
"""Folders that `sync` does not copy."""
SYNC_BYTES = 200 << 20
HAND_OVER_S = 60.0
"""Seconds in which simlib tries to hand over a job if the connection breaks."""


@dataclass(frozen=True)
class Ssh:
    """Run a job on another host. simlib reaches this host by ssh. The host starts the job with
    ``to``.

    Attributes
    ----------
    host : str
        The host, in the form that ``ssh HOST`` takes: ``"login"`` or ``"user@login"``. ssh uses
        your ``~/.ssh/config``, and must work without a password.
    to : Mpiexec, Slurm or Pbs
        The launcher or queue with which that host starts the job. Its names of hosts and its
        ``launcher`` must be valid on that host.
    python : str or list of str, optional
        The Python of the course's environment on that host. The default is the path of this
        Python. A list is a command: ``["env", "X=1", "~/course/.venv/bin/python"]``.
    folder : str
        The folder on that host in which simlib creates job folders. All hosts of the cluster must
        share this folder.
    sync : sequence of str
        The files and folders of this working folder that the ranks need: ``["model.py",
        "package"]`` or ``["."]``. Each job gets its own copy, and can import from it. simlib always
        copies a submitted script. Ranks run in the copy, or in the home folder if simlib copied
        nothing. To choose another folder on that host, set ``working_dir`` of ``to``.
    ssh : str or list of str
        The command to use as ssh: ``"ssh -p 2222"``.
    """

    host: str
    to: Mpiexec | Queued = field(default_factory=Mpiexec)
    python: str | Sequence[str | Path] | None = None
    folder: str = f"~/{JOBS}"
    sync: Sequence[str] = ()
    ssh: str | Sequence[str | Path] = "ssh"

    def __post_init__(self) -> None:
        if not self.host or self.host.startswith("-") or set(self.host) & set(" ,"):
            raise InvalidCallError(f"{self.host!r} is not a host name that ssh can use")
        if not isinstance(self.to, Mpiexec | Queued):
            raise InvalidCallError(
                f"to={self.to!r} must say how {self.host} runs the job: "
                'simlib.Ssh("login", simlib.Slurm(nodes=2))'
            )
        if isinstance(self.sync, str):
            raise InvalidCallError(f"sync={self.sync!r} must be a list: sync=[{self.sync!r}]")

    @property
    def place(self) -> str:
        """A text that says where the ranks run."""
        where = self.to.place
        return f"{self.host}" if where == "this machine" else f"{where}, by {self.host}"

    @property
    def hosts(self) -> Sequence[str] | None:
        """The hosts, if ``to`` names them."""
        return getattr(self.to, "hosts", None)

    uses_mpi = property(attrgetter("to.uses_mpi"), doc="Whether ranks ask MPI who they are.")
    time_limit = property(attrgetter("to.time_limit"), doc="In seconds, for the ranks.")
    gpus_per_rank = property(attrgetter("to.gpus_per_rank"), doc="See `Resources`.")
    threads = property(attrgetter("to.threads"), doc="See `Resources.threads`.")

    def cwd(self, here: str) -> str:
        """This working folder. The remote side finds the folder of the ranks."""
        return here

    def check(self, world_size: int) -> None:
        """Refuse more ranks than the hosts have room for."""
        self.to.check(world_size)
        for path in self.sync:
            self._place_of(path)

    def start(self, folder: JobFolder) -> None:
        """Hand the job over.

        Raises
        ------
        JobError
            simlib cannot reach the host, or the host refuses the job.
        """
        name = f"{folder.path.name}-{secrets.token_hex(3)}"
        there = f"{self.folder}/{name}"
        ssh = words_of(self.ssh)
        python = [self.python] if isinstance(self.python, str) else self.python
        python = [str(word) for word in python or [sys.executable]]
        remote = {"host": self.host, "ssh": ssh, "python": python, "folder": there}
        folder.write_json(remote, "remote.json")
        request = folder.read("request.pkl") or b""
        script = self._script_in(request)
        message = {
            "do": "submit",
            "script": script and script[1],
            "folder": there,
            "here": os.getcwd(),
            "about": folder.read_json("job.json"),
        }
        parts = {
            "to": pickle.dumps(self.to),
            "request": request,
            "restarts": folder.read("restarts.pkl"),
            "work": self._packed(script),
        }
        body = pickle.dumps(parts)
        line = line_to(self.host, tuple(ssh), tuple(python))
        line.ask({"do": "hello"}, wait_s=START_S)  # what is wrong from the start is told at once
        why = self._hand_over(line, message, body)
        if why is None:
            folder.mark("submitted")
        else:
            warnings.warn(
                f"simlib does not know yet whether {self.host} has accepted {folder.path.name} "
                f"({why}): ask for the job's status later",
                stacklevel=3,
            )

    def _hand_over(self, line: Line, message: dict, body: bytes) -> str | None:
        """Send a job. Returns None, or the reason why simlib does not know whether the job has
        arrived."""
        deadline = time.monotonic() + HAND_OVER_S
        was_sent = False
        while True:
            try:
                answer, _ = line.ask(message, body)
                return None if answer["is_known"] else "the host is still busy with the job"
            except UnreachableError as error:  # the same name twice is one job
                was_sent = was_sent or error.was_sent
                if time.monotonic() > deadline:
                    if was_sent:
                        return str(error)
                    raise
                time.sleep(0.5)

    def _script_in(self, request: bytes) -> tuple[str, str] | None:
        """Return the path of a submitted script, and its path below the remote working folder."""
        asked = loads_tree(request)
        if not asked["is_script"]:
            return None
        (path,) = pickle.loads(asked["payload"])[1]
        within = os.path.relpath(path)
        return path, os.path.basename(path) if within.startswith(os.pardir) else within

    def _place_of(self, path: str) -> str:
        """Return the same path, relative to this working folder."""
        place = os.path.relpath(os.path.abspath(path))
        if not os.path.exists(path):
            raise InvalidCallError(f"sync={list(self.sync)}: there is no {path!r} here")
        if place.split(os.sep)[0] == os.pardir:
            raise InvalidCallError(
                f"sync={list(self.sync)}: {path!r} is not in this working folder, {os.getcwd()}: "
                "go to a folder that contains everything to copy, with os.chdir"
            )
        return place

    def _packed(self, script: tuple[str, str] | None) -> bytes | None:
        """Return a tar file with the script and the files of ``sync``; None if there are no such
        files."""
        if not self.sync and script is None:
            return None
        content = io.BytesIO()
        taken = 0

        def kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
            nonlocal taken
            if os.path.basename(entry.name) in LEFT_OUT:
                return None
            taken += entry.size
            if taken > SYNC_BYTES:
                raise JobError(
                    f"sync={list(self.sync)} contains more than {SYNC_BYTES >> 20} MB: list only "
                    f"what the ranks import, and copy data to {self.host} once, by hand"
                )
            return entry

        with tarfile.open(fileobj=content, mode="w:gz", compresslevel=1) as file:
            for path, place in [(path, self._place_of(path)) for path in self.sync]:
                file.add(path, place, filter=kept)
            if script is not None:
                file.add(*script)
        return content.getvalue()

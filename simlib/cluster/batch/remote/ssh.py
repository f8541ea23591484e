"""`Ssh`: a job handed to a cluster that this machine reaches by ssh alone."""

from __future__ import annotations

import io
import os
import pickle
import secrets
import sys
import tarfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ....core.model.errors import InvalidCallError, JobError
from ....core.record.safe_pickle import loads_tree
from ...launch.limits import JOBS
from ..folder import JobFolder
from ..mpiexec import Mpiexec
from ..resources import words_of
from ..slurm import Queued
from .connection import START_S, Line, UnreachableError, line_to

LEFT_OUT = {".git", ".venv", ".jupyter", "__pycache__", ".ipynb_checkpoints", JOBS}
"""Folders that `sync` does not take along."""
SYNC_BYTES = 200 << 20
PATIENT_S = 60.0
"""How long handing a job over may take when the connection breaks meanwhile."""


@dataclass(frozen=True)
class Ssh:
    """Where a job runs: as `to` says, but seen from another host, which ssh reaches.

    Attributes
    ----------
    host : str
        As ``ssh HOST`` takes it, without a password: ``"login"``, ``"user@login"``; your
        ``~/.ssh/config`` holds.
    to : Mpiexec, Slurm or Pbs
        What that host is to do with the job; the hosts' names, and ``launcher``, are as there.
    python : str or list of str, optional
        The Python of the course's environment there; else the path of this one. As a list: a
        command, ``["env", "X=1", "~/course/.venv/bin/python"]``.
    folder : str
        Where job folders are made there, on a filesystem that its hosts share.
    sync : sequence of str
        What the ranks need of this working folder: ``["model.py", "package"]``, ``["."]``. Each job
        gets a copy of its own, on the import path. A script that is submitted is there anyway.
        Ranks run in the copy, else in the home; ``working_dir`` of `to` names another folder there.
    ssh : str or list of str
        The command that stands for ssh: ``"ssh -p 2222"``.
    """

    host: str
    to: Mpiexec | Queued = field(default_factory=Mpiexec)
    python: str | Sequence[str | Path] | None = None
    folder: str = f"~/{JOBS}"
    sync: Sequence[str] = ()
    ssh: str | Sequence[str | Path] = "ssh"

    def __post_init__(self) -> None:
        if not self.host or self.host.startswith("-") or set(self.host) & set(" ,"):
            raise InvalidCallError(f"{self.host!r} is no host that ssh could reach")
        if not isinstance(self.to, Mpiexec | Queued):
            raise InvalidCallError(
                f"to={self.to!r} must say what {self.host} does with the job: "
                'simlib.Ssh("login", simlib.Slurm(nodes=2))'
            )
        if isinstance(self.sync, str):
            raise InvalidCallError(f"sync={self.sync!r} must be a list: sync=[{self.sync!r}]")

    @property
    def place(self) -> str:
        """Where the ranks run, in words."""
        where = self.to.place
        return f"{self.host}" if where == "this machine" else f"{where}, by {self.host}"

    @property
    def hosts(self) -> Sequence[str] | None:
        """The hosts, where they are named."""
        return getattr(self.to, "hosts", None)

    @property
    def uses_mpi(self) -> bool:
        """Whether ranks ask MPI who they are."""
        return self.to.uses_mpi

    @property
    def time_limit(self) -> float:
        """In seconds, for the ranks."""
        return self.to.time_limit

    @property
    def gpus_per_rank(self) -> int | None:
        """See `Resources`."""
        return self.to.gpus_per_rank

    def threads(self) -> int:
        """See `Resources.threads`."""
        return self.to.threads()

    def cwd(self, here: str) -> str:
        """This one: that of the ranks, the far side finds."""
        return here

    def check(self, world_size: int) -> None:
        """Refuse more ranks than there is room for."""
        self.to.check(world_size)
        for path in self.sync:
            self._place_of(path)

    def command(self, world_size: int, program: list[str]) -> list[str]:
        """Nothing: which launcher there is, the far side knows."""
        return []

    def before_launcher(self) -> list[str]:
        """Nothing, for the same reason."""
        return []

    def program(self) -> list[str]:
        """Nothing, for the same reason."""
        return []

    def write_start(self, folder: JobFolder) -> Path:
        """Nothing is written: the far side does."""
        return folder.file("start.py")

    def environ(self) -> dict[str, str]:
        """Nothing, for the same reason."""
        return {}

    def start(self, folder: JobFolder) -> None:
        """Hand the job over.

        Raises
        ------
        JobError
            The host cannot be reached, or it refuses the job.
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
                f"it is not known yet whether {self.host} has taken {folder.path.name} ({why}): "
                "ask for its status later",
                stacklevel=3,
            )

    def _hand_over(self, line: Line, message: dict, body: bytes) -> str | None:
        """Send a job; None, or why it is not known whether it has arrived."""
        deadline = time.monotonic() + PATIENT_S
        was_sent = False
        while True:
            try:
                answer, _ = line.ask(message, body)
                return None if answer["is_known"] else "it is still at it"
            except UnreachableError as error:  # the same name twice is one job
                was_sent = was_sent or error.was_sent
                if time.monotonic() > deadline:
                    if was_sent:
                        return str(error)
                    raise
                time.sleep(0.5)

    def _script_in(self, request: bytes) -> tuple[str, str] | None:
        """The path of a whole script, and the one it has below the working folder there."""
        asked = loads_tree(request)
        if not asked["is_script"]:
            return None
        (path,) = pickle.loads(asked["payload"])[1]
        within = os.path.relpath(path)
        return path, os.path.basename(path) if within.startswith(os.pardir) else within

    def _place_of(self, path: str) -> str:
        """The same as a path below this working folder."""
        place = os.path.relpath(os.path.abspath(path))
        if not os.path.exists(path):
            raise InvalidCallError(f"sync={list(self.sync)}: there is no {path!r} here")
        if place.split(os.sep)[0] == os.pardir:
            raise InvalidCallError(
                f"sync={list(self.sync)}: {path!r} is not in this working folder, {os.getcwd()}: "
                "os.chdir to a folder that holds all that is to travel"
            )
        return place

    def _packed(self, script: tuple[str, str] | None) -> bytes | None:
        """The script and what travels of the working folder, as a tar file; None: nothing does."""
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
                    f"sync={list(self.sync)} comes to more than {SYNC_BYTES >> 20} MB: name what "
                    f"the ranks import; data is better copied to {self.host} once, by hand"
                )
            return entry

        with tarfile.open(fileobj=content, mode="w:gz", compresslevel=1) as file:
            for path, place in [(path, self._place_of(path)) for path in self.sync]:
                file.add(path, place, filter=kept)
            if script is not None:
                file.add(*script)
        return content.getvalue()

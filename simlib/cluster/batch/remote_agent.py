"""The program that answers on the remote side. ssh starts it by ``python -m`` and its name.

It submits jobs on the remote side as `submit` does on this side, adapts facts that depend on the
place, and reads the folders of jobs. It keeps no state: jobs continue without it, and a new agent
knows as much as the old one.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import select
import sys
import tarfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from ...core.environment import ROOT
from ...core.model.errors import JobError, SimlibError
from ...core.record.safe_pickle import dumps_tree, loads_tree
from .folder import JobFolder, TakenError, new_folder
from .job import Job
from .mpiexec import check_versions, versions
from .remote_state import news
from .ssh import HELLO
from .state import JobState
from .submission import noting_refusal, prepare

IDLE_S = 600.0
"""The agent ends after this many seconds without a message. The next message starts a new agent."""
TWIN_S = 60.0
"""If the connection broke, another agent may still work on the same job. It may take this many
seconds."""
BEAT_S = 5.0
"""Seconds between two empty lines. These lines show that the agent still prepares an answer."""
WORK = "work"

Answer = tuple[dict, bytes]


class Far:
    """Answers messages. For each message, the method of the same name gives the answer."""

    def __init__(self) -> None:
        self._states: dict[Path, JobState] = {}

    def hello(self, message: dict, body: bytes) -> Answer:
        """Return an answer that shows that this side is alive."""
        return {}, b""

    def submit(self, message: dict, body: bytes) -> Answer:
        """Make a job's folder here and start the job. A job that already exists stays as it is.

        ``is_known`` is False if another agent is still about to start the job.
        """
        check_versions(message["about"]["versions"])
        path = _path(message["folder"])
        while True:
            try:
                with new_folder(path.parent, path.name, is_exact=True) as folder:
                    with noting_refusal(folder):
                        _submit(folder, message, pickle.loads(body))
                with suppress(OSError):  # there is no room, and the job has begun
                    folder.mark("submitted")
                return {"is_known": True}, b""
            except TakenError:
                is_known = _await_twin(JobFolder(path))
            if is_known is not None:
                return {"is_known": is_known}, b""

    def look(self, message: dict, body: bytes) -> Answer:
        """Return the state of a job, and the new parts of its files."""
        path, here = _path(message["folder"]), message["here"]
        about = JobFolder(path).read_json("job.json")
        if about is None:  # not there yet, refused before it had one, or deleted
            state = JobFolder(path).read_json("state.json")
            files, content = news(path, here, True) if state else ([], b"")
            return {"state": state, "files": files}, content
        if path not in self._states:
            self._states[path] = JobState(JobFolder(path), about["submitted"])
        known = self._states[path]
        state, queue = known.now(), known.queue
        said = {"state": queue.state(), "words": queue.words(), "reason": queue.reason()}
        files, content = news(path, here, state["state"] == "ended")
        return {"state": state, "queue": said if said["state"] else None, "files": files}, content

    def cancel(self, message: dict, body: bytes) -> Answer:
        """End a job. If the job has not arrived here yet (not ``is_known``), it will not begin."""
        path = _path(message["folder"])
        folder = JobFolder(path)
        if message["is_known"] or folder.has("job.json"):
            Job(path).cancel()
            return {}, b""
        with suppress(TakenError), new_folder(path.parent, path.name, is_exact=True):
            pass
        folder.mark("cancel")
        folder.write_json({"state": "ended", "code": None, "why": "cancel"}, "state.json")
        return {}, b""


def _path(name: str) -> Path:
    """Return a folder of this account. A relative path begins at the account's home."""
    return Path.home() / Path(name).expanduser()


def _await_twin(folder: JobFolder) -> bool | None:
    """Wait and return whether another agent has submitted the job; None if that agent has removed
    it again."""
    deadline = time.monotonic() + TWIN_S
    while not folder.has("submitted"):
        if folder.has("refused"):
            raise JobError(folder.text("refused"))
        _check_is_wanted(folder)
        if not folder.path.exists():
            return None
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _check_is_wanted(folder: JobFolder) -> None:
    if folder.has("cancel"):
        raise JobError(f"{folder.path.name} was cancelled")


def _submit(folder: JobFolder, message: dict, parts: dict[str, Any]) -> None:
    to = pickle.loads(parts["to"])
    about = message["about"]
    work = folder.path / WORK
    if parts["work"] is not None:
        with tarfile.open(fileobj=io.BytesIO(parts["work"])) as file:
            file.extractall(work, filter="data")
    about |= {
        "cwd": to.cwd(str(work if work.is_dir() else Path.home())),
        "root": str(ROOT),
        "versions": versions(),
        "submitted": time.time(),
    }
    command = to.command(about["world_size"], to.program())
    request = loads_tree(parts["request"])
    request["path"] = [*_moved(request["path"], message["here"], work), *sys.path]
    if request["is_script"]:
        function, _, kwargs = pickle.loads(request["payload"])
        there = str(work / message["script"])
        request["payload"] = pickle.dumps((function, (there,), kwargs))
        request["argv"][0] = there
    packed = dumps_tree(request)
    prepare(folder, about, packed, to, command, parts["restarts"])
    _check_is_wanted(folder)
    to.start(folder)


def _moved(places: list[str], before: str, after: Path) -> list[str]:
    """Return the folders of the import path that are in the working folder, as places in the
    folder's copy."""
    if not after.is_dir():
        return []
    found = [str(after)]
    for place in places:
        within = os.path.relpath(place or before, before)
        if not within.startswith(os.pardir):
            found.append(os.path.normpath(after / within))
    return list(dict.fromkeys(found))


def main() -> None:
    """Answer until no more messages arrive."""
    out = os.fdopen(os.dup(1), "wb")
    sys.stderr = os.fdopen(os.dup(2), "w")
    for number in (1, 2):  # jobs inherit them, and would hold the connection
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    serve(Far(), sys.stdin.buffer, out)


def serve(far: Any, asked: BinaryIO, out: BinaryIO) -> None:
    """Answer messages until no more arrive. The method with a message's name answers it."""
    out.write(b"\n" + HELLO + b"\n")
    out.flush()
    while select.select([asked], [], [], IDLE_S)[0]:
        head = asked.readline()
        if not head.endswith(b"\n"):
            return
        message = json.loads(head)
        body = asked.read(message["nbytes"])
        if len(body) < message["nbytes"]:
            return
        with beating(out):
            answer, content = _answer(getattr(far, message["do"]), message, body)
        out.write(json.dumps({**answer, "nbytes": len(content)}).encode() + b"\n" + content)
        out.flush()


@contextmanager
def beating(out: BinaryIO) -> Iterator[None]:
    """Within the block, write an empty line now and then. So a long silence means a broken
    connection."""
    is_done = threading.Event()

    def beat() -> None:
        with suppress(OSError):  # it is broken
            while not is_done.wait(BEAT_S):
                os.write(out.fileno(), b"\n")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()


def _answer(method: Callable[[dict, bytes], Answer], message: dict, body: bytes) -> Answer:
    try:
        return method(message, body)
    except SimlibError as error:
        return {"error": str(error)}, b""
    except Exception as error:
        traceback.print_exc()
        where = os.uname().nodename
        return {"error": f"{where} could not answer ({type(error).__name__}: {error})"}, b""


if __name__ == "__main__":
    main()

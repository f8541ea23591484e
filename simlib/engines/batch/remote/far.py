"""What answers on the far side: ``python -m simlib.engines.batch.remote.far``, started by ssh.

It submits jobs as `submit` would here, rewrites what depends on the place, and reads out the
folders of jobs. It holds nothing: jobs go on without it, and another one knows as much.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import select
import sys
import tarfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ....model.errors import JobError, SimlibError
from ....model.package import ROOT
from ....record.safe_pickle import dumps_tree, loads_tree
from ..folder import JobFolder
from ..job import Job
from ..preparation import prepare, prepare_attempts
from ..state import JobState
from ..versions import check_versions, versions
from .files import listing, read_pieces
from .line import HELLO

IDLE_S = 600.0
"""When nobody has asked anything for so long, whoever asks next starts another one."""
TWIN_S = 60.0
"""How long another far side may take with the same job: the connection broke meanwhile."""
WORK = "work"

Answer = tuple[dict, bytes]


class Far:
    """Answers messages, each by the method of its name."""

    def __init__(self) -> None:
        self._states: dict[Path, JobState] = {}

    def hello(self, message: dict, body: bytes) -> Answer:
        """Whether anybody is there."""
        return {}, b""

    def submit(self, message: dict, body: bytes) -> Answer:
        """Make a job's folder here and start it; a job that is there already is left alone."""
        check_versions(message["about"]["versions"])
        path = _path(message["folder"])
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = JobFolder(path)
        try:
            path.mkdir(0o700)
        except FileExistsError:
            _await_twin(folder)
        else:
            try:
                _submit(folder, message, pickle.loads(body))
            except SimlibError as error:
                folder.write(str(error).encode(), "refused")
                raise
            folder.mark("submitted")
        return {}, b""

    def look(self, message: dict, body: bytes) -> Answer:
        """How a job stands, and which files it has."""
        path = _path(message["folder"])
        if path not in self._states:
            about = JobFolder(path).read_json("job.json")
            if about is None:
                return {"state": None}, b""
            self._states[path] = JobState(JobFolder(path), about["submitted"])
        known = self._states[path]
        state = known.now()
        queue = {
            "state": known.queue.state(), "words": known.queue.words(),
            "reason": known.queue.reason(),
        }  # fmt: skip
        return {
            "state": state,
            "queue": queue if queue["state"] else None,
            "files": listing(path, state["state"] == "ended"),
        }, b""

    def read(self, message: dict, body: bytes) -> Answer:
        """Pieces of a job's files."""
        pieces, content = read_pieces(_path(message["folder"]), message["wanted"])
        return {"pieces": pieces}, content

    def cancel(self, message: dict, body: bytes) -> Answer:
        """End a job."""
        Job(_path(message["folder"])).cancel()
        return {}, b""


def _path(name: str) -> Path:
    """A folder of this account, below its home unless it is named from the root."""
    return Path.home() / Path(name).expanduser()


def _await_twin(folder: JobFolder) -> None:
    deadline = time.monotonic() + TWIN_S
    while not folder.has("submitted"):
        if folder.has("refused"):
            raise JobError(folder.text("refused"))
        if time.monotonic() > deadline:
            raise JobError(f"{folder.path} on {os.uname().nodename} was begun and not finished")
        time.sleep(0.1)


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
    if parts["restarts"] is None:
        prepare(folder, about, packed, to, command)
    else:
        prepare_attempts(folder, about, packed, to, parts["restarts"])
    to.start(folder)


def _moved(places: list[str], before: str, after: Path) -> list[str]:
    """Those of the import path that lie in the working folder, where its copy is now."""
    if not after.is_dir():
        return []
    found = [str(after)]
    for place in places:
        within = os.path.relpath(place or before, before)
        if not within.startswith(os.pardir):
            found.append(os.path.normpath(after / within))
    return list(dict.fromkeys(found))


def main() -> None:
    """Answer until nobody asks any more."""
    out = os.fdopen(os.dup(1), "wb")
    sys.stderr = os.fdopen(os.dup(2), "w")
    for number in (1, 2):  # jobs inherit them, and would hold the connection
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    far = Far()
    out.write(b"\n" + HELLO + b"\n")
    out.flush()
    while select.select([0], [], [], IDLE_S)[0]:
        head = sys.stdin.buffer.readline()
        if not head.endswith(b"\n"):
            return
        message = json.loads(head)
        body = sys.stdin.buffer.read(message["nbytes"])
        if len(body) < message["nbytes"]:
            return
        answer, content = _answer(getattr(far, message["do"]), message, body)
        out.write(json.dumps({**answer, "nbytes": len(content)}).encode() + b"\n" + content)
        out.flush()


def _answer(method: Callable[[dict, bytes], Answer], message: dict, body: bytes) -> Answer:
    try:
        return method(message, body)
    except SimlibError as error:
        return {"error": str(error)}, b""
    except Exception as error:
        traceback.print_exc()
        where = os.uname().nodename
        return {"error": f"{where} could not do it ({type(error).__name__}: {error})"}, b""


if __name__ == "__main__":
    main()

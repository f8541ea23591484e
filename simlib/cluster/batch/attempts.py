"""A job that begins anew when it fails: each attempt is a job of its own, in a folder of its own.

The job's launcher process starts `main` in place of a launcher: on this machine, or as the batch
job on the first of its nodes. So one time limit, one `cancel` and one state hold for all of it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ...core.engines.options import Restart
from ...core.engines.restarts import remaining_kills, with_restarts
from ...core.model.chance import Failures
from ...core.record import returned
from ...core.record.safe_pickle import loads_tree
from ...core.results.run import Run
from . import launcher_process
from .folder import JobFolder
from .job import JobOutcome
from .submission import prepare


class NotAnewError(BaseException):
    """What `on_restart` has raised is this one's cause, whatever it is."""


def main(path: str) -> int:
    """Carry the attempts of the job in this folder out; returns an exit code."""
    folder = JobFolder(path)
    about = folder.read_json("job.json")
    try:
        request = folder.read("request.pkl")
        sys.path[:] = loads_tree(request)["path"]
        with contextlib.suppress(OSError):
            os.chdir(os.path.expanduser(about["cwd"]))
        to, plan, kill = pickle.loads(folder.read("restarts.pkl"))
        attempt = partial(_attempt, folder, about, request, to, kill)
        if plan.on_restart is not None:
            plan = replace(plan, on_restart=partial(_told, plan.on_restart))
        with_restarts(attempt, about["world_size"], plan)
    except NotAnewError as error:
        return _refuse(folder, error.__cause__)
    except Exception as error:
        if getattr(error, "run", None) is None:  # it is no attempt's
            return _refuse(folder, error)
        return 1
    return 0


def _told(on_restart: Callable[[Restart], Any], restart: Restart) -> None:
    try:
        on_restart(restart)
    except BaseException as error:  # sys.exit(0), say: its code would be the job's
        raise NotAnewError from error


def _refuse(folder: JobFolder, error: BaseException | None) -> int:
    """Say why there is no further attempt; returns the exit code."""
    traceback.print_exception(error)
    words = f"it could not begin anew: {returned.short(error)}"
    folder.write_once(words.encode(), "refused")
    return 1


def _attempt(
    job: JobFolder,
    about: dict[str, Any],
    request: bytes,
    to: Any,
    kill: Mapping[int, float] | Failures,
    world_size: int,
    begin_s: float,
    environ: dict[str, str],
) -> Run:
    """One attempt: its `Run`, or the error that it ends with, raised."""
    folder = job.attempt(len(job.attempts()) + 1)
    folder.path.mkdir(0o700)
    own = {
        "world_size": world_size,
        "kill": remaining_kills(kill, world_size, begin_s),
        "environ": environ,
        "began_s": begin_s,
        "within": str(job.file("end")),
        "submitted": time.time(),
    }
    about = {**about, **own}
    prepare(folder, about, request, to, to.command(world_size, to.program()))
    launcher_process.main(str(folder.path))
    run, failure = JobOutcome(folder, about, job.path.name).run_and_error()
    if failure is None:
        return run
    run.ended_in(failure)
    raise failure

"""`submit`: make a job's folder, and hand it to its launcher."""

from __future__ import annotations

import linecache
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cloudpickle

from ...core.clockwork.simulation_options import ON_DEATH, check_choice, check_kill, check_slow
from ...core.engines.request import ExecutionContext, cell_numbers, check_timeout
from ...core.engines.restarts import Restart, Restarts, check_restarts, remaining_kills
from ...core.environment import ROOT
from ...core.model.chance import Failures, Slow
from ...core.model.errors import InvalidCallError, JobError, check_count
from ...core.record.oplog import FORMAT
from ...core.record.safe_pickle import dumps_tree
from ..transports.backends import check_for_job
from .folder import JOBS
from .job import Job
from .mpiexec import Mpiexec
from .new_folder import new_folder
from .preparation import prepare, prepare_attempts
from .program import program_of
from .remote.ssh import Ssh
from .slurm import Queued
from .versions import versions


def submit(
    function: Callable | str | os.PathLike,
    world_size: int,
    args: Sequence = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    argv: Sequence | None = None,
    to: Mpiexec | Queued | Ssh | None = None,
    slow: Slow | None = None,
    kill: Mapping[int, float] | Failures | None = None,
    on_death: str = "end",
    restarts: int = 0,
    min_ranks: int | None = None,
    on_restart: Callable[[Restart], Any] | None = None,
    timeout_s: float | None = 120,
    check: bool = True,
    backend: str = "gloo",
    name: str | None = None,
    folder: str | Path = JOBS,
) -> Job:
    """Submit a rank function, or a whole script, as a job of a real cluster.

    Parameters
    ----------
    function, world_size, args, kwargs
        As for `run`. Or, in the function's place, the path of a script: every rank runs it as
        ``__main__``, as under torchrun, with the variables that torchrun sets.
    argv : sequence, optional
        The words of a script's command line, without its name.
    to : Mpiexec, Slurm, Pbs or Ssh, optional
        Where it runs; `Mpiexec()` is this machine.
    slow, kill : optional
        As for `run`. A rank is killed on its host, by its parent process.
    on_death : {"end", "continue"}
        As for `run`: whether the others go on when a rank's process dies, whatever starts them.
        Ranks then load no MPI, which would not. The loss of a host is no such death.
    restarts, min_ranks : int, optional
        As for `run`: after a death the launcher is started again, on the hosts that the job has.
        ``time_limit`` holds for all attempts together.
    on_restart : callable, optional
        As for `run`, but called where the launcher is started: on this machine, or on the first
        node that the queue has given. What it raises ends the job.
    timeout_s : float or None
        As for `run`: seconds without progress.
    check : bool
        As for `run`.
    backend : {"gloo", "nccl", "mpi4py"}
        As for `run`. ``mpi4py`` is the MPI whose mpiexec starts the ranks.
    name : str, optional
        Of the job; the function's or script's by default.
    folder : str
        Where the folders of jobs are made: on a filesystem that all hosts share.

    Returns
    -------
    Job
        It goes on if this kernel ends; `jobs` finds it again.

    Raises
    ------
    InvalidCallError
        An argument that can never be right.
    JobError
        There is no launcher, or it refuses the job; or there is no room for the job's folder.
    """
    check_count("world_size", world_size)
    to = Mpiexec() if to is None else to
    if not isinstance(to, Mpiexec | Queued | Ssh):
        raise InvalidCallError(
            f"to={to!r} is no place to run: it must be simlib.Mpiexec(...), simlib.Slurm(...), "
            "simlib.Pbs(...) or simlib.Ssh(...)"
        )
    to.check(world_size)
    check_timeout(timeout_s)
    kill = check_kill(kill, world_size)
    check_choice("on_death", on_death, ON_DEATH)
    check_for_job(backend, to.uses_mpi, on_death)
    slow = check_slow(slow, world_size)
    plan = check_restarts(restarts, min_ranks, on_restart, world_size)
    program = program_of(function, args, kwargs, argv, world_size)
    packed_plan = _packed_plan(to, plan, kill) if plan.most else None
    where = ExecutionContext.here(program.argv)
    command = to.command(world_size, to.program())  # says what is wrong with it, before all
    cells = cell_numbers()
    sources = {cell: linecache.cache[cell] for cell in cells if cell in linecache.cache}
    request = dumps_tree(
        {
            "payload": program.payload,
            "slow": cloudpickle.dumps(slow, protocol=5),
            "cells": sources,
            "path": [str(entry) or where.cwd for entry in where.path],
            "argv": where.argv,
            "is_script": where.is_script,
        }
    )
    about = {
        "function": program.called,
        "world_size": world_size,
        "to": to.place,
        "hosts": getattr(to, "hosts", None),
        "uses_mpi": to.uses_mpi,
        "kill": remaining_kills(kill, world_size, 0.0),
        "on_death": on_death,
        "timeout_s": timeout_s,
        "check": check,
        "backend": backend,
        "cells": cells,
        "versions": versions(),
        "log_format": FORMAT,
        "cwd": to.cwd(where.cwd),
        "threads": to.threads(),
        "gpus_per_rank": to.gpus_per_rank,
        "root": str(ROOT),
        "environ": {"TORCHELASTIC_RESTART_COUNT": "0"},
        "within": None,
        "submitted": time.time(),
    }
    with new_folder(folder, name or program.name) as job:
        if packed_plan is None:
            prepare(job, about, request, to, command)
        else:
            prepare_attempts(job, about, request, to, packed_plan)
        try:
            to.start(job)
        except JobError as error:
            job.write(str(error).encode(), "refused")
            job.write_json({"state": "ended", "code": None, "why": "refused"}, "state.json")
            raise
    return Job(job.path)


def _packed_plan(
    to: Mpiexec | Queued | Ssh, plan: Restarts, kill: Mapping[int, float] | Failures
) -> bytes:
    to = to.to if isinstance(to, Ssh) else to  # where it begins anew, it is there already
    try:
        return cloudpickle.dumps((to, plan, kill), protocol=5)
    except Exception as error:
        raise InvalidCallError(
            "on_restart cannot be sent to where the job begins anew, in another process "
            f"({type(error).__name__}: {error})"
        ) from None

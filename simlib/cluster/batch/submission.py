"""`submit` creates a job's folder, and hands the job to its launcher."""

from __future__ import annotations

import contextlib
import linecache
import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle

from ...core.engines.options import (
    Diagnosis,
    Faults,
    Program,
    Restart,
    Restarts,
    check_function,
    check_timeout,
    checked_faults,
    either,
    program_of_function,
    program_of_script,
    refuse_foreign,
    restarts_of,
)
from ...core.engines.request import ExecutionContext
from ...core.engines.restarts import remaining_kills, with_restarts
from ...core.engines.session import cell_numbers, context_here
from ...core.environment import ROOT
from ...core.model.chance import Failures, Slow
from ...core.model.errors import InvalidCallError, JobError, check_count
from ...core.record import returned
from ...core.record.oplog import COMMITTED, FORMAT, HEADER
from ...core.record.safe_pickle import dumps_tree, loads_tree
from ...core.record.transports.backends import backend_named
from ...core.results.run import Run
from . import SYSTEMS, launcher_process
from .batch_system import NoSchedulerError, Queued, QueueError
from .bootstrap import UNWRITTEN
from .failures import HOPELESS, refused
from .folder import JOBS, JobFolder, new_folder
from .job import Job, JobOutcome
from .launcher_process import LINGER_S, OBEY_S
from .mpiexec import LAUNCH, Mpiexec, versions
from .ssh import Ssh
from .staging import LAST_S


def program_of(
    what: Callable[..., Any] | str | os.PathLike,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    argv: Sequence[Any] | None,
    world_size: int,
    seed: Any = 0,
) -> Program:
    """The program that a call of `submit` names. Raise an error if it cannot be a program."""
    if not isinstance(what, str | os.PathLike):
        check_function(what, "submit")
        if argv is not None:
            raise InvalidCallError(
                f"argv={argv!r} is for a script: pass a function's arguments with args=..."
            )
        return program_of_function(what, args, kwargs, world_size, seed)
    path = Path(what)
    if not path.is_file():
        raise InvalidCallError(f"there is no file {path}: submit runs a function or a script")
    if args or kwargs:
        raise InvalidCallError(
            f"the script {path.name} takes its arguments as a command line: pass argv=[...], not "
            "args and kwargs"
        )
    if isinstance(argv, str):
        raise InvalidCallError(f"argv={argv!r} must be a list of words: argv={argv.split()!r}")
    return program_of_script(str(path), list(map(str, argv or ())), world_size, seed)


START_ATTEMPTS = (
    "import sys; sys.path[:0] = sys.argv[1:2]; "
    "from simlib.cluster.batch.submission import carry_attempts; "
    "sys.exit(carry_attempts(sys.argv[2]))"
)
NO_WORDS = "(?!)"
"""A pattern that matches nothing."""
STAGED = {"obey_s": OBEY_S + LAST_S, "linger_s": LINGER_S + LAST_S, "leave_s": 600}
"""`staging` gives up copying the last files from hosts after this many seconds."""
ATTEMPTS_OBEY_S = 2 * OBEY_S
"""Seconds in which attempts must end. Each attempt has a launcher, which may need `OBEY_S`."""


def prepare(
    folder: JobFolder,
    about: dict[str, Any],
    request: bytes,
    to: Any,
    words: list[str],
    attempts: bytes | None = None,
) -> None:
    """Write the files that the ranks of a job need, and the command of its launcher process.

    Parameters
    ----------
    folder : JobFolder
    about : dict
        The contents of the job's ``job.json``.
    request : bytes
        The contents of the job's ``request.pkl``.
    to : Mpiexec, Queued or Ssh
    words : list of str
        The launcher's command, without the file of `Resources.write_start`.
    attempts : bytes, optional
        The contents of ``restarts.pkl``, for a job with restarts.
    """
    command: list[str] = []
    plan: dict[str, Any] = {"environ": {}, "hopeless": NO_WORDS, "reach": [], "hosts": None}
    if attempts is not None:
        folder.write(attempts, "restarts.pkl")
        command = [sys.executable, "-I", "-c", START_ATTEMPTS, about["root"], str(folder.path)]
        plan["obey_s"] = ATTEMPTS_OBEY_S
    elif not isinstance(to, Ssh):
        command = [*words, str(to.write_start(folder))]
        plan |= {"environ": to.environ(), "hopeless": HOPELESS}
        plan["hosts"] = about["hosts"]
        plan["reach"] = [*to.before_launcher(), sys.executable, "-I", LAUNCH, "--look"]
        plan |= STAGED if getattr(to, "stage", False) else {"obey_s": OBEY_S}
    folder.write(request, "request.pkl")
    within = [folder.file("cancel"), *([about["within"]] if about["within"] else [])]
    plan |= {
        "command": command,
        "time_limit": to.time_limit,
        "cancelled_by": [str(path) for path in within],
        "world_size": about["world_size"],
        "timeout_s": about["timeout_s"],
        "log": [HEADER, COMMITTED],
        "unwritten": UNWRITTEN,
    }
    folder.write_json(plan, "launch.json")
    folder.write_json({"state": "queued"}, "state.json")
    folder.write_json(about, "job.json")


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
    restarts: int | Restarts = 0,
    min_ranks: int | None = None,
    on_restart: Callable[[Restart], Any] | None = None,
    timeout_s: float | None = 120,
    check: bool = True,
    backend: str = "gloo",
    seed: int | str = 0,
    name: str | None = None,
    folder: str | Path = JOBS,
    faults: Faults | None = None,
    diagnosis: Diagnosis | None = None,
) -> Job:
    """Submit a rank function, or a whole script, as a job of a real cluster.

    Parameters
    ----------
    function, world_size, args, kwargs
        As for `run`. ``function`` may also be the path of a script. As under torchrun, every rank
        then runs the script as ``__main__``, with the environment variables that torchrun sets.
    argv : sequence, optional
        The arguments of a script's command line, without its name.
    to : Mpiexec, Slurm, Pbs or Ssh, optional
        The place where the job runs, and how it starts. With `Mpiexec()` the job runs on this
        machine.
    slow, kill : optional
        As for `run`. A rank's parent process kills the rank on its host.
    on_death : {"end", "continue"}
        As for `run`: whether the other ranks continue when a rank's process dies. ``"continue"``
        works with every launcher. The ranks then do not load MPI, because MPI would end all ranks
        after a death. ``"continue"`` does not work if a whole host is lost.
    restarts, min_ranks : int, optional
        As for `run`. After a death simlib starts the launcher again, on the hosts of the job. All
        attempts together must fit into ``time_limit``.
    on_restart : callable, optional
        As for `run`. simlib calls the function on the machine that starts the launcher. This is
        your machine, or the first node that the queue has allocated. An exception in the function
        ends the job.
    timeout_s : float or None
        As for `run`. simlib ends the job if no rank makes progress for this many seconds.
    check : bool
        As for `run`.
    backend : {"gloo", "nccl", "mpi4py"}
        As for `run`. With ``mpi4py``, the MPI whose mpiexec starts the ranks moves the data.
    seed : int, "same" or "new"
        As for `run`.
    name : str, optional
        The name of the job. The default is the name of the function or script.
    faults : Faults, optional
        ``slow``, ``kill`` and ``on_death`` as one object.
    diagnosis : Diagnosis, optional
        ``timeout_s`` and ``check`` as one object.
    folder : str
        simlib creates the folders of jobs in this folder. It must be on a filesystem that all hosts
        share.

    Returns
    -------
    Job
        The job continues if this kernel ends. `jobs` finds it again.

    Raises
    ------
    InvalidCallError
        An argument can never be right.
    JobError
        The launcher is missing or refuses the job, or the disk has no room for the job's folder.
    """
    check_count("world_size", world_size)
    to = Mpiexec() if to is None else to
    _check_place(to, world_size)
    watched = either("diagnosis", diagnosis, Diagnosis(timeout_s=timeout_s, check=check))
    check_timeout(watched.timeout_s)
    refuse_foreign("submit", watched, strict="run and simulate", watch="run")
    by_keyword = Faults(slow=slow, kill=kill, on_death=on_death)
    wrong = checked_faults(either("faults", faults, by_keyword), world_size)
    if backend != "gloo":  # which ranks have wherever they are, and however they are started
        _check_backend(backend, to.uses_mpi, wrong.on_death)
    plan = Restarts(min_ranks=min_ranks, on_restart=on_restart)
    plan = restarts_of(restarts, plan, world_size)
    refuse_foreign("submit", plan, restart_s="simulate")
    program = program_of(function, args, kwargs, argv, world_size, seed)
    packed_plan = _packed_plan(to, plan, wrong.kill) if plan.most else None
    where = context_here(program.argv)
    command = _command(to, world_size)  # says what is wrong with it, before all
    cells = cell_numbers()
    request = _request(program, where, cells, wrong.slow)
    about = {
        **_about_place(to, world_size, where.cwd),
        "function": program.name,
        "kill": remaining_kills(wrong.kill, world_size, 0.0) if wrong.kill else {},
        "on_death": wrong.on_death,
        "timeout_s": watched.timeout_s,
        "check": watched.check,
        "backend": backend,
        "cells": cells,
        "seeds": (program.seeds.seed, program.seeds.same),
    }
    with new_folder(folder, name or Path(program.name).stem) as job:
        prepare(job, about, request, to, command, packed_plan)
        with noting_refusal(job):
            to.start(job)
    return Job(job.path)


def _check_place(to: object, world_size: int) -> None:
    if not isinstance(to, Mpiexec | Queued | Ssh):
        systems = "".join(f"simlib.{place.__name__}(...), " for place in SYSTEMS.values())
        raise InvalidCallError(
            f"to={to!r} is not a place to run jobs: to must be simlib.Mpiexec(...), "
            f"{systems.rpartition(',')[0]} or simlib.Ssh(...)"
        )
    to.check(world_size)


def _command(to: Mpiexec | Queued | Ssh, world_size: int) -> list[str]:
    """The command that starts the ranks. For `Ssh` it is empty: the remote side makes the
    command."""
    return [] if isinstance(to, Ssh) else to.command(world_size, to.program())


def _request(
    program: Program, where: ExecutionContext, cells: Mapping[str, Any], slow: Slow | None
) -> bytes:
    """The contents of ``request.pkl``: the program and its context."""
    return dumps_tree(
        {
            "payload": program.payload,
            "slow": cloudpickle.dumps(slow, protocol=5),
            "cells": {cell: linecache.cache[cell] for cell in cells if cell in linecache.cache},
            "path": [str(entry) or where.cwd for entry in where.path],
            "argv": where.argv,
            "is_script": where.is_script,
        }
    )


def _about_place(to: Mpiexec | Queued | Ssh, world_size: int, cwd: str) -> dict[str, Any]:
    """The part of ``job.json`` that describes the place of the ranks and what they need there."""
    return {
        "world_size": world_size,
        "to": to.place,
        "hosts": [host for host, _ in getattr(to, "slots", None) or ()],
        "uses_mpi": to.uses_mpi,
        "versions": versions(),
        "log_format": FORMAT,
        "cwd": to.cwd(cwd),
        "threads": to.threads(),
        "gpus_per_rank": to.gpus_per_rank,
        "root": str(ROOT),
        "environ": {"TORCHELASTIC_RESTART_COUNT": "0"},
        "within": None,
        "submitted": time.time(),
    }


@contextmanager
def noting_refusal(folder: JobFolder) -> Iterator[None]:
    """Use it around the code that hands over a job. It writes a refusal into the job's folder.

    Raises
    ------
    JobError
        The queue refuses the job, the queue is missing, or something else prevents the start.
    """
    try:
        try:
            yield
        except NoSchedulerError as error:
            raise JobError(str(error)) from None
        except QueueError as error:
            raise JobError(refused("the queue has refused the job", str(error))) from None
    except JobError as error:
        folder.write(str(error).encode(), "refused")
        why = "cancel" if folder.has("cancel") else "refused"
        folder.write_json({"state": "ended", "code": None, "why": why}, "state.json")
        raise


def _packed_plan(
    to: Mpiexec | Queued | Ssh, plan: Restarts, kill: Mapping[int, float] | Failures
) -> bytes:
    to = to.to if isinstance(to, Ssh) else to  # where it begins again, it already exists
    try:
        return cloudpickle.dumps((to, plan, kill), protocol=5)
    except Exception as error:
        raise InvalidCallError(
            "on_restart cannot be sent to the process in which the job restarts "
            f"({type(error).__name__}: {error})"
        ) from None


def _check_backend(name: object, has_mpi: bool, on_death: str) -> None:
    """Refuse a backend that does not work with the launcher of the job.

    `check_for_host` checks on each host whether the host has the backend.
    """
    backend = backend_named(name)
    if backend.needs_mpi and not has_mpi:
        raise InvalidCallError(
            f"backend={name!r} needs ranks that an mpiexec has started, but srun does not use "
            "MPI: take to=simlib.Slurm(..., launcher='mpiexec'), or to=simlib.Mpiexec()"
        )
    if backend.needs_mpi and on_death == "continue":
        raise InvalidCallError(
            f"backend={name!r} cannot continue without a rank: MPI ends all ranks. Take "
            "on_death='end', or backend='gloo'"
        )


# A job that begins again when it fails: each attempt is a job of its own, in a folder of its own.
# The job's launcher process starts `carry_attempts` in place of a launcher: on this machine, or as
# the batch job on the first of its nodes. So one time limit, one `cancel` and one state hold for
# all attempts.


class NotAnewError(BaseException):
    """`on_restart` has raised an exception, which is the cause of this error."""


def carry_attempts(path: str) -> int:
    """Carry out the attempts of the job in this folder. Returns an exit code."""
    folder = JobFolder(path)
    about = folder.about()
    try:
        request = folder.read("request.pkl") or b""
        sys.path[:] = loads_tree(request)["path"]
        with contextlib.suppress(OSError):
            os.chdir(os.path.expanduser(about["cwd"]))
        to, plan, kill = pickle.loads(folder.read("restarts.pkl") or b"")
        attempt = partial(_attempt, _Anew(folder, about, request, to, kill))
        if plan.on_restart is not None:
            plan = replace(plan, on_restart=partial(_reporting, plan.on_restart))
        with_restarts(attempt, about["world_size"], plan)
    except NotAnewError as error:
        return _refuse_attempt(folder, error.__cause__ or error)
    except Exception as error:
        if getattr(error, "run", None) is None:  # it is no attempt's
            return _refuse_attempt(folder, error)
        return 1
    return 0


def _reporting(on_restart: Callable[[Restart], Any], restart: Restart) -> None:
    try:
        on_restart(restart)
    except BaseException as error:  # sys.exit(0), say: its code would be the job's
        raise NotAnewError from error


def _refuse_attempt(folder: JobFolder, error: BaseException) -> int:
    """Write down why the job makes no further attempt. Returns the exit code."""
    traceback.print_exception(error)
    words = f"the job could not restart: {returned.short(error)}"
    folder.write_once(words.encode(), "refused")
    return 1


@dataclass(frozen=True)
class _Anew:
    """The facts that all attempts of a job share."""

    job: JobFolder
    about: dict[str, Any]
    request: bytes
    to: Any
    kill: Mapping[int, float] | Failures


def _attempt(anew: _Anew, world_size: int, begin_s: float, environ: dict[str, str]) -> Run:
    """Make one attempt. Returns the `Run`, or raises the error that ended the attempt."""
    job, to = anew.job, anew.to
    folder = job.attempt(len(job.attempts()) + 1)
    folder.path.mkdir(0o700)
    own = {
        "world_size": world_size,
        "kill": remaining_kills(anew.kill, world_size, begin_s),
        "environ": environ,
        "began_s": begin_s,
        "within": str(job.file("end")),
        "submitted": time.time(),
    }
    about = {**anew.about, **own}
    prepare(folder, about, anew.request, to, to.command(world_size, to.program()))
    launcher_process.main(str(folder.path))
    run, failure = JobOutcome(folder, about, job.path.name).run_and_error()
    if failure is None:
        return run
    run.ended_in(failure)
    raise failure

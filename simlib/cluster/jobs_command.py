"""``simlib submit``, ``jobs``, ``follow``, ``result`` and ``cancel``: scripts as jobs of a cluster.

What is wrong with a call is said before torch is loaded.
"""

from __future__ import annotations

import argparse
import glob
import os
import sys
import warnings

from ..core.engines import run_outputs
from ..core.model.errors import InvalidCallError, JobError, SimlibError
from ..core.record.transports import BACKEND_NAMES
from .batch.folder import JOBS

BACKENDS = (*BACKEND_NAMES, "mpi4py")
"""The names of all backends, known before torch is loaded."""
FOLDER = f"where the folders of jobs are ({JOBS})"
CODES = "Exit code 0 if the job is done, 1 if it has failed or was cancelled, 130 after Ctrl-C."


def add_commands(commands):
    """Add all that is about jobs to the subcommands of a parser."""
    _add_submit(commands)
    listed = commands.add_parser(
        "jobs",
        help="list your jobs: how each stands, and where it runs",
        description="List the jobs whose folders are here, by the time of their submission.",
    )
    listed.add_argument("--folder", default=JOBS, metavar="F", help=FOLDER)
    listed.set_defaults(command=_jobs)
    _add_job_command(
        commands,
        "follow",
        _follow,
        "show what a job's ranks print, until it ends",
        "Show what the ranks print, each line with its rank, until the job ends; then say why, if "
        f"it has failed. Ctrl-C ends the looking, not the job. {CODES}",
    )
    result = _add_job_command(
        commands,
        "result",
        _result,
        "wait for a job's end; print who sent what to whom",
        "Wait for a job's end, and print the table of who sent what to whom; or say why it has "
        f"failed. {CODES}",
    )
    run_outputs.add_options(result)
    _add_job_command(
        commands,
        "cancel",
        _cancel,
        "end a job, or take it out of the queue",
        "End a job on all its hosts, or take it out of the queue. Its folder stays.",
    )


def _add_job_command(commands, name, command, summary, description):
    parser = commands.add_parser(name, help=summary, description=description)
    parser.add_argument("job", metavar="JOB", help="its name, as `simlib jobs` says, or its folder")
    parser.add_argument("--folder", default=JOBS, metavar="F", help=FOLDER)
    parser.set_defaults(command=command)
    return parser


def _add_submit(commands):
    parser = commands.add_parser(
        "submit",
        help="submit a script as a job: to hosts, by mpiexec, or to a queue",
        description="Submit a script as a job: every rank runs the whole script, with the "
        "variables that torchrun sets. Without --hosts, --hostfile, --slurm or --pbs it runs on "
        "this machine. Prints the job's name, and does not wait for its end.",
    )
    parser.add_argument("-n", type=int, required=True, metavar="N", help="ranks")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--hosts", metavar="A,B", help="hosts, which ssh reaches")
    where.add_argument("--hostfile", metavar="FILE", help="a file that names them")
    where.add_argument("--slurm", action="store_true", help="hand it to Slurm's queue")
    where.add_argument("--pbs", action="store_true", help="hand it to PBS's queue")
    parser.add_argument("--ssh", metavar="HOST", help="submit it there, where ssh alone reaches")
    parser.add_argument(
        "--ssh-python", metavar="PATH", help="the course's Python there (this path)"
    )
    parser.add_argument(
        "--sync",
        action="append",
        metavar="PATH",
        help="what the script imports from this folder goes there, too; may be repeated",
    )
    parser.add_argument("--nodes", type=int, metavar="N", help="of a queue (1)")
    parser.add_argument(
        "--ranks-per-node", type=int, metavar="K", help="ranks on each (as many as are needed)"
    )
    parser.add_argument("--partition", metavar="P", help="of the queue")
    parser.add_argument("--account", metavar="A", help="of the queue")
    parser.add_argument(
        "--extra",
        action="append",
        metavar="OPTION",
        help="one more option for the queue: --extra=--exclusive; may be repeated",
    )
    parser.add_argument(
        "--launcher", metavar="CMD", help="stands for mpiexec; with --slurm: srun or mpiexec"
    )
    parser.add_argument("--mpi", metavar="TYPE", help="of srun, for ranks that use MPI: pmix, pmi2")
    parser.add_argument(
        "--login", metavar="CMD", help='words before the queue\'s commands: "ssh login"'
    )
    parser.add_argument(
        "--time-limit", type=float, metavar="S", help="seconds after which it is ended (600)"
    )
    run_outputs.add_limits(parser)
    parser.add_argument(
        "--backend",
        default="gloo",
        metavar="NAME",
        help=f"what moves the data: {', '.join(BACKENDS)} (gloo)",
    )
    parser.add_argument(
        "--stage", action="store_true", help="copy the job to hosts that share no filesystem"
    )
    _add_needs(parser)
    parser.add_argument(
        "--name", metavar="NAME", help="of the job (the script's); a number is added"
    )
    parser.add_argument("--folder", default=JOBS, metavar="F", help=f"{FOLDER}: all hosts see it")
    parser.add_argument("--follow", action="store_true", help="go on as `simlib follow` does")
    parser.add_argument("script")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="arguments of the script")
    parser.set_defaults(command=_submit)


def _add_needs(parser):
    """Add what is said of every host; see `Resources`."""
    parser.add_argument(
        "--setup",
        action="append",
        metavar="LINE",
        help='a line of bash before Python: "module load gcc"; may be repeated',
    )
    parser.add_argument(
        "--env", action="append", metavar="NAME=VALUE", help="a variable; may be repeated"
    )
    parser.add_argument("--cpus-per-rank", type=int, metavar="N", help="cores, and torch's threads")
    parser.add_argument("--gpus-per-rank", type=int, metavar="N", help="GPUs for each rank")
    parser.add_argument("--memory", metavar="4G", help="of each rank: K, M, G or T; of a queue")
    parser.add_argument(
        "--container", metavar="CMD", help='goes before Python: "apptainer exec image.sif"'
    )
    parser.add_argument("--working-dir", metavar="F", help="where the ranks run (this folder)")


ONLY_IN_A_QUEUE = ("nodes", "partition", "account", "extra", "mpi", "login")
ONLY_BY_SSH = ("ssh_python", "sync")


def _submit(options):
    wrong = _wrong_call(options)
    if wrong:
        return _refused(wrong)
    from .batch.submission import submit

    try:
        job = submit(
            options.script,
            options.n,
            argv=options.args,
            to=_place(options),
            timeout_s=options.timeout,
            restarts=options.restarts,
            min_ranks=options.min_ranks,
            backend=options.backend,
            name=options.name,
            folder=options.folder,
        )
    except SimlibError as error:
        return _refused(error)
    shown = os.path.relpath(job.path)
    print(f"{job.name} is submitted; simlib follow, result and cancel take {shown}", flush=True)
    return _looked_at(job) if options.follow else 0


def _wrong_call(options):
    """What is wrong with a call, as far as it can be told without torch; or None."""
    if not os.path.isfile(options.script):
        return f"there is no file {options.script}"
    if options.n < 1:
        return f"-n {options.n} must be a whole number from 1"
    if options.backend not in BACKENDS:
        *names, last = BACKENDS
        return f"--backend {options.backend} must be {', '.join(names)} or {last}"
    if not (options.slurm or options.pbs) and (given := _given(options, ONLY_IN_A_QUEUE)):
        return f"{given} is for a queue: say --slurm or --pbs, too"
    if options.ssh is None and (given := _given(options, ONLY_BY_SSH)):
        return f"{given} is for a cluster that ssh alone reaches: say --ssh HOST, too"
    if options.stage and not (options.hosts or options.hostfile or options.slurm):
        return "--stage copies the job to hosts: say --hosts, --hostfile or --slurm, too"
    if options.mpi is not None and options.pbs:
        return f"--mpi {options.mpi} is srun's, which PBS has not"
    unnamed = [text for text in options.env or () if "=" not in text]
    if unnamed:
        return f"--env {unnamed[0]} has no value: --env {unnamed[0]}=..."
    return None


def _given(options, names):
    """The first of these options that a call has, as it is written; or None."""
    found = [name for name in names if getattr(options, name) is not None]
    return f"--{found[0].replace('_', '-')}" if found else None


def _place(options):
    """Where the job is to run: one of `_place_there`, or a `Ssh` around it."""
    to = _place_there(options)
    if options.ssh is None:
        return to
    from .batch.ssh import Ssh

    return Ssh(options.ssh, to, python=options.ssh_python, sync=options.sync or ())


def _place_there(options):
    """A `Mpiexec`, a `Slurm` or a `Pbs`."""
    from .batch.mpiexec import Mpiexec
    from .batch.pbs import Pbs
    from .batch.slurm import Slurm

    given = {
        "launcher": options.launcher,
        "time_limit": options.time_limit,
        "setup": options.setup,
        "env": dict(text.split("=", 1) for text in options.env or ()),
        "cpus_per_rank": options.cpus_per_rank,
        "gpus_per_rank": options.gpus_per_rank,
        "memory": options.memory,
        "container": options.container,
        "working_dir": options.working_dir,
        "stage": options.stage or None,
    }
    if options.slurm or options.pbs:
        nodes = options.nodes or _over(options.n, options.ranks_per_node or options.n)
        given |= {
            "nodes": nodes,
            "ranks_per_node": options.ranks_per_node or _over(options.n, nodes),
            "partition": options.partition,
            "account": options.account,
            "extra": options.extra,
            "mpi": options.mpi,
            "login": options.login,
        }
        return (Pbs if options.pbs else Slurm)(**_without_none(given))
    hosts = None if options.hosts is None else options.hosts.split(",")
    per_node = options.ranks_per_node
    if per_node is None and hosts is not None:
        per_node = _over(options.n, len(hosts))
    given |= {"hosts": hosts, "hostfile": options.hostfile, "ranks_per_node": per_node}
    return Mpiexec(**_without_none(given))


def _without_none(given):
    return {name: value for name, value in given.items() if value is not None}


def _over(count, by):
    """So many per one of ``by`` that all find room."""
    return -(-count // max(1, by))


def _jobs(options):
    if not os.path.isdir(options.folder):
        print(f"there are no jobs in {options.folder}")
        return 0
    from .batch.job import jobs

    with warnings.catch_warnings(record=True, action="always") as left_out:
        found = jobs(options.folder)
    for warning in left_out:
        print(f"simlib: {warning.message}", file=sys.stderr)
    rows = [(job.name, job.status, f"{job.world_size} ranks", job.place) for job in found]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
    if not rows:
        print(f"there are no jobs in {options.folder}")
    return 0


def _follow(options):
    return _with_job(options, _looked_at)


def _looked_at(job):
    job.follow()
    if job.status in ("queued", "active"):
        return 130
    return _ended(job)[0]


def _ended(job):
    """Wait for a job's end; returns the exit code, and its `Run`, if it has one."""
    try:
        return 0, job.result()
    except SimlibError as error:
        print(f"simlib: {error}", file=sys.stderr)
        return 1, error.run


def _result(options):
    wrong = run_outputs.wrong_files(options)
    if wrong:
        return _refused(wrong)

    def result(job):
        code, run = _ended(job)
        run_outputs.save(run, options)
        if code == 0 and not options.quiet:
            print(run.table())
        return code

    return _with_job(options, result)


def _cancel(options):
    def cancel(job):
        try:
            job.cancel()
        except JobError as error:
            print(f"simlib: {error}", file=sys.stderr)
            return 1
        print(f"{job.name} is {job.status}")
        return 0

    return _with_job(options, cancel)


def _with_job(options, do):
    """Call ``do(job)`` for the job that a call names; returns the exit code."""
    places = (options.job, os.path.join(options.folder, options.job))
    path = next((one for one in places if os.path.isfile(os.path.join(one, "job.json"))), None)
    if path is None:
        return _refused(_no_such_job(options))
    from .batch.job import Job

    try:
        return do(Job(path))
    except InvalidCallError as error:
        return _refused(error)
    except KeyboardInterrupt:
        return 130


def _no_such_job(options):
    """That there is no such job; those of that name with a number, if there are."""
    numbered = glob.glob(os.path.join(glob.escape(options.folder), f"{glob.escape(options.job)}-*"))
    names = sorted(os.path.basename(one) for one in numbered if os.path.isdir(one))
    if not names:
        known = "`simlib jobs` lists those there are, --folder names another place"
    else:
        known = f"is it {names[0]}?" if len(names) == 1 else f"there are {', '.join(names[:5])}"
    return f"there is no job {options.job} in {options.folder}: {known}"


def _refused(words):
    print(f"simlib: {words}", file=sys.stderr)
    return 2

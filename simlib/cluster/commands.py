"""``simlib doctor``, ``submit``, ``jobs``, ``follow``, ``result`` and ``cancel``.

Each batch system defines its own options. The commands detect wrong calls before torch is loaded.
"""

from __future__ import annotations

import glob
import os
import sys
import warnings
from dataclasses import fields

from ..core.engines import run_outputs
from ..core.model.errors import InvalidCallError, JobError, SimlibError
from ..core.model.outcome import CODES, ExitCode, Outcome, exit_code_of
from ..core.model.words import aligned
from ..core.record.transports import BACKEND_NAMES
from .batch import SYSTEMS
from .batch.folder import JOBS, GoneError
from .batch.mpiexec import Mpiexec

BACKENDS = (*BACKEND_NAMES, "mpi4py")
"""The names of all backends. This list needs no import of torch."""
FOLDER = f"folder that contains the folders of jobs ({JOBS})"
BACKEND = f"backend that moves the data: {', '.join(BACKENDS)}, default: gloo"
STAGE = "copy the job to hosts that share no filesystem"


def add_commands(commands):
    """Add the doctor, and the commands about jobs, to the subcommands of a parser."""
    _add_doctor(commands)
    _add_submit(commands)
    listed = commands.add_parser(
        "jobs",
        help="list your jobs, with their states and hosts",
        description="List the jobs in a folder, in the order in which they were submitted.",
    )
    listed.add_argument("--folder", default=JOBS, metavar="F", help=FOLDER)
    run_outputs.add_json(listed)
    listed.set_defaults(command=_jobs)
    _add_job_command(
        commands,
        "follow",
        _follow,
        "show what a job's ranks print, until the job ends",
        "Show what the ranks print, each line with its rank, until the job ends. If it has failed, "
        f"say why. Ctrl-C ends this command, not the job. {CODES}",
    )
    result = _add_job_command(
        commands,
        "result",
        _result,
        "wait for a job's end; print who sent what to whom",
        "Wait for a job's end, and print the table of who sent what to whom. If it has failed, say "
        f"why. {CODES}",
    )
    run_outputs.add_options(result)
    _add_job_command(
        commands,
        "cancel",
        _cancel,
        "end a job, or remove it from the queue",
        "End a job on all its hosts, or remove it from the queue. Its folder stays.",
    )


def _add_doctor(commands):
    parser = commands.add_parser(
        "doctor",
        help="check what a cluster needs, and say how to fix what is wrong",
        description="Check whether jobs can run on hosts: ssh, Python, MPI, files, clocks, "
        "network. Prints one line for each check. The exit code is 0 if all is well, else 1.",
    )
    parser.add_argument("--hosts", metavar="A,B", help="names of the hosts (this machine)")
    parser.add_argument(
        "--launcher", metavar="CMD", help="command for mpiexec (the one next to this Python)"
    )
    parser.add_argument(
        "--folder", default=".", metavar="F", help="folder that all hosts should share (this one)"
    )
    run_outputs.add_json(parser)
    parser.set_defaults(command=_doctor)


def _doctor(options):
    from .doctor import doctor

    hosts = None if options.hosts is None else options.hosts.split(",")
    report = doctor(hosts, launcher=options.launcher, folder=options.folder)
    if not options.json:
        print(report)
    code = ExitCode.OK if report.ok else ExitCode.WRONG_PROGRAM
    return Outcome(code, facts=report.to_record())


def _add_job_command(commands, name, command, summary, description):
    parser = commands.add_parser(name, help=summary, description=description)
    job = parser.add_argument(
        "job", metavar="JOB", help="the job's name (see `simlib jobs`) or folder"
    )
    job.completer = _names  # for argcomplete
    parser.add_argument("--folder", default=JOBS, metavar="F", help=FOLDER)
    parser.set_defaults(command=command)
    return parser


def _names(parsed_args, **_):
    """The names of all jobs."""
    return [os.path.basename(one) for one in glob.glob(os.path.join(parsed_args.folder, "*"))]


def _add_submit(commands):
    *flags, last = (f"--{name}" for name in ("hosts", "hostfile", *SYSTEMS))
    parser = commands.add_parser(
        "submit",
        help="submit a script as a job: to hosts, by mpiexec, or to a queue",
        description="Submit a script as a job: every rank runs the whole script, with the "
        f"variables that torchrun sets. Without {', '.join(flags)} or {last} it runs on "
        "this machine. Prints the job's name, and does not wait for its end.",
    )
    parser.add_argument("-n", type=int, required=True, metavar="N", help="ranks")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--hosts", metavar="A,B", help="run on these hosts, over ssh")
    where.add_argument("--hostfile", metavar="FILE", help="run on the hosts in this file")
    for name, place in SYSTEMS.items():
        words = f"submit the job to {place.scheduler.called}'s queue"
        where.add_argument(f"--{name}", dest="system", action="store_const", const=name, help=words)
    _add(parser, FOR_PLACES)
    for flag in _queue_flags():
        name, action = f"--{flag.name.replace('_', '-')}", "append" if flag.is_list else "store"
        parser.add_argument(
            name, action=action, type=flag.type, metavar=flag.metavar, help=flag.help
        )
    run_outputs.add_limits(parser)
    parser.add_argument("--backend", default="gloo", metavar="NAME", help=BACKEND)
    parser.add_argument("--stage", action="store_true", help=STAGE)
    _add(parser, FOR_RANKS)
    parser.add_argument("--folder", default=JOBS, metavar="F", help=f"{FOLDER}; hosts must see it")
    parser.add_argument("--follow", action="store_true", help="then do what `simlib follow` does")
    parser.add_argument("script")
    run_outputs.add_script_arguments(parser)
    parser.set_defaults(command=_submit)


def _add(parser, table):
    """Add options: the name, the placeholder of the value, the help, and the type or action."""
    for name, metavar, words, how in table:
        more = {"action": how} if how == "append" else {"type": how}
        parser.add_argument(f"--{name}", metavar=metavar, help=words, **more)


def _queue_flags():
    """Return the flags of all batch systems, beginning with the flags that every system has."""
    return list(dict.fromkeys(flag for place in SYSTEMS.values() for flag in place.flags))


def _launchers():
    """Return the possible values of ``--launcher``, in words."""
    systems = {name: place.launchers for name, place in SYSTEMS.items() if len(place.launchers) > 1}
    words = [f"with --{name}: {' or '.join(launchers)}" for name, launchers in systems.items()]
    return "; ".join(["command to use instead of mpiexec", *words])


FOR_PLACES = (
    ("ssh", "HOST", "submit the job on this host, if only ssh reaches the cluster", str),
    ("ssh-python", "PATH", "the course's Python on that host (this path)", str),
    (
        "sync",
        "PATH",
        "copy this to that host, too, because the script imports it; may be repeated",
        "append",
    ),
    ("ranks-per-node", "K", "ranks on each host (as many as are needed)", int),
    ("launcher", "CMD", _launchers(), str),
    ("time-limit", "S", "end the job after this many seconds (600)", float),
)
FOR_RANKS = (
    ("setup", "LINE", 'bash to run before Python: "module load gcc"; may be repeated', "append"),
    ("env", "NAME=VALUE", "an environment variable for the ranks; may be repeated", "append"),
    ("cpus-per-rank", "N", "cores of each rank; torch uses as many threads", int),
    ("gpus-per-rank", "N", "GPUs for each rank", int),
    ("memory", "4G", "memory of each rank, in K, M, G or T; only for a queue", str),
    ("container", "CMD", 'put this before Python, as in "apptainer exec image.sif"', str),
    ("working-dir", "F", "folder in which the ranks run (this folder)", str),
    ("name", "NAME", "name of the job (the script's); simlib adds a number", str),
)
ONLY_BY_SSH = ("ssh_python", "sync")


def _submit(options):
    _refuse(_wrong_call(options))
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
        raise InvalidCallError(str(error)) from None
    shown = os.path.relpath(job.path)
    print(f"{job.name} is submitted; pass {shown} to simlib follow, result or cancel", flush=True)
    return _looked_at(job) if options.follow else 0


def _wrong_call(options):
    """Return a sentence on a wrong call, as far as this can be found without torch; or None."""
    if not os.path.isfile(options.script):
        return f"there is no file {options.script}"
    if options.n < 1:
        return f"-n {options.n} must be a whole number of 1 or more"
    if options.backend not in BACKENDS:
        return f"--backend {options.backend} must be {_listed(BACKENDS)}"
    if options.ssh is None and (given := _given(options, ONLY_BY_SSH)):
        return f"{given} is for a cluster that only ssh reaches: add --ssh HOST"
    unnamed = [text for text in options.env or () if "=" not in text]
    if unnamed:
        return f"--env {unnamed[0]} has no value: --env {unnamed[0]}=..."
    return _wrong_flag(options)


def _wrong_flag(options):
    """Return a sentence on options that do not belong to the queue in the call; or None."""
    systems = " or ".join(f"--{name}" for name in SYSTEMS)
    known = {flag.name: flag for flag in _queue_flags()}
    if options.system is None and (given := _given(options, known)):
        return f"{given} is for a queue: add {systems}"
    place = SYSTEMS.get(options.system)
    copying = [name for name, place in SYSTEMS.items() if hasattr(place, "stage")]
    if options.stage and not (options.hosts or options.hostfile or options.system in copying):
        flags = [f"--{name}" for name in ("hosts", "hostfile", *copying)]
        return f"--stage copies the job to hosts: add {_listed(flags)}"
    for name, flag in known.items():
        value = getattr(options, name)
        if place is not None and value is not None and flag not in place.flags:
            given = f"--{name.replace('_', '-')} {value}"
            return f"{given} is {flag.owner}, but {place.scheduler.called} has no such option"
    return None


def _listed(names):
    *names, last = names
    return f"{', '.join(names)} or {last}"


def _given(options, names):
    """Return the first of these options that the call contains, as it is written; or None."""
    found = [name for name in names if getattr(options, name) is not None]
    return f"--{found[0].replace('_', '-')}" if found else None


def _place(options):
    """Return the place of the job: the result of `_place_there`, or a `Ssh` around it."""
    to = _place_there(options)
    if options.ssh is None:
        return to
    from .batch.ssh import Ssh

    return Ssh(options.ssh, to, python=options.ssh_python, sync=options.sync or ())


def _place_there(options):
    """Return a `Mpiexec`, or the place of a batch system."""
    place, per_node = SYSTEMS.get(options.system, Mpiexec), options.ranks_per_node
    given = {one.name: getattr(options, one.name, None) for one in fields(place) if one.init}
    given["env"] = dict(text.split("=", 1) for text in options.env or ())
    if not options.stage:
        given.pop("stage", None)
    if options.system is not None:
        given["nodes"] = options.nodes or _over(options.n, per_node or options.n)
        given["ranks_per_node"] = per_node or _over(options.n, given["nodes"])
    elif options.hosts is not None:
        given["hosts"] = options.hosts.split(",")
        given["ranks_per_node"] = per_node or _over(options.n, len(given["hosts"]))
    return place(**{name: value for name, value in given.items() if value is not None})


def _over(count, by):
    """Return the smallest number of groups of size ``by`` that together have room for ``count``."""
    return -(-count // max(1, by))


def _jobs(options):
    found, left_out = [], []
    if os.path.isdir(options.folder):
        from .batch.job import jobs

        with warnings.catch_warnings(record=True, action="always") as left_out:
            found = jobs(options.folder)
    for warning in left_out:
        print(f"simlib: {warning.message}", file=sys.stderr)
    told = list(filter(None, map(_about, found)))
    if not options.json:
        _print_jobs(told, options.folder)
    return Outcome(facts={"jobs": told, "left_out": [str(one.message) for one in left_out]})


def _about(job):
    """Return a job as plain data; None if its folder was deleted meanwhile."""
    try:
        return {
            "name": job.name,
            "status": job.status,
            "world_size": job.world_size,
            "place": job.place,
            "trouble": job.trouble,
            "folder": str(job.path),
        }
    except GoneError:
        return None


def _print_jobs(told, folder):
    rows = []
    for job in told:
        where = "; ".join(filter(None, (job["place"], job["trouble"])))
        rows.append((job["name"], job["status"], f"{job['world_size']} ranks", where))
    print("\n".join(aligned(rows, left=range(4))) or f"there are no jobs in {folder}")


def _follow(options):
    return _with_job(options, _looked_at)


def _looked_at(job):
    try:
        job.follow()
        if job.status in ("queued", "active"):
            return ExitCode.INTERRUPTED
    except JobError as error:  # its folder is deleted
        print(f"simlib: {error}", file=sys.stderr)
        return exit_code_of(error)
    _, error = _ended(job)
    return ExitCode.OK if error is None else exit_code_of(error)


def _ended(job):
    """Wait for a job's end. Return its `Run` if there is one, and the error that ended it."""
    try:
        return job.result(), None
    except SimlibError as error:
        print(f"simlib: {error}", file=sys.stderr)
        return error.run, error


def _result(options):
    run_outputs.refuse_wrong_files(options)

    def result(job):
        from ..core.results.document import outcome_of

        run, error = _ended(job)
        run_outputs.save(run, options)
        if error is None and not (options.quiet or options.json):
            print(run.table())
        return outcome_of(run, error, options.json)

    return _with_job(options, result)


def _cancel(options):
    def cancel(job):
        try:
            job.cancel()
        except JobError as error:
            print(f"simlib: {error}", file=sys.stderr)
            return exit_code_of(error)
        print(f"{job.name} is {job.status}")
        return 0

    return _with_job(options, cancel)


def _with_job(options, do):
    """Call ``do(job)`` for the job that the call names. Return the exit code."""
    places = (options.job, os.path.join(options.folder, options.job))
    path = next((one for one in places if os.path.isfile(os.path.join(one, "job.json"))), None)
    if path is None:
        _refuse(_no_such_job(options))
    from .batch.job import Job

    return do(Job(path))


def _no_such_job(options):
    """Return a sentence that says that there is no such job. It names jobs NAME-NUMBER with this
    name."""
    numbered = glob.glob(os.path.join(glob.escape(options.folder), f"{glob.escape(options.job)}-*"))
    names = sorted(os.path.basename(one) for one in numbered if os.path.isdir(one))
    if not names:
        known = "`simlib jobs` lists the jobs, --folder names another place"
    else:
        known = f"try {' or '.join(names[:5])}"
    return f"there is no job {options.job} in {options.folder}: {known}"


def _refuse(wrong):
    """If ``wrong`` is a sentence on a wrong call, end the command with it."""
    if wrong:
        raise InvalidCallError(wrong)

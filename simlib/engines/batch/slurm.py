"""`Slurm`: jobs handed to a scheduler by PSI/J; its other ones are passed through, untested."""

from __future__ import annotations

import datetime
import logging
import math
import subprocess
import sys
import time
from dataclasses import dataclass

from ...model.errors import InvalidCallError, JobError
from .mpiexec import LAUNCH, Mpiexec, check_time_limit, words_of

POLL_S = 1
REASON_S = 5.0
"""How long an answer of the queue to why a job waits is good."""
ANSWER_S = 10.0
USUAL = {
    "Resources": "the nodes that it needs are busy",
    "Priority": "other jobs are before it",
    "BeginTime": "it may not begin yet",
    "Dependency": "it waits for another job",
}
"""Why jobs wait that will start; Slurm's other reasons may last for ever."""


@dataclass(frozen=True)
class Slurm:
    """Where a job runs: nodes that Slurm gives it, when it is its turn.

    Attributes
    ----------
    nodes : int
    ranks_per_node : int
    partition, account : str, optional
    time_limit : float
        Seconds; Slurm counts whole minutes, so it is rounded up.
    extra : sequence of str
        Further options of sbatch, each a word: ``("--exclusive",)``.
    launcher : str
        ``srun``, which needs no MPI, or ``mpiexec``.
    scheduler : str
        PSI/J's name of it: ``slurm``; ``pbs``, ``lsf`` and others are passed through, untested.
    login : str or sequence of str
        Words to put before sbatch, squeue and scancel where this machine has none: ``"ssh login"``.
    """

    nodes: int
    ranks_per_node: int = 1
    partition: str = None
    time_limit: float = 600
    account: str = None
    extra: tuple = ()
    launcher: str = "srun"
    scheduler: str = "slurm"
    login: tuple = ()

    def __post_init__(self):
        if self.launcher not in ("srun", "mpiexec"):
            raise InvalidCallError(f"launcher={self.launcher!r} must be 'srun' or 'mpiexec'")
        check_time_limit(self.time_limit)

    @property
    def uses_mpi(self):
        """Whether ranks ask MPI who they are; srun's ranks ask the environment."""
        return self.launcher == "mpiexec"

    @property
    def place(self):
        """Where the ranks run, in words."""
        return f"{self.nodes} nodes of {self.scheduler}"

    def check(self, world_size):
        """Refuse more ranks than there is room for."""
        if world_size > self.nodes * self.ranks_per_node:
            raise InvalidCallError(
                f"world_size={world_size} does not fit on nodes={self.nodes} with "
                f"ranks_per_node={self.ranks_per_node}: take more of either"
            )

    def command(self, world_size, program):
        """What starts the ranks, once Slurm has given the nodes."""
        if self.uses_mpi:
            words = Mpiexec().words()
            return [*words, "-n", str(world_size), "-ppn", str(self.ranks_per_node), *program]
        return [
            "srun", "--mpi=none", "--kill-on-bad-exit=1", "-n", str(world_size),
            f"--ntasks-per-node={self.ranks_per_node}", *program,
        ]  # fmt: skip

    def environ(self):
        """No variables are needed."""
        return {}

    def start(self, folder):
        """Hand the job to the queue."""
        psij = _psij()
        spec = psij.JobSpec(
            name=folder.path.name[:60],
            executable=sys.executable,
            arguments=["-I", LAUNCH, str(folder.path)],
            directory=folder.path,
            stdout_path=folder.file("batch.out"),
            stderr_path=folder.file("batch.err"),
            launcher="single",
            resources=psij.ResourceSpecV1(
                node_count=self.nodes, processes_per_node=self.ranks_per_node
            ),
            attributes=psij.JobAttributes(
                # A minute more than our own limit, which says more when it is over.
                duration=datetime.timedelta(minutes=math.ceil(self.time_limit / 60) + 1),
                queue_name=self.partition,
                account=self.account,
            ),
        )
        job = psij.Job(spec)
        try:
            executor = _executor(folder, self.scheduler, words_of(self.login))
            command = executor.get_submit_command
            extra = (*self._named(folder), *self.extra)
            executor.get_submit_command = lambda *what: _with(command(*what), extra)
            executor.submit(job)
        except Exception as error:  # PSI/J's own, and those of a missing sbatch
            raise JobError(_refusal(error)) from None
        native = {
            "scheduler": self.scheduler,
            "id": job.native_id,
            "login": words_of(self.login),
        }
        folder.write_json(native, "native.json")

    def _named(self, folder):
        """The option that names the job: PSI/J hands a number of its own to Slurm."""
        return (f"--job-name={folder.path.name}",) if self.scheduler == "slurm" else ()


def _with(command, extra):
    """The command that submits a script, with further options."""
    return [command[0], *extra, *command[1:]]


def _refusal(error):
    from .launcher_failures import cause_in

    sentence, line = cause_in(str(error))
    if "sbatch" in str(error) and "No such file" in str(error):
        return "this machine has no sbatch: submit from a host of the cluster that has Slurm"
    return f"the queue has refused the job: {sentence or line}"


def _psij():
    try:
        import psij
    except ImportError:
        raise JobError("PSI/J is missing: pip install psij-python") from None
    logging.getLogger("psij").setLevel(logging.ERROR)
    return psij


def _executor(folder, scheduler, login):
    """PSI/J's executor, whose commands run behind ``login``; its own files stay in the folder."""
    psij = _psij()
    from psij.executors.batch.batch_scheduler_executor import BatchSchedulerExecutorConfig

    config = BatchSchedulerExecutorConfig(
        queue_polling_interval=POLL_S,
        initial_queue_polling_delay=POLL_S,
        work_directory=folder.path / "psij",
    )
    executor = psij.JobExecutor.get_instance(scheduler, config=config)
    run_command = executor._run_command
    executor._run_command = lambda command: run_command([*login, *command])
    if scheduler == "slurm":
        executor.parse_status_output = lambda code, out: _states_in(executor, code, out)
    return executor


def _states_in(executor, exit_code, out):
    """What squeue says of all this account's jobs. PSI/J 0.9 takes no reason of several words, as
    `ReqNodeNotAvail, UnavailableNodes:node2`, of whichever job, and then knows nothing of any.
    """
    psij = _psij()
    if exit_code:
        raise RuntimeError(f"squeue has ended with {exit_code}: {out}")
    found = {}
    for line in out.splitlines()[1:]:
        number, state, *reason = line.split(maxsplit=2)
        if state in executor._STATE_MAP:
            words = " ".join(reason).replace("None", "") or None
            found[number] = psij.JobStatus(executor._STATE_MAP[state], message=words)
    return found


def _in_words(reason):
    """What a reason of Slurm's means to who waits."""
    if reason in ("", "None"):
        return ""
    return USUAL.get(reason) or (
        f"the queue says {reason!r}, which may last for ever. sinfo shows the nodes there are; "
        "job.cancel() takes it out"
    )


class Queue:
    """What the scheduler says of a job; says nothing of one that no scheduler has.

    Parameters
    ----------
    folder : JobFolder
    """

    def __init__(self, folder):
        self._folder = folder
        self._native = folder.read_json("native.json")
        self._job = None
        self._reason = ""
        self._asked_at = -math.inf

    def state(self):
        """``queued``, ``active``, ``done``, ``failed``, ``cancelled``, or None."""
        if self._native is None:
            return None
        names = {"NEW": "queued", "COMPLETED": "done", "CANCELED": "cancelled"}
        name = self._attached().status.state.name
        return names.get(name, name.lower())

    def words(self):
        """What the scheduler and the batch job have said."""
        if self._native is None:
            return ""
        said = [self._folder.text("batch.err"), self._attached().status.message or ""]
        return "\n".join(said)

    def reason(self):
        """Why the job still waits, in words; empty where the scheduler does not say."""
        if self._native is None or self._native["scheduler"] != "slurm":
            return ""
        if time.monotonic() > self._asked_at + REASON_S:
            self._reason = _in_words(self._ask_reason())
            self._asked_at = time.monotonic()
        return self._reason

    def _ask_reason(self):
        words = ["squeue", "--noheader", "--format=%r", "--jobs", self._native["id"]]
        try:
            done = subprocess.run(
                [*self._native["login"], *words], capture_output=True, text=True,
                timeout=ANSWER_S, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.strip()

    def cancel(self):
        """Take the job out of the queue, or end it."""
        if self._native is not None:
            self._attached().cancel()

    def _attached(self):
        """PSI/J's job, which it asks the scheduler about every second."""
        if self._job is None:
            psij = _psij()
            self._job = psij.Job()
            native = self._native
            executor = _executor(self._folder, native["scheduler"], native["login"])
            executor.attach(self._job, native["id"])
            patience = datetime.timedelta(seconds=3 * POLL_S)
            self._job.wait(patience, [s for s in psij.JobState if s.name != "NEW"])
        return self._job

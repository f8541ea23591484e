"""`Slurm`, and `SlurmScheduler`, which calls sbatch, squeue and scancel, but no accounting."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ...core.model.errors import InvalidCallError
from ..launchers import OUT_OF_TIME, SRUN, TOO_MUCH
from .batch_system import BatchJob, Flag, JobStatus, Queued, QueueError, Scheduler
from .mpiexec import staged

STATES = {
    "queued": "PD CF RD RF RH RV",
    "active": "R CG RQ RS SI SE SO ST S",
    "done": "CD",
    "failed": "BF DL F NF OOM PR TO",
    "cancelled": "CA",
}
"""The states of jobs, with the short names that squeue prints for them."""
STATE_OF = {short: state for state, names in STATES.items() for short in names.split()}
USUAL = {
    "Resources": "the nodes that the job needs are busy",
    "Priority": "other jobs come before this job",
    "BeginTime": "the start time that the job asked for has not come",
    "Dependency": "the job waits for another job",
}
"""Reasons of jobs that wait and will start. Slurm's other reasons may last for ever."""

LOOK_S = 0.05


class SlurmScheduler(Scheduler):
    """Slurm. simlib uses its commands, which each host of the cluster has."""

    name = "slurm"
    called = "Slurm"
    failures = (
        (
            r"More processors requested than permitted|Node count specification invalid"
            r"|Requested node configuration is not available|cannot be satisfied"
            r"|Requested time limit is invalid",
            TOO_MUCH,
        ),
        (
            r"[Uu]nable to contact slurm controller|(sbatch|squeue|scancel) has not answered",
            "Slurm's controller does not answer: try again later, or ask an administrator whether "
            "slurmctld runs",
        ),
        (
            r"resolve_ctls_from_dns_srv|Could not establish a configuration source",
            "this machine is not in a Slurm cluster: submit on a host of the cluster, or name "
            "such a host with login=['ssh', HOST]",
        ),
        (
            r"nvalid generic resource|nvalid GRES|nvalid feature specification",
            "no node has the resource that --gres or --constraint asks for: `sinfo --format='%N %G "
            "%f'` lists the nodes' resources",
        ),
        (
            r"sbatch: (unrecognized option|invalid option|option .*(ambiguous|requires))",
            "sbatch has no such option: give each option in extra as a word of its own, as "
            "`sbatch --help` lists them",
        ),
        (
            r"sbatch: error: (Invalid -|.* is not a valid)",
            "an option has a value that Slurm does not allow",
        ),
        (r"nvalid node name", "there is no such node: `sinfo` lists the nodes"),
        (r"nvalid qos", "there is no such QOS for this account: `sacctmgr show qos` lists all QOS"),
        (r"nvalid partition", "there is no such partition: `sinfo` lists the partitions"),
        (
            r"nvalid account",
            "Slurm has no such account: `sacctmgr show associations` lists your accounts",
        ),
        (r"DUE TO TIME LIMIT", OUT_OF_TIME),
        (r"DUE TO PREEMPTION", "the job's nodes went to a more urgent job: submit the job again"),
        (
            r"DUE TO NODE FAILURE|Node failure on (?P<host>\S+)",
            "a node failed while the job ran: submit the job again",
        ),
    )
    ended_by_queue = "DUE TO (TIME LIMIT|PREEMPTION|NODE FAILURE)"

    def submit(self, job: BatchJob) -> str:
        folder = job.script.parent
        options = [
            "--parsable", f"--chdir={folder}", "--export=ALL",
            f"--output={folder / 'batch.out'}", f"--error={folder / 'batch.err'}",
            *self._options(job),
        ]  # fmt: skip
        answer = self.hand_over("sbatch", *options, str(job.script))
        return answer.partition(";")[0]  # NUMBER or NUMBER;CLUSTER

    def hold(self, job: BatchJob) -> str:
        """Like `submit`, but with salloc: the script runs on this machine when the queue starts the
        job."""
        folder = job.script.parent
        words = ["salloc", "--kill-command=TERM", *self._options(job), "sh", str(job.script)]
        with open(folder / "batch.out", "wb") as out, open(folder / "batch.err", "wb") as err:
            try:
                salloc = subprocess.Popen(
                    [*self.login, *words], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                    start_new_session=True,
                )  # fmt: skip
            except FileNotFoundError as error:
                raise self.none("salloc", error) from None
        threading.Thread(target=salloc.wait, daemon=True).start()
        while True:
            has_ended = salloc.poll() is not None
            said = (folder / "batch.err").read_text()
            number = re.search(r"(Pending|Granted) job allocation (\d+)", said)
            if number:
                return number[2]
            if has_ended:
                raise QueueError(said)
            time.sleep(LOOK_S)

    def _options(self, job: BatchJob) -> list[str]:
        """Return Slurm's options for the resources that ranks need.

        simlib requests GPUs per node. With ``--gpus-per-task``, each rank would see only its own
        GPU, as number 0. A script for torchrun, which uses GPU number LOCAL_RANK, would then fail.
        """
        needs, ranks, memory = job.needs, job.needs.ranks_per_node, job.memory_of_node()
        given = {
            "job-name": job.name,
            "nodes": needs.nodes,
            "ntasks": needs.nodes * ranks,
            "ntasks-per-node": ranks,
            "time": job.minutes,
            "partition": needs.partition,
            "account": needs.account,
            "cpus-per-task": needs.cpus_per_rank,
            "gpus-per-node": needs.gpus_per_rank and needs.gpus_per_rank * ranks,
            "mem": memory and "{}{}".format(*memory),
        }
        options = [f"--{name}={value}" for name, value in given.items() if value]
        return [*options, *needs.extra]

    def ask(self, number: str) -> JobStatus:
        # Words with a space would not pass through an ssh of `login`.
        what = ["--noheader", "--states=all", "--format=%t:%r", f"--jobs={number}"]
        try:
            answer = self.run("squeue", *what)
        except QueueError as error:
            if re.search("Invalid job id", str(error)):
                return JobStatus("done")
            raise
        for line in answer.splitlines():
            short, _, reason = line.strip().partition(":")
            if short in STATE_OF:
                return JobStatus(STATE_OF[short], "" if reason == "None" else reason)
        return JobStatus("done")

    def cancel(self, number: str) -> None:
        self.run("scancel", "--quiet", number)

    def in_words(self, reason: str) -> str:
        if not reason:
            return ""
        return USUAL.get(reason) or (
            f"the queue says {reason!r}. The job may wait forever: sinfo shows the nodes, and "
            "job.cancel() removes the job"
        )


@dataclass(frozen=True)
class Slurm(Queued):
    """Run a job on nodes that Slurm allocates.

    Attributes
    ----------
    launcher : {"srun", "mpiexec"}
        The program that starts the ranks. srun needs no MPI.
    mpi : str, optional
        The value of srun's option ``--mpi``: ``"pmix"`` or ``"pmi2"``. With this option, ranks get
        their numbers from MPI and may use MPI. Without it, srun passes the numbers in environment
        variables.
    stage : bool
        True for nodes that share no files with this machine or with each other. It works like
        `Mpiexec.stage`, with srun. This machine then watches the job, instead of the first node,
        and the job ends if this machine stops.
    nodes, ranks_per_node, partition, time_limit, account, extra, login
        See `Queued`. ``extra`` contains options of sbatch.
    setup, env, container, working_dir, cpus_per_rank, gpus_per_rank, memory
        See `Resources`.
    """

    launcher: str = "srun"
    mpi: str | None = None
    stage: bool = False

    scheduler: ClassVar[type[Scheduler]] = SlurmScheduler
    launchers: ClassVar[tuple[str, ...]] = ("srun", "mpiexec")
    flags: ClassVar[tuple[Flag, ...]] = (
        *Queued.flags,
        Flag("mpi", "TYPE", "MPI type of srun, for ranks that use MPI: pmix, pmi2", owner="srun's"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mpi is not None and self.launcher != "srun":
            raise InvalidCallError(f"mpi={self.mpi!r} is an option of srun: add launcher='srun'")
        if self.stage and self.launcher != "srun":
            raise InvalidCallError("stage=True copies the job by srun: add launcher='srun'")

    @property
    def uses_mpi(self) -> bool:
        """True if the ranks get their numbers from MPI. With srun, this is so only with ``mpi``."""
        return self.launcher == "mpiexec" or self.mpi is not None

    def command(self, world_size: int, program: list[str]) -> list[str]:
        """Return the command that starts the ranks after the scheduler has given the nodes."""
        if self.launcher == "mpiexec":
            return super().command(world_size, program)
        options = SRUN.place(replace(self._placement(world_size), mpi=self.mpi))
        command = ["srun", "-n", str(world_size), *options, *program]
        return staged(command) if self.stage else command

    def _hand_over(self, scheduler: Any, job: BatchJob) -> str:
        return scheduler.hold(job) if self.stage else scheduler.submit(job)

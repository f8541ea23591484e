"""`Pbs`, and `PbsScheduler`, which calls qsub, qstat and qdel of OpenPBS or PBS Professional."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from ..launchers import OUT_OF_MEMORY, OUT_OF_TIME, TOO_MUCH
from .batch_system import BatchJob, JobStatus, Queued, QueueError, Scheduler

STATES = {"queued": "Q H T W M", "active": "R E S U B", "over": "F X"}
"""The states of jobs, with the letters that qstat prints for them."""
STATE_OF = {letter: state for state, letters in STATES.items() for letter in letters.split()}
DELETED = "91"
"""The substate of a job that ended because somebody deleted it."""
NAME_LENGTH = 15
"""The most characters in a job's name. Older versions of PBS refuse longer names."""
FORGOTTEN = r"Unknown Job Id|has finished|history"
NEVER = "Can Never Run"


class PbsScheduler(Scheduler):
    """PBS. simlib uses its commands, which each host of the cluster has."""

    name = "pbs"
    called = "PBS"
    failures = (
        (r"violates (queue|server)|exceeds? .*(queue|server).* limit", TOO_MUCH),
        (r"(?i)unknown queue", "PBS has no such queue: qstat -q lists the queues"),
        (
            r"(?i)invalid (account|project)|unauthorized request",
            "PBS does not let you submit jobs with this account or project: check account=...",
        ),
        (
            r"(?i)unknown resource|resource invalid",
            "this PBS lacks a resource that extra=..., gpus_per_rank or memory asks for",
        ),
        (r"PBS: job killed: walltime", OUT_OF_TIME),
        (r"PBS: job killed: v?mem", OUT_OF_MEMORY),
    )
    ended_by_queue = "PBS: job killed: "

    def submit(self, job: BatchJob) -> str:
        folder, needs = job.script.parent, job.needs
        options = [
            "-N", job.name[:NAME_LENGTH], "-V", "-r", "n",
            "-o", str(folder / "batch.out"), "-e", str(folder / "batch.err"),
            "-l", _selection(job), "-l", "place=scatter",
            "-l", f"walltime={job.minutes // 60:02}:{job.minutes % 60:02}:00",
        ]  # fmt: skip
        options += ["-q", needs.partition] if needs.partition else []
        options += ["-A", needs.account] if needs.account else []
        return self.hand_over("qsub", *options, *needs.extra, str(job.script))

    def ask(self, number: str) -> JobStatus:
        try:
            answer = self.run("qstat", "-x", "-f", number)
        except QueueError as error:
            if re.search(FORGOTTEN, str(error)):
                return JobStatus("done")
            raise
        found = _attributes(answer)
        state = STATE_OF.get(found.get("job_state", ""))
        comment = found.get("comment", "")
        if state is None:
            raise QueueError(f"qstat printed no state for job {number}: {answer[:200]!r}")
        if state == "over":
            return JobStatus(_end(found), comment)
        return JobStatus(state, comment if state == "queued" else "")

    def cancel(self, number: str) -> None:
        try:
            self.run("qdel", number)
        except QueueError as error:
            if not re.search(FORGOTTEN, str(error)):
                raise

    def in_words(self, reason: str) -> str:
        if not reason or NEVER in reason:
            advice = "the job will never start: job.cancel() removes it"
            return f"the queue says {reason!r}: {advice}" if reason else ""
        return f"the queue says {reason!r}. `qstat -f` and `pbsnodes -a` show more"


def _selection(job: BatchJob) -> str:
    """Return the words that select one chunk for each node, with the resources that all ranks of
    the node need."""
    needs, ranks, memory = job.needs, job.needs.ranks_per_node, job.memory_of_node()
    parts = [f"select={needs.nodes}", f"ncpus={ranks * (needs.cpus_per_rank or 1)}"]
    parts.append(f"mpiprocs={ranks}")
    if needs.gpus_per_rank:
        parts.append(f"ngpus={ranks * needs.gpus_per_rank}")
    if memory is not None:
        number, unit = memory
        parts.append(f"mem={number}{unit.lower()}b")
    return ":".join(parts)


def _attributes(answer: str) -> dict[str, str]:
    """Return the attributes of a job that ``qstat -f`` prints. A line that begins with a tab
    continues a value."""
    lines = re.sub(r"\n\t", "", answer).splitlines()
    pairs = (line.strip().partition(" = ") for line in lines)
    return {name: value for name, equals, value in pairs if equals}


def _end(found: dict[str, str]) -> str:
    if found.get("substate") == DELETED:
        return "cancelled"
    return "done" if found.get("Exit_status", "0") == "0" else "failed"


@dataclass(frozen=True)
class Pbs(Queued):
    """Run a job on nodes that PBS (OpenPBS or PBS Professional) allocates.

    `Pbs` has never been tested on a cluster with PBS. Its tests use substitutes for qsub, qstat and
    qdel, which behave as the manuals say.

    Attributes
    ----------
    partition : str, optional
        The name of the queue.
    launcher : {"mpiexec"}
        The mpiexec must ask PBS for the nodes. The mpiexec of MPICH and Intel MPI does so, and that
        of an Open MPI that was built with PBS.
    nodes, ranks_per_node, time_limit, account, extra, login
        See `Queued`. ``extra`` contains options of qsub.
    setup, env, container, working_dir, cpus_per_rank, gpus_per_rank, memory
        See `Resources`.
    """

    scheduler: ClassVar[type[Scheduler]] = PbsScheduler
    launchers: ClassVar[tuple[str, ...]] = ("mpiexec",)

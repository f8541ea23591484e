"""Jobs of a real mpiexec on this machine: what comes back, how they fail, who ends them."""

import contextlib
import ctypes
import errno
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from jobs import (
    WAIT_S,
    failure,
    fake_launcher,
    keepers_of_rank_1,
    processes_of,
    submitted,
    wait_until,
)

import simlib
from simlib.cluster.batch.mpiexec import check_versions, versions
from simlib.core.record.returned import LOST


def test_what_a_job_brings_back(tmp_path, capfd):
    factor = 10

    def main(rank, world_size, more, times=1):
        x = torch.tensor([float(rank)])
        dist.all_reduce(x)
        print("rank", rank, "of", os.environ["LOCAL_WORLD_SIZE"], "here")
        if rank == 0:
            dist.send(torch.ones(4), dst=2)
        if rank == 2:
            dist.recv(torch.ones(4), src=0)
        assert int(os.environ["LOCAL_RANK"]) == rank
        return (x.item() + more) * times * factor

    verbose = [Path(sys.executable).with_name("mpiexec"), "-verbose"]
    to = simlib.Mpiexec(launcher=verbose, time_limit=WAIT_S)
    job = simlib.submit(main, 3, (1,), {"times": 2}, to=to, folder=tmp_path)
    assert job.name == "main-1"
    assert job.status in ("queued", "active")
    job.follow()
    assert capfd.readouterr().out.count("here\n") == 3
    run = job.result(WAIT_S)
    assert job.status == "done"
    assert run.results == [80.0, 80.0, 80.0]
    assert run.output == [f"rank {rank} of 3 here\n" for rank in range(3)]
    assert [op.kind for op in run.trace.of_rank(0)] == ["all_reduce", "send"]
    (message,) = run.trace.messages
    assert (message.send.rank, message.recv.rank, message.send.nbytes) == (0, 2, 16)
    assert message.send.site.line_text == "dist.send(torch.ones(4), dst=2)"
    assert 0 < run.time_s < WAIT_S
    assert [clock["offset_s"] for clock in job.clocks] == [0, 0, 0]
    assert run.findings == []
    local = simlib.run(main, 3, (1,), {"times": 2})
    assert run.table() == local.table()
    assert os.stat(job.path).st_mode & 0o077 == 0
    # Each rank takes its leave of mpiexec: MPICH's kills the others where one ends without it.
    assert (job.path / "launcher.out").read_text().count("cmd=finalize_ack") == 3


def test_a_library_may_crash_when_all_is_done(tmp_path):
    def main(rank, world_size):
        main.crash = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)(lambda *_: os.abort())
        ctypes.CDLL(None).on_exit(main.crash, None)
        return rank

    job = submitted(main, 1, tmp_path)
    assert job.result(WAIT_S).results == [0]
    assert job.status == "done"
    wait_until(lambda: not processes_of(job))


def test_an_exception_of_a_rank(tmp_path):
    """A call that begins when the other rank is gone is no wrong call."""

    def main(rank, world_size):
        dist.barrier()
        if rank == 1:
            raise KeyError("no data")
        with contextlib.suppress(RuntimeError):
            dist.recv(torch.zeros(1), src=1)
        dist.recv(torch.zeros(1), src=1)

    job = submitted(main, 2, tmp_path)
    error = failure(job)
    assert isinstance(error, simlib.RankError)
    assert str(error).startswith("rank 1 raised KeyError: 'no data' (test_submit.py, line ")
    assert list(error.tracebacks) == [1]
    assert [op.kind for op in error.run.trace.of_rank(0)][:2] == ["barrier", "recv"]
    assert job.status == "failed"
    wait_until(lambda: not processes_of(job))


def test_no_progress(tmp_path):
    """The silence that counts is that at work: on the way there rank 1 seems to print."""

    def main(rank, world_size):
        if rank == 0:
            print("at work", flush=True)
        while rank == 0:
            pass

    def is_at_work():
        job.path.joinpath("rank-1.out").write_text("." * next(lengths))
        output = job.path / "rank-0.out"
        return output.exists() and output.read_text() == "at work\n"

    job, lengths = submitted(main, 2, tmp_path, timeout_s=1), itertools.count(1)
    wait_until(is_at_work)
    error = failure(job)
    assert isinstance(error, simlib.StuckError)
    assert error.sites[0].line_text in ("while rank == 0:", "pass")


def sleeping(rank, world_size):
    print("here", flush=True)
    time.sleep(10 * WAIT_S)


def test_cancel(tmp_path):
    job = submitted(sleeping, 2, tmp_path)
    wait_until(lambda: job.path.joinpath("rank-1.out").exists())
    with pytest.raises(TimeoutError, match="sleeping-1 is still active after 0 s"):
        job.result(0)
    job.cancel()
    assert job.status == "cancelled"
    wait_until(lambda: not processes_of(job))
    assert "sleeping-1 was cancelled" in str(failure(job))


def test_a_rank_is_gone_with_its_supervisor(tmp_path):
    job = submitted(sleeping, 2, tmp_path)
    wait_until(lambda: job.path.joinpath("rank-1.out").exists())
    os.kill(keepers_of_rank_1(job)["supervisor"], signal.SIGKILL)
    error = failure(job)
    assert isinstance(error, simlib.RankDiedError)
    words = f"rank 1 on {os.uname().nodename} is gone: the process that .* signal 9"
    assert re.match(words, str(error)), error
    wait_until(lambda: not processes_of(job))


def test_an_mpiexec_of_another_mpi(tmp_path):
    launcher = fake_launcher(tmp_path, "lambda rank, size: {}")
    to = simlib.Mpiexec(launcher=launcher, time_limit=WAIT_S)
    error = failure(submitted(sleeping, 2, tmp_path, to=to))
    assert isinstance(error, simlib.JobError)
    assert "the job has 2 ranks, but MPI says that this is rank 0 of 1" in str(error)
    assert "belongs to another MPI" in str(error)


# A death that the others outlive, noise, and further attempts: as in `run`


def pairs_and_survivors(rank, world_size):
    """Rank 1 dies; the pair without it goes on, and so does a group that survivors make."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    x = torch.tensor([rank + 1.0])
    store = dist.distributed_c10d._get_default_store()
    store.set(f"rank {rank} has its pair", "")
    if rank == 1:
        store.wait([f"rank {other} has its pair" for other in (0, 2, 3)])
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        dist.all_reduce(x, group=pairs[rank // 2])
        seen = "done"
    except RuntimeError as error:
        seen = LOST.search(str(error)) is not None
    survivors = dist.new_group([0, 2, 3], use_local_synchronization=True)
    dist.all_reduce(x, group=survivors)
    return seen, x.item()


def test_the_others_outlive_a_death_as_in_run(tmp_path):
    job = submitted(pairs_and_survivors, 4, tmp_path, on_death="continue")
    run = job.result(WAIT_S)
    assert job.status == "done"
    assert run.results == [(True, 15.0), None, ("done", 15.0), ("done", 15.0)]
    assert list(run.deaths) == [1]
    assert [op.rank for op in run.trace if op.failed_s is not None] == [0]
    crosses = [line for line in run.timeline().axes[0].lines if line.get_marker() == "X"]
    assert len(crosses) == 1
    local = simlib.run(pairs_and_survivors, 4, on_death="continue")
    assert local.results == run.results
    assert local.table() == run.table()
    wait_until(lambda: not processes_of(job))


def test_a_job_outlives_the_rank_whose_supervisor_has_the_store_and_judges(tmp_path):
    def main(rank, world_size):
        if rank == 0:
            time.sleep(WAIT_S)
        with contextlib.suppress(RuntimeError):
            dist.recv(torch.ones(1), src=0)
        x = torch.tensor([float(rank)])
        dist.all_reduce(x, group=dist.new_group([1, 2], use_local_synchronization=True))
        print(x.item())
        dist.recv(x, src=3 - rank)

    error = failure(job := submitted(main, 3, tmp_path, kill={0: 0.3}, on_death="continue"))
    assert isinstance(error, simlib.DeadlockError)
    assert "ranks 1 and 2 wait for each other" in str(error)
    assert list(error.run.deaths) == [0] and error.run.deaths[0] >= 0.3
    assert error.run.output == ["", "3.0\n", "3.0\n"]
    wait_until(lambda: not processes_of(job))


@pytest.mark.slow
def test_ranks_that_die_before_all_have_met_end_the_job(tmp_path):
    def main(rank, world_size):
        return rank

    class Deadly:
        def __reduce__(self):
            return os._exit, (3,)

    job = submitted(main, 2, tmp_path, Deadly(), on_death="continue")
    error = failure(job)
    assert isinstance(error, simlib.JobError)
    assert "exited with code 3 before it called its function" in str(error)
    wait_until(lambda: not processes_of(job))


def test_slow_ranks_of_a_job(tmp_path):
    def main(rank, world_size):
        began = time.monotonic()
        simlib.compute(0.1)
        return time.monotonic() - began

    def factor(rank, k, random):
        tmp_path.joinpath(f"slow-{rank}").touch()
        return 4.0

    slow = {1: simlib.scale.Jitter(factor)}
    at_once, late = submitted(main, 2, tmp_path, slow=slow).result(WAIT_S).results
    assert at_once >= 0.1 and late >= 0.4
    assert [path.name for path in tmp_path.glob("slow-*")] == ["slow-1"]


def resumed(rank, world_size, path):
    """Counts to 6; a restart goes on from what was counted. At first, rank 2 dies after 2."""
    count = os.environ["TORCHELASTIC_RESTART_COUNT"]
    done = path.stat().st_size if path.exists() else 0
    dist.barrier()
    for step in range(done, 6):
        if (count, rank, step) == ("0", 2, 2):
            wait_until(lambda: path.stat().st_size == 2)
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()
        if rank == 0:
            path.write_text("." * (step + 1))
    return count, world_size, done


def test_a_job_begins_anew_with_those_that_are_left(tmp_path):
    seen = tmp_path / "seen"

    def told(restart):
        died = list(restart.run.deaths), type(restart.error).__name__
        seen.write_text(f"{restart.count} {restart.world_size} {died} {restart.error.exitcodes}")

    job = submitted(
        resumed, 4, tmp_path, tmp_path / "saved", restarts=2, min_ranks=2, on_restart=told
    )
    run = job.result(WAIT_S)
    assert job.status == "done"
    assert run.results == [("1", 3, 2)] * 3
    first, last = run.attempts
    assert last is run and list(first.deaths) == [2] and first.world_size == 4
    assert 0 == first.began_s < first.deaths[2] <= last.began_s
    assert seen.read_text() == "1 3 ([2], 'RankDiedError') {2: -9}"
    again = simlib.Job(job.path).result(0)
    assert [len(attempt.results) for attempt in again.attempts] == [4, 3]
    assert [job.name for job in simlib.jobs(job.path.parent)] == [job.name]
    assert len(job.clocks) == 3
    wait_until(lambda: not processes_of(job))


def killed(folder):
    """Kill the process that looks after a folder's launcher."""
    os.kill(state_of(folder)["pid"], signal.SIGKILL)


def state_of(folder):
    return json.loads(folder.joinpath("state.json").read_text())


@pytest.fixture
def asleep(tmp_path):
    """A job that may begin anew, and whose ranks sleep."""
    job = submitted(sleeping, 2, tmp_path, restarts=3)
    wait_until(lambda: job.path.joinpath("attempt-1/rank-1.out").exists())
    yield job
    wait_until(lambda: not processes_of(job))


def test_a_job_that_may_begin_anew_is_cancelled(asleep):
    asleep.cancel()
    assert asleep.status == "cancelled"
    assert f"{asleep.name} was cancelled" in str(failure(asleep))
    assert not asleep.path.joinpath("attempt-2").exists()


def test_no_rank_outlives_the_program_that_makes_the_attempts(asleep):
    killed(asleep.path / "attempt-1")
    wait_until(lambda: not processes_of(asleep))
    assert asleep.status == "failed"
    with pytest.raises(simlib.JobError, match="that watched the job's launcher has ended"):
        asleep.result()


@pytest.mark.slow
def test_cancel_ends_ranks_that_nobody_looks_after(asleep):
    killed(asleep.path)
    killed(asleep.path / "attempt-1")
    wait_until(lambda: asleep.status == "failed")
    assert processes_of(asleep)
    asleep.cancel()
    assert asleep.status == "cancelled"


DEAF = """\
import signal, sys, time
if len(sys.argv) < 3:
    print("HYDRA build details")
    sys.exit()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("deaf", "w").close()
time.sleep(600)
"""
"""An mpiexec that starts nothing and does not end when it is asked to."""


@pytest.mark.slow
def test_a_launcher_that_does_not_obey_ends_before_those_who_look_after_it(tmp_path):
    deaf = tmp_path / "deaf.py"
    deaf.write_text(DEAF.replace('"deaf"', repr(str(tmp_path / "is-there"))))
    to = simlib.Mpiexec(launcher=[sys.executable, str(deaf)], time_limit=WAIT_S)
    job = submitted(sleeping, 2, tmp_path, to=to, restarts=1)
    wait_until(tmp_path.joinpath("is-there").exists)
    job.path.joinpath("cancel").touch()  # as with the time limit, the outer one is the first to see
    wait_until(lambda: job.status == "cancelled")
    assert not processes_of(job)
    assert state_of(job.path / "attempt-1")["state"] == "ended"


@pytest.mark.slow
def test_one_time_limit_holds_for_all_attempts(tmp_path):
    def main(rank, world_size):
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os._exit(3)
        time.sleep(WAIT_S)

    job = submitted(main, 2, tmp_path, to=simlib.Mpiexec(time_limit=15), restarts=1)
    error = failure(job)
    assert f"{job.name} reached its time limit of 15 s" in str(error)
    assert len(error.run.attempts) == 2
    wait_until(lambda: not processes_of(job))


def exits(restart):
    sys.exit(0)


def fails_as_a_run(restart):
    simlib.simulate(lambda rank, world_size: 1 / 0, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("told", "error"),
    [(exits, "SystemExit: 0"), (fails_as_a_run, "RankError: rank 0 raised ZeroDivisionError")],
)
def test_what_on_restart_raises_is_told(tmp_path, told, error):
    def main(rank, world_size):
        os._exit(3)

    job = submitted(main, 2, tmp_path, restarts=3, on_restart=told)
    words = f"{job.name} could not be carried out: the job could not restart: {error}"
    assert words in str(failure(job))
    assert job.status == "failed"
    assert not job.path.joinpath("attempt-2").exists()


class ByEnvironment(simlib.Mpiexec):
    """As on nodes without mpi4py."""

    uses_mpi = False


def test_ranks_that_know_their_numbers_from_the_environment(tmp_path):
    def main(rank, world_size):
        x = torch.tensor([rank + 1])
        dist.all_reduce(x)
        return x.item(), os.environ["TORCHELASTIC_RESTART_COUNT"]

    environ = "lambda rank, size: {'SLURM_PROCID': str(rank), 'SLURM_NTASKS': str(size)}"
    to = ByEnvironment(launcher=fake_launcher(tmp_path, environ), time_limit=WAIT_S)
    assert submitted(main, 2, tmp_path, to=to).result(WAIT_S).results == [(3, "0")] * 2


def test_a_node_with_another_torch():
    check_versions(versions())
    with pytest.raises(
        simlib.JobError, match=r"with torch .*, but the notebook has 1\.13\.1: install the"
    ):
        check_versions({**versions(), "torch": "1.13.1"})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"world_size": 0}, "world_size is 0: give a whole number of at least 1"),
        ({"function": 3}, "submit needs a function"),
        ({"to": simlib.Mpiexec(hosts=["a"])}, "world_size=2 does not fit on 1 hosts"),
        ({"to": simlib.Slurm(nodes=1)}, "world_size=2 does not fit on nodes=1"),
        ({"on_death": "stay"}, "on_death='stay' is not one of 'end', 'continue'"),
        ({"kill": {2: 1.0}}, "kill: 2 is not a rank: ranks are 0 to 1"),
        ({"slow": 2.0}, "slow=2.0 must be a dict by rank"),
        ({"restarts": -1}, "restarts=-1 must be a whole number"),
        ({"restarts": 1, "on_restart": threading.Lock().acquire}, "on_restart cannot be sent"),
    ],
)
def test_what_submit_refuses(tmp_path, arguments, words):
    call = {"function": sleeping, "world_size": 2, "to": None, **arguments}
    with pytest.raises(simlib.InvalidCallError, match=words):
        simlib.submit(folder=tmp_path, **call)
    assert not list(tmp_path.iterdir())


PIPED = """
import os, sys, time, simlib

def main(rank, world_size):
    while not os.path.exists({go!r}):
        time.sleep(0.05)
    print("from rank", rank)
    return rank

if __name__ == "__main__":
    simlib.submit(main, 2, to=simlib.Mpiexec(time_limit={limit}), folder={jobs!r})
    print("submitted", flush=True)
    os.kill(os.getpid(), {number})
"""


@pytest.mark.parametrize("number", [0, signal.SIGKILL], ids=["ends", "is killed"])
def test_a_job_outlives_its_kernel_and_holds_no_pipe_of_its_open(tmp_path, number):
    go, jobs = tmp_path / "go", tmp_path / "jobs"
    script = tmp_path / "script.py"
    script.write_text(PIPED.format(go=str(go), jobs=str(jobs), limit=WAIT_S, number=int(number)))
    reader, writer = os.pipe()  # a file beside stdout and stderr, that is inherited too
    done = subprocess.run(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        pass_fds=[writer], timeout=WAIT_S,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stdout) == (-number, b"submitted\n")
    assert os.read(reader, 1) == b""
    os.close(reader)
    (job,) = simlib.jobs(jobs)
    assert job.status in ("queued", "active")
    go.touch()
    run = job.result(WAIT_S)
    assert run.results == [0, 1]
    assert run.output == ["from rank 0\n", "from rank 1\n"]


@pytest.mark.parametrize(
    ("full", "is_new"), [("request.pkl", False), ("job.json", True), ("start.py", True)]
)
def test_a_full_filesystem_is_told_and_leaves_nothing(tmp_path, monkeypatch, full, is_new):
    truly_write = Path.write_bytes

    def write(path, content):
        if full in path.name:
            truly_write(path, content[:1])
            raise OSError(errno.ENOSPC, "No space left on device")
        truly_write(path, content)

    jobs = tmp_path / "jobs"
    if not is_new:
        jobs.mkdir()
    monkeypatch.setattr(Path, "write_bytes", write)
    with pytest.raises(simlib.JobError) as caught:
        simlib.submit(sleeping, 1, folder=jobs)
    words = str(caught.value)
    assert "No space left on device): free some space there, or name another folder with" in words
    assert str(jobs) in words and "\n" not in words
    assert list(tmp_path.rglob("*")) == ([] if is_new else [jobs])
    monkeypatch.undo()
    (tmp_path / "file").touch()
    with pytest.raises(simlib.JobError, match="cannot be made and filled in .*Not a directory"):
        simlib.submit(sleeping, 1, folder=tmp_path / "file" / "jobs")

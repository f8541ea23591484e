"""Lesson 16 on a cluster and from its records; what `scripts/record_cluster.py` keeps of a job."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import record_cluster
import torch
import torch.distributed as dist

import simlib
from simlib.core.record import oplog

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "notebooks" / "recorded"
LESSON = ROOT / "notebooks" / "16_the_real_cluster.ipynb"


def test_a_reduced_job_gives_the_same_run_without_its_function(tmp_path):
    secret = "of the machine that records"

    def main(rank, world_size):
        x = torch.tensor([float(rank)])
        dist.all_reduce(x)
        print("rank", rank, len(secret))
        return x.item()

    job = simlib.submit(main, 2, to=simlib.Mpiexec(), folder=tmp_path / "jobs")
    run = job.result(120)
    record_cluster.reduce_job(job.path, tmp_path / "kept")
    kept = simlib.Job(tmp_path / "kept")
    assert kept.status == "done"
    again = kept.result()
    assert again.results == run.results == [1.0, 1.0]
    assert (again.output, again.table()) == (run.output, run.table())
    assert [place["host"] for place in kept.clocks] == [os.uname().nodename] * 2
    assert secret in (job.path / "request.pkl").read_bytes().decode("latin-1")
    held = [path.read_bytes() for path in (tmp_path / "kept").iterdir()]
    assert not any(word.encode() in content for word in (secret, sys.prefix) for content in held)


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*-1")), ids=lambda path: path.name)
def test_every_recorded_job_can_be_read_and_nothing_comes_before_its_cause(path):
    """Lesson 16 shows them where there is no cluster; a new layout of logs has to keep them."""
    job = simlib.Job(path)
    ends = {"both_receive-1": simlib.DeadlockError, "unknown_host-1": simlib.JobError}
    if path.name in ends:
        with pytest.raises(ends[path.name]) as caught:
            job.result()
        run = getattr(caught.value, "run", None)
    else:
        run = job.result()
    read = {"around-1": 8, "both_receive-1": 2, "ring-1": 48, "trained-1": 104}
    if path.name in read:
        ops = run.trace.ops
        assert len(ops) == read[path.name]
        for op in ops:
            assert 0 <= op.post_s <= op.wait_s <= (op.end_s or op.wait_s) < 60
            assert op.waited_after in (None, op.seq + 1, op.seq + 2)
        for message in run.trace.messages:
            assert message.send.post_s < message.recv.end_s


@pytest.mark.parametrize(("written", "age"), [(1, "an older"), (99, "a newer"), (None, "an older")])
def test_logs_of_another_simlib_are_refused(tmp_path, written, age):
    shutil.copytree(RECORDED / "ring-1", tmp_path / "ring-1")
    about = json.loads((tmp_path / "ring-1" / "job.json").read_text())
    del about["log_format"]
    if written is not None:
        about["log_format"] = written
    (tmp_path / "ring-1" / "job.json").write_text(json.dumps(about))
    with pytest.raises(simlib.JobError, match=f"were written by {age} simlib"):
        simlib.Job(tmp_path / "ring-1").result()


def test_the_layout_of_logs_has_not_changed_without_its_number():
    sizes = oplog.OP.size, oplog.PIECE.size, oplog.DEFINITION.size, oplog.HEADER
    assert (oplog.FORMAT, sizes) == (3, (72, 24, 8, 64))


def test_every_record_is_shown_and_none_is_missing():
    text = LESSON.read_text(encoding="utf-8")
    names = {path.name.removesuffix("-1").removesuffix(".txt") for path in RECORDED.iterdir()}
    names -= {"README.md", "env.json", "failures"}  # the last one is lesson 14's
    assert all(name in text for name in names)
    environments = json.loads((RECORDED / "env.json").read_text())
    assert set(environments) == {"Slurm", "Open MPI", "Intel MPI", "torchrun"}


def test_records_hold_no_folder_of_the_machine_that_made_them():
    for path in RECORDED.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not any(name.encode() in content for name in (str(ROOT), sys.prefix)), path


@pytest.mark.slow
@pytest.mark.parametrize("slurm", [False, True])
def test_the_lesson_passes_on_a_cluster(needs_practice_cluster, tmp_path, slurm):
    """On the login host, where a hostfile names the nodes; without Slurm its jobs are recorded."""
    from simlib.cluster.practice import PracticeCluster

    needs_practice_cluster(slurm=slurm)
    (tmp_path / "hostfile").write_text("node1\nnode2\nnode3\nnode4\n")
    environ = {**os.environ, "HOSTFILE": str(tmp_path / "hostfile")}
    program = [sys.executable, "-m", "pytest", "--nbval", "--nbval-cell-timeout=300", "-q", LESSON]
    with PracticeCluster(4, rate_bps=100e6, slurm=slurm) as cluster:
        words = [*program, "-p", "no:cacheprovider"]
        done = cluster.run("login", words, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout

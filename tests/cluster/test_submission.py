"""What `submit` leaves behind: in whose files, and where it could not submit."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import WAIT_S

import simlib

PIPED = """
import os, sys, time, simlib

def main(rank, world_size):
    while not os.path.exists({go!r}):
        time.sleep(0.05)
    return rank

if __name__ == "__main__":
    simlib.submit(main, 1, to=simlib.Mpiexec(time_limit={limit}), folder={jobs!r})
    print("submitted")
"""


def test_who_reads_the_output_by_a_pipe_does_not_wait_for_the_job(tmp_path):
    go, jobs = tmp_path / "go", tmp_path / "jobs"
    script = tmp_path / "script.py"
    script.write_text(PIPED.format(go=str(go), jobs=str(jobs), limit=WAIT_S))
    reader, writer = os.pipe()  # a file beside stdout and stderr, that is inherited too
    done = subprocess.run(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        pass_fds=[writer], timeout=WAIT_S,
    )  # fmt: skip
    os.close(writer)
    assert done.stdout == b"submitted\n"
    assert os.read(reader, 1) == b""
    os.close(reader)
    (job,) = simlib.jobs(jobs)
    assert job.status in ("queued", "active")
    go.touch()
    assert job.result(WAIT_S).results == [0]


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("full", ["request.pkl", "job.json", "start.py"])
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
        simlib.submit(lambda rank, world_size: rank, 1, folder=jobs)
    words = str(caught.value)
    assert "No space left on device): make room there, or name another by folder=" in words
    assert str(jobs) in words and "\n" not in words
    assert list(tmp_path.rglob("*")) == ([] if is_new else [jobs])


def test_a_place_where_no_folder_can_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(simlib.JobError, match="cannot be made and filled in .*Not a directory"):
        simlib.submit(lambda rank, world_size: rank, 1, folder=tmp_path / "file" / "jobs")

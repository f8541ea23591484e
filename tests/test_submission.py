"""What `submit` leaves behind: in whose files, and where it could not submit."""

import os
import subprocess
import sys

from test_submit import WAIT_S

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

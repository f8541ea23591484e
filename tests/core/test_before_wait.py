"""A receive buffer has no values before `wait`, and to look is no fault: simulated and graded."""

import os
import subprocess
import sys

import pytest

from simlib.core.environment import VARIABLE

CONFINED = {VARIABLE: "simlib.classroom.confinement"}
PROGRAM = """
import ctypes, sys, torch, torch.distributed as dist, simlib

def main(rank, n):
    if rank == 0:
        for tag in range(2):
            dist.send(torch.full((3,), 7.0), 1, tag=tag)
        return None
    x = torch.zeros(3)
    seen, other, again = x.numpy(), x.view(3), torch.tensor([]).set_(x.untyped_storage())
    raw = (ctypes.c_float * 3).from_address(x.data_ptr())
    first = dist.irecv(x, 0)
    dist.recv(torch.zeros(3), 0, tag=1)  # sent later: the first one has come, too
    looks = list(seen), other.tolist(), again.tolist(), list(raw)
    early = {float(value) for look in looks for value in look}
    first.wait()
    return sorted(early), list(map(float, seen)), list(raw)

if __name__ == "__main__":
    for engine in sys.argv[1:]:
        run = getattr(simlib, engine)(main, 2)
        print(run.findings or run.results[1])
"""


@pytest.mark.parametrize(
    "engines, grades", [(["simulate"], {}), (["simulate", "run"], CONFINED)], ids=["free", "graded"]
)
def test_a_receive_buffer_has_no_values_before_wait_by_any_alias(tmp_path, engines, grades):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    environ = os.environ | {"HOME": str(tmp_path)} | grades
    done = subprocess.run(
        [sys.executable, file, *engines], env=environ, capture_output=True, text=True
    )
    values = "([0.0], [7.0, 7.0, 7.0], [7.0, 7.0, 7.0])"
    assert done.stdout.splitlines()[-len(engines) :] == [values] * len(engines), done.stderr

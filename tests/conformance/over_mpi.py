"""Torch's own methods, and the programs of `features`, over the mpi4py backend.

`run_job` starts mpiexec; this module, run by it, is one rank of the job: it goes through a list of
names and leaves a line of JSON for each. Several names share a job, because starting one takes
seconds. A rank that fails ends the job (the others wait for it), and `run_all` goes on behind the
name that failed with a new one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from . import features, harness

SKIPPED, PASSED = "skipped", "passed"
MPIEXEC = str(Path(sys.executable).with_name("mpiexec"))
LIMIT_OF_A_NAME_S = 60


def run_all(names, world_size):
    """``{name: (status, detail)}`` of methods or features, over as many jobs as it takes.

    The detail of a feature that passed is what each rank returned.
    """
    outcomes, left = {}, list(names)
    while left:
        found, ending = run_job(left, world_size)
        outcomes |= found
        left = left[len(found) :]
        if left:
            outcomes[left.pop(0)] = ("failed", ending)
    return outcomes


def command(ranks, program):
    """The words that start ranks by the mpiexec beside this Python, of whichever MPI it is."""
    import simlib

    return simlib.Mpiexec(launcher=[MPIEXEC]).command(ranks, program)


def run_job(names, world_size):
    """``(outcomes, what the job said last)`` of one job: outcomes as far as it came."""
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, "-m", __name__, folder, *names]
        tests = Path(__file__).parents[1]
        path = os.pathsep.join([str(tests.parent), str(tests)])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        # torch's store asks DNS for the names of addresses. A lost question costs 5 s, else.
        environment["RES_OPTIONS"] = "timeout:1 attempts:1"
        process = subprocess.Popen(
            command(world_size, program), cwd=tests, env=environment, text=True, errors="replace",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=LIMIT_OF_A_NAME_S * len(names))
        except subprocess.TimeoutExpired:
            process.kill()
            output = f"no end within {LIMIT_OF_A_NAME_S * len(names)} s\n{process.communicate()[0]}"
        return _read(folder, names, world_size), output[-4000:]


def _read(folder, names, world_size):
    """What all ranks have left, in the order of the names, up to the first that is missing."""
    found = {}
    for number, name in enumerate(names):
        files = [Path(folder, f"{number}-{rank}.json") for rank in range(world_size)]
        if not all(file.exists() for file in files):
            break
        ranks = [json.loads(file.read_text()) for file in files]
        is_feature = name in features.FEATURES
        found[name] = (PASSED, [detail for _, detail in ranks]) if is_feature else tuple(ranks[0])
    return found


def main(folder, names):
    """One rank of a job."""
    import torch
    from mpi4py import MPI

    torch.set_num_threads(1)
    world = MPI.COMM_WORLD
    for number, name in enumerate(names):
        try:
            run = _run_feature if name in features.FEATURES else _run_method
            outcome = run(name, world, Path(folder, f"of {name}"))
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            world.Abort(1)
            os._exit(1)  # where MPI's Abort comes back before the end does
        part = Path(folder, f"{number}-{world.rank}.part")
        part.write_text(json.dumps(outcome))
        part.rename(part.with_suffix(".json"))
        _barrier(world)


def _barrier(world):
    """A barrier that leaves the processor to the ranks that still work: they may share it."""
    barrier = world.Ibarrier()
    while not barrier.Test():
        time.sleep(0.001)


def _run_feature(name, world, folder):
    import torch.distributed as dist

    dist.init_process_group("mpi4py")
    result = features.FEATURES[name](world.rank, world.size)
    dist.barrier()
    dist.destroy_process_group()
    return PASSED, result


def _run_method(name, world, folder):
    import torch.distributed as dist

    upstream = harness.load_upstream(world.size, str(folder))
    upstream.BACKEND = "mpi4py" if name == "test_get_backend" else "gloo"
    if world.rank == 0:
        for part in ("barrier", "test_dir", "init_dir"):
            Path(folder, part).mkdir(parents=True)
    _barrier(world)
    outcome = harness.drive(world.rank, world.size, name, str(folder))
    if dist.is_initialized():
        dist.destroy_process_group()
    _barrier(world)
    if world.rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


if __name__ == "__main__":
    import torch.distributed as dist

    import simlib.mpi  # noqa: F401

    ours = dist.init_process_group

    def over_mpi(*args, backend=None, init_method=None, **kwargs):
        return ours("mpi4py", **kwargs)

    dist.init_process_group = over_mpi  # the harness names Gloo, and files to meet at
    main(sys.argv[1], sys.argv[2:])

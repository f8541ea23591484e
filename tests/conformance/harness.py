"""Run one method of PyTorch's own `DistributedTest` in every rank of a world.

The class ships in the torch wheel. Upstream, its runner starts one process per rank, calls
`init_process_group` in each and then the method. Here `drive` does that part, and two engines
give it ranks: ``plain`` (processes with nothing of simlib in them) and ``simlib``
(`simlib.run`). The rank function is the same for both.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
import tempfile
import time
import tomllib
import unittest
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

WORLD_SIZE = 4
LIMIT_S = 60
TABLE = Path(__file__).with_name("methods.toml")
OUTDATED_SKIPS = {"Only MPI supports CPU all_to_all_single"}
"""Reasons upstream gives for skipping methods that do pass on Gloo by now."""


@dataclass(frozen=True)
class Outcome:
    """How one method ended: ``passed``, ``skipped`` or ``failed``, and why."""

    status: str
    detail: str = ""


def read_table():
    """The table of methods as a dict; `methods.toml` explains its parts."""
    return tomllib.loads(TABLE.read_text())


def world_size_of(name):
    """The number of ranks a method is driven with."""
    return 8 if name in read_table()["eight_ranks"] else WORLD_SIZE


def run_method(name, engine, world_size=None, limit_s=LIMIT_S):
    """Run one test method on an engine; returns an `Outcome`.

    The engine is `plain` or `simlib_run`: it takes a rank function, world_size, args and a limit in
    seconds, returns what each rank returned, and raises where a rank failed.
    """
    world_size = world_size or world_size_of(name)
    with tempfile.TemporaryDirectory() as folder:
        for part in ("barrier", "test_dir", "init_dir"):
            Path(folder, part).mkdir()
        try:
            outcomes = engine(drive, world_size, (name, folder), limit_s)
        except Exception as error:
            details = getattr(error, "tracebacks", {}).values()
            return Outcome("failed", "\n".join([f"{type(error).__name__}: {error}", *details]))
    return Outcome(*outcomes[0])


def simlib_run(fn, world_size, args, limit_s):
    """The engine under test."""
    import simlib

    return simlib.run(fn, world_size, args, timeout_s=limit_s).results


def simulated(fn, world_size, args, limit_s):
    """The other engine under test: simulated ranks, without torch's profiler."""
    import simlib

    return simlib.simulate(_without_profiler, world_size, (fn, *args), timeout_s=limit_s).results


def _without_profiler(rank, world_size, fn, *args):
    """Simulated ranks are threads of one process, and torch's profiler serves one at a time."""
    upstream = load_upstream(world_size, tempfile.gettempdir())
    upstream.DistributedTest._DistTestBase.call_dist_op = _call_dist_op
    return fn(rank, world_size, *args)


def _call_dist_op(case, title, is_async, op, *args, secondary_op_call=None, **kwargs):
    """Upstream's method of this name, without the profiler around it."""
    for name in ("expect_event", "profile_cuda", "tensor_shapes"):
        kwargs.pop(name, None)
    works = [op(*args, **kwargs)]
    if secondary_op_call is not None:
        works.append(secondary_op_call())
    for work in works if is_async else ():
        work.wait()


def plain(fn, world_size, args, limit_s):
    """Real processes and Gloo, without simlib.

    Where this process has started simlib's server before, the ranks come from it too: Python has
    one server per process. Its torch is untouched, which `_plain_rank` makes sure of.
    """
    import torch.multiprocessing as mp

    multiprocessing.set_forkserver_preload(["torch", "torch._dynamo"])
    with tempfile.TemporaryDirectory() as folder:
        context = mp.start_processes(
            _plain_rank,
            args=(fn, world_size, args, folder),
            nprocs=world_size,
            join=False,
            start_method="forkserver",
        )
        try:
            deadline = time.monotonic() + limit_s
            while not context.join(timeout=max(0.0, deadline - time.monotonic())):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no end within {limit_s} s")
        finally:
            for process in context.processes:
                process.kill()
                process.join()
        return [_read_result(folder, rank) for rank in range(world_size)]


def _plain_rank(rank, fn, world_size, args, folder):
    import torch

    assert torch.distributed.init_process_group.__module__.startswith("torch.")
    assert not hasattr(torch.distributed.Backend, "SIMLIB")
    with open(Path(folder, f"output-{rank}"), "w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    result = fn(rank, world_size, *args)
    torch.save(result, Path(folder, f"result-{rank}"))


def _read_result(folder, rank):
    import torch

    return torch.load(Path(folder, f"result-{rank}"), weights_only=False)


def assert_close(ours, theirs):
    """Numbers within float tolerance, everything else alike."""
    if isinstance(ours, list | tuple):
        for one, other in zip(ours, theirs, strict=True):
            assert_close(one, other)
    else:
        is_close = isinstance(ours, float) and math.isclose(
            ours, theirs, rel_tol=1e-5, abs_tol=1e-8
        )
        assert is_close or ours == theirs


def load_upstream(world_size, folder):
    """Import PyTorch's test module, which reads its settings from the environment.

    The environment stays as the methods want it: `folder` is where they meet.
    """
    os.environ.update(
        BACKEND="gloo",
        WORLD_SIZE=str(world_size),
        TEMP_DIR=folder,
        INIT_METHOD=f"file://{folder}/init_dir/shared_init_file",
        MASTER_ADDR="localhost",
    )
    from torch.testing._internal.distributed import distributed_test

    # The module keeps the one it was imported with; a rank may serve several methods.
    distributed_test.INIT_METHOD = os.environ["INIT_METHOD"]
    return distributed_test


def upstream_methods():
    """Names of all test methods of the class."""
    base = load_upstream(WORLD_SIZE, tempfile.gettempdir()).DistributedTest._DistTestBase
    return unittest.defaultTestLoader.getTestCaseNames(base)


def drive(rank, world_size, name, folder):
    """The rank function: what upstream's runner does in each of its processes.

    Returns the parts of an `Outcome`: passed or skipped. A failure is raised.
    """
    import torch

    torch.set_num_threads(1)
    upstream = load_upstream(world_size, folder)
    from torch.testing._internal import common_distributed, common_utils

    class Case(upstream.TestDistBackend, upstream.DistributedTest._DistTestBase):
        # Upstream's own names its files by process, and gives up after 10 s.
        barriers = 0

        def _barrier(self, wait_for=world_size, timeout=60):
            self.barriers += 1
            _wait_for_files(Path(folder, "barrier"), self.barriers, rank, wait_for, timeout)

    method = getattr(Case, name)
    reason = getattr(method, "__unittest_skip_why__", None)
    if reason and reason not in OUTDATED_SKIPS:
        return "skipped", reason

    # Upstream's methods leave their level of debugging behind; a rank may serve several methods.
    os.environ.pop("TORCH_DISTRIBUTED_DEBUG", None)
    torch.distributed.set_debug_level_from_env()
    case = Case(name)
    case.rank = rank
    case.file_name = f"{folder}/init_dir/store"
    _init_group(case, upstream, name)
    case._barrier()
    common_utils.set_rng_seed()
    reasons = {skip.exit_code: skip.message for skip in common_distributed.TEST_SKIPS.values()}
    try:
        getattr(case, name)()
    except unittest.SkipTest as skip:
        return "skipped", str(skip)
    except SystemExit as end:
        if end.code in reasons:
            return "skipped", reasons[end.code]
        raise RuntimeError(f"{name} ended its process with {end.code}") from end
    case._barrier()
    torch.distributed.destroy_process_group()
    return "passed", ""


def _wait_for_files(folder, number, rank, count, timeout):
    """A barrier beside torch.distributed: each rank leaves a file and waits for the others'."""
    (folder / f"{number}-{rank}").touch()
    deadline = time.monotonic() + timeout
    while len(list(folder.glob(f"{number}-*"))) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all ranks came to barrier {number}")
        time.sleep(0.01)


def _init_group(case, upstream, name):
    import torch.distributed as dist

    seconds = upstream.CUSTOM_PG_TIMEOUT.get(name, upstream.default_pg_timeout)
    dist.init_process_group(
        init_method=case.init_method,
        backend="gloo",
        world_size=int(case.world_size),
        rank=case.rank,
        timeout=timedelta(seconds=seconds),
    )


if __name__ == "__main__":
    # in tests/: python -m conformance.harness plain|simlib_run|simulated [method ...]
    from conformance import harness  # the ranks import it by this name

    engine = getattr(harness, sys.argv[1])
    for name in sys.argv[2:] or harness.upstream_methods():
        start = time.monotonic()
        outcome = harness.run_method(name, engine)
        print(f"{outcome.status:8}{time.monotonic() - start:6.1f} s  {name}", flush=True)
        if outcome.detail:
            print("    " + outcome.detail.replace("\n", "\n    "), flush=True)

"""Run the canary. Print each failure, and then how many of the programs failed.

python -m simlib.engines.canary [name ...]      exit code 1 if a program fails
"""

from __future__ import annotations

import contextlib
import io
import os
import sys

import torch

from ...core.engines.torch_versions import IN_CANARY
from ...core.environment import NO_GPUS

TIMEOUT_S = 60


def main(names):
    """Run all programs, or the named programs, by both engines. Returns the exit code."""
    os.environ.update({IN_CANARY: "1", **NO_GPUS})
    from ...core.engines.processes.real_run import run
    from ...core.engines.virtual.simulated_run import simulate
    from . import PROGRAMS, programs  # noqa: F401 (which fills the list)

    chosen = [one for one in PROGRAMS if not names or one.name in names]
    failed = [
        f"{program.name} on {engine.__name__}: {why}"
        for program in chosen
        for engine in (run, simulate)
        if (why := _complaint(program, engine))
    ]
    failed += [
        f"{program.name} without data: {why}"
        for program in chosen
        if program.name == "fsdp2_and_tensor_parallel"
        and (why := _complaint_without_data(program, simulate))
    ]
    print(*failed, sep="\n", end="\n" if failed else "")
    print(f"{len(chosen)} programs, both engines: {len(failed) or 'none'} failed")
    return int(bool(failed) or not chosen)


def _complaint(program, engine):
    """One line that says how a program's results differ from one process. None if all are equal."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # torch's warnings, from every rank
            found = engine(program.function, program.ranks, timeout_s=TIMEOUT_S).results
        right = [program.alone(rank, program.ranks) for rank in range(program.ranks)]
        for rank, (mine, one) in enumerate(zip(found, right, strict=True)):
            _compare(mine, one, f"rank {rank}")
    except Exception as error:  # whatever a version of torch comes up with
        return " ".join(str(error).split())[:300] or type(error).__name__
    return None


def _complaint_without_data(program, simulate):
    """One line that says how a program without data differs from the program with data, or None."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            real, dataless = (
                simulate(
                    program.function, program.ranks, timeout_s=TIMEOUT_S, memory=True, data=data
                )
                for data in (True, False)
            )
        for rank in range(program.ranks):
            _compare(_done_by(rank, dataless), _done_by(rank, real), f"rank {rank}")
    except Exception as error:
        return " ".join(str(error).split())[:300] or type(error).__name__
    return None


def _done_by(rank, run):
    ops = [[op.kind, op.shapes, op.dtype, op.end_s] for op in run.trace.of_rank(rank)]
    return [*ops, run.memory[rank].peak_bytes]


def _compare(found, right, where):
    if isinstance(right, torch.Tensor):
        torch.testing.assert_close(found, right, msg=lambda text: f"{where}: {text}")
    elif isinstance(right, list):
        assert len(found) == len(right), f"{where} gives {len(found)} results, not {len(right)}"
        for mine, one in zip(found, right, strict=True):
            _compare(mine, one, where)
    else:
        assert found == right, f"{where} gives {found!r}, not {right!r}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""``timeout=`` of groups, and Gloo's own 30 minutes, in both engines."""

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store, default_pg_timeout

import simlib
from simlib.core.record.transports.plain_group import PlainGroup


def late(rank, world_size, sleep_s, limit_s):
    group = limit_s and dist.new_group(timeout=timedelta(seconds=limit_s))
    if rank == 0:
        time.sleep(sleep_s)
    dist.barrier(group=group or None)
    return "done"


@pytest.mark.parametrize(
    ("sleep_s", "limit_s", "waited_ms"),
    [
        (6, 3, 3000),
        (2, 3, None),
        (2700, None, 1_800_000),
        (1700, None, None),
        (2700, 3600, None),
        (2700, 600, 600_000),
    ],  # fmt: skip
)
def test_a_wait_ends_after_so_much_virtual_time(sleep_s, limit_s, waited_ms):
    if waited_ms is None:
        assert simlib.simulate(late, 3, (sleep_s, limit_s)).results == ["done"] * 3
        return
    with pytest.raises(simlib.RankError, match=f"Timed out waiting {waited_ms}ms") as caught:
        simlib.simulate(late, 3, (sleep_s, limit_s))
    assert "rank 0 arrived too late: barrier (test_timeouts.py, line " in str(caught.value)


def test_who_waits_for_ever_is_told_so_and_not_after_30_minutes():
    def main(rank, world_size):
        if rank:
            dist.barrier()

    with pytest.raises(simlib.DeadlockError, match="wait for rank 0, which has finished"):
        simlib.simulate(main, 3)
    assert default_pg_timeout.total_seconds() == PlainGroup.patience_s


@pytest.mark.parametrize("engine", [simlib.run, simlib.simulate])
def test_a_group_that_would_wait_longer_than_the_run_may_is_judged_at_once(engine):
    def main(rank, world_size):
        dist.recv(torch.ones(1), 1 - rank, group=dist.new_group(timeout=timedelta(minutes=10)))

    with pytest.raises(simlib.DeadlockError, match="ranks 0 and 1 wait for each other"):
        engine(main, 2)


@pytest.mark.parametrize("engine", [simlib.run, simlib.simulate])
def test_a_program_that_catches_the_end_of_its_wait_goes_on(engine):
    def main(rank, world_size):
        group = dist.new_group(timeout=timedelta(seconds=1))
        store, said = _get_default_store(), None
        if rank == 0:
            store.get("given up")
        else:
            try:
                dist.all_reduce(torch.ones(1), group=group)
            except RuntimeError as error:
                said = "Timed out waiting 1000ms" in str(error)
            store.set("given up", "")
        dist.barrier()
        return said

    run = engine(main, 2)
    assert run.results == [None, True]
    (finding,) = run.findings
    assert "all_reduce" in finding.message and "was never called by rank 0" in finding.message


AWAITED = {
    "recv": lambda group: dist.recv(torch.ones(1), 0, group=group),
    "reduce": lambda group: dist.reduce(torch.ones(1), 1, group=group),
}


@pytest.mark.parametrize("call", AWAITED.values(), ids=AWAITED)
def test_an_end_that_nobody_catches_names_who_was_waited_for(call):
    def main(rank, world_size):
        group = dist.new_group(timeout=timedelta(seconds=1))
        if rank:
            call(group)
        while rank == 0:
            pass

    with pytest.raises(simlib.RankError, match="Timed out waiting 1000ms") as caught:
        simlib.run(main, 2)
    assert "rank 0 had not arrived: it is computing (test_timeouts.py, line " in str(caught.value)

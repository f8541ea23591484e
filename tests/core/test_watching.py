"""Runs that are watched, with logs so small that they roll over many times."""

import time

import pytest
import torch
import torch.distributed as dist

import simlib
from simlib.core.diagnose import watching
from simlib.core.diagnose.watching import Watcher, clock_text
from simlib.core.engines.processes import real_run
from simlib.core.record import rolling

STEPS = 400


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """Segments for fourteen ops each."""
    monkeypatch.setattr(rolling, "KEPT_BYTES", 0)


def rounds(rank, world_size, steps):
    """Each step: to the right, from the left, and all together; returns what is known to come."""
    x, total = torch.zeros(1), 0.0
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    for step in range(steps):
        request = dist.isend(torch.full((1,), float(step)), right)
        dist.recv(x, left)
        request.wait()
        dist.all_reduce(x)
        total += x.item()
    return total


def test_a_run_whose_logs_roll_over_many_times_is_right(monkeypatch, tmp_path):
    sizes = []
    keep_up = real_run.ProcessMonitor._keep_watch

    def and_count(monitor):
        found = keep_up(monitor)
        sizes.extend(log.sizes for log in monitor.logs)
        return found

    monkeypatch.setattr(real_run.ProcessMonitor, "_keep_watch", and_count)
    run = simlib.run(rounds, 2, args=(STEPS,), watch=True)
    assert run.results == [sum(2.0 * step for step in range(STEPS))] * 2
    assert not run.findings and run.trace.dropped == 0
    kept, held = (max(counts) for counts in zip(*sizes, strict=True))
    assert kept < 8 * 14 and held <= 2
    assert sum(run.trace.forgotten.ops) + len(run.trace) == 2 * 3 * STEPS
    assert all(message.recv is not None and message.recv.done for message in run.trace.messages)
    assert all(len(collective.ops) == 2 for collective in run.trace.collectives)
    table = str(run)
    assert f": {2 * STEPS} messages, {8 * STEPS:,} bytes; {STEPS} collectives" in table
    assert table.count(f"{STEPS} ({4 * STEPS:,} bytes)  {STEPS} ({4 * STEPS:,} bytes)") == 2
    assert f"of {6 * STEPS:,} ops, from " in table
    assert len(run.transfers) == len(run.trace)
    assert run.timeline() is not None
    again = simlib.load(run.save(tmp_path / "run.json"))
    assert [str(again).split("\n")[0], str(again).split("\n")[-1]] == [
        table.split("\n")[0],
        table.split("\n")[-1],
    ]


def test_a_deadlock_after_many_rounds_is_told_with_both_lines():
    def waits_for_each_other(rank, world_size):
        rounds(rank, world_size, STEPS // 4)
        if rank == 0:
            dist.recv(torch.zeros(1), 1)
        else:
            dist.all_reduce(torch.zeros(1))

    with pytest.raises(simlib.DeadlockError) as caught:
        simlib.run(waits_for_each_other, 2, watch=True)
    error = caught.value
    assert error.sites[0].line_text == "dist.recv(torch.zeros(1), 1)"
    assert error.sites[1].line_text == "dist.all_reduce(torch.zeros(1))"
    assert "ranks 0 and 1 wait for each other" in str(error)
    assert sum(error.run.trace.forgotten.ops) > STEPS


def test_a_mismatch_after_many_rounds_is_told_with_the_line():
    def disagrees(rank, world_size):
        rounds(rank, world_size, STEPS // 4)
        dist.all_reduce(torch.zeros(2 + rank))
        rounds(rank, world_size, STEPS)

    with pytest.raises(simlib.MismatchError) as caught:
        simlib.run(disagrees, 2, watch=True)
    assert caught.value.sites[1].line_text == "dist.all_reduce(torch.zeros(2 + rank))"
    assert "rank 1 brings 3 elements, but rank 0 brings 2" in str(caught.value)


def test_what_was_left_over_long_ago_is_told_and_nothing_else():
    def leaves_a_message(rank, world_size):
        request = dist.isend(torch.zeros(1), 1, tag=7) if rank == 0 else None
        rounds(rank, world_size, STEPS // 4)
        del request

    run = simlib.run(leaves_a_message, 2, watch=True)
    told = [finding.message for finding in run.findings]
    assert len(told) == 1 and "isend(dst=1, tag=7)" in told[0] and "never received" in told[0]


def test_a_watched_run_prints_lines_without_control_characters(capfd):
    simlib.run(rounds, 2, args=(STEPS,), watch=0.05)
    lines = [line for line in capfd.readouterr().err.splitlines() if " ops, " in line]
    assert len(lines) >= 2
    assert all(line.isprintable() and "MB in the largest rank" in line for line in lines)


@pytest.mark.parametrize("watch", [-1, "often", float("nan")])
def test_a_wrong_interval_is_refused(watch):
    with pytest.raises(simlib.InvalidCallError, match="watch="):
        simlib.run(rounds, 2, args=(1,), watch=watch)


def test_a_rank_that_waits_long_is_named_with_its_line(monkeypatch, tmp_path):
    def late(rank, world_size):
        while rank == 1 and not (tmp_path / "go on").exists():
            time.sleep(0.01)
        dist.barrier()

    monkeypatch.setattr(watching, "LONG_WAIT_S", 0.2)
    lines, line_of = [], Watcher.line

    def line(watcher, now_s):
        lines.append(line_of(watcher, now_s))
        if "waited" in lines[-1]:
            (tmp_path / "go on").touch()
        return lines[-1]

    monkeypatch.setattr(Watcher, "line", line)
    simlib.run(late, 2, watch=0.1)
    named = next(line for line in lines if "waited" in line)
    assert "rank 0 has waited" in named and "in barrier (test_watching.py, line" in named
    assert "dist.barrier()" in named and "rank 1 is computing (test_watching.py, line" in named


def test_hours_in_words():
    assert clock_text(59.9) == "0:00:59" and clock_text(3723) == "1:02:03"

"""Of a large job `simlib.diagnose` names the rank that is lost, and torch's analyser many."""

import re

import pytest
import torch
import torch.distributed as dist
from test_recorder_dumps import analysed

import simlib


def stages(rank, world_size):
    """4 stages of 4 ranks, 4 times: rank 37 leaves."""
    first = rank // 4 * 4
    near = dist.new_group(range(first, first + 4), use_local_synchronization=True)
    far = dist.new_group(range(rank % 16, world_size, 16), use_local_synchronization=True)
    x = torch.ones(64)
    for step in range(2):
        for micro in range(2):
            if rank % 16 >= 4:
                dist.recv(x, src=rank - 4)
            if (rank, step, micro) == (37, 1, 1):
                return
            dist.all_reduce(x, group=near)
            if rank % 16 < 12:
                dist.send(x, dst=rank + 4)
        dist.all_reduce(x, group=far)


def layers(rank, world_size):
    """Groups of 8 neighbours: rank 517 leaves."""
    first = rank // 8 * 8
    near = dist.new_group(range(first, first + 8), use_local_synchronization=True)
    far = dist.new_group(range(rank % 8, world_size, 8), use_local_synchronization=True)
    x = torch.ones(4)
    dist.all_reduce(x, group=near)
    if rank != 517:
        dist.all_reduce(x, group=near)
        dist.all_reduce(x, group=far)


@pytest.mark.slow
def test_of_64_ranks_in_stages_the_analyser_blames_messages_that_have_arrived(tmp_path, caplog):
    found, said = both_of(stages, 64, tmp_path, caplog)
    assert (found.kind, found.ranks) == ("deadlock", (37,))
    assert "wait for rank 37, which made no further call after recv(src=33)" in found.message
    reports = said.split("internal record id")
    blamed = [one for one in reports if "SIZE_OR_SYNTAX_MISMATCH" in one]
    assert blamed and all(re.search("nccl:(send|recv)", one) for one in blamed)
    assert all("collective state: completed" in one for one in blamed)
    assert len(set(re.findall(r"Culprit rank (\d+)", said))) > 30


@pytest.mark.slow
def test_of_1024_ranks_the_analyser_has_nine_reports_and_no_order(tmp_path, caplog):
    found, said = both_of(layers, 1024, tmp_path, caplog)
    assert (found.kind, found.ranks) == ("deadlock", (517,))
    assert "(134 ranks) wait for rank 517, which made no further call" in found.message
    missing = sorted(map(int, re.findall(r"missing ranks: \{(\d+)\}", said)))
    assert missing == [512, 513, 514, 515, 516, 517, 517, 518, 519]


def both_of(program, size, tmp_path, caplog):
    """The verdict on the dumps of a program that hangs, and the analyser's words."""
    with pytest.raises(simlib.DeadlockError) as caught:
        simlib.simulate(program, size)
    folder = caught.value.run.to_recorder(tmp_path / "dumps")
    return simlib.diagnose(folder), analysed(folder, caplog)[0]

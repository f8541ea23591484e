"""A run that was saved and read again says what it said before."""

import pytest
import torch
import torch.distributed as dist

import simlib


def both_receive(rank, world_size):
    dist.recv(torch.ones(1), 1 - rank)


def one_is_never_received(rank, world_size):
    if rank == 0:
        dist.isend(torch.ones(1), 1)
    return [{"a": (1, 2.5)}, torch.ones(2) * rank, None]


def takes_memory(rank, world_size):
    held = torch.ones(1000)
    dist.all_reduce(held)
    return held.sum().item()


def on_a_device(program, world_size):
    cluster = simlib.clusters.ethernet_10g(2, device=simlib.Device(flops_per_s=1e9))
    return simlib.simulate(program, world_size, cluster=cluster, seed=3)


@pytest.mark.parametrize("program", [both_receive, one_is_never_received, takes_memory])
@pytest.mark.parametrize("engine", [simlib.run, on_a_device])
def test_a_loaded_run_says_what_it_said(program, engine, tmp_path):
    try:
        run = engine(program, 2)
    except simlib.SimlibError as error:
        run = error.run
    loaded = simlib.load(run.save(tmp_path / "run.json"))
    assert str(loaded.results) == str(run.results)
    assert (loaded.failure, loaded.findings) == (run.failure, run.findings)
    assert (str(loaded.graph), loaded.table()) == (str(run.graph), run.table())
    assert loaded.in_words() == run.in_words()
    for name in ("memory", "flops", "processes", "seed", "began_s"):
        assert getattr(loaded, name) == getattr(run, name), name
    assert ("failed: ranks 0 and 1 wait for each other" in run.table()) == (program is both_receive)


def test_a_result_that_is_no_plain_data_says_so(tmp_path):
    run = simlib.run(lambda rank, n: [print, 7][rank], 2)
    loaded = simlib.load(run.save(tmp_path / "run.json"))
    assert repr(loaded.results[0]).startswith("<not kept: ") and loaded.results[1] == 7
    assert "not kept" in loaded.table()

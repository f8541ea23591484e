"""Dumps out of a run are what torch's recorder writes, and torch's own analyser reads them."""

import gc
import pickle
import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.flight_recorder import fr_trace

import simlib
from simlib.core.formats.recorder_dumps import write_dumps


def every_kind(rank, world_size):
    pair = dist.new_group([0, 1])
    x, parts = torch.ones(4), [torch.ones(4) for _ in range(world_size)]
    later = dist.all_reduce(torch.ones(4), async_op=True)
    if rank < 2:
        dist.all_reduce(torch.ones(2, dtype=torch.int64), group=pair)
    dist.broadcast(x, 1)
    dist.reduce(x, 2)
    dist.all_gather(parts, x)
    dist.reduce_scatter(x, parts)
    dist.reduce_scatter_tensor(torch.ones(2, 3), torch.ones(2 * world_size, 3))
    dist.gather(x, parts if rank == 1 else None, dst=1)
    dist.scatter(x, parts if rank == 2 else None, src=2)
    dist.all_to_all([torch.ones(4) for _ in range(world_size)], parts)
    dist.all_to_all_single(torch.ones(2 * world_size, 5), torch.ones(2 * world_size, 5))
    dist.barrier()
    later.wait()


def one_leaves_early(rank, world_size, gone):
    x = torch.ones(8)
    dist.all_reduce(x)
    later = dist.all_reduce(x, async_op=True)
    if rank != gone:
        dist.all_reduce(x)
    later.wait()


def send_on(rank, world_size):
    pair = dist.new_group([1, 2], group_desc="pair")
    if rank == 1:
        dist.send(torch.ones(3), 2, group=pair)
    if rank == 2:
        dist.irecv(torch.ones(3), 1, group=pair).wait()
    dist.barrier()


def dumps_in(folder):
    return {
        int(path.name.rpartition("_")[2]): pickle.loads(path.read_bytes())
        for path in folder.iterdir()
    }


def analysed(folder, caplog):
    """What torch's analyser says about a folder, and the collectives of its database."""
    caplog.clear()
    database = folder.parent / "database"
    try:
        fr_trace.main([str(folder), "-o", str(database)])
    finally:
        gc.enable()  # it switches it off
    return caplog.text, pickle.loads(database.read_bytes())[1].collectives


def test_the_analyser_matches_every_collective_of_a_healthy_run(tmp_path, caplog):
    run = simlib.simulate(every_kind, 4)
    said, collectives = analysed(run.to_recorder(tmp_path / "dumps"), caplog)
    assert len(collectives) == len(run.trace.collectives) == 12
    assert all(one.pass_check and one.collective_state == "completed" for one in collectives)
    assert "rank" not in said


def test_the_analyser_names_the_rank_of_256_that_left(tmp_path, caplog):
    with pytest.raises(simlib.DeadlockError) as caught:
        simlib.simulate(one_leaves_early, 256, (37,))
    run = caught.value.run
    said, _ = analysed(run.to_recorder(tmp_path / "dumps"), caplog)
    assert re.search(r"Not all ranks joining collective.*: 3$", said, re.M)
    assert re.search(r"missing ranks: \{37\}$", said, re.M)
    assert f"{__file__}:" in said
    states = [(1, "completed"), (2, "completed"), (3, "started")]
    for last in (None, 2):
        dumps = dumps_in(run.to_recorder(tmp_path / "dumps", last=last))
        assert len(dumps) == 256
        entries = dumps[0]["entries"]
        expected = states[-(last or 3) :]
        assert [(entry["collective_seq_id"], entry["state"]) for entry in entries] == expected
        assert list(dumps[0]["pg_status"]["0"].values()) == [3, 3, 2]


def test_an_entry_has_the_learners_line_and_the_places_in_the_group(tmp_path):
    run = simlib.simulate(send_on, 3)
    dumps = dumps_in(run.to_recorder(tmp_path))
    send, barrier = dumps[1]["entries"]
    assert send["profiling_name"] == "nccl:send 0->1"
    assert dumps[2]["entries"][0]["profiling_name"] == "nccl:recv 1<-0"
    assert (send["p2p_seq_id"], send["collective_seq_id"], send["is_p2p"]) == (1, 0, True)
    assert (barrier["p2p_seq_id"], barrier["collective_seq_id"]) == (0, 1)
    torchs, learners = send["frames"]
    assert (torchs["name"], dumps[2]["entries"][0]["frames"][0]["name"]) == ("send", "irecv")
    assert torchs["filename"] == dist.distributed_c10d.__file__
    assert (learners["name"], learners["filename"]) == ("send_on", __file__)
    assert "dist.send" in open(__file__).read().splitlines()[learners["line"] - 1]
    assert dumps[1]["pg_config"] == {
        "0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"},
        "1": {"name": "1", "desc": "pair", "ranks": "[1, 2]"},
    }
    assert list(dumps[0]["pg_config"]) == ["0"]
    op = run.trace.of_rank(1)[1]
    took_ns = barrier["time_discovered_completed_ns"] - barrier["time_created_ns"]
    assert took_ns == pytest.approx((op.end_s - op.post_s) * 1e9, abs=1)


AS_TORCH_WRITES = """
import os, sys, torch, torch.distributed as dist
from torch._C import _distributed_c10d
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
x, parts = torch.ones(4), [torch.ones(4)]
dist.all_reduce(x)
dist.all_gather(parts, x)
dist.broadcast(x, 0)
dist.reduce_scatter(x, parts)
sys.stdout.buffer.write(_distributed_c10d._dump_fr_trace())
"""


def four_kinds(rank, world_size):
    x, parts = torch.ones(4), [torch.ones(4)]
    dist.all_reduce(x)
    dist.all_gather(parts, x)
    dist.broadcast(x, 0)
    dist.reduce_scatter(x, parts)


def test_a_dump_has_the_fields_of_torchs_own(tmp_path):
    words = [sys.executable, "-c", AS_TORCH_WRITES]
    environment = {"TORCH_FR_BUFFER_SIZE": "100"}
    torchs = pickle.loads(subprocess.run(words, env=environment, capture_output=True).stdout)
    ours = dumps_in(simlib.simulate(four_kinds, 1).to_recorder(tmp_path))[0]
    assert ours["version"] == torchs["version"]
    assert set(torchs) <= set(ours)
    assert list(ours["pg_status"]["0"]) == list(torchs["pg_status"]["0"])
    for mine, real in zip(ours["entries"], torchs["entries"], strict=True):
        assert set(mine) == set(real)
        for key in real:
            assert type(mine[key]) is type(real[key]) or None in (mine[key], real[key]), key
        assert (mine["input_dtypes"], mine["op_id"]) == (real["input_dtypes"], real["op_id"])
        if "reduce_scatter" not in mine["profiling_name"]:  # Gloo flattens it after it is recorded
            assert (mine["input_sizes"], mine["output_sizes"]) == (
                real["input_sizes"],
                real["output_sizes"],
            )


def test_ranks_that_died_leave_no_dump(tmp_path):
    trace = simlib.simulate(four_kinds, 1).trace
    trace = replace(trace, world_size=3, deaths={2: 0.5}, missing=(1,))
    assert list(dumps_in(write_dumps(trace, tmp_path))) == [0]


def test_what_is_no_ring_and_no_folder_of_this_run_is_refused(tmp_path):
    run = simlib.simulate(four_kinds, 1)
    with pytest.raises(simlib.InvalidCallError, match="give the number of last calls"):
        run.to_recorder(tmp_path, last=0)
    (tmp_path / "nccl_trace_rank_7").touch()
    with pytest.raises(simlib.InvalidCallError, match="has nccl_trace_rank_7, which is not from"):
        run.to_recorder(tmp_path)

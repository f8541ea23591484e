"""`load` of traces that torch's profiler wrote: real ones of DDP by Gloo, made ones of NCCL."""

import copy
import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest

import simlib
from simlib.core.formats.kineto import MOST_RANKS
from simlib.core.record import kineto

DATA = Path(__file__).parent / "data"
DDP = [DATA / f"kineto_ddp4_rank{rank}.json.gz" for rank in range(4)]
SHIFT_US = 300_000


def content_of(rank):
    return json.loads(gzip.decompress(DDP[rank].read_bytes()))


def written(folder, contents, name="rank{}.json"):
    for number, content in enumerate(contents):
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        (folder / name.format(number)).write_bytes(text)
    return folder


@pytest.fixture(scope="module")
def ddp():
    return simlib.load(str(DATA / "kineto_ddp4_*.gz"))


def test_the_calls_of_four_ranks_by_gloo(ddp):
    assert (ddp.world_size, ddp.engine, ddp.findings) == (4, "real", [])
    met = ddp.trace.collectives
    assert [(one.kind, one.group.name, one.nbytes, len(one.ops)) for one in met] == 3 * [
        ("all_reduce", "world", 526_336, 4),
        ("all_reduce", "world", 526_336, 4),
        ("all_reduce", "world", 4, 4),
    ]
    assert all(op.dtype == "float32" and op.post_s < op.end_s for op in ddp.trace)
    asked = [op for op in ddp.trace if op.nbytes == 4]
    assert all(op.wait_s == op.post_s and not op.async_op for op in asked)
    assert all(op.async_op for op in ddp.trace if op.nbytes > 4)
    assert any(op.wait_s is not None for op in ddp.trace if op.nbytes > 4)


def test_who_came_late_is_found(ddp):
    """In DDP each rank's step takes as long; the others wait for rank 2, which slept 150 ms."""
    steps = [piece for piece in ddp.trace.pieces if piece.name == "step"]
    assert {piece.numbers["number"] for piece in steps} == {2, 3, 4}
    took = np.array([[p.end_s - p.start_s for p in steps if p.rank == rank] for rank in range(4)])
    assert took.sum(1).max() < 1.3 * took.sum(1).min()
    states = ddp.states
    assert states.waiting_s[2] < 0.01 < 0.13 < min(np.delete(states.waiting_s, 2))
    assert states.computing_s.argmax() == 2
    assert {"forward", "step"} <= {piece.name for piece in ddp.trace.pieces}
    assert ddp.profile[0].on == "cpu" and "aten::linear" in {s.name for s in ddp.profile[0].spans}


def test_who_goes_on_before_gloo_records_the_end_has_waited(ddp, tmp_path):
    contents = [content_of(rank) for rank in range(4)]
    for event in contents[0]["traceEvents"]:
        if event["name"] == "gloo:all_reduce":
            event["dur"] *= 1.02
    late = simlib.load(written(tmp_path, contents)).trace.of_rank(0)
    called = [op.wait_s and op.wait_s - op.post_s for op in ddp.trace.of_rank(0)]
    assert [op.wait_s and op.wait_s - op.post_s for op in late] == pytest.approx(called)


def test_stragglers_are_told_by_arrival(ddp, tmp_path):
    late = ddp.stragglers()
    assert late.ranks == (2,) and 0.05 < late.longest_s[2] < 0.15 < late.late_s[2] < late.time_s
    assert late.in_words().startswith(
        "rank 2 came late to collectives. At least half of the ranks waited for it for 214 ms of"
    )
    early = simlib.load(written(tmp_path, [nccl(rank, 4, 30.0 * (rank == 3)) for rank in range(4)]))
    late = early.stragglers()  # all called at once, and all kernels end together
    assert late.ranks == (3,) and late.late_s == pytest.approx([0, 0, 0, 90e-6])
    assert late.longest_s[3] == pytest.approx(30e-6) and late.time_s == pytest.approx(230e-6)
    assert "39.1%" in late.table().splitlines()[2]
    again = simlib.load(early.save(tmp_path / "saved"))
    assert again.stragglers().table() == late.table()
    even = simlib.load(written(tmp_path, [nccl(rank, 4) for rank in range(4)])).stragglers()
    assert even.ranks == () and "no rank was late to collectives for 5% of" in even.in_words()


def test_a_job_is_held_to_budgets(tmp_path):
    run = simlib.load(written(tmp_path, [nccl(0), nccl(1, late_us=30)]))
    assert run.exposed("step", number=7).share < 0.7
    assert sum(one.nbytes for one in run.trace.collectives) <= 3 * 40
    with pytest.raises(AssertionError, match=r"^rank 1 came late to collectives. .* for 90 us of"):
        assert not run.stragglers().ranks, run.stragglers().in_words()


def test_a_rank_alone_has_no_stragglers(tmp_path):
    run = simlib.load(written(tmp_path, [nccl(0, 1)]))
    assert "contains no collective that several ranks" in str(run.stragglers())


def test_replay_and_comparison_of_a_loaded_run(ddp, tmp_path):
    slow = ddp.replay(simlib.Cluster(4, 1, simlib.Link(1e-5, 1e7)))
    fast = ddp.replay(simlib.clusters.infiniband_hdr(4))
    assert fast.time_s < ddp.time_s < slow.time_s
    assert not simlib.compare({"one": ddp, "other": fast}).differences
    again = simlib.load(ddp.save(tmp_path / "run.json"))
    assert again.table() == ddp.table() and str(again.states) == str(ddp.states)


def test_clocks_are_compared_and_corrected(ddp, tmp_path):
    contents = [content_of(rank) for rank in range(4)]
    for event in contents[1]["traceEvents"]:
        event["ts"] += SHIFT_US
    run = simlib.load(written(tmp_path, contents))
    error_s = run.trace.clock_error_s
    assert run.trace.clock_offsets_s[1] == pytest.approx(SHIFT_US / 1e6, abs=error_s)
    assert 0 < error_s == pytest.approx(ddp.trace.clock_error_s, rel=1e-6)
    assert run.time_s == pytest.approx(ddp.time_s, abs=2 * error_s)
    assert run.profile[1].spans[0].start_s == pytest.approx(
        ddp.profile[1].spans[0].start_s, abs=2 * error_s
    )
    assert "rank 1's clock was 30" in run.table()
    assert "ahead of rank 0's clock" in run.table()
    assert "the clocks of the ranks agree to within" in ddp.table()


def nccl(rank, size=2, late_us=0.0, **about):
    """A rank that computes, and all_reduces 10 floats on another stream, three times."""
    args = {
        "Collective name": "allreduce", "dtype": "Float", "In msg nelems": 10, "Out msg nelems": 10,
        "Process Group Name": "0", "Process Group Description": "default_pg",
        "Process Group Ranks": str(list(range(size))), "Group size": size,
    }  # fmt: skip
    events = [span("ProfilerStep#7", "user_annotation", 0, 900, **{"External id": 1})]
    events += [span("ProfilerStep#7", "gpu_user_annotation", 60, 500, 7, **{"External id": 1})]
    for turn in range(3):
        at, number = 100 * turn, {"External id": 10 + turn}
        events.append(span("record_param_comms", "cpu_op", at, 9, **number, **args, **about))
        where = {"device": 0, "stream": 20}
        start = at + 60 + late_us
        length = at + 150 - start
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        events.append(span(name, "kernel", start, length, 20, **number, **where))
        events.append(span("gemm", "kernel", at + 60, 40, 7, device=0, stream=7))
    config = [{"pg_name": "0", "pg_desc": "default_pg", "ranks": list(range(size))}]
    world = {"backend": "nccl", "rank": rank, "world_size": size, "pg_config": config}
    return {"schemaVersion": 1, "baseTimeNanoseconds": 0, "distributedInfo": world,
            "traceEvents": events}  # fmt: skip


def span(name, cat, ts, dur, tid=1, **args):
    return {"ph": "X", "name": name, "cat": cat, "pid": 5, "tid": tid, "ts": ts, "dur": dur,
            "args": args}  # fmt: skip


def at_host(content, name, later_ns=0):
    return content | {"host_name": name, "baseTimeNanoseconds": later_ns}


def test_ranks_of_one_host_have_one_clock(tmp_path):
    times = {0: ("a", 0), 1: ("a", 20_000), 2: ("b", 300_010_000), 3: ("b", 300_000_000)}
    contents = [at_host(nccl(rank, 4), *own) for rank, own in times.items()]
    run = simlib.load(written(tmp_path, contents))
    ahead_s = [run.trace.clock_offsets_s[rank] for rank in range(4)]
    assert ahead_s == pytest.approx([0, 0, 0.3, 0.3]) and run.trace.clock_error_s < 1e-9
    alone = simlib.load(written(tmp_path, [at_host(one, "a") for one in contents]))
    assert not alone.trace.clock_offsets_s and "clocks" not in alone.table()


def test_a_run_on_gpus_by_nccl(tmp_path):
    run = simlib.load(written(tmp_path, [nccl(0), nccl(1, late_us=30)]))
    assert [(one.kind, one.nbytes, len(one.ops)) for one in run.trace.collectives] == [
        ("all_reduce", 40, 2)
    ] * 3
    assert [op.end_s for op in run.trace.of_rank(0)] == pytest.approx([150e-6, 250e-6, 350e-6])
    assert all(op.wait_s is None for op in run.trace)
    assert set(run.profile[0].streams) == {(0, 7), (0, 20)}
    exposed = run.exposed()
    assert exposed.communicating_s == pytest.approx([270e-6, 180e-6])
    assert exposed.exposed_s == pytest.approx([150e-6, 150e-6])
    assert run.exposed("step", number=7).exposed_s == pytest.approx([150e-6, 150e-6])
    assert "stream 20" in run.in_words() or run.timeline() is not None
    with pytest.raises(simlib.InvalidCallError, match="asynchronous device cannot be replayed"):
        run.replay(simlib.clusters.ethernet_10g(2))


def test_a_step_has_the_kernels_that_the_thread_of_backward_launched(tmp_path):
    """torch's annotation on the GPU ends with those that the main thread launched."""
    content = nccl(0, 1)
    for number, (launch, thread) in enumerate([(50, 1), (700, 2), (950, 1)]):
        run = {"correlation": number}
        launched = span("cudaLaunchKernel", "cuda_runtime", launch, 5, thread, **run)
        gemm = span("gemm", "kernel", launch + 20, 30, 7, device=0, stream=7, **run)
        content["traceEvents"] += [launched, gemm]
    (piece,) = simlib.load(written(tmp_path, [content])).trace.pieces
    assert (piece.work.start_s, piece.work.end_s) == pytest.approx((60e-6, 750e-6))


def test_groups_and_numbers_of_nccl(tmp_path):
    half = {"Process Group Name": "tp", "Process Group Description": "TP", "Seq": 4}
    contents = [nccl(rank, 4) for rank in range(4)]
    for rank, content in enumerate(contents):
        mine = [0, 1] if rank < 2 else [2, 3]
        calls = [e for e in content["traceEvents"] if e["name"] == "record_param_comms"]
        calls[1]["args"] |= half | {"Process Group Ranks": str(mine)}
        calls[2]["args"] |= {"Collective name": "_allgather_base", "Out msg nelems": 40}
    run = simlib.load(written(tmp_path, contents))
    met = [(one.kind, one.group.ranks, one.group.description) for one in run.trace.collectives]
    assert sorted(met) == [
        ("all_gather", (0, 1, 2, 3), ""), ("all_reduce", (0, 1), "TP"),
        ("all_reduce", (0, 1, 2, 3), ""), ("all_reduce", (2, 3), "TP"),
    ]  # fmt: skip
    assert {op.number for op in run.trace if op.group.description} == {3}


def test_a_rank_without_a_file_and_a_rank_by_its_files_name(tmp_path):
    content = nccl(1, 3)
    del content["distributedInfo"]["rank"]
    run = simlib.load(written(tmp_path, [nccl(0, 3), content], "job-rank{}.pt.trace.json"))
    assert (run.world_size, run.trace.missing, run.ran) == (3, (2,), [0, 1])
    assert "there is no trace of rank 2" in run.table() and "for rank 2" not in run.in_words()
    with pytest.raises(simlib.InvalidCallError, match="^there is no record of rank 2, .*: add"):
        run.to_recorder(tmp_path)
    assert math.isnan(run.states.computing_s[2])
    with pytest.raises(ValueError, match=r"^job.json does not say which rank wrote it"):
        simlib.load(written(tmp_path, [content], "job.json") / "job.json")


def changed(content, event, **to):
    content = copy.deepcopy(content)
    events = [one for one in content["traceEvents"] if one["name"] == event]
    for one in events:
        one["args"] |= to
    return content


def with_world(content, **to):
    return copy.deepcopy(content) | {"distributedInfo": content["distributedInfo"] | to}


CALL, GLOO = "record_param_comms", "c10d::allreduce_"
TWO = [{"pg_name": str(n), "ranks": ranks} for n, ranks in enumerate(([0, 1, 2, 3], [0, 1]))]
ONE_OTHER = [{"pg_name": "0", "ranks": [0]}]
BAD = {
    "truncated": (
        [json.dumps(nccl(0)).encode()[:-40]],
        "rank0.json is incomplete or contains no JSON",
    ),
    "a list": ([[1, 2]], "rank0.json is neither a run .* nor a trace"),
    "deep": ([b"[" * 200_000], "rank0.json is incomplete or contains no JSON"),
    "a run": ([{"simlib": {}}, nccl(1)], "rank0.json is a whole run: load this file alone"),
    "twice": ([nccl(0), nccl(0)], "rank0.json and rank1.json are both from rank 0"),
    "sizes": ([nccl(0, 2), nccl(1, 3)], "rank0.json of 2 ranks and rank1.json of 3 ranks are not"),
    "groups": (
        [nccl(0), with_world(nccl(1), pg_config=[{"pg_name": "0", "ranks": [1, 0]}])],
        "rank0.json and rank1.json list different ranks for the group '0'",
    ),
    "days": ([nccl(0), nccl(1) | {"baseTimeNanoseconds": 10**18}], "more than an hour before"),
    "two jobs": (
        [nccl(0), at_host(nccl(1), "", 10**10)],
        "rank1.json ended 10 s after those in ra",
    ),
    "one host": (
        [at_host(nccl(0), "a"), at_host(nccl(1), "a", 2 * 10**9)],
        "of rank0.json ended collective 2 2 s",
    ),
    "other calls": (
        [nccl(0), changed(nccl(1), CALL, **{"Collective name": "broadcast"})],
        r"rank0.json and rank1.json do not fit together. Collective \d is all_reduce of 40 bytes",
    ),
    "rank": ([with_world(nccl(0), rank=-1)], "rank0.json is damaged: it names rank -1"),
    "word": ([with_world(nccl(0), rank="one")], "rank0.json is damaged: it names rank one"),
    "world": ([with_world(nccl(0), world_size=10**12)], "it names a world of 1000000000000 ranks"),
    "members": (
        [with_world(nccl(0), pg_config=[{"pg_name": "1", "ranks": [9]}])],
        "names ranks outside its world",
    ),
    "negative": ([changed(nccl(0), CALL, **{"In msg nelems": -1})], "contains a damaged call"),
    "huge": ([changed(nccl(0), CALL, **{"In msg nelems": 1 << 70})], "contains a damaged call"),
    "nan": ([changed(nccl(0), CALL, **{"In msg nelems": math.nan})], "contains a damaged call"),
    "dtype": ([changed(nccl(0), CALL, dtype="Int3x")], "has a call with the dtype 'Int3x'"),
    "no members": (
        [changed(with_world(nccl(0), pg_config=[]), CALL, **{"Process Group Ranks": "[0, ...]"})],
        "does not say which ranks are in the group '0'",
    ),
    "sub-groups": ([with_world(content_of(0), pg_config=TWO)], "to which group Gloo's calls"),
    "no shapes": ([changed(content_of(0), GLOO, **{"Input Dims": 3})], "contains a damaged call"),
}


@pytest.mark.parametrize(("contents", "words"), BAD.values(), ids=BAD)
def test_bad_input_is_one_sentence(tmp_path, contents, words):
    with pytest.raises(ValueError, match=words) as caught:
        simlib.load(written(tmp_path, contents))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "data", [b"", b"\x80\x04}.", gzip.compress(json.dumps(nccl(0)).encode())[:-30]]
)
def test_what_is_not_gzipped_to_its_end_is_one_sentence(tmp_path, data):
    (tmp_path / "rank0.json.gz").write_bytes(data)
    with pytest.raises(
        ValueError, match=r"^rank0.json.gz is incomplete .*: copy the file again, or"
    ):
        simlib.load(tmp_path)


def test_a_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(kineto, "MOST_BYTES", 1 << 20)
    with open(tmp_path / "rank0.json", "wb") as file:
        file.truncate(10 << 30)
    (tmp_path / "rank1.json.gz").write_bytes(gzip.compress(b" " * (3 << 20)))
    for name in ("rank0.json", "rank1.json.gz"):
        with pytest.raises(ValueError, match=f"^{name} holds more than .*: profile fewer steps"):
            simlib.load(tmp_path / name)
    assert MOST_RANKS < kineto.MOST_BYTES


def test_a_folder_without_traces_says_so(tmp_path):
    with pytest.raises(ValueError, match=r"there is no trace in .* recorder, use simlib.diagnose"):
        simlib.load(tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no file or folder"):
        simlib.load(tmp_path / "none.json")


def test_calls_that_old_files_do_not_tell_are_a_finding(tmp_path):
    content = nccl(0, 1)
    for event in content["traceEvents"]:
        if event["name"] == CALL:
            event["args"] = {"External id": event["args"]["External id"]}
    run = simlib.load(written(tmp_path, [content]))
    assert not run.trace.ops and run.profile[0].communicating_s > 0
    assert "record: rank0.json does not name the calls by NCCL (3 calls)" in run.table()

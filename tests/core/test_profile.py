"""What a profiler saw of a GPU: its file read, its sums, and its way through a run."""

from __future__ import annotations

import gzip
import json
import math
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

import simlib
from simlib.core.draw.player.scene import scene_of
from simlib.core.engines.processes import real_run
from simlib.core.engines.rank_process.profiling import (
    MARK,
    MARKS,
    UNREAD,
    UNSEEN,
    RankProfiler,
    profile_of,
    profiles_in,
)
from simlib.core.model.profile import DeviceSpan, Profile, total, union, without
from simlib.core.record.kineto import KinetoTrace, read_kineto

DATA = Path(__file__).parent / "data"
BASE_NS, FIRST_US = 1_790_857_026_000_000_000, 4_944_827_300_000.0
KERNELS = [
    ("gemm", 7, 10, 40),
    ("relu", 20, 45, 15),
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 13, 30, 50),
    ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 13, 90, 10),
    ("Memcpy HtoD (Pinned -> Device)", 22, 120, 5),
]
"""Name, stream, start and length in us: 50 us computed, 60 us communicated, 30 of them exposed."""


def event(name, cat, start_us, length_us, thread, pid=0, **args):
    where = {"ph": "X", "pid": pid, "tid": thread, "ts": FIRST_US + start_us, "dur": length_us}
    return {"name": name, "cat": cat, "args": args} | where


def two_streams():
    """A trace of a GPU that computes on two streams, communicates on one and copies on one."""
    events = [event("first", "user_annotation", 0, 1, 5, pid=99)]
    for number, (name, stream, start_us, length_us) in enumerate(KERNELS):
        cat = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
        about = {"External id": number, "device": 0, "stream": stream}
        events.append(event(name, cat, start_us, length_us, stream, **about))
        post = {"External id": number}
        events.append(event(f"aten::{number}", "cpu_op", start_us - 5, 2, 5, pid=99, **post))
    return {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, "traceEvents": events}


@pytest.mark.parametrize("ending", ["json", "json.gz"])
def test_streams_and_sums_of_a_trace(tmp_path, ending):
    path = tmp_path / f"rank0.{ending}"
    text = json.dumps(two_streams()).encode()
    path.write_bytes(gzip.compress(text) if ending == "json.gz" else text)
    read = read_kineto(path)
    assert read.began_ns == BASE_NS + round(FIRST_US * 1000)
    profile = Profile.of("gpu", read.device_spans, 0.0, 200e-6)
    assert {key: len(spans) for key, spans in profile.streams.items()} == {
        (0, 7): 1, (0, 13): 2, (0, 20): 1, (0, 22): 1
    }  # fmt: skip
    assert [(span.name[:4], span.op, span.sort) for span in profile.spans] == [
        ("gemm", "aten::0", "compute"),
        ("nccl", "aten::2", "communication"),
        ("relu", "aten::1", "compute"),
        ("nccl", "aten::3", "communication"),
        ("Memc", "aten::4", "copy"),
    ]
    sums = profile.computing_s, profile.communicating_s, profile.exposed_s, profile.idle_s
    assert np.array(sums) * 1e6 == pytest.approx([50, 60, 30, 115], abs=1e-3)
    assert Profile.of_record(json.loads(json.dumps(profile.to_record()))) == profile
    assert profile.since(1.0).spans[0].start_s == pytest.approx(10e-6 - 1.0)


@pytest.mark.parametrize(
    ("name", "streams", "op"),
    [
        ("kineto_ddp_nccl", {(7, "compute"): 17}, "nccl:all_reduce"),
        (
            "kineto_ddp_gloo",
            {(7, "compute"): 25, (56, "copy"): 1, (60, "copy"): 1},
            "gloo:all_reduce",
        ),
    ],
)
def test_traces_of_a_real_gpu(name, streams, op):
    events = json.loads((DATA / f"{name}.json").read_text())["traceEvents"]
    kernels_us = sum(one["dur"] for one in events if one.get("cat") == "kernel")
    read = read_kineto(DATA / f"{name}.json")
    assert Counter((span.stream, span.sort) for span in read.device_spans) == streams
    assert total(union((s.start_s, s.end_s) for s in read.device_spans if s.sort == "compute")) == (
        pytest.approx(kernels_us / 1e6)  # of one stream: they never overlap
    )
    assert {"aten::mm", "aten::sum"} <= {span.op for span in read.device_spans}
    assert op in read.marks
    assert not any(one.name.startswith(("c10d", "aten::empty")) for one in read.operators)


ENDLESS = '{"schemaVersion": 1, "baseTimeNanoseconds": Infinity, "traceEvents": [1]}'
PACKED = gzip.compress(json.dumps(two_streams()).encode())
HALF = '{"traceEvents": [{"ph": "X"}]}'


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", HALF, "not json", ENDLESS, "[" * 200_000, PACKED[:50] + PACKED[51:]]
)
def test_what_is_no_trace_is_refused(tmp_path, content):
    path = tmp_path / ("odd.json" if isinstance(content, str) else "odd.json.gz")
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ValueError, match="odd.json.* is not a trace that torch's profiler wrote"):
        read_kineto(path)


LACKS = object()


@pytest.mark.parametrize("cat", ["cpu_op", "kernel", "user_annotation"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ts", math.inf), ("ts", math.nan), ("ts", "12"), ("ts", 10**400), ("dur", LACKS),
        ("dur", -5), ("dur", math.nan), ("dur", math.inf), ("tid", "thread 12 (main)"),
        ("name", LACKS), ("name", 7), ("cat", []), ("args", LACKS), ("args", [3]), (None, None),
    ],
)  # fmt: skip
def test_single_odd_events_are_left_out(tmp_path, key, value, cat):
    content = two_streams()
    odd = event("odd", cat, 200, 5, 9) | {key: value}
    content["traceEvents"].append(
        {name: one for name, one in odd.items() if one is not LACKS} if key else 7
    )
    (tmp_path / "odd.json").write_text(json.dumps(content))
    read = read_kineto(tmp_path / "odd.json")
    spans = [span for span in read.device_spans + read.operators if span.name != "odd"]
    assert len(spans) == 2 * len(KERNELS) and read.marks["first"]
    assert all(0 <= one.start_s <= one.end_s < 1 for one in read.device_spans + read.operators)
    assert {span.op for span in read.device_spans} <= {"", *(f"aten::{n}" for n in range(5))}


def test_intervals_against_a_grid(seed):
    rng = np.random.default_rng(seed)
    for _ in range(200):
        parts, others = (np.sort(rng.integers(0, 40, (rng.integers(0, 8), 2))) for _ in range(2))
        grids = [np.zeros(40, bool) for _ in range(2)]
        for grid, pairs in zip(grids, (parts, others), strict=True):
            for start, end in pairs:
                grid[start:end] = True
        assert total(union(map(tuple, parts))) == grids[0].sum()
        left = np.zeros(40, bool)
        for start, end in without(map(tuple, parts), map(tuple, others)):
            assert start < end and not left[start:end].any()
            left[start:end] = True
        assert (left == (grids[0] & ~grids[1])).all()


def on_a_gpu(rank, world_size):
    """Have the profiler write of a GPU that has done what `KERNELS` say, from "here" on."""
    export = torch.profiler.profile.export_chrome_trace

    def exported(self, path):
        export(self, path)
        content = json.loads(Path(path).read_text())
        of_gpu = two_streams()["traceEvents"]
        (here,) = (one for one in content["traceEvents"] if one["name"] == "here")
        for one in of_gpu:
            one["ts"] += here["ts"] - FIRST_US
        content["traceEvents"] += of_gpu
        Path(path).write_text(json.dumps(content))

    torch.profiler.profile.export_chrome_trace = exported
    dist.barrier()
    with torch.profiler.record_function("here"):
        pass


@pytest.fixture(scope="module")
def gpu_run():
    return simlib.run(on_a_gpu, 2, profile=True)


def test_a_gpu_in_a_run(gpu_run, tmp_path):
    for run in (gpu_run, simlib.load(gpu_run.save(tmp_path / "run.json"))):
        for profile in run.profile:
            assert (profile.on, list(profile.streams)) == (
                "gpu",
                [(0, 7), (0, 13), (0, 20), (0, 22)],
            )
            assert run.trace.ops[0].post_s < profile.spans[0].start_s < run.trace.end_s
        device = run.states.on_device
        assert device.computing_s == pytest.approx([50e-6] * 2)
        assert device.exposed_s == pytest.approx([30e-6] * 2)
        head, first, *_ = str(run.states).splitlines()
        assert head.split()[-5:] == ["kernels", "communication", "exposed", "GPU", "idle"]
        assert first.split()[7:13] == ["50", "us", "60", "us", "30", "us"]
        assert "The GPU of rank 1 computed for 50 us, communicated for 60 us," in run.in_words()


def multiplies(rank, world_size):
    """When a product began and ended, with work around it that is no operator."""
    matrix = torch.ones(300, 300)
    before_s = time.perf_counter()
    sum(range(2000))
    matrix @ matrix
    sum(range(2000))
    after_s = time.perf_counter()
    dist.all_reduce(matrix)
    return before_s, after_s, os.getpid()


def test_clocks_agree_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(real_run, "origin_of", lambda monitor: 0.0)  # so as the ranks read it
    run = simlib.run(multiplies, 2, profile=True)
    for rank, profile in enumerate(run.profile):
        (product,) = (span for span in profile.spans if span.name == "aten::matmul")
        before_s, after_s, _ = run.results[rank]
        assert before_s < product.start_s < product.end_s < after_s
        assert profile.on == "cpu" and not any("c10d" in span.name for span in profile.spans)
    assert "in operators" in str(run.states) and "The operators of rank 0 took" in run.in_words()
    plain = simlib.run(multiplies, 2)
    pids = [{pid for *_, pid in one.results} for one in (run, plain)]
    assert plain.profile is None and pids[0].isdisjoint(pids[1])


def test_marks_are_told_apart_by_their_times():
    starts_us = [10 * number for number in range(MARKS)]
    readings = [(5 + (at - 1) / 1e6, 5 + (at + 2 + at / 100) / 1e6) for at in starts_us]
    marks = [(at / 1e6, (at + 1) / 1e6) for at in starts_us]
    span = DeviceSpan(0, 7, "gemm", "compute", 50e-6, 60e-6)
    for order in (marks, marks[::-1]):
        profile = profile_of(KinetoTrace(0, [span], marks={MARK: order}), readings, 6.0)
        assert profile.spans[0].start_s == pytest.approx(5 + 50e-6, abs=1e-9)


def profiles_itself(rank, world_size):
    from torch.profiler import profile

    with profile() as own:
        torch.ones(3) + 1
    if rank == 1:
        profile().start()  # and never ends it
    return any(one.name == "aten::add" for one in own.events())


def raises(rank, world_size):
    torch.ones(3) @ torch.ones(3)
    if rank == 1:
        raise ValueError("no")


def dies(rank, world_size):
    if rank == 1:
        os._exit(3)
    dist.barrier()


def fails_to_export(rank, world_size):
    def refused(self, path):
        Path(path).write_text("half a tr")
        raise RuntimeError("the disk is full")

    torch.profiler.profile.export_chrome_trace = refused


def exports_for_ever(rank, world_size, word=""):
    torch.profiler.profile.export_chrome_trace = lambda self, path: threading.Event().wait()
    if word and rank == 1:
        raise ValueError(word)
    dist.barrier()


def dies_in_its_export(rank, world_size):
    if rank == 1:
        torch.profiler.profile.export_chrome_trace = lambda self, path: os._exit(9)


def uses_a_gpu_unseen(rank, world_size):
    torch.cuda.is_initialized = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.max_memory_reserved = lambda device: 1 << 20
    torch.cuda.memory_stats = lambda device: {}


def test_a_program_that_profiles_itself_keeps_its_own_profile():
    run = simlib.run(profiles_itself, 2, profile=True)
    assert run.results == [True, True]
    assert "no profile of ranks 0 and 1: the program uses torch.profiler itself" in str(run)
    assert run.states.on_device is None


@pytest.mark.usefixtures("gpu_run")  # the rank server has its folder already
@pytest.mark.parametrize(
    ("function", "error", "why"),
    [
        (exports_for_ever, None, f"no profile of ranks 0 and 1: {UNREAD}"),
        (partial(exports_for_ever, word="no"), simlib.RankError, f"no profile of rank 1: {UNREAD}"),
        (dies_in_its_export, None, f"no profile of rank 1: {UNREAD}"),
        (uses_a_gpu_unseen, None, f"no profile of ranks 0 and 1: {UNSEEN}"),
        (raises, simlib.RankError, ""),
        (dies, simlib.RankDiedError, "no profile of rank"),
        (fails_to_export, None, "no profile of ranks 0 and 1: RuntimeError: the disk is full"),
    ],
)
def test_no_profile_changes_how_a_run_ends_and_no_file_stays(
    function, error, why, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if UNREAD in why and function is not dies_in_its_export:
        monkeypatch.setattr(real_run, "PROFILES_S", 0.0)
        monkeypatch.setattr(real_run, "PROFILES_OF_FAILED_S", 0.0)
    try:
        run = simlib.run(function, 2, profile=True)
        assert error is None
    except simlib.SimlibError as ended:
        assert type(ended) is error
        run = ended.run
    assert why in str(run)
    if function is raises:
        assert [span.name for span in run.profile[1].spans][:2] == ["aten::ones"] * 2
    assert not list(tmp_path.iterdir())


class SlowOutput:
    """Takes longer to flush than all took since the run was asked for."""

    def __init__(self, asked_s):
        self.asked_s, self.began_s = asked_s, []

    def flush(self):
        self.began_s.append(time.perf_counter())
        time.sleep(self.began_s[0] - self.asked_s)


def flushes_long(rank, world_size, asked_s):
    sys.stdout = SlowOutput(asked_s)
    return sys.stdout.began_s  # the first flush is still to come


def test_idle_ends_with_the_function():
    asked_s = time.perf_counter()
    run = simlib.run(flushes_long, 2, args=(asked_s,), profile=True)
    for profile, (began_s, *_) in zip(run.profile, run.results, strict=True):
        assert not profile.spans and 0 < profile.idle_s < began_s - asked_s


def test_what_comes_after_the_function_is_no_operator_of_it(tmp_path):
    profiler = RankProfiler(str(tmp_path), 0)
    profiler.start()
    torch.ones(3)
    profiler.function_ends()
    torch.zeros(3)
    profiler.write()
    (found,) = profiles_in(str(tmp_path), 1, 0.0, {0})
    assert {span.name for span in found.spans} == {"aten::ones"}


def test_a_profiler_that_cannot_begin_leaves_the_function_alone(tmp_path, monkeypatch):
    def refused(*args, **kwargs):
        raise RuntimeError("no CUPTI")

    monkeypatch.setattr(torch.profiler, "profile", refused)
    profiler = RankProfiler(str(tmp_path), 0)
    profiler.start()
    profiler.function_ends()
    profiler.write()
    (found,) = profiles_in(str(tmp_path), 1, 0.0, {0})
    assert found == Profile(why_none="RuntimeError: no CUPTI")


@pytest.mark.parametrize(
    ("call", "profile", "trusted", "words"),
    [
        (simlib.run, 1, True, "profile=1 must be True or False"),
        (simlib.run, True, False, "profile=True is not possible in a graded run"),
        (simlib.simulate, True, True, "profile= is for simlib.run: a simulation has"),
    ],
)
def test_a_profile_that_cannot_be_is_refused(call, profile, trusted, words, monkeypatch):
    monkeypatch.setattr(real_run, "are_ranks_trusted", lambda: trusted)
    with pytest.raises(simlib.InvalidCallError, match=words):
        call(dies, 2, profile=profile)


def test_lanes_of_streams_in_picture_and_player(gpu_run):
    names = ["stream 7", "stream 13", "stream 20", "stream 22"]
    scene = scene_of(gpu_run)
    for lane in scene["lanes"]:
        assert [name for name, _ in lane["streams"]] == names
    by_name = dict(scene["lanes"][1]["streams"])
    assert list(by_name["stream 13"]) == ["communication kernel", "exposed communication"]
    exposed_us = [
        (end - start) * 1e6 for start, end in by_name["stream 13"]["exposed communication"]
    ]
    assert exposed_us == pytest.approx([20, 10], abs=0.01)  # after the second stream, and alone
    for ranks in ((0, 1), (1,)):
        figure = gpu_run.timeline(ranks=ranks)
        ticks = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
        assert ticks == [name for rank in ranks for name in (f"rank {rank}", *names)]
        signs = [text.get_text() for text in figure.legends[1].get_texts()]
        assert signs == ["kernel", "communication kernel", "exposed communication", "copy"]

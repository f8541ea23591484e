"""What a profiler saw of a GPU: its file read, its sums, and its way through a run."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from simlib.core.model.profile import Profile, total, union, without
from simlib.core.record.kineto import read_kineto

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


def two_streams(before=()):
    """A trace of a GPU that computes on two streams, communicates on one and copies on one."""
    events = [event("first", "user_annotation", 0, 1, 5, pid=99), *before]
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


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"traceEvents": [{"ph": "X"}]}', "not json"])
def test_what_is_no_trace_is_refused(tmp_path, text):
    (tmp_path / "odd.json").write_text(text)
    with pytest.raises(ValueError, match="odd.json is not a trace that torch's profiler wrote"):
        read_kineto(tmp_path / "odd.json")


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

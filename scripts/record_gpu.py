"""Make the recordings of lessons 08 and 19 of what torch's profiler wrote on a machine with a GPU.

    record_gpu.py FOLDER     with ddp_gloo_rank0.json and ddp_gloo_rank1.json,
                             ddp_nccl_rank0.json and fsdp_nccl_rank0.json

They are of two ranks of DDP by Gloo with CUDA tensors on one card: seven layers of 1,024, buckets
of 8 MiB, two steps. Rank 1 launches a kernel that only takes time before the second one. A bucket
has a stream for its copies: one when backward has filled it, one that brings the sum back.

Lesson 19 reads parts of the files themselves: what the GPU did, the launches, the steps and the
collectives. The two NCCL files are of the same model on one rank, by DDP and by FSDP2.
"""

import gzip
import json
import sys
from pathlib import Path

import simlib
from simlib.core.model.profile import COPY, Profile
from simlib.core.model.trace import Group, Op, Site
from simlib.core.record.kineto import read_kineto

TARGET = Path(__file__).resolve().parents[1] / "notebooks" / "recorded_gpu" / "ddp.json"
KEPT = {"kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver"}
KEPT_NAMES = "ProfilerStep", "c10d::", "gloo:"
KEPT_ARGS = {"External id", "correlation", "device", "stream", "Input Dims", "Concrete Inputs"}
GROUP = Group("world", (0, 1))
SITE = Site("all_reduce(SUM)", "train.py", 20, "<module>", None, "loss.backward()")


def main(folder):
    for name in ("ddp_nccl_rank0", "fsdp_nccl_rank0", "ddp_gloo_rank0", "ddp_gloo_rank1"):
        extract(Path(folder, f"{name}.json"), TARGET.with_name(f"{name}.json.gz"))
    files = [Path(folder, f"ddp_gloo_rank{rank}.json") for rank in range(2)]
    traces = [read_kineto(file) for file in files]
    begun = min(trace.began_ns for trace in traces)
    profiles, ops, spans = [], [], []
    for rank, (file, trace) in enumerate(zip(files, traces, strict=True)):
        seconds = trace.operators[-1].end_s
        profile = Profile.of("gpu", trace.device_spans, 0.0, seconds)
        profiles.append(profile.since((begun - trace.began_ns) / 1e9))
        shift_s = (trace.began_ns - begun) / 1e9
        spans.append((shift_s, seconds + shift_s))
        ops += ops_of(rank, json.loads(file.read_text()), trace, shift_s)
    run = simlib.Run("DDP on a GPU", simlib.Trace(2, ops, spans), [None] * 2, [""] * 2)
    run.profile = profiles
    TARGET.parent.mkdir(exist_ok=True)
    print(run.save(TARGET), TARGET.stat().st_size, "bytes")


def extract(source, target):
    """Write a part of a file of the profiler's, which `simlib.load` can read as well."""
    content = json.loads(source.read_text())
    events = [
        event | {"args": {k: v for k, v in event.get("args", {}).items() if k in KEPT_ARGS}}
        for event in content["traceEvents"]
        if event.get("cat") in KEPT or event.get("name", "").startswith(KEPT_NAMES)
    ]
    kept = {
        key: content[key] for key in ("schemaVersion", "distributedInfo", "baseTimeNanoseconds")
    }
    text = json.dumps(kept | {"traceEvents": events}, separators=(",", ":"))
    target.write_bytes(gzip.compress(text.encode(), mtime=0))
    print(target, target.stat().st_size, "bytes")


def ops_of(rank, content, trace, shift_s):
    """An `Op` for each bucket: posted by autograd's thread, over with its last copy."""
    posts = sorted(
        (event["ts"], event["args"]["Input Dims"][0][0][0])
        for event in content["traceEvents"]
        if event.get("name") == "c10d::allreduce_"
    )
    first = min(event["ts"] for event in content["traceEvents"] if event.get("ph") == "X")
    back = [s for s in trace.device_spans if s.sort == COPY and "HtoD" in s.name]
    out = [s for s in trace.device_spans if s.sort == COPY and "DtoH" in s.name]
    for seq, ((moment, count), copy) in enumerate(zip(posts, out, strict=True)):
        end_s = next(s.end_s for s in back if s.stream == copy.stream)
        yield Op(
            rank, seq, "all_reduce", GROUP, None, None, 4 * count, ((count,),), "float32", "sum",
            None, True, False, SITE, (moment - first) / 1e6 + shift_s, None, end_s + shift_s,
        )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])

"""Records of real jobs: what a trace of 100 MB costs, and the dumps of 1,024 ranks."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import resource
import tempfile
import time
from pathlib import Path

import simlib

from .table import heading, line, spread

TRACE_BYTES = 100e6
RANKS, STEPS, LAYERS = 1024, 29, 6
LOST = 517
"""The rank that leaves a collective out, in the last step."""
MOST_GB = 2.0


def write_trace(folder: Path) -> None:
    """A rank on a GPU: per call an operator in an operator, two kernels, and some communication."""
    stack = "train.py(40): step;model.py(12): forward;functional.py(7): linear"
    events: list[str] = []
    size, turn = 0, 0
    while size < TRACE_BYTES:
        new = [json.dumps(event) for event in _events(turn, stack)]
        size, turn = size + sum(map(len, new)), turn + 1
        events += new
    about = {"backend": "nccl", "rank": 0, "world_size": 2}
    head = json.dumps({"schemaVersion": 1, "distributedInfo": about, "traceEvents": []})
    (folder / "rank0.json").write_text(head.replace("[]", f"[{', '.join(events)}]"))


def _events(turn, stack):
    at = 100.0 * turn
    shapes = {"Input Dims": [[4096, 1024], [1024, 1024], [1024]], "Call stack": stack}
    yield _span("aten::linear", "cpu_op", at, 40, 1, {"External id": 3 * turn, **shapes})
    yield _span("aten::addmm", "cpu_op", at + 5, 30, 1, {"External id": 3 * turn + 1, **shapes})
    launch = {"correlation": turn, "cbid": 211}
    yield _span("cudaLaunchKernel", "cuda_runtime", at + 20, 8, 1, launch)
    where = {"External id": 3 * turn + 1, "device": 0, "stream": 7, "grid": [128, 8, 1]}
    for part in range(2):
        name = f"sm90_xmma_gemm_bf16_tilesize128x128x64_part{part}"
        yield _span(name, "kernel", at + 30 + 20 * part, 15, 7, where)
    if turn % 10 == 0:
        number = {"External id": 3 * turn + 2}
        asked = {"Collective name": "allreduce", "dtype": "BFloat16", "In msg nelems": 1 << 20}
        group = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Seq": turn // 10 + 1}
        yield _span("record_param_comms", "cpu_op", at + 60, 9, 1, {**number, **asked, **group})
        stream = {"device": 0, "stream": 20}
        yield _span("ncclDevKernel_AllReduce", "kernel", at + 70, 25, 20, {**number, **stream})


def _span(name, sort, ts, dur, tid, args):
    return {"ph": "X", "name": name, "cat": sort, "pid": 0, "tid": tid, "ts": ts, "dur": dur,
            "args": args}  # fmt: skip


def write_dumps(folder: Path) -> None:
    """Groups TP of 8 ranks and DP of 128; rank LOST makes no further call in the last step."""
    for rank in range(RANKS):
        node, place = divmod(rank, 8)
        near, far = range(8 * node, 8 * node + 8), range(place, RANKS, 8)
        groups = {"0": ("default_pg", range(RANKS)), f"t{node}": ("TP", near)}
        groups[f"d{place}"] = "DP", far
        config = {
            name: {"name": name, "desc": words, "ranks": str(list(ranks))}
            for name, (words, ranks) in groups.items()
        }
        calls = _calls_of(rank, f"t{node}", f"d{place}", LOST in near)
        counts = dict.fromkeys(groups, 0)
        entries = []
        for name, size, line_number, is_done in calls:
            counts[name] += 1
            call = name, groups[name][0], size, line_number, is_done
            entries.append(_entry(len(entries), counts[name], *call))
        dump = {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}
        (folder / f"trace_{rank}").write_bytes(pickle.dumps(dump, protocol=2))


def _calls_of(rank, near, far, is_stuck):
    for step in range(STEPS):
        is_last = step == STEPS - 1
        for layer in range(LAYERS):
            if is_last and is_stuck and layer == LAYERS // 2:
                if rank != LOST:
                    yield near, 4096, 10, False
                return
            yield near, 4096, 10, True
        yield far, 1 << 20, 20, not is_last
        if is_last:
            return
        yield "0", 1, 30, True


def _entry(place, number, name, words, size, line_number, is_done):
    at_ns = 10**18 + place * 10**6
    return {
        "frames": [
            {"name": "all_reduce", "filename": "/x/site-packages/torch/c10d.py", "line": 1},
            {"name": "step", "filename": "/home/me/train.py", "line": line_number},
        ],
        "record_id": place,
        "pg_id": 0,
        "process_group": (name, words),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": place + 1,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": at_ns,
        "input_sizes": [[size]],
        "input_dtypes": ["Float"],
        "output_sizes": [[size]],
        "output_dtypes": ["Float"],
        "state": "completed" if is_done else "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": at_ns + 500_000 if is_done else None,
        "retired": is_done,
        "timeout_ms": 600_000,
        "is_p2p": False,
    }


def cost_of(name: str, folder: str) -> tuple[float, float, int]:
    """CPU seconds and peak GB of reading a folder in this process, and how many calls it has."""
    read = getattr(simlib, name)  # and with it torch
    start_s = time.process_time()
    found = read(folder)
    seconds = time.process_time() - start_s
    run = found.run if name == "diagnose" else found
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    return seconds, peak_gb, len(run.trace)


def real_jobs(rounds):
    """Print the table of reading records of real jobs."""
    heading("Records of real jobs, read in a process of their own")
    context = multiprocessing.get_context("spawn")
    for name, write, what, goal_s in (
        ("load", write_trace, "a trace of 100 MB", 20),
        ("diagnose", write_dumps, f"dumps of {RANKS:,} ranks", 10),
    ):
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder))
            found = []
            for _ in range(rounds):
                with context.Pool(1) as process:
                    found.append(process.apply(cost_of, (name, folder)))
        seconds, peaks, (calls, *_) = zip(*found, strict=True)
        words, held = spread(seconds, digits=1), max(seconds) <= goal_s
        line(f"{name} {what}, {calls:,} calls, CPU s", words, f"<= {goal_s}", held)
        words, held = spread(peaks, digits=2), max(peaks) <= MOST_GB
        line("  peak memory, GB", words, f"<= {MOST_GB:.0f}", held)

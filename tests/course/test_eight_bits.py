"""Lesson 08's second part: published answers, the formats, wide sums, and waits of streams."""

import gzip
import json

import numpy as np
import pytest
import torch
import torch.distributed as dist
from lesson_programs import LESSONS, names_of, written

import simlib

LESSON = "08_in_eight_bits"
NOTEBOOKS = LESSONS.parents[1] / "notebooks"


def names():
    kept = {"mine", "exact", "slow", "device", "cluster"}
    return names_of(LESSON, lambda found: found <= kept or all(map(str.isupper, found)))


@pytest.mark.parametrize("function, count", [("gathered", 2), ("summed", 2), ("early_us", 1)])
def test_an_answer_in_its_place_is_right(function, count, capsys):
    space = names()
    stored, answered = written(LESSON, function)
    exec(stored, space)
    said = capsys.readouterr().out
    assert said.count("not yet") == count
    exec(answered, space)
    said = capsys.readouterr().out
    assert said.count("right") == count and "not yet" not in said


def decoded(code, exponent_bits, mantissa_bits):
    """The value of a byte below 128, by the definition of such formats."""
    exponent, mantissa = divmod(code, 2**mantissa_bits)
    bias = 2 ** (exponent_bits - 1) - 1
    if exponent == 0:
        return mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return (1 + mantissa / 2**mantissa_bits) * 2.0 ** (exponent - bias)


@pytest.mark.parametrize(
    "dtype, bits, largest, worst",
    [(torch.float8_e4m3fn, (4, 3), 448, 1 / 17), (torch.float8_e5m2, (5, 2), 57_344, 1 / 9)],
)
def test_the_formats_have_the_values_and_errors_that_the_text_says(dtype, bits, largest, worst):
    values = [decoded(code, *bits) for code in range(128)]
    values = np.array([x for x in values if x <= largest])
    torchs = torch.arange(len(values), dtype=torch.uint8).view(dtype).float()
    assert np.array_equal(torchs.numpy(), values) and names()["LARGEST"][dtype] == largest
    x = torch.logspace(-1, 2, 5001)
    nearest = values[np.abs(values[None] - x.numpy()[:, None]).argmin(1)]
    off = (torch.from_numpy(nearest).float() - x).abs() / x
    assert off.max() == pytest.approx(worst, rel=0.01)
    assert torch.equal((x.to(dtype).float() - x).abs() / x, off)


def test_gloo_refuses_float8():
    def main(rank, world_size):
        dist.all_reduce(torch.ones(2).to(torch.float8_e4m3fn))

    with pytest.raises(simlib.InvalidCallError, match="cannot carry float8_e4m3fn with Gloo"):
        simlib.run(main, 2)


@pytest.mark.parametrize("block", [32, 128])
def test_int8_is_off_by_half_a_gap_at_most(block):
    space = names()
    x = torch.randn(40 * block, generator=torch.Generator().manual_seed(1))
    x[:block], x[block] = 0, 1000.0
    found = space["restored"](*space["quantised"](x, torch.int8, block))
    gap = x.view(-1, block).abs().amax(1).repeat_interleave(block) / 127
    assert ((found - x).abs() <= 0.501 * gap).all()


def test_the_error_of_a_ring_grows_and_that_of_a_wide_sum_does_not():
    """Of noise that is independent of the lesson's gradients, in e4m3."""
    space, each = names(), torch.randn(64, 1280, generator=torch.Generator().manual_seed(2))
    rounded = [space["restored"](*space["quantised"](x, torch.float8_e4m3fn)) for x in each]
    partial = each[0]
    for x in each[1:]:
        partial = space["restored"](*space["quantised"](partial, torch.float8_e4m3fn)) + x
    ring, wide = (space["off_by"](x, each.sum(0)) for x in (partial, sum(rounded)))
    assert wide < 0.03 < 4 * wide < ring


def test_without_the_wait_the_collective_begins_before_its_tensor_is_ready():
    space = names()
    for waits in (True, False):
        run = simlib.simulate(space["send_aside"], 2, (waits,), cluster=space["cluster"])
        after_ms = 0 if waits else -2 * 2048**3 / 20e12 * 1e3
        assert f"{after_ms:+.2f} ms; 2" in run.results[0]


@pytest.mark.parametrize("rank, needed", [(0, 1), (1, 5)])
def test_torch_waits_before_every_copy_and_the_text_counts_those_that_matter(rank, needed):
    """From the calls in the order of each thread, not by the lesson's own reader."""
    file = NOTEBOOKS / "recorded_gpu" / f"ddp_gloo_rank{rank}.json.gz"
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    gpu = {e["args"]["correlation"]: e for e in events if "stream" in e["args"]}
    calls = sorted((e for e in events if e["cat"] == "cuda_runtime"), key=lambda e: e["ts"])
    done, early, waited = 0.0, 0, {}
    for call in calls:
        work = gpu.get(call["args"]["correlation"])
        if call["name"] == "cudaStreamWaitEvent":
            waited[call["tid"]] = True
        elif work and work["args"]["stream"] == 7:
            done = max(done, work["ts"] + work["dur"])
        elif work and "DtoH" in work["name"]:
            assert waited.pop(call["tid"]) and work["ts"] >= done
            early += done > call["ts"]
    assert early == needed

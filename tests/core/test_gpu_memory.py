"""What ranks held on their GPUs, in `run.memory`; a stand-in takes the place of torch.cuda."""

import pytest
import torch
from jobs import WAIT_S, submitted

import simlib
from simlib.core.draw import draw_memory
from simlib.core.model.ledger import GpuMemory

HELD = {"cuda:0": 3_000_000}, {"cuda:0": 20_971_520}


class WithGpus:
    """A rank that reads this argument has three GPUs, used the first, and finds the last lost."""

    def __init__(self, is_used=True):
        self.is_used = is_used

    def __reduce__(self):
        return use_stand_in, (self.is_used,)


def use_stand_in(is_used):
    peaks = {0: [9e9, 9e9], 1: [0, 0], 2: [9e9, 9e9]}  # of what was there before the function

    def reset(device):
        peaks[device] = [3_000_000, 20_971_520] if device == 0 else [0, 0]

    def stats(device):
        if device == 2:
            raise RuntimeError("CUDA error: device-side assert triggered")
        names = "allocated_bytes.all.peak", "reserved_bytes.all.peak"
        return dict(zip(names, map(int, peaks[device]), strict=True))

    cuda = torch.cuda
    cuda.is_initialized, cuda.device_count = lambda: is_used, lambda: 3
    cuda.reset_peak_memory_stats, cuda.memory_stats = reset, stats


def plain(rank, world_size, gpus):
    pass


def failing(rank, world_size, gpus):
    raise torch.OutOfMemoryError("CUDA out of memory")


def outcome(engine, tmp_path):
    """A run, also one that failed or was a job."""
    if engine == "submit":
        return submitted(plain, 1, tmp_path, WithGpus()).result(WAIT_S)
    if engine == "run":
        return simlib.run(plain, 1, (WithGpus(),))
    with pytest.raises(simlib.RankError) as caught:
        simlib.run(failing, 1, (WithGpus(),))
    return caught.value.run


@pytest.mark.parametrize("engine", ["run", "submit", "a run that fails"])
def test_a_rank_tells_the_peaks_of_its_function_on_each_gpu_it_used(tmp_path, engine):
    run = outcome(engine, tmp_path)
    assert run.memory == [GpuMemory(0, *HELD)]
    assert (run.memory[0].peak_bytes, run.memory[0].reserved_bytes) == (3_000_000, 20_971_520)
    assert "rank     GPU  allocated  reserved at the peak\n" in str(run)
    assert "   0  cuda:0       3 MB                 21 MB" in str(run)
    assert "cuda:0                     3,000,000  20,971,520" in repr(run.memory[0])
    again = simlib.load(run.save(tmp_path / "run.json"))
    assert (again.memory, str(again)) == (run.memory, str(run))
    with pytest.raises(ValueError, match="has no memory ledger: simulate the"):
        draw_memory(run)


def test_a_rank_that_used_no_gpu_has_no_peaks_nor_begins_with_cuda():
    assert simlib.run(plain, 1, (WithGpus(is_used=False),)).memory is None
    run = simlib.run(lambda rank, n: torch.cuda.is_initialized(), 2)
    assert (run.results, run.memory) == ([False] * 2, None)

"""Which ranks see the machine's GPUs: those that are asked to; and what is said of it."""

import os
import subprocess
import sys

import pytest
import torch
from jobs import by_job

import simlib
from simlib.classroom.grading.sandbox import environment
from simlib.core.engines.options import ByRank
from simlib.core.engines.processes.rank_main import Gpus
from simlib.core.engines.processes.real_run import SEES_NO_GPU, run_script
from simlib.core.engines.virtual.simulated_run import simulate_script
from simlib.core.environment import NO_GPUS, VARIABLE

LEARNERS = {"CUDA_VISIBLE_DEVICES": "0,3"}
PLAIN = "A simulated rank has no GPU"
BUILT_WITHOUT = "This torch has been built without CUDA: keep tensors on the CPU."


@pytest.fixture
def two_gpus(monkeypatch):
    """This process has chosen two GPUs; ranks have nothing but their environment."""
    for name in NO_GPUS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", LEARNERS["CUDA_VISIBLE_DEVICES"])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def seen(rank, world_size):
    """What Python and C find: `os.environ`, and the environment of a process that it starts."""
    told = subprocess.run(["env"], stdout=subprocess.PIPE, text=True).stdout
    for where in (
        os.environ,
        dict(line.split("=", 1) for line in told.splitlines() if "=" in line),
    ):
        print({name: where[name] for name in sorted(NO_GPUS) if name in where})


def in_script(call):
    """Run `seen` as a script, by a call that takes its path."""

    def run(folder):
        script = folder / "script.py"
        lines = "from test_gpus import seen", "seen(0, 1)"
        script.write_text("\n".join([f"import sys; sys.path[:] = {sys.path}", *lines]))
        return call(str(script))

    return run


WAYS = {
    "run": (lambda _: simlib.run(seen, 2), NO_GPUS),
    "run again": (lambda _: [simlib.run(seen, 2) for _ in "ab"][-1], NO_GPUS),
    "run, asked": (lambda _: simlib.run(seen, 2, gpus=True), LEARNERS),
    "run, restarted": (lambda _: simlib.run(seen, 2, gpus=True, restarts=1), LEARNERS),
    "simulate": (lambda _: simlib.simulate(seen, 2), NO_GPUS),
    "job": (lambda _: by_job(seen, 2), LEARNERS),
    "script, run": (in_script(lambda path: run_script(path, 2, [])), LEARNERS),
    "script, simulate": (in_script(lambda path: simulate_script(path, 2, [])), NO_GPUS),
}
"""By name: how ranks are started, and what they find."""


@pytest.mark.parametrize("way", WAYS)
def test_ranks_see_gpus_where_they_are_asked_to(way, two_gpus, tmp_path):
    start, wanted = WAYS[way]
    run = start(tmp_path)
    assert {line for text in run.output for line in text.splitlines()} == {str(wanted)}


def test_a_world_serves_no_other_sort_of_run(two_gpus):
    def own_pid(rank, world_size):
        return os.getpid()

    asked = [False, True, True, False]
    pids = [set(simlib.run(own_pid, 2, gpus=one).results) for one in asked]
    assert pids[0] == pids[3]
    assert len(set.union(*pids)) == 6


WATCHING = """
import os, torch
from simlib.core.engines.confinement import Confinement

ASKED = []

def ask(*_):
    ASKED.append(os.environ.get("CUDA_VISIBLE_DEVICES"))
    return 0

class Watching(Confinement):
    process_begins = ask

CONFINEMENT = Watching()
torch.cuda.is_available = torch.cuda.device_count = ask
"""
SCRIPT = """
import simlib
from simlib.core.engines.workers.server import PRELOADED

def asked(rank, world_size):
    import watching
    return watching.ASKED

if __name__ == "__main__":
    PRELOADED.insert(0, "watching")
    print(simlib.run(asked, 1).results, simlib.simulate(asked, 1).results)
"""


def test_gpus_are_hidden_before_anything_asks_torch_for_them(tmp_path):
    """CUDA reads its variable once. The server never asks, or its ranks could use no GPU."""
    (tmp_path / "watching.py").write_text(WATCHING)
    (tmp_path / "script.py").write_text(SCRIPT)
    environ = {**os.environ, **LEARNERS, VARIABLE: "watching", "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, tmp_path / "script.py"]
    found = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    assert found.stdout == "[['', '']] [['']]\n"


def test_ranks_share_gpus_in_turn(monkeypatch):
    taken = []
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    for count in (0, 1, 2):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        for rank in range(4):
            Gpus(own=True).take(rank)
            Gpus(own=False).take(rank)
    assert taken == [0, 1, 0, 1]


def test_a_graded_kernel_sees_no_gpu(two_gpus, monkeypatch):
    assert environment().items() >= NO_GPUS.items()
    monkeypatch.setenv(VARIABLE, "simlib.classroom.confinement")
    with pytest.raises(simlib.InvalidCallError, match="graded ranks cannot use a GPU"):
        simlib.run(seen, 2, gpus=True)


@pytest.mark.parametrize(
    ("asked", "chosen", "is_built", "sentence"),
    [
        ("yes", None, True, "gpus='yes' must be True or False"),
        (True, None, True, "torch.cuda.is_available() and nvidia-smi"),
        (True, "7", True, "CUDA_VISIBLE_DEVICES='7' may hide the GPUs"),
        (True, None, False, "this torch has been built without CUDA"),
    ],
)
def test_gpus_that_are_not_there_are_refused(asked, chosen, is_built, sentence, monkeypatch):
    def ask(*_):
        raise AssertionError("this starts CUDA in the kernel")

    monkeypatch.setattr(torch.cuda, "is_available", ask)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: is_built)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    with pytest.raises(simlib.InvalidCallError) as caught:
        simlib.run(seen, 2, gpus=asked)
    assert sentence in str(caught.value)


# Programs that need a GPU

ENGINES = {simlib.run: SEES_NO_GPU, simlib.simulate: PLAIN}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "words",
    [
        "No CUDA GPUs are available",
        "Torch not compiled with CUDA enabled",
        "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
        "CUDA error: invalid device ordinal",
        "Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False",
        "No supported gpu backend found!",
    ],
)
def test_a_program_that_wants_a_gpu_is_told_how_to_get_one(engine, words, monkeypatch):
    def wants_one(rank, world_size):
        raise RuntimeError(words)

    told = []
    for is_built in (True, False):
        monkeypatch.setattr(torch.backends.cuda, "is_built", lambda is_built=is_built: is_built)
        with pytest.raises(simlib.RankError) as caught:
            engine(wants_one, 2)
        told.append(str(caught.value))
    assert words in told[0] and ENGINES[engine] in told[0]
    assert BUILT_WITHOUT in told[1] and ENGINES[engine] not in told[1]


def test_ranks_that_see_gpus_are_told_how_to_share_them(two_gpus):
    def fails(rank, world_size):
        raise RuntimeError("CUDA error: invalid device ordinal")

    with pytest.raises(simlib.RankError) as caught:
        simlib.run(fails, 2, gpus=True)
    assert "cannot use a GPU" not in str(caught.value) and BUILT_WITHOUT not in str(caught.value)
    assert "use rank % torch.cuda.device_count()." in str(caught.value)


def raises(rank, world_size, error):
    raise error


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (ValueError("my invalid device ordinal in config.yaml"), ""),
        (RuntimeError("CUDA error: out of memory"), "take a smaller batch"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when"), "take a smaller batch"),
    ],
)
def test_advice_fits_the_error(error, advice):
    with pytest.raises(simlib.RankError) as caught:
        simlib.run(raises, 1, args=(error,))
    told = str(caught.value)
    assert advice in told and BUILT_WITHOUT not in told and SEES_NO_GPU not in told
    assert "LAUNCH_BLOCKING" not in told


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda = True
    device = torch.device("cuda", 0)

    def __reduce_ex__(self, protocol):
        return torch.device, ("cuda:0",)


def of_a_notebook():
    """A global of a notebook, and functions that are sent by value, as there."""
    layer = torch.nn.Module()
    layer.register_buffer("weights", torch.zeros(2).as_subclass(OnGpu))
    own = {"deep": [layer.weights]}
    names = {"__name__": "notebook", "layer": layer}
    exec("def uses_a_global(rank, n):\n    return layer", names)
    return layer, names["uses_a_global"], lambda rank, n: own, lambda rank, n, *args, **kwargs: None


LAYER, USES_A_GLOBAL, HAS_ONE, TAKES = of_a_notebook()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("function", "args", "kwargs", "name"),
    [
        (TAKES, (1, LAYER.weights), None, "argument 1"),
        (TAKES, ByRank([(1,), (LAYER.weights,)]), None, "argument 0"),
        (TAKES, (), {"net": LAYER}, "argument 'net'"),
        (USES_A_GLOBAL, (), None, "the global 'layer'"),
        (HAS_ONE, (), None, "the outer variable 'own'"),
    ],
)
def test_a_tensor_on_a_gpu_is_not_sent_where_none_is_seen(engine, function, args, kwargs, name):
    with pytest.raises(simlib.InvalidCallError) as caught:
        engine(function, 2, args, kwargs)
    assert str(caught.value).startswith(f"{name} contains a tensor on cuda:0. ")
    assert ENGINES[engine] in str(caught.value)


def test_a_simulation_says_in_its_own_words_where_tensors_must_be():
    def elsewhere(rank, world_size):
        torch.distributed.all_reduce(torch.empty(2, device="meta"))

    told = []
    for engine in ENGINES:
        with pytest.raises(simlib.InvalidCallError) as caught:
            engine(elsewhere, 2)
        told.append(str(caught.value))
    assert "all_reduce with Gloo takes" in told[0] and "run with another backend" in told[0]
    assert "all_reduce in a simulation takes tensors on cpu" in told[1]
    assert PLAIN in told[1] and "backend" not in told[1]
    with pytest.raises(simlib.InvalidCallError, match="a simulated rank has no GPU"):
        simlib.simulate(elsewhere, 2, gpus=True)

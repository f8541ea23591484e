"""A world that is used again is as a new one: each kind of change is made, then looked for."""

import builtins
import decimal
import gc
import locale
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist
from torch import nn

import simlib
from simlib.classroom.checks.complaints import run_answer


def pids(**options):
    return simlib.run(lambda rank, n: os.getpid(), 2, **options).results


def test_a_clean_world_is_used_again_and_fresh_is_not():
    first = pids()
    assert pids() == first
    assert not set(pids(fresh=True)) & set(first)


def test_what_torch_replaces_by_itself_leaves_a_world_clean():
    def main(rank, n):
        torch.optim.SGD([torch.zeros(1)], 0.1)  # wraps `step`
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
        return os.getpid()

    assert simlib.run(main, 2).results == simlib.run(main, 2).results


def test_warnings_go_to_a_log_in_every_run_that_asks_for_it():
    def main(rank, n):
        logging.captureWarnings(True)
        return warnings.showwarning.__module__

    assert [simlib.run(main, 2).results for _ in range(2)] == [["logging"] * 2] * 2


def set_signal():
    signal.signal(signal.SIGTERM, lambda *_: None)


def add_logging():
    logging.basicConfig(level=logging.DEBUG, force=True)


def hide_stdout():
    sys.stdout = open(os.devnull, "w")


def patch_step():
    torch.optim.SGD.step = lambda self: 7
    torch.optim.SGD([torch.zeros(1)], 0.1)  # wraps it


CHANGES = {
    "torch seed": (lambda: torch.manual_seed(5), lambda: torch.rand(1).item()),
    "default dtype": (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
    "default device": (lambda: torch.set_default_device("meta"), lambda: torch.ones(1).device.type),
    "gradient mode": (lambda: torch.set_grad_enabled(False), torch.is_grad_enabled),
    "threads": (lambda: torch.set_num_threads(3), torch.get_num_threads),
    "deterministic": (
        lambda: torch.use_deterministic_algorithms(True),
        torch.are_deterministic_algorithms_enabled,
    ),
    "anomaly": (lambda: torch.autograd.set_detect_anomaly(True), torch.is_anomaly_enabled),
    "matmul precision": (
        lambda: torch.set_float32_matmul_precision("medium"),
        torch.get_float32_matmul_precision,
    ),
    "torch print options": (
        lambda: torch.set_printoptions(precision=1),
        lambda: str(torch.tensor([1.23456])),
    ),
    "numpy print options": (
        lambda: np.set_printoptions(precision=1),
        lambda: str(np.array([1.23456])),
    ),
    "numpy errors": (lambda: np.seterr(all="raise"), lambda: str(np.geterr())),
    "environment": (lambda: os.environ.update(MODE="x"), lambda: os.environ.get("MODE")),
    "working directory": (lambda: os.chdir("/"), os.getcwd),
    "import path": (lambda: sys.path.insert(0, "/nowhere"), lambda: "/nowhere" in sys.path),
    "arguments": (lambda: sys.argv.append("--odd"), lambda: "--odd" in sys.argv),
    "warnings": (lambda: warnings.simplefilter("error"), lambda: len(warnings.filters)),
    "signals": (set_signal, lambda: str(signal.getsignal(signal.SIGTERM))),
    "logging": (add_logging, lambda: (logging.root.level, len(logging.root.handlers))),
    "recursion limit": (lambda: sys.setrecursionlimit(500), sys.getrecursionlimit),
    "garbage collection": (gc.disable, gc.isenabled),
    "a logger": (
        lambda: logging.getLogger("train").addHandler(logging.NullHandler()),
        lambda: len(logging.getLogger("train").handlers),
    ),
    "torch's logger": (
        lambda: logging.getLogger("torch.distributed").setLevel(5),
        lambda: logging.getLogger("torch.distributed").level,
    ),
    "all loggers": (lambda: logging.disable(50), lambda: logging.root.manager.disable),
    "hooks on all modules": (
        lambda: nn.modules.module.register_module_forward_hook(lambda *_: None),
        lambda: len(nn.modules.module._global_forward_hooks),
    ),
    "cudnn": (
        lambda: torch._C._set_cudnn_deterministic(True),
        torch._C._get_cudnn_deterministic,
    ),
    "mkldnn": (
        lambda: torch._C._set_mkldnn_enabled(False),
        torch._C._get_mkldnn_enabled,
    ),
    "flash attention": (
        lambda: torch._C._set_sdp_use_flash(False),
        torch._C._get_flash_sdp_enabled,
    ),
    "tiny numbers": (
        lambda: torch.set_flush_denormal(True),
        lambda: (torch.tensor(1e-40) * 1).item(),
    ),
    "decimal": (
        lambda: setattr(decimal.getcontext(), "prec", 5),
        lambda: decimal.getcontext().prec,
    ),
    "locale": (
        lambda: locale.setlocale(locale.LC_ALL, "C"),
        lambda: locale.setlocale(locale.LC_ALL),
    ),
    "temporary files": (lambda: setattr(tempfile, "tempdir", "/x"), tempfile.gettempdir),
    "sockets": (lambda: socket.setdefaulttimeout(7), socket.getdefaulttimeout),
    "switch interval": (lambda: sys.setswitchinterval(0.5), sys.getswitchinterval),
    "profile": (lambda: sys.setprofile(lambda *_: None), lambda: sys.getprofile() is None),
    "a method": (
        lambda: setattr(nn.Linear, "forward", lambda self, x: x),
        lambda: nn.Linear.forward.__qualname__,
    ),
    "a class's attribute": (
        lambda: setattr(nn.Module, "calls", 1),
        lambda: hasattr(nn.Module, "calls"),
    ),
    "a class": (lambda: setattr(nn, "Linear", nn.Identity), lambda: nn.Linear.__name__),
    "a function for another": (
        lambda: setattr(nn.functional, "relu", nn.functional.gelu),
        lambda: nn.functional.relu.__name__,
    ),
    "warnings shown": (
        lambda: logging.captureWarnings(True),
        lambda: warnings.showwarning.__module__,
    ),
    "level names": (
        lambda: logging.addLevelName(5, "TRACE"),
        lambda: (logging.getLevelName(5), logging.getLevelName("TRACE")),
    ),
    "backward hooks": (
        lambda: nn.modules.module.register_module_full_backward_hook(print),
        lambda: nn.modules.module._global_is_full_backward_hook,
    ),
    "a step": (patch_step, lambda: torch.optim.SGD([torch.zeros(1)], 0.1).step() == 7),
    "often": (lambda: gc.set_threshold(1, 1, 1), gc.get_threshold),
    "stdout": (hide_stdout, lambda: sys.stdout.name),
    "umask": (lambda: os.umask(0o007), lambda: os.umask(0o022)),
    "thread": (
        lambda: threading.Thread(target=threading.Event().wait, daemon=True).start(),
        threading.active_count,
    ),
    "group": (lambda: dist.new_group([0, 1]), lambda: len(dist.distributed_c10d._world.pg_map)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_does_not_reach_the_next_run(name):
    change, look = CHANGES[name]
    untouched = simlib.run(lambda rank, n: look(), 2).results
    changed = simlib.run(lambda rank, n: (change(), look())[1], 2).results
    assert changed != untouched, "the change does not show: the test tests nothing"
    assert simlib.run(lambda rank, n: look(), 2).results == untouched


def test_a_receive_left_open_does_not_take_a_message_of_the_next_run():
    def leaves_open(rank, n):
        dist.irecv(torch.ones(1), src=1 - rank)

    def exchange(rank, n):
        x, y = torch.tensor([float(rank)]), torch.empty(1)
        request = dist.isend(x, 1 - rank)
        dist.recv(y, 1 - rank)
        request.wait()
        return y.item()

    simlib.run(leaves_open, 2)
    assert simlib.run(exchange, 2).results == [1.0, 0.0]


@pytest.mark.parametrize(
    "change",
    [
        lambda: os.dup2(os.open(os.devnull, os.O_WRONLY), 1),
        lambda: sys.stdout.close(),
        lambda: os.close(1),
        lambda: os.system("sleep 5 &"),
        lambda: os.fork(),
        lambda: setattr(dist, "all_reduce", None),
        lambda: setattr(builtins, "print", None),
        lambda: signal.setitimer(signal.ITIMER_REAL, 0.05),
    ],
    ids=["null", "closed", "fd closed", "child", "fork", "all_reduce", "print", "timer"],
)
def test_output_and_collectives_work_after_what_a_run_did_to_them(change):
    def look(rank, n):
        x = torch.ones(1)
        dist.all_reduce(x)
        print("seen")
        return x.item()

    simlib.run(lambda rank, n: change() and None, 2)
    run = simlib.run(look, 2)
    assert run.results == [2.0, 2.0] and run.output == ["seen\n", "seen\n"]


def test_a_rank_killed_while_it_rests_is_not_used():
    resting = pids()
    victim = psutil.Process(resting[0])
    victim.kill()
    psutil.wait_procs([victim], timeout=10)
    assert not set(resting) & set(pids())


@pytest.mark.parametrize("engine", [simlib.run, simlib.simulate])
def test_each_rank_has_random_numbers_of_its_own_and_a_seed_repeats_them(engine):
    def main(rank, n):
        return torch.rand(1).item(), np.random.rand(), random.random()

    usual, other, new = (engine(main, 3, **how) for how in ({}, {"seed": 5}, {"seed": "new"}))
    assert (
        len({number for run in (usual, other, new) for row in run.results for number in row}) == 27
    )
    assert engine(main, 3).results == usual.results and usual.seed == 0
    assert engine(main, 3, seed=new.seed).results == new.results
    assert len({*engine(main, 3, seed="same").results}) == 1
    for wrong in (1.5, True, "old"):
        with pytest.raises(simlib.InvalidCallError, match=f"seed={wrong!r} must be a whole number"):
            engine(main, 3, seed=wrong)


def test_a_module_edited_between_runs_is_read_anew(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "lesson_helper_module.py"

    def main(rank, n):
        import lesson_helper_module

        return lesson_helper_module.VALUE

    for value in (1, 22):
        module.write_text(f"VALUE = {value}\n")
        assert simlib.run(main, 2).results == [value, value]


def test_class_attributes_set_in_a_rank_do_not_stay():
    class Config:
        pass

    def main(rank, n):
        seen = hasattr(Config, "lr")
        Config.lr = 0.1
        return seen

    assert simlib.run(main, 2).results == [False, False]
    assert simlib.run(main, 2).results == [False, False]


def test_the_kernels_environment_and_folder_are_the_ranks(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE", "yes")
    monkeypatch.chdir(tmp_path)
    run = simlib.run(
        lambda rank, n: (
            [os.environ.get(k) for k in ("COURSE", "RANK", "WORLD_SIZE", "LOCAL_RANK")]
            + [os.getcwd()]
        ),
        2,
    )
    assert run.results == [["yes", str(r), "2", str(r), str(tmp_path)] for r in range(2)]


def test_a_script_without_main_guard_is_not_run_again_by_its_ranks(tmp_path):
    script = tmp_path / "plain.py"
    script.write_text(
        "import simlib\nprint('script runs')\nprint(simlib.run(lambda rank, n: rank, 2).results)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "script runs\n[0, 1]\n"


def test_a_check_does_not_end_the_worlds_it_uses():
    def answer(rank, world_size, x):
        return os.getpid()

    first, second = (run_answer(answer, [(1.0,), (2.0,)], simlib.run)[0] for _ in range(2))
    assert first.results == second.results

"""Whole training scripts, written for torchrun: they run as they are, and broken ones are told.

Each is broken as people ask about it in forums: a few of its lines are replaced by others.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from quick import one_of

import simlib
from simlib.core.clusters import ethernet_10g
from simlib.core.engines.processes.real_run import run_script
from simlib.core.engines.virtual.simulated_run import simulate_script

SCRIPTS = Path(__file__).parents[1] / "microscope"
RIGHT = {
    "ddp_digits": ("--epochs", "1"),
    "gpt_ddp": (),
    "t5_fsdp": (),
    "parameter_server": (),
    "pipeline": ("--schedule", "1f1b"),
    "with_lightning": ("--devices", "3"),
    "with_accelerate": (),
}
LIBRARIES = {"with_lightning": "lightning", "with_accelerate": "accelerate"}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def path_of(name):
    if name in LIBRARIES:
        pytest.importorskip(LIBRARIES[name])
    return str(SCRIPTS / f"{name}.py")


@pytest.mark.parametrize("name", one_of(2, {name: name for name in RIGHT}))
def test_a_script_runs_as_it_is(name, capfd):
    run = run_script(path_of(name), 3, RIGHT[name])
    assert not run.findings and all(op.done for op in run.trace)
    assert "loss" in capfd.readouterr().out
    for output in run.output[1:]:
        assert name not in LIBRARIES or "loss" not in output


@pytest.mark.parametrize("name", RIGHT)
def test_a_script_is_simulated_as_it_is(name, capfd):
    cluster = ethernet_10g(nodes=3)
    run = simulate_script(path_of(name), 3, RIGHT[name], cluster=cluster)
    assert not run.findings and all(op.done for op in run.trace)
    assert "loss" in capfd.readouterr().out
    assert name != "with_lightning" or "loss" not in "".join(run.output[1:])


@pytest.mark.parametrize("more", [("--workers", "1"), ("--compile", "aot_eager")], ids=" ".join)
def test_data_loaders_workers_and_compiled_models(more, capfd):
    run = run_script(path_of("ddp_digits"), 2, ["--epochs", "1", "--samples", "64", *more])
    assert not run.findings and "accuracy" in capfd.readouterr().out


def test_a_script_is_watched_from_the_command_line(tmp_path):
    words = [sys.executable, "-m", "simlib", "run", "--watch", "--every", "0.1", "-n", "2"]
    words += [path_of("parameter_server"), "--steps", "200"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "200 (39,200 bytes)" in done.stdout
    said = [line for line in done.stderr.splitlines() if " ops, " in line]
    assert said and all(line.isprintable() for line in said)


# What is done to a script; the error, the lines it must name, by rank, and words of it.
BROKEN = {
    "ddp_digits: uneven batches": (
        {"data = Digits(args.samples,": "data = Digits(args.samples - 64 * (rank == 2),"},
        simlib.MismatchError,
        {0: "loss.backward()", 1: "loss.backward()", 2: "dist.all_reduce(counts)"},
        "Hint: the ranks are at different lines. Does one rank have fewer batches",
    ),
    "ddp_digits: a parameter that is not used": (
        {"return self.out(x) + self.extra(x)": "return self.out(x)"},
        simlib.RankError,
        dict.fromkeys(range(3), "loss = F.cross_entropy(model(images), labels)"),
        "find_unused_parameters",
    ),
    "ddp_digits: a parameter that one rank does not use": (
        {
            "return self.out(x) + self.extra(x)": "return self.out(x) + "
            "(self.extra(x) if dist.get_rank() else 0)"
        },
        simlib.RankError,
        {0: "loss = F.cross_entropy(model(images), labels)"},
        "find_unused_parameters",
    ),
    "ddp_digits: evaluation on rank 0 only": (
        {
            "share = accuracy(model, test_loader)\n        if rank == 0:\n": "if rank == 0:\n"
            "            share = accuracy(model, test_loader)\n"
        },
        simlib.MismatchError,
        {0: "dist.all_reduce(counts)", 1: "dist.barrier()", 2: "dist.barrier()"},
        "rank 0 calls all_reduce, but ranks 1 and 2 call barrier",
    ),
    "gpt_ddp: a barrier inside the if": (
        {"snapshot)\n        dist.barrier()": "snapshot)\n            dist.barrier()"},
        simlib.MismatchError,
        {0: "dist.barrier()", 1: "loss.backward()", 2: "loss.backward()"},
        "every rank of a group must call the same collectives in the same order",
    ),
    "gpt_ddp: the loss is reduced for rank 0 only": (
        {
            "dist.reduce(loss, dst=0, op=dist.ReduceOp.SUM)\n                if self.rank == 0:": ""
            "if self.rank == 0:\n"
            "                    dist.reduce(loss, dst=0, op=dist.ReduceOp.SUM)"
        },
        simlib.MismatchError,
        {0: "dist.reduce(loss, dst=0, op=dist.ReduceOp.SUM)", 1: "dist.barrier()"},
        "rank 0 calls reduce, but ranks 1 and 2 call barrier",
    ),
    "t5_fsdp: the state of the model on rank 0 only": (
        {
            "    save(model, args.save, rank)": "    if rank == 0:\n"
            "        save(model, args.save, rank)"
        },
        simlib.DeadlockError,
        {0: "state = get_model_state_dict(model, options=options)"},
        "rank 0 waits for ranks 1 and 2, which have finished",
    ),
    "t5_fsdp: a whole weight on rank 0 only": (
        {"gradient {norm.item()": "head {model.head.weight.full_tensor().norm()"},
        simlib.MismatchError,
        {
            0: 'print(f"step {step}: loss {loss.item():.3f}, head {model.head.weight.full_tensor()',
            1: "loss = F.cross_entropy(model(source, started)",
        },
        "rank 0 brings",
    ),
    "parameter_server: the wrong tag": (
        {"src=SERVER, tag=WEIGHTS": "src=SERVER, tag=GRADIENTS"},
        simlib.DeadlockError,
        {0: "dist.send(weights, dst=worker, tag=WEIGHTS)"},
        "use the same tag",
    ),
    "parameter_server: one message more is awaited than comes": (
        {"range(args.steps * workers)": "range(args.steps * workers + 1)"},
        simlib.DeadlockError,
        {
            0: "worker = dist.recv(gradient, tag=GRADIENTS)",
            1: "dist.broadcast(weights, src=SERVER)",
            2: "dist.broadcast(weights, src=SERVER)",
        },
        "rank 0 waits for a message from any of ranks 1 and 2",
    ),
    "parameter_server: a rank whose first layer is frozen": (
        {
            "parameter.grad for parameter in model.parameters()": "parameter.grad for parameter "
            "in list(model.parameters())[rank // 2 :]"
        },
        simlib.MismatchError,
        {
            0: "worker = dist.recv(gradient, tag=GRADIENTS)",
            2: "dist.send(gradient, dst=SERVER, tag=GRADIENTS)",
        },
        "rank 2 sends 17 elements of float32 to rank 0, which expects 49",
    ),
    "pipeline: a rank with more micro-batches": (
        {" = args.micro_batches\n": " = args.micro_batches << (rank == 1)\n"},
        simlib.DeadlockError,
        {1: "schedule.step()"},
        "rank 1 waits for",
    ),
    "pipeline: a stage as wide as no other": (
        {"*first, nn.Linear(WIDTH, WIDTH)": "*first, nn.Linear(WIDTH + (rank == 1), WIDTH)"},
        simlib.RankError,
        {1: "schedule.step()"},
        "mat1 and mat2 shapes cannot be multiplied",
    ),
    "pipeline: the last stage takes a step less": (
        {"range(args.steps)": "range(args.steps - (rank == world_size - 1))"},
        simlib.DeadlockError,
        {2: "dist.barrier()"},
        "rank 2 waits for",
    ),
}


@pytest.mark.parametrize("case", one_of(3, {name: name for name in BROKEN}))
def test_a_broken_script_is_told_with_the_line(case, tmp_path):
    name, (changes, error, lines, words) = case.partition(":")[0], BROKEN[case]
    text = Path(path_of(name)).read_text(encoding="utf-8")
    for old, new in changes.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    script = tmp_path / f"{name}.py"
    script.write_text(text, encoding="utf-8")
    with pytest.raises(error) as caught:
        run_script(str(script), 3, RIGHT[name])
    assert words in str(caught.value), caught.value
    for rank, line in lines.items():
        assert caught.value.sites[rank].line_text.startswith(line), caught.value
        assert caught.value.sites[rank].file == str(script)

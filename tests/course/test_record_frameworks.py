"""Lesson 15 where Lightning and accelerate are not installed, and the runs it shows there."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hidden_cells import Solved
from notebooks_made import SOURCES
from quick import one_of
from sampled import SEED
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import simlib
from simlib.classroom.grading.exercise import read_exercise

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "notebooks" / "recorded_frameworks"
PARTS = sorted((ROOT / "notebooks").glob("15_*.ipynb"))
EXTRA = ["lightning", "accelerate", "torchmetrics"]
RUNS = sorted(path for path in RECORDED.glob("*.json") if not path.stem.endswith("_results"))


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_every_recorded_run_can_be_read(path):
    run = simlib.load(path)
    kept = json.loads((RECORDED / f"{path.stem}_results.json").read_text())
    if kept["error"]:
        name, said = kept["error"]
        assert issubclass(getattr(simlib, name), simlib.SimlibError) and "rank 1" in said
    else:
        assert len(kept["results"]) == run.world_size
    assert not any(word in path.read_text() for word in (str(ROOT), sys.prefix))


def test_the_lesson_asks_for_the_runs_that_are_recorded():
    cells = [cell for part in PARTS for cell in json.loads(part.read_text())["cells"]]
    source = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert RUNS and all(f'"{path.stem}"' in source for path in RUNS)


@pytest.mark.parametrize("part", one_of(2, {part.stem: part for part in PARTS}, first=SEED))
def test_the_lesson_passes_plain_nbval_without_the_extra(part, tmp_path):
    """Every cell prints what it prints with it: so the records are those of the lesson as it is."""
    for name in EXTRA:
        (tmp_path / "hidden" / name).mkdir(parents=True)
        words = f'raise ModuleNotFoundError("no module {name}")'
        (tmp_path / "hidden" / name / "__init__.py").write_text(words)
    (tmp_path / part.name).write_bytes(part.read_bytes())
    (tmp_path / RECORDED.name).symlink_to(RECORDED)
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-cell-timeout=120", part.name]
    command += ["-q", "-p", "no:cacheprovider", "--rootdir=.", "-p", "kernels"]
    places = [tmp_path / "hidden", ROOT / "authoring", ROOT]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:]


def fit(module, data, batch):
    """The exercise's `fit`, by Lightning's Trainer."""
    import lightning

    rank, world_size = dist.get_rank(), dist.get_world_size()
    warnings.simplefilter("ignore")
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=world_size, strategy="ddp", logger=False,
        plugins=[simlib.lightning.environment()], use_distributed_sampler=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    sampler = DistributedSampler(range(len(data[0])), world_size, rank, shuffle=False)
    trainer.fit(module, DataLoader(TensorDataset(*data), batch, sampler=sampler))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_lightnings_trainer_takes_the_class_that_the_exercise_asks_for(world_size):
    """Its tiny `fit` stands for the Trainer: the same class, the same weights."""
    lightning = pytest.importorskip("lightning")
    names = Solved(read_exercise(SOURCES / "15_frameworks.py")).names
    x, y, w = names["examples"](seed=1, steps=3)(0, world_size)
    names |= {"Module": lightning.LightningModule, "fit": fit}
    for weights in simlib.run(names["converted"], world_size, args=(x, y, w)).results:
        torch.testing.assert_close(weights, names["by_hand"](x, y, w))

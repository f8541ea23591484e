"""Lesson 15 where Lightning and accelerate are not installed, and the runs it shows there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import simlib

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "notebooks" / "recorded_frameworks"
LESSON = ROOT / "notebooks" / "15_frameworks.ipynb"
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
    cells = json.loads(LESSON.read_text())["cells"]
    source = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert RUNS and all(f'"{path.stem}"' in source for path in RUNS)


def test_the_lesson_passes_plain_nbval_without_the_extra(tmp_path):
    """Every cell prints what it prints with it: so the records are those of the lesson as it is."""
    for name in EXTRA:
        (tmp_path / "hidden" / name).mkdir(parents=True)
        words = f'raise ModuleNotFoundError("no module {name}")'
        (tmp_path / "hidden" / name / "__init__.py").write_text(words)
    (tmp_path / LESSON.name).write_bytes(LESSON.read_bytes())
    (tmp_path / RECORDED.name).symlink_to(RECORDED)
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-cell-timeout=120", LESSON.name]
    command += ["-q", "-p", "no:cacheprovider", "--rootdir=.", "-p", "kernels"]
    places = [tmp_path / "hidden", ROOT / "authoring", ROOT]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:]

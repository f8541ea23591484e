"""Lesson 15 with every folded answer in its place, on its recorded runs; its picture of steps."""

import re
from pathlib import Path

import jupytext
import pytest
from lab_pictures import check_places_of_words
from lesson_programs import LESSONS, written
from quick import one_of
from sampled import SEED

import simlib
from simlib import labs

WRITTEN = {
    "15_frameworks": ("log_probabilities", "Ranks"),
    "15_inside_the_trainer": ("own_ops", "after_epoch"),
    "15_numbers_of_all_ranks": ("f1_of_counts", "DistributedOptimizer"),
    "15_what_frameworks_send": ("tp_all_reduces", "sent_by"),
}
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("part", one_of(4, {part: part for part in WRITTEN}, first=SEED))
def test_every_folded_answer_is_right(part, monkeypatch, capsys):
    for extra in ("lightning", "accelerate", "torchmetrics"):
        monkeypatch.setitem(__import__("sys").modules, extra, None)  # to import it raises
    monkeypatch.chdir(ROOT / "notebooks")
    cells = jupytext.read(LESSONS / f"{part}.py", fmt="py:percent").cells
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    for stub, answered in (written(part, name) for name in WRITTEN[part]):
        assert stub in code
        code = code.replace(stub, answered)
    exec(compile(code, f"<{part}>", "exec", dont_inherit=True), {"__name__": "lesson"})
    told = capsys.readouterr().out
    assert "not yet" not in told
    assert len(re.findall(r"^(?:\w+: )?right$", told, re.M)) == len(WRITTEN[part])


def steps(rank, world_size):
    for _ in range(2):
        with simlib.span("forward"):
            simlib.compute(1e-3)
        with simlib.span("backward"):
            simlib.compute(2e-3)
            __import__("torch").distributed.barrier()


def test_steps_are_drawn_from_their_forward_pass_on():
    run = simlib.simulate(steps, 3)
    figure = labs.draw_steps({"one": run, "other": run}, step=0)
    bars = [bar for bar in figure.axes[1].patches]
    assert len(bars) == 3 * 3 and min(bar.get_x() for bar in bars) == 0
    assert sorted({round(bar.get_width(), 2) for bar in bars})[-2:] != [0]
    assert figure.words.count("a rank calls 1 x barrier") == 2 and "3.0" in figure.words
    for dark in (False, True):
        check_places_of_words(figure, dark)
    with pytest.raises(simlib.InvalidCallError, match="one has 2 pieces .* no step 2"):
        labs.draw_steps({"one": run}, step=2)

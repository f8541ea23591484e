"""Lesson 20's own functions: its published answers, its bound, its bytes, its figures."""

import ast
import re

import jupytext
import pytest
from lesson_programs import LESSONS, _stays, names_of

import simlib

FIRST, SECOND = "20_rollouts_and_trainers", "20_weights_to_generators"
WRITES = {  # function: lesson, words of the cell that checks it, what it says then
    "your_control": (FIRST, "verdict = ", 3),
    "best_T": (FIRST, "best_s = min", 6),
    "reshard": (SECOND, "print(shape, ", 6),
    "choose": (SECOND, "lease of 10 s", 4),
}
STUB = re.compile(r"^ +(?:return None|return -1|break)  # yours.*\n", re.M)
ANSWER = re.compile(r"<summary>Answer</summary>\n#\n((?:#(?:     .*)?\n)+)")


def are_given(names):
    return all(name.isupper() or name == "kill" for name in names)


def checked(function, with_answer, capsys):
    """What the check of a written function prints, as stored or with the published answer."""
    lesson, check, _ = WRITES[function]
    text = (LESSONS / f"{lesson}.py").read_text(encoding="utf-8")
    stubs, answers = STUB.findall(text), ANSWER.findall(text)
    assert len(stubs) == len(answers) == 2
    for stub, answer in zip(stubs, answers, strict=True) if with_answer else ():
        indent = re.match(" +", stub)[0]
        lines = re.findall(r"^#     (.*)$", answer, re.M)
        text = text.replace(stub, "".join(f"{indent}{line}\n" for line in lines), 1)
    names = {"__name__": "lesson"}
    for cell in jupytext.reads(text, fmt="py:percent").cells:
        if cell.cell_type == "code":
            found, is_check = ast.parse(cell.source).body, check in cell.source
            kept = [one for one in found if is_check or _stays(one, are_given)]
            exec(compile(ast.Module(kept, []), f"<{lesson}>", "exec"), names)
    return capsys.readouterr().out


@pytest.mark.parametrize("function", WRITES)
def test_an_answer_in_its_place_is_right(function, capsys):
    as_stored = checked(function, False, capsys)
    assert "not yet" in as_stored and "right" not in as_stored
    said = checked(function, True, capsys)
    assert said.count("right") == WRITES[function][2] and "not yet" not in said


@pytest.fixture(scope="module")
def first():
    return names_of(FIRST, are_given)


def test_the_bound_holds_on_real_ranks_and_in_the_simulation(first):
    for k in (0, 2):
        args = first["control"], 2, k, 3, 16, first["ones"], 2e-6
        for engine in (simlib.run, simlib.simulate):
            run = engine(first["main"], 6, args=args)
            ages = first["staleness"](run, 2, 16)[:48]
            assert len(ages) == 48 and 0 <= min(ages) and max(ages) <= k
            rewards = [log[-1][1] for log in run.results[1:3]]
            assert rewards[0] == rewards[1] > 1 / 8  # trainers stay in step


def test_a_smaller_bound_takes_longer_and_old_rollouts_learn_less(first):
    runs = {}
    for k, weights in ((0, "ones"), (16, "ones"), (16, "corrected")):
        args = first["control"], 1, k, 20, 32, first[weights]
        runs[k, weights] = simlib.simulate(first["main"], 14, args)
    assert runs[0, "ones"].time_s > 1.4 * runs[16, "ones"].time_s
    reward = {name: run.results[1][-1][1] for name, run in runs.items()}
    assert reward[16, "ones"] < reward[16, "corrected"] - 0.05
    assert abs(reward[0, "ones"] - reward[16, "corrected"]) < 0.05


def test_a_transfer_is_hidden_as_the_formula_says():
    second = names_of(SECOND, are_given)
    for k, a, b, c in ((0, 25, 20, 12.8), (1, 10, 30, 5), (2, 20, 20, 20), (1, 4, 4, 24)):
        formula_s = max(a, b, c, (a + b + c) / (k + 1))
        assert second["batch_s"](k, a, b, c) == pytest.approx(formula_s, rel=1e-3)

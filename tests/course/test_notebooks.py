"""The built notebooks keep the course's form, their stubs fail."""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import nbformat
import pytest
from build import comparable
from nbformat.v4 import new_code_cell, new_markdown_cell
from quick import one_of

from simlib.classroom.grading.source import REVIEW, exercise_files

ROOT = Path(__file__).resolve().parents[2]
LESSONS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
TRANSLATIONS = sorted((ROOT / "notebooks").glob("[a-z][a-z]/[0-9][0-9]_*.ipynb"))
"""In a second language; `test_a_source_gives_its_notebook` builds them with their original."""
EXERCISES = exercise_files(ROOT / "exercises", ".ipynb")
SOLUTIONS = exercise_files(ROOT / "solutions", ".ipynb")

MAX_CELLS = 47  # 45, and two labs
MAX_CODE_LINES = 30
MAX_CHECK_LINES = 5
MAX_WORDS, MIN_WORDS, MIN_WORDS_OF_THE_FIRST = 3600, 1000, 800
TEASER, MIN_WORDS_OF_THE_TEASER = "00_your_first_training", 500  # a quarter of an hour, no more
MAX_TASK_WORDS = 110
MAX_TASKS, TASKS_OF_THE_REVIEW = 9, 10
SHARE_WITH_PROSE_BEFORE = 0.8
TASK_HEADING = re.compile(r"^## \d+\. .+ \((★|★★|★★★), \d+ minutes, \d+ points?\)\n")


def read(path):
    return nbformat.read(path, as_version=4)


def name(path):
    return f"{path.parent.name}/{path.stem}" if path.suffix == ".ipynb" else path.name


def words(text):
    return len(re.findall(r"\S*\w\S*", text))


def kinds(cells):
    """One letter per cell: m for markdown, c for code."""
    return "".join(cell.cell_type[0] for cell in cells)


def role(cell):
    return cell.metadata.get("course", {}).get("role")


def code_problems(cells):
    """What holds of the code of every notebook."""
    for cell in cells:
        length = len(cell.source.splitlines())
        if cell.cell_type == "code" and length > MAX_CODE_LINES:
            yield f"{cell.id} has {length} lines"
    if "ccc" in kinds(cells):
        yield "three code cells in a row"


def lesson_problems(cells, least_words=MIN_WORDS):
    """What keeps a lesson from the course's form, one sentence each."""
    yield from code_problems(cells)
    row = kinds(cells)
    if len(cells) > MAX_CELLS:
        yield f"{len(cells)} cells"
    count = sum(words(cell.source) for cell in cells if cell.cell_type == "markdown")
    if not least_words <= count <= MAX_WORDS:
        yield f"{count} words of prose"
    if not re.match(r"m", row) or not re.match(r"# \d\d \S", cells[0].source):
        yield "the first cell is no heading '# NN title'"
    introduced = row.count("mc")
    if introduced < SHARE_WITH_PROSE_BEFORE * row.count("c"):
        yield f"only {introduced} of {row.count('c')} code cells have prose before them"


def exercise_problems(cells, most_tasks=MAX_TASKS):
    """What keeps an exercise from the course's form, one sentence each."""
    yield from code_problems(cells)
    answers = [index for index, cell in enumerate(cells) if role(cell) == "answer"]
    checks = [index for index, cell in enumerate(cells) if role(cell) == "check"]
    if not 2 <= len(answers) <= most_tasks:
        yield f"{len(answers)} tasks"
    if checks != [index + 1 for index in answers]:
        yield "a check is not directly below its answer"
        return
    for index in answers + checks:
        course = cells[index].metadata.course
        if set(course) != {"role", "question", "points"}:
            yield f"{cells[index].id} has the metadata {sorted(course)}"
    for index in checks:
        yield from check_problems(cells[index])
    for index in answers:
        yield from task_problems(*cells[index - 1 : index + 2])


def task_problems(above, answer, below):
    """What is wrong with one task: its text, its answer cell, its check cell."""
    if not TASK_HEADING.match(above.source):
        yield f"{answer.id}: no heading with difficulty, minutes and points above it"
    count = words(above.source.partition("\n")[2])
    if count > MAX_TASK_WORDS:
        yield f"{answer.id}: the task has {count} words"
    course, of_check = answer.metadata.course, below.metadata.get("course", {})
    if any(course.get(key) != of_check.get(key) for key in ("question", "points")):
        yield f"{answer.id}: question or points differ from the check's"
    if '"""' not in answer.source:
        yield f"{answer.id}: the stub has no docstring"


def check_problems(cell):
    """What could be read off a check cell, or keeps plain nbval from its verdict."""
    if not 1 <= len(cell.source.splitlines()) <= MAX_CHECK_LINES:
        yield f"{cell.id} has {len(cell.source.splitlines())} lines"
    if "check_of(" not in cell.source:
        yield f"{cell.id} does not call check_of"
    if cell.outputs or cell.execution_count is not None:
        yield f"{cell.id} has outputs of a run"
    if cell.metadata.get("tags") != ["nbval-ignore-output"]:
        yield f"{cell.id} is compared with what is stored below it"


def test_lessons_and_exercises_keep_the_form():
    found = {}
    for path in LESSONS + TRANSLATIONS:
        least = MIN_WORDS_OF_THE_FIRST if path.stem.startswith("00") else MIN_WORDS
        least = MIN_WORDS_OF_THE_TEASER if path.stem == TEASER else least
        found[name(path)] = list(lesson_problems(read(path).cells, least))
    for path in EXERCISES:
        most = TASKS_OF_THE_REVIEW if path.stem == REVIEW else MAX_TASKS
        found[name(path)] = list(exercise_problems(read(path).cells, most))
    assert found == dict.fromkeys(found, [])


def says(cell, words):
    """Whether what a code cell has printed holds these words."""
    return any(words in output.get("text", "") for output in cell.get("outputs", ()))


def test_a_lesson_in_a_second_language_has_the_code_and_the_outputs_of_the_first():
    """So nbval need not run it, too."""
    assert [name(path) for path in TRANSLATIONS] == ["de/00_start_here"]
    for path in TRANSLATIONS:
        own, original = (
            nbformat.reads(comparable(one.read_text(encoding="utf-8")), as_version=4).cells
            for one in (path, ROOT / "notebooks" / path.name)
        )
        assert [cell.id for cell in own] == [cell.id for cell in original]
        for cell, first in zip(own, original, strict=True):
            assert (cell.source == first.source) == (cell.cell_type == "code"), cell.id
            assert cell.get("outputs") == first.get("outputs"), cell.id
        assert f"](../{path.name})" in own[0].source and "](../glossary.md)" in own[0].source
        assert f"]({name(path)}.ipynb)" in original[0].source
        assert f"](notebooks/{name(path)}.ipynb)" in (ROOT / "START.md").read_text()


def test_pictures_of_the_first_lesson_are_told():
    """Others get their alt text when they are built next."""
    paths = [path for path in LESSONS + TRANSLATIONS if path.stem == "00_start_here"]
    assert len(paths) == 2
    for path in paths:
        outputs = [output for cell in read(path).cells for output in cell.get("outputs", ())]
        pictures = [output for output in outputs if "image/png" in output.get("data", {})]
        told = [output.metadata.get("image/png", {}).get("alt", "") for output in pictures]
        assert len(told) >= 3 and all(told) and "wait for rank" in told[0], path


SECOND_EDITION = [path for path in LESSONS if path.stem[:2] <= "10" or path.stem[:2] == "16"]


@pytest.mark.parametrize("path", SECOND_EDITION, ids=name)
def test_a_lesson_has_three_cells_to_write_and_answers_them(path):
    least = 1 if path.stem == TEASER else 3
    cells = read(path).cells
    asked = [cell for cell in cells if re.search(r"(?i)now\s+(?:#\s+)?you\s+write", cell.source)]
    answered = [cell for cell in cells if says(cell, "not yet")]
    assert len(asked) >= least and len(answered) >= least  # as stored, nothing is written


def test_exercises_have_solutions_with_the_same_cells_and_the_start_page_leads_to_all():
    for path in EXERCISES:
        solution = read(ROOT / "solutions" / path.name)
        assert [cell.id for cell in read(path).cells] == [cell.id for cell in solution.cells], path
    start = (ROOT / "START.md").read_text(encoding="utf-8")
    for path in LESSONS + EXERCISES + SOLUTIONS:
        assert f"]({path.relative_to(ROOT).as_posix()})" in start


def test_notebooks_are_valid():
    for path in LESSONS + TRANSLATIONS + EXERCISES + SOLUTIONS:
        try:
            nbformat.validate(read(path))
        except nbformat.ValidationError as error:
            pytest.fail(f"{name(path)}: {error}")


def build_check(*options):
    """What the builder says where notebooks are not what their sources give; empty if they are."""
    command = [sys.executable, ROOT / "authoring" / "build.py", "--check", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout + done.stderr if done.returncode else ""


def test_notebooks_are_what_their_sources_give_but_for_outputs():
    said = build_check("--run", "0")
    assert not said, said


def cheapest_first(paths, cheapest):
    """``{id: path}``, of which `one_of` takes the first."""
    return {f"{name(path)}.ipynb": path for path in sorted(paths, key=lambda p: p.stem != cheapest)}


@pytest.mark.slow
@pytest.mark.parametrize("path", LESSONS + SOLUTIONS, ids=name)
def test_a_source_gives_its_notebook(path):
    """`make test` also runs all notebooks by nbval, and a builder that builds made-up ones."""
    kind = "lessons" if path in LESSONS else "exercises"
    said = build_check("--kind", kind, path.stem)
    assert not said, said


def failing_cells(path, folder):
    """The numbers of the code cells of a copy of a notebook that plain nbval refuses."""
    copy, report = folder / path.name, folder / "report.xml"
    copy.write_bytes(path.read_bytes())
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-cell-timeout=120", copy.name]
    command += ["-q", "-p", "no:cacheprovider", "--rootdir=.", f"--junitxml={report.name}"]
    command += ["-p", "kernels"]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'authoring'}"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    code = [cell for cell in read(path).cells if cell.cell_type == "code"]
    # A cell that timed out would turn all later ones into expected failures.
    skipped = [case.get("name") for case in cases if case.find("skipped") is not None]
    assert (len(cases), skipped) == (len(code), []), done.stdout
    failed = [number for number, case in enumerate(cases) if case.find("failure") is not None]
    return failed


@pytest.mark.parametrize("path", one_of(99, cheapest_first(EXERCISES, "02_send_and_recv")))
def test_a_stub_fails_plain_nbval_on_exactly_its_checks(path, tmp_path):
    code = [cell for cell in read(path).cells if cell.cell_type == "code"]
    checks = [number for number, cell in enumerate(code) if role(cell) == "check"]
    assert checks and failing_cells(path, tmp_path) == checks


@pytest.mark.parametrize("path", one_of(99, cheapest_first(EXERCISES, "03_when_it_hangs")))
def test_solved_but_for_one_task_it_fails_plain_nbval_on_that_check(path, tmp_path):
    """Whatever is stored below its checks, and with no file beside it."""
    notebook, solved = read(path), tmp_path / "solved" / path.name
    first, *others = (cell for cell in read(path).cells if role(cell) == "answer")
    solutions = {cell.id: cell.source for cell in read(ROOT / "solutions" / path.name).cells}
    for cell in notebook.cells:
        if cell.id in {other.id for other in others}:
            cell.source = solutions[cell.id]
        if role(cell) == "check":
            cell.execution_count = 1
            cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text="right\n")]
    solved.parent.mkdir()
    nbformat.write(notebook, solved)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    question = first.metadata.course.question
    (unsolved,) = (number for number, cell in enumerate(code) if cell.id == f"{question}-check")
    assert failing_cells(solved, tmp_path) == [unsolved]


def test_nothing_of_what_a_check_expects_is_in_its_notebook():
    for path in EXERCISES:
        cases = (path.parent / "checks" / f"{path.stem}.py").read_text(encoding="utf-8")
        shown = [cell.source for cell in read(path).cells if cell.cell_type == "code"]
        head, *tasks = re.split(r"(?m)^# %% \w+\.\d+ ", cases)
        assert len(tasks) == len([cell for cell in read(path).cells if role(cell) == "check"])
        names = {name for part in (head, *tasks) for name in re.findall(r"(?m)^def (\w+)", part)}
        assert "simlib.checks" in head and not [
            (path.stem, name)
            for name in names
            for text in shown
            if re.search(rf"def {name}\b", text)
        ]


# The rules themselves: a notebook that breaks one is told so.

PROSE = new_markdown_cell("# 05 A lesson\n" + "word " * 100)
CODE = new_code_cell("x = 1", id="short")


def good_lesson():
    return [PROSE, CODE] * 16


@pytest.mark.parametrize(
    "cells, sentence",
    [
        (good_lesson() + [PROSE, CODE, CODE, CODE], "three code cells in a row"),
        (good_lesson() + [PROSE] * 16, "48 cells"),
        (good_lesson()[:10], "515 words of prose"),
        (good_lesson() + [new_code_cell("x\n" * 31, id="long")], "long has 31 lines"),
        (good_lesson()[1:], "the first cell is no heading '# NN title'"),
        ([PROSE, CODE, CODE] * 14, "only 14 of 28 code cells have prose"),
    ],
)
def test_a_lesson_out_of_form_is_told(cells, sentence):
    assert list(lesson_problems(good_lesson())) == []
    assert any(problem.startswith(sentence) for problem in lesson_problems(cells))


def course_cell(kind, question, points, text):
    course = {"role": kind, "question": question, "points": points}
    return new_code_cell(text, id=f"{question}-{kind}", metadata={"course": course})


def good_exercise(task="## 1. Do it (★, 10 minutes, 2 points)\nPlease.", points=2, doc='"""Do."""'):
    cells = []
    for question in ("a", "b"):
        cells.append(new_markdown_cell(task))
        cells.append(course_cell("answer", question, 2, doc))
        cells.append(course_cell("check", question, points, f'check_of("05.1", {question})'))
        cells[-1].metadata["tags"] = ["nbval-ignore-output"]
    return cells


def with_check(source='check_of("05.1", a)', tags=("nbval-ignore-output",), **changes):
    """A good exercise but for its first check."""
    cells = good_exercise()
    cells[2] |= {"source": source, **changes}
    cells[2].metadata["tags"] = list(tags)
    return cells


RUN = nbformat.v4.new_output("stream", name="stdout", text="a: right")


@pytest.mark.parametrize(
    "cells, sentence",
    [
        (good_exercise()[:3], "1 tasks"),
        (good_exercise("## 1. Do it\nPlease."), "a-answer: no heading with difficulty"),
        (
            good_exercise("## 1. Do it (★, 10 minutes, 2 points)\n" + "word " * 111),
            "a-answer: the task has 111 words",
        ),
        (good_exercise(points=3), "a-answer: question or points differ"),
        (good_exercise(points=None), "a-answer: question or points differ"),
        (good_exercise(doc="x = 1"), "a-answer: the stub has no docstring"),
        (good_exercise()[:5] + [PROSE] + good_exercise()[5:], "a check is not directly below"),
        (with_check('check_of("05.1", a)\n' * 6), "a-check has 6 lines"),
        (with_check("check('a', a, inputs, expected)"), "a-check does not call check_of"),
        (with_check(outputs=[RUN]), "a-check has outputs of a run"),
        (with_check(execution_count=3), "a-check has outputs of a run"),
        (with_check(tags=()), "a-check is compared with what is stored"),
    ],
)
def test_an_exercise_out_of_form_is_told(cells, sentence):
    assert list(exercise_problems(good_exercise())) == []
    assert any(problem.startswith(sentence) for problem in exercise_problems(cells))


def test_a_stub_that_passes_its_check_is_told(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=good_exercise())
    path = tmp_path / "in.ipynb"
    for number, cell in enumerate(c for c in notebook.cells if c.cell_type == "code"):
        cell.source, cell.execution_count = "print(1)", number + 1
        cell.metadata.pop("tags", None)
        text = "1\n" if number != 3 else "2\n"
        cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)]
    nbformat.write(notebook, path)
    (tmp_path / "copy").mkdir()
    assert failing_cells(path, tmp_path / "copy") == [3]

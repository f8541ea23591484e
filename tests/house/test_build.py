"""The builder, on sources made here: what it refuses, what it builds, what it leaves alone."""

import itertools
import json
import re
from functools import partial

import build as builder
import minutes
import nbformat
import playable
import pytest
from terminals import Terminal
from translations import fingerprint

from simlib.classroom.grading import source
from simlib.classroom.grading.exercise import shown_form

EXERCISES = builder.ROOT / "authoring" / "exercises"
LESSON = """\
# %% [markdown]
# # 00 · A lesson
# Some prose, for 60 to
# 70 minutes.

# %%
print("one")
print("two")

# %% [markdown]
# More prose.

# %% tags=["raises-exception"]
1 / 0

# %%
6 * 7
"""

EXERCISE = '''\
# %% [markdown]
# # 02 · An exercise

# %% role="setup"
import os

from simlib.checks import (
    check,
    only,
)

print(only.__name__)

# %% [markdown] question="double"
# ## 1. Double a number (★, 10 minutes, 2 points)

# %% role="answer" question="double" points=2
def double(x):
    """Twice x."""
    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION


# %% role="check" question="double" points=2
try:
    verdict = "right" if double(2) == 4 else "wrong"
except NotImplementedError:
    verdict = "not written yet"
verdict

# %% role="hidden" question="double" points=2
print(double(21))

# %%
print("the end")
'''


@pytest.fixture(scope="module", autouse=True)
def kernels(tmp_path_factory):
    """Isolated kernels; cells run once, and of "TURN" in outputs each run makes another number."""
    execute, outputs, turns = builder.execute, {}, itertools.count()

    def run(notebook, *args, **options):
        cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        key = tuple(cell.source for cell in cells)
        if key not in outputs:
            execute(notebook, *args, **options)
            outputs[key] = nbformat.writes(notebook)
        again = nbformat.reads(outputs[key].replace("TURN", f"{next(turns):04}"), as_version=4)
        made = [cell.outputs for cell in again.cells if cell.cell_type == "code"]
        for cell, those in zip(cells, made, strict=True):
            cell.outputs = those

    with pytest.MonkeyPatch.context() as patch:
        for name in ("PYTHONHASHSEED", "JUPYTER_PREFER_ENV_PATH", "MPLBACKEND", "COLUMNS"):
            patch.setenv(name, "")
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(name, "")
        builder.isolate_kernels(tmp_path_factory.mktemp("jupyter"))
        patch.setattr(builder, "execute", run)
        yield


@pytest.fixture
def checkout(tmp_path):
    """``checkout(lesson=..., exercise=...)`` makes a folder with these sources."""

    def make(lesson=None, exercise=None):
        folder = tmp_path / "a checkout"
        for kind, name, text in (
            ("lessons", "00_lesson", lesson),
            ("exercises", "02_exercise", exercise),
        ):
            (folder / "authoring" / kind).mkdir(parents=True, exist_ok=True)
            if text is not None:
                (folder / "authoring" / kind / f"{name}.py").write_text(text)
        start = folder / "authoring" / "start_page.md"
        start.write_text("# Start\n\n<!-- lessons -->\n\n<!-- exercises -->\n")
        about = "" if lesson is None else '00_lesson = "printing, and an error"\n'
        (folder / builder.LESSON_LINES).write_text(about)
        (folder / "README.md").write_text(
            f"# Course\n\n{builder.TABLE_BEGIN}\nan old table\n{builder.TABLE_END}\n\nMore.\n"
        )
        return folder

    return make


@pytest.fixture
def built(checkout):
    """``built(lesson=..., exercise=...)``: a folder in which these sources are built."""

    def make(**sources):
        root = checkout(**sources)
        assert builder.build(root)
        return root

    return make


def read(path):
    return nbformat.read(path, as_version=4)


def by_id(notebook):
    return {cell.id: cell for cell in notebook.cells}


def texts(cell):
    return [output.get("text", output.get("ename")) for output in cell.outputs]


def snapshot(folder):
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


ANSWER = '# %% role="answer" question="q"\n'


@pytest.mark.parametrize(
    "text, sentence",
    [
        (ANSWER + "### END SOLUTION\n", "line 2: '### END SOLUTION' has no"),
        (ANSWER + "### BEGIN SOLUTION\n", "line 2: '### BEGIN SOLUTION' is not closed"),
        (
            ANSWER + "### BEGIN SOLUTION\n# %%\n### END SOLUTION\n",
            "line 2: '### BEGIN SOLUTION' is not closed within its cell",
        ),
        (
            ANSWER + "### BEGIN SOLUTION\n### BEGIN SOLUTION\n### END SOLUTION\n",
            "line 3: '### BEGIN SOLUTION' of line 2 is still open",
        ),
        (ANSWER + "## BEGIN SOLUTION\n", "line 2: did you mean"),
        (ANSWER + "### BEGIN SOLVING\n", "line 2: did you mean"),
        (ANSWER + "### begin solution\n", "line 2: did you mean"),
        (ANSWER + "#END_SOLUTION\n", "line 2: did you mean"),
        (ANSWER + "x = 1\n", "line 1: use role 'answer' and solution"),
        ('# %% role="check" question="q" weight=-1\n', "line 1: weight=-1: only check and"),
        ('# %% role="setup" weight=1\n', "line 1: weight=1: only check and hidden cells"),
        (
            ANSWER + "### BEGIN BROKEN\n### END SOLUTION\n",
            "line 3: '### END SOLUTION' has no '### BEGIN SOLUTION'",
        ),
        (
            ANSWER + "### BEGIN BROKEN\n### END BROKEN\n",
            "line 1: this broken program has no solution",
        ),
        ("# %%\n### BEGIN SOLUTION\n### END SOLUTION\n", "line 1: use role 'answer'"),
        ('# %% role="teacher" question="q"\n', "line 1: role 'teacher' is not one of"),
        ('# %% role="check"\n', "line 1: a cell with role 'check' needs question="),
        ('# %% role="check" question="a b"\n', "line 1: question 'a b' may contain"),
        ("x = 1\n# %%\n", "line 1: there is text before the first"),
    ],
)
def test_a_source_with_a_slip_is_refused_with_file_and_line(tmp_path, text, sentence):
    path = tmp_path / "02_exercise.py"
    path.write_text(text)
    for read in (partial(source.read_source, is_exercise=True), source.read_cells):
        with pytest.raises(source.SourceError) as refused:
            read(path)
        assert str(refused.value).startswith(f"{path}, {sentence}")


def test_a_lesson_has_no_roles(tmp_path):
    path = tmp_path / "00_lesson.py"
    path.write_text('# %% role="setup"\n')
    with pytest.raises(source.SourceError, match="may not have roles or solutions"):
        source.read_source(path, is_exercise=False)


def test_each_solution_becomes_a_stub_at_its_own_indent():
    text = (
        "def f():\n    ### BEGIN SOLUTION\n    a = 1\n\n    b = 2\n    ### END SOLUTION\n"
        "    return 3\n### BEGIN SOLUTION\nx = f()\n### END SOLUTION"
    )
    assert source.stub_source(text) == (
        "def f():\n    # YOUR CODE HERE\n    raise NotImplementedError()\n"
        "    return 3\n# YOUR CODE HERE\nraise NotImplementedError()"
    )


def test_where_a_program_is_to_be_mended_the_stub_is_the_broken_one():
    text = (
        "def f():\n    ### BEGIN BROKEN\n    b, a = 1, 2\n    ### END BROKEN\n"
        "    ### BEGIN SOLUTION\n    a, b = 1, 2\n    ### END SOLUTION\n    return a"
    )
    assert source.stub_source(text) == "def f():\n    b, a = 1, 2\n    return a"
    assert source.solution_source(text) == "def f():\n    a, b = 1, 2\n    return a"


def test_a_lesson_is_built_with_outputs_and_without_traces_of_this_machine(built):
    root = built(lesson=LESSON)
    notebook = read(root / "notebooks/00_lesson.ipynb")
    nbformat.validate(notebook)
    cells = by_id(notebook)
    assert list(cells) == [
        "00_lesson-text-001",
        "00_lesson-code-001",
        "00_lesson-text-002",
        "00_lesson-code-002",
        "00_lesson-code-003",
    ]
    assert texts(cells["00_lesson-code-001"]) == ["one\ntwo\n"]
    assert cells["00_lesson-code-002"].outputs[0].traceback == [
        "ZeroDivisionError: division by zero"
    ]
    assert cells["00_lesson-code-003"].outputs[0].data == {"text/plain": "42"}
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == [1, 2, 3]
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert notebook.metadata.language_info == {"name": "python"}
    assert str(root) not in (root / "notebooks/00_lesson.ipynb").read_text()


def test_an_exercise_gives_stub_and_solution_with_the_same_ids(built):
    root = built(exercise=EXERCISE)
    exercise, solution = (
        read(root / f"{folder}/02_exercise.ipynb") for folder in ("exercises", "solutions")
    )
    assert list(by_id(exercise)) == list(by_id(solution))
    assert {"double-text", "double-answer", "double-check"} < set(by_id(exercise))
    course = {"role": "answer", "question": "double", "points": 2}
    assert by_id(exercise)["double-answer"].metadata == {"course": course}
    assert "raise NotImplementedError()" in by_id(exercise)["double-answer"].source
    assert "return 2 * x" not in json.dumps(exercise)
    assert "return 2 * x" in by_id(solution)["double-answer"].source
    for text in (json.dumps(exercise), json.dumps(solution)):
        assert not [word for word in ("SOLUTION", "double(21)", "hidden") if word in text]


def test_hidden_cells_run(checkout):
    broken = EXERCISE.replace("print(double(21))", "print(dubble(21))")
    with pytest.raises(builder.BuildError, match="cell double-hidden: NameError.*dubble"):
        builder.build(checkout(exercise=broken))


def test_an_exercise_stores_what_the_stub_gives_but_no_verdict_and_no_picture(built):
    told = EXERCISE.replace('print("the end")', "print(double.__doc__)\ndouble.__code__.co_names")
    root = built(exercise=told + OUTPUTS)
    assert builder.build(root, check=True)
    exercise = by_id(read(root / "exercises/02_exercise.ipynb"))
    assert (exercise["double-check"].outputs, exercise["double-check"].execution_count) == (
        [],
        None,
    )
    assert exercise["double-check"].metadata.tags == ["nbval-ignore-output"]
    assert exercise["double-answer"].outputs == []
    last = exercise["02_exercise-code-002"]
    assert last.outputs[1].data["text/plain"] == "('NotImplementedError',)"
    solution = by_id(read(root / "solutions/02_exercise.ipynb"))
    assert solution["double-check"].outputs[0].data == {"text/plain": "'right'"}
    assert "tags" not in solution["double-check"].metadata
    for cells in (exercise, solution):
        assert list(cells.values())[-2].outputs[0].data == {"text/plain": "a picture"}


def test_what_a_check_expects_is_built_into_a_file_of_its_own(built):
    root = built(exercise=EXERCISE)
    for folder in ("exercises", "solutions"):
        cells = by_id(read(root / folder / "02_exercise.ipynb"))
        assert cells["double-check"].source == 'verdict = check_of("02.1", double)\nverdict'
        setup = "import os\n\nfrom simlib.checks import check_of, only\n\nprint(only.__name__)"
        assert cells["02_exercise-code-001"].source == setup
    path = root / "exercises/checks/02_exercise.py"
    cases = path.read_text()
    assert "    check,\n" in cases and cases.endswith('"not written yet"\nverdict\n')
    assert "# %% 02.1 double\ntry:" in cases
    path.write_text(cases + "\n")
    assert not builder.build(root, check=True)
    path.write_text(cases)
    assert builder.build(root, check=True)
    for gone in ("checks/03_gone.py", "review.ipynb", "checks/review.py"):
        (root / "exercises" / gone).write_text(cases)
        assert not builder.build(root, check=True), gone
        (root / "exercises" / gone).unlink()


def test_simlib_reads_the_sources_of_exercises_as_the_builder_does():
    for path in source.exercise_files(EXERCISES, ".py"):
        of_builder, of_simlib = (
            [
                (
                    *(one.id, one.cell_type, one.source),
                    *(source.course_of(one, key) for key in source.COURSE_KEYS),
                )
                for one in cells
            ]
            for cells in (source.read_source(path, True).cells, source.read_cells(path))
        )
        assert of_builder == of_simlib, path.stem


def test_a_check_without_a_verdict_is_refused(checkout):
    with pytest.raises(source.SourceError, match="check of double does not end with a line 'verd"):
        builder.build(checkout(exercise=EXERCISE.replace("\nverdict\n", "\n")))


def test_where_no_setup_imports_checks_each_check_cell_does(tmp_path):
    path = tmp_path / "02_exercise.py"
    path.write_text(re.sub(r"from simlib.checks import [^)]*\)", "", EXERCISE))
    shown, _ = shown_form(source.read_source(path, is_exercise=True), path.stem)
    lines = by_id(shown)["double-check"].source.splitlines()
    assert lines[0] == "from simlib.checks import check_of" and len(lines) == 4


SETUP = '''\
import os

from simlib.checks import (
    check,
)

COST = 3  # of one call
"""In words."""
LENGTH = COST


def used():
    return LENGTH


# What is right.
@os.fspath
def right():
    return wrong() or used()


def wrong():
    return right()


def told():
    return 1
'''


def parts_of(tmp_path, setup, prose="`told` helps."):
    """The setup cell of an exercise as learners see it, and the cases."""
    path = tmp_path / "02_exercise.py"
    begins = EXERCISE.index('# %% role="setup"\n') + len('# %% role="setup"\n')
    text = EXERCISE[:begins] + setup + EXERCISE[EXERCISE.index("\n# %%", begins) :]
    text = text.replace("return 2 * x", "return used() and x * 2")
    path.write_text(f"{text}\n# %% [markdown]\n# {prose}\n")
    shown, cases = shown_form(source.read_source(path, is_exercise=True), path.stem)
    return by_id(shown)["02_exercise-code-001"].source, cases


def test_what_only_checks_need_of_a_setup_is_in_the_cases(tmp_path):
    shown, cases = parts_of(tmp_path, SETUP)
    assert shown.startswith("import os\n\nfrom simlib.checks import check_of\n\nCOST")
    constant = 'COST = 3  # of one call\n"""In words."""\n'
    for kept in (constant, "LENGTH = COST\n\n\ndef used", "def told"):
        assert kept in shown and kept not in cases
    comment = "\n\n# What is right.\n@os.fspath\ndef right"
    for moved in (comment, "\n\ndef wrong():\n    return right()\n"):
        assert moved not in shown and moved in cases
    assert "def told" in parts_of(tmp_path, SETUP, prose="It is told.")[1]
    with pytest.raises(source.SourceError, match="only the checks use this setup cell"):
        parts_of(tmp_path, "def right():\n    return 1\n")


def test_a_second_build_touches_no_file(built):
    """Other pictures, and other outputs that are ignored, are no change either."""
    root = built(lesson=RICH, exercise=EXERCISE)
    before = snapshot(root)
    assert builder.build(root)
    assert builder.build(root, check=True)
    assert snapshot(root) == before


def test_a_bar_counts_notebooks_and_lines_stand_above_it(checkout, monkeypatch, capsys):
    screen = Terminal(monkeypatch)
    assert builder.build(checkout(exercise=EXERCISE), text=True) is False
    screen.hang_up()
    assert "0 of 1 |" in screen.getvalue() and "exercises/02_exercise" in screen.getvalue()
    assert "1 of 1 |" in screen.getvalue() and screen.getvalue().count("\n") == 1
    assert "not only prose has changed" in capsys.readouterr().out


RUN = """
# %%
import simlib

simlib.simulate(lambda rank, world_size: None, 2)
"""
OUTPUTS = """
# %%
import sys

print("in", sys.prefix)
sys.prefix

# %%
from IPython.display import display
display({"image/png": "TURN", "text/plain": "a picture"}, raw=True, metadata=
    {"image/png": {"alt": "rank 0 waits: TURN", "width": 3}, "more": 1})

# %% tags=["NBVAL_IGNORE_OUTPUT"] jupyter={"source_hidden": true}
print("TURN")
"""
RICH = LESSON + RUN + OUTPUTS


def test_outputs_are_stored_without_this_machine_pictures_with_words_and_runs_to_play(built):
    root = built(lesson=RICH)
    path = root / "notebooks/00_lesson.ipynb"
    (page,) = playable.names_in(root / playable.FOLDER / "00_lesson.zip")
    assert page.startswith("00_lesson-code-004-")
    said, picture, ignored = read(path).cells[-3:]
    assert said.outputs[0].text == "in ~/course/.venv\n"
    assert said.outputs[1].data["text/plain"] == "'~/course/.venv'"
    ((kind, kept),) = picture.outputs[0].metadata.items()
    assert (kind, list(kept)) == ("image/png", ["alt"])
    assert kept["alt"] == f"rank 0 waits: {picture.outputs[0].data['image/png']}"
    assert ignored.metadata == {"jupyter": {"source_hidden": True}, "tags": ["nbval-ignore-output"]}
    path.write_text(re.sub(r'"alt": ".*"', '"alt": ""', path.read_text()))
    assert builder.build(root, check=True) and builder.build(root)
    assert read(path).cells[-2].outputs[0].metadata["image/png"]["alt"]


@pytest.fixture
def in_two_languages(checkout):
    """A checkout with a lesson and its translation."""
    root = checkout(lesson=LESSON)
    cells = source.read_source(root / "authoring/lessons/00_lesson.py", is_exercise=False).cells
    first, second = (cell for cell in cells if cell.cell_type == "markdown")
    path = root / "authoring/lessons/de/00_lesson.md"
    path.parent.mkdir()
    path.write_text(
        f"<!-- {first.id} of {fingerprint(first.source)} -->\n# 00 · Eine Lektion\n"
        f"Für 5 Minuten.\n\n<!-- {second.id} of {fingerprint(second.source)} -->\nMehr.\n"
    )
    return root


def test_a_lesson_in_a_second_language_has_its_own_prose_and_the_same_code(
    in_two_languages, capsys
):
    root = in_two_languages
    assert builder.build(root)
    first, other = (read(root / f"notebooks/{name}00_lesson.ipynb") for name in ("", "de/"))
    nbformat.validate(other)
    assert list(by_id(other)) == list(by_id(first))
    code = [cell for cell in other.cells if cell.cell_type == "code"]
    assert [c.source for c in code] == [c.source for c in first.cells if c.cell_type == "code"]
    assert texts(code[0]) == ["one\ntwo\n"] and code[2].outputs[0].data == {"text/plain": "42"}
    prose = [cell.source for cell in other.cells if cell.cell_type == "markdown"]
    assert prose == ["# 00 · Eine Lektion\nFür 5 Minuten.", "Mehr."]
    assert "*[Deutsch](de/00_lesson.ipynb)*" in first.cells[0].source
    start = (root / "START.md").read_text()
    assert "(notebooks/00_lesson.ipynb), 5 minutes (*[Deutsch](notebooks/de/00_lesson" in start
    before = snapshot(root)
    assert builder.build(root) and builder.build(root, check=True) and snapshot(root) == before
    (root / "authoring/lessons/de/00_lesson.md").unlink()
    assert not builder.build(root)
    assert "notebooks/de/00_lesson.ipynb has no source" in capsys.readouterr().out


def test_a_translation_that_is_not_of_the_lesson_stops_the_build(in_two_languages):
    root = in_two_languages
    path, lesson = (
        root / f"authoring/lessons/{name}" for name in ("de/00_lesson.md", "00_lesson.py")
    )
    good, original = path.read_text(), lesson.read_text()
    mark = re.findall("<!-- .* -->", good)[1]

    def refused(pattern):
        with pytest.raises(source.SourceError, match=pattern):
            builder.build(root, check=True)

    path.write_text(good.replace(mark, ""))
    refused(f"00_lesson.md: no translation of `{mark}`")
    path.write_text(good + mark)
    refused("00_lesson.md: 00_lesson-text-002 stands there twice")
    path.write_text(good + mark.replace("002", "009"))
    refused("00_lesson.md: 00_lesson.py has no text cell 00_lesson-text-009")
    path.write_text("Text\n" + good)
    refused("00_lesson.md, line 1: text before the first")
    path.write_text(good)
    lesson.write_text(original.replace("More prose.", "Other prose."))
    refused("the original of 00_lesson-text-002 has changed since it was translated")
    lesson.write_text(original)
    path.parent.rename(path.parent.with_name("xx"))
    refused("name the language 'xx' in LANGUAGES first")


def test_check_tells_an_edited_notebook_and_writes_nothing(built, capsys):
    root = built(lesson=LESSON, exercise=EXERCISE)
    target = root / "notebooks/00_lesson.ipynb"
    as_built = target.read_text()
    for old, new in (("42", "43"), ("6 * 7", "7 * 6"), ("Some prose", "Some other prose")):
        target.write_text(as_built.replace(old, new))
        edited = snapshot(root)
        assert not builder.build(root, check=True)
        assert "notebooks/00_lesson.ipynb is not what its source gives" in capsys.readouterr().out
        assert builder.build(root, check=True, run=[]) == (old == "42")
        assert snapshot(root) == edited
    target.write_text(as_built.replace('"42"', '"43"'))
    assert builder.build(root, check=True, run=["exercises/02_exercise"])
    assert not builder.build(root, check=True, run=["lessons/00_lesson"])
    target.write_text(as_built)
    assert builder.build(root, check=True)


def test_the_seed_draws_what_a_check_runs(checkout, monkeypatch):
    root = checkout(lesson=LESSON, exercise=EXERCISE)
    monkeypatch.setenv("SEED", "7")
    assert sorted(builder.drawn(root, 9)) == ["exercises/02_exercise", "lessons/00_lesson"]
    assert builder.drawn(root, 1) == builder.drawn(root, 1)


def test_check_tells_a_notebook_that_is_missing_broken_or_has_no_source(checkout, capsys):
    root = checkout(lesson=LESSON)

    def refused(sentence):
        assert not builder.build(root, check=True)
        assert sentence in capsys.readouterr().out

    refused("00_lesson.ipynb is missing")
    builder.build(root)
    target = root / "notebooks/00_lesson.ipynb"
    text = target.read_text()
    target.write_text("<<<<<<< HEAD\n")
    refused("is no notebook")
    assert builder.build(root) and builder.build(root, check=True)
    (root / "notebooks/00_lesson-Copy1.ipynb").write_text(text)  # a learner's own
    assert builder.build(root, check=True)
    (root / "notebooks/01_gone.ipynb").write_text(text)
    refused("notebooks/01_gone.ipynb has no source")


@pytest.mark.parametrize(
    "cell, sentence",
    [
        ("x = undefined", "cell x: NameError: name 'undefined'"),
        ("import os; os._exit(3)", "cell x: Kernel died"),
        ("while True: pass", "cell x: still running after 1 s"),
    ],
)
def test_a_cell_that_fails_stops_the_build(tmp_path, monkeypatch, cell, sentence):
    monkeypatch.setattr(builder, "CELL_TIMEOUT_S", 1)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell, id="x")])
    with pytest.raises(builder.BuildError) as stopped:
        builder.execute(notebook, tmp_path, "00_lesson.py")
    assert str(stopped.value).startswith(f"00_lesson.py, {sentence}")


def test_where_a_cell_has_another_error_than_announced_nothing_is_written(checkout):
    root = checkout(lesson=LESSON.replace("1 / 0", "1 / 1"))
    said = "^00_lesson.py, cell 00_lesson-code-002: tagged raises-exception, but it raises nothing"
    with pytest.raises(builder.BuildError, match=said):
        builder.build(root)
    assert not list(root.glob("notebooks/*"))


def test_an_answer_cell_must_run_as_a_stub(checkout):
    text = "# %% [markdown]\n# # 02 · X\n\n" + ANSWER + "### BEGIN SOLUTION\n1\n### END SOLUTION\n"
    with pytest.raises(builder.BuildError, match="stubs.*cell q-answer: NotImplementedError"):
        builder.build(checkout(exercise=text))


def test_lists_of_what_is_built(built):
    root = built(lesson=LESSON, exercise=EXERCISE.replace("10 minutes", "80 minutes"))
    assert (root / "START.md").read_text() == (
        "# Start\n\n- 00 [A lesson](notebooks/00_lesson.ipynb), 5 minutes\n\n"
        "- 02 [An exercise](exercises/02_exercise.ipynb), 80 minutes"
        " ([solution](solutions/02_exercise.ipynb))\n"
    )
    head = "| | lesson | exercises |\n|---|---|---|\n| 00 | [A lesson](notebooks/00_lesson.ipynb)"
    assert builder.lesson_table(root) == f"{head}: printing, and an error | |"
    (root / builder.START_SOURCE).write_text(
        "<!-- hours of lessons -->, <!-- hours of exercises -->, "
        "<!-- hours of exercises 02 05 -->, <!-- hours of exercises 00 05 --> hours\n"
    )
    assert builder.start_page(root) == "0, 1, 1, 0 hours\n"
    (root / "authoring/exercises/02_exercise.py").rename(root / "authoring/exercises/00_first.py")
    builder.build(root, ["00_first"])
    assert (root / "README.md").read_text() == (
        f"# Course\n\n{builder.TABLE_BEGIN}\n{head}: printing, and an error "
        f"| [00](exercises/00_first.ipynb) |\n{builder.TABLE_END}\n\nMore.\n"
    )


def test_a_lesson_promises_the_minutes_that_are_counted(checkout):
    root = checkout(lesson=LESSON.replace("More prose", "word " * 30 * minutes.WORDS_A_MINUTE))
    path = root / "authoring/lessons/00_lesson.py"
    made = builder.build_lesson(path, run=False)["notebooks/00_lesson.ipynb"]
    assert made.cells[0].source.endswith("\nSome prose, for 30 minutes.")
    assert "[A lesson](notebooks/00_lesson.ipynb), 30 minutes\n" in builder.start_page(root)
    for said in ("for an hour.", "for 5 minutes, not for 50 minutes."):
        path.write_text(LESSON.replace("for 60 to\n# 70 minutes.", said))
        with pytest.raises(source.SourceError, match="the first cell says [02] times"):
            builder.build_lesson(path, run=False)


def test_lessons_of_one_number_get_letters_and_the_exercise_stands_beside_the_last(checkout):
    root = checkout(lesson=LESSON, exercise=EXERCISE)
    lessons = root / "authoring/lessons"
    for name in ("02_one", "02_two"):
        (lessons / f"{name}.py").write_text(LESSON.replace("00 · A lesson", f"02 {name}"))
    about = [f'{name} = "x"\n' for name in ("00_lesson", "02_one", "02_two")]
    (root / builder.LESSON_LINES).write_text("".join(about))
    assert builder.lesson_table(root).splitlines()[2:] == [
        "| 00 | [A lesson](notebooks/00_lesson.ipynb): x | |",
        "| 02 a | [02_one](notebooks/02_one.ipynb): x | |",
        "| 02 b | [02_two](notebooks/02_two.ipynb): x | [02](exercises/02_exercise.ipynb) |",
    ]
    assert "\n- 02 b [02_two](notebooks/02_two.ipynb), 5 minutes\n" in builder.start_page(root)
    long = "word " * 60 * minutes.WORDS_A_MINUTE
    (lessons / "02_two.py").write_text(LESSON.replace("00 · A lesson", f"02 02_two\n#\n# {long}"))
    (root / builder.START_SOURCE).write_text(
        "".join(f"<!-- hours of lessons {parts} --> " for parts in ("00 02", "02a", "00 02b"))
    )
    assert builder.start_page(root) == "1 0 1 "
    assert builder.with_hours(root, "<!-- minutes of lessons 02a -->") == "5"


@pytest.mark.parametrize(
    "kind, name, old, code",
    [
        ("lesson", "notebooks/00_lesson.ipynb", "More prose", ("6 * 7", "6 * 8")),
        ("exercise", "exercises/02_exercise.ipynb", "Double a number", ("2 * x", "x + x")),
    ],
)
def test_new_prose_is_written_without_a_run_and_new_code_is_left(
    checkout, built, kind, name, old, code, capsys
):
    sources = {"lesson": LESSON, "exercise": EXERCISE}
    root = built(**sources)
    before = snapshot(root)
    assert builder.build(root, text=True) and snapshot(root) == before
    outputs = [cell.get("outputs") for cell in read(root / name).cells]
    sources[kind] = sources[kind].replace(old, "New prose")
    assert builder.build(checkout(**sources), text=True)
    assert "New prose" in (root / name).read_text()
    assert [cell.get("outputs") for cell in read(root / name).cells] == outputs
    sources[kind] = sources[kind].replace("New prose", "Other prose").replace(*code)
    assert not builder.build(checkout(**sources), text=True)
    assert "not only prose has changed" in capsys.readouterr().out
    assert "New prose" in (root / name).read_text()


def test_a_readme_that_was_edited_between_the_marks_is_told(built, capsys):
    root = built(lesson=LESSON)
    page = root / "README.md"
    page.write_text(page.read_text().replace("# Course", "# The course"))
    assert builder.build(root, check=True)
    page.write_text(page.read_text().replace("printing, and", "printing and"))
    assert not builder.build(root, check=True)
    assert "README.md is not what its source gives" in capsys.readouterr().out
    text = page.read_text()
    for mark in (builder.TABLE_BEGIN, builder.TABLE_END):
        page.write_text(text.replace(mark, ""))
        with pytest.raises(source.SourceError, match=f"README.md lacks {mark}"):
            builder.readme(root)


@pytest.mark.parametrize(
    "lines, sentence",
    [
        ("", "00_lesson: there is no line for it, see authoring/lessons.toml"),
        ('00_lesson = "a"\n01_gone = "b"', "01_gone: there is no lesson of this name"),
    ],
)
def test_each_lesson_has_one_line_and_each_line_a_lesson(checkout, lines, sentence):
    root = checkout(lesson=LESSON)
    (root / builder.LESSON_LINES).write_text(lines)
    with pytest.raises(source.SourceError, match=sentence):
        builder.lesson_table(root)


def test_only_the_named_sources_are_built(checkout):
    root = checkout(lesson=LESSON, exercise=EXERCISE)
    builder.build(root, ["02_exercise"])
    assert not list(root.glob("notebooks/*")) and list(root.glob("exercises/*"))
    with pytest.raises(source.SourceError, match="no source named 03_other"):
        builder.build(root, ["03_other"])

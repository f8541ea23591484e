"""The builder, on sources made here: what it refuses, what it builds, what it leaves alone."""

import json
import re
import shutil

import build as builder
import minutes
import nbformat
import pytest
from translations import fingerprint

from simlib.classroom.grading import source
from simlib.classroom.grading.exercise import plain_cells, shown_form

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


@pytest.fixture(scope="session", autouse=True)
def isolated_kernels(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PYTHONHASHSEED", "JUPYTER_PREFER_ENV_PATH", "MPLBACKEND", "COLUMNS"):
            patch.setenv(name, "")
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(name, "")
        builder.isolate_kernels(tmp_path_factory.mktemp("jupyter"))
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


@pytest.fixture(scope="session")
def builds():
    """Sources -> a folder in which they were built; `built` fills it."""
    return {}


@pytest.fixture
def built(checkout, builds, tmp_path_factory):
    """``built(lesson=..., exercise=...)``: a copy of a folder in which these sources are built."""

    def make(**sources):
        root, key = checkout(**sources), tuple(sources.items())
        if key not in builds:
            assert builder.build(root)
            builds[key] = shutil.copytree(root, tmp_path_factory.mktemp("built") / "a checkout")
        else:
            shutil.copytree(builds[key], root, dirs_exist_ok=True)
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
        (ANSWER + "### END SOLUTION\n", "line 2: '### END SOLUTION' without"),
        (ANSWER + "### BEGIN SOLUTION\n", "line 2: '### BEGIN SOLUTION' is not closed"),
        (
            ANSWER + "### BEGIN SOLUTION\n# %%\n### END SOLUTION\n",
            "line 2: '### BEGIN SOLUTION' is not closed within its cell",
        ),
        (
            ANSWER + "### BEGIN SOLUTION\n### BEGIN SOLUTION\n### END SOLUTION\n",
            "line 3: '### BEGIN SOLUTION' of line 2 is still open",
        ),
        (ANSWER + "## BEGIN SOLUTION\n", "line 2: is this to be"),
        (ANSWER + "### BEGIN SOLVING\n", "line 2: is this to be"),
        (ANSWER + "### begin solution\n", "line 2: is this to be"),
        (ANSWER + "#END_SOLUTION\n", "line 2: is this to be"),
        (ANSWER + "x = 1\n", "line 1: role 'answer' and solution markers go together"),
        ('# %% role="check" question="q" weight=-1\n', "line 1: weight=-1 is for check and hidden"),
        ('# %% role="setup" weight=1\n', "line 1: weight=1 is for check and hidden cells"),
        (
            ANSWER + "### BEGIN BROKEN\n### END SOLUTION\n",
            "line 3: '### END SOLUTION' without '### BEGIN SOLUTION'",
        ),
        (
            ANSWER + "### BEGIN BROKEN\n### END BROKEN\n",
            "line 1: a broken program without its solution",
        ),
        ("# %%\n### BEGIN SOLUTION\n### END SOLUTION\n", "line 1: role 'answer' and solution"),
        ('# %% role="teacher" question="q"\n', "line 1: role 'teacher' is none of"),
        ('# %% role="check"\n', "line 1: a cell with role 'check' needs question="),
        ('# %% role="check" question="a b"\n', "line 1: question 'a b' may have"),
        ("x = 1\n# %%\n", "line 1: text before the first"),
    ],
)
def test_a_source_with_a_slip_is_refused_with_file_and_line(tmp_path, text, sentence):
    path = tmp_path / "02_exercise.py"
    path.write_text(text)
    with pytest.raises(source.SourceError) as refused:
        source.read_source(path, is_exercise=True)
    assert str(refused.value).startswith(f"{path}, {sentence}")


def test_a_lesson_has_no_roles(tmp_path):
    path = tmp_path / "00_lesson.py"
    path.write_text('# %% role="setup"\n')
    with pytest.raises(source.SourceError, match="neither roles nor solutions"):
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
    exercise = read(root / "exercises/02_exercise.ipynb")
    solution = read(root / "solutions/02_exercise.ipynb")
    assert list(by_id(exercise)) == list(by_id(solution))
    assert {"double-text", "double-answer", "double-check"} < set(by_id(exercise))
    course = {"role": "answer", "question": "double", "points": 2}
    assert by_id(exercise)["double-answer"].metadata == {"course": course}
    assert "raise NotImplementedError()" in by_id(exercise)["double-answer"].source
    assert "return 2 * x" not in json.dumps(exercise)
    assert "return 2 * x" in by_id(solution)["double-answer"].source
    assert "SOLUTION" not in json.dumps(solution) + json.dumps(exercise)


def test_hidden_cells_run_and_are_in_neither_notebook(checkout, built):
    root = built(exercise=EXERCISE)
    for folder in ("exercises", "solutions"):
        text = (root / folder / "02_exercise.ipynb").read_text()
        assert "double(21)" not in text and "hidden" not in text
    broken = EXERCISE.replace("print(double(21))", "print(dubble(21))")
    with pytest.raises(builder.BuildError, match="cell double-hidden: NameError.*dubble"):
        builder.build(checkout(exercise=broken))


def test_an_exercise_stores_what_the_stub_gives_and_no_verdict(checkout):
    told = EXERCISE.replace('print("the end")', "print(double.__doc__)\ndouble.__code__.co_names")
    root = checkout(exercise=told)
    builder.build(root)
    exercise = by_id(read(root / "exercises/02_exercise.ipynb"))
    assert (exercise["double-check"].outputs, exercise["double-check"].execution_count) == (
        [],
        None,
    )
    assert exercise["double-check"].metadata.tags == ["nbval-ignore-output"]
    assert exercise["double-answer"].outputs == []
    last = exercise["02_exercise-code-002"]
    assert last.outputs[1].data["text/plain"] == "('NotImplementedError',)"
    solution = by_id(read(root / "solutions/02_exercise.ipynb"))["double-check"]
    assert solution.outputs[0].data == {"text/plain": "'right'"}
    assert "tags" not in solution.metadata


def test_what_a_check_expects_is_built_into_a_file_of_its_own(built):
    root = built(exercise=EXERCISE)
    for folder in ("exercises", "solutions"):
        cells = by_id(read(root / folder / "02_exercise.ipynb"))
        assert cells["double-check"].source == 'verdict = check_of("02.1", double)\nverdict'
        setup = "import os\n\nfrom simlib.checks import check_of, only\n\nprint(only.__name__)"
        assert cells["02_exercise-code-001"].source == setup
    cases = (root / "exercises/checks/02_exercise.py").read_text()
    assert "    check,\n" in cases and cases.endswith('"not written yet"\nverdict\n')
    assert "# %% 02.1 double\ntry:" in cases
    (root / "exercises/checks/02_exercise.py").write_text(cases + "\n")
    assert not builder.build(root, check=True)
    (root / "exercises/checks/02_exercise.py").write_text(cases)
    assert builder.build(root, check=True)
    for gone in (
        "exercises/checks/03_gone.py",
        "exercises/review.ipynb",
        "exercises/checks/review.py",
    ):
        (root / gone).write_text(cases)
        assert not builder.build(root, check=True), gone
        (root / gone).unlink()


@pytest.mark.parametrize(
    "path", source.exercise_files(EXERCISES, ".py"), ids=lambda path: path.stem
)
def test_an_install_reads_sources_as_the_builder_does(path):
    read, plain = source.read_source(path, True).cells, plain_cells(path.read_text())
    assert [(one.cell_type, one.source) for one in plain] == [
        (one.cell_type, one.source) for one in read
    ]
    for key in ("role", "question"):
        assert [source.course_of(one, key) for one in plain] == [
            source.course_of(one, key) for one in read
        ]


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


def test_a_setup_for_checks_alone_is_refused(tmp_path):
    with pytest.raises(source.SourceError, match="a setup cell is for checks alone"):
        parts_of(tmp_path, "def right():\n    return 1\n")


def test_a_second_build_touches_no_file(built):
    root = built(lesson=LESSON, exercise=EXERCISE)
    before = snapshot(root)
    assert builder.build(root)
    assert builder.build(root, check=True)
    assert snapshot(root) == before


PICTURE = (
    LESSON
    + """
# %%
import base64, os
from IPython.display import display
noise = base64.b64encode(os.urandom(9)).decode()
display({"image/png": noise, "text/plain": "a picture"}, raw=True)

# %% tags=["NBVAL_IGNORE_OUTPUT"]
import time
print(time.time())
"""
)


def test_a_picture_or_an_ignored_output_alone_is_no_change(built):
    root = built(lesson=PICTURE)
    before = snapshot(root)
    assert builder.build(root) and builder.build(root, check=True)
    assert snapshot(root) == before
    cells = read(root / "notebooks/00_lesson.ipynb").cells
    assert "image/png" in cells[-2].outputs[0].data
    assert cells[-1].metadata.tags == ["nbval-ignore-output"]


@pytest.fixture
def in_two_languages(checkout):
    """``in_two_languages()``: a checkout with a lesson and its translation; its root."""

    def make():
        root = checkout(lesson=LESSON)
        cells = source.read_source(root / "authoring/lessons/00_lesson.py", is_exercise=False).cells
        first, second = (cell for cell in cells if cell.cell_type == "markdown")
        text = (
            f"<!-- {first.id} of {fingerprint(first.source)} -->\n# 00 · Eine Lektion\n"
            f"Für 5 Minuten.\n\n<!-- {second.id} of {fingerprint(second.source)} -->\nMehr.\n"
        )
        path = root / "authoring/lessons/de/00_lesson.md"
        path.parent.mkdir()
        path.write_text(text)
        return root

    return make


def test_a_lesson_in_a_second_language_has_its_own_prose_and_the_same_code(in_two_languages):
    root = in_two_languages()
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


def test_a_translation_that_is_not_of_the_lesson_stops_the_build(in_two_languages):
    root = in_two_languages()
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


def test_a_notebook_of_a_translation_that_is_gone_is_told(in_two_languages, capsys):
    root = in_two_languages()
    assert builder.build(root)
    (root / "authoring/lessons/de/00_lesson.md").unlink()
    assert not builder.build(root)
    assert "notebooks/de/00_lesson.ipynb has no source" in capsys.readouterr().out


def test_a_picture_keeps_its_alt_text_and_one_that_lacks_it_gets_it(checkout):
    told = """display({"image/png": noise, "text/plain": ""}, raw=True, metadata=
        {"image/png": {"alt": f"rank 0 waits: {noise}", "width": 3}, "more": 1})"""
    root = checkout(lesson=re.sub(r"display.{50,}raw=True[)]", told, PICTURE))
    path = root / "notebooks/00_lesson.ipynb"
    assert builder.build(root)
    before = snapshot(root)
    metadata = read(path).cells[-2].outputs[0].metadata
    assert list(metadata) == ["image/png"] and list(metadata["image/png"]) == ["alt"]
    assert metadata["image/png"]["alt"].startswith("rank 0 waits")
    assert builder.build(root) and builder.build(root, check=True)
    assert snapshot(root) == before
    path.write_text(re.sub(r'"alt": ".*"', '"alt": ""', path.read_text()))
    assert builder.build(root, check=True) and builder.build(root)
    assert read(path).cells[-2].outputs[0].metadata["image/png"]["alt"]


def test_a_cell_may_be_folded_when_it_is_opened(checkout):
    folded = '\n# %% tags=["nbval-ignore-output"] jupyter={"source_hidden": true}\nprint(1)\n'
    root = checkout(lesson=LESSON + folded)
    assert builder.build(root)
    cell = read(root / "notebooks/00_lesson.ipynb").cells[-1]
    assert cell.metadata == {"jupyter": {"source_hidden": True}, "tags": ["nbval-ignore-output"]}


def test_exercises_keep_no_pictures(checkout):
    root = checkout(exercise=EXERCISE + PICTURE[len(LESSON) :])
    assert builder.build(root) and builder.build(root, check=True)
    for folder in ("exercises", "solutions"):
        cells = read(root / folder / "02_exercise.ipynb").cells
        assert cells[-2].outputs[0].data == {"text/plain": "a picture"}


def test_check_tells_an_edited_notebook_and_writes_nothing(built, capsys):
    root = built(lesson=LESSON)
    target = root / "notebooks/00_lesson.ipynb"
    for old, new in (("42", "43"), ("6 * 7", "7 * 6"), ("Some prose", "Some other prose")):
        built = target.read_text()
        target.write_text(built.replace(old, new))
        edited = snapshot(root)
        assert not builder.build(root, check=True)
        assert "notebooks/00_lesson.ipynb is not what its source gives" in capsys.readouterr().out
        assert snapshot(root) == edited
        target.write_text(built)
    assert builder.build(root, check=True)


def test_what_a_check_does_not_run_is_compared_but_for_its_outputs(built):
    root = built(lesson=LESSON, exercise=EXERCISE)
    target = root / "notebooks/00_lesson.ipynb"
    built = target.read_text()
    target.write_text(built.replace('"42"', '"43"'))
    assert builder.build(root, check=True, run=["exercises/02_exercise"])
    assert not builder.build(root, check=True, run=["lessons/00_lesson"])
    for old, new in (("6 * 7", "7 * 6"), ("Some prose", "Some other prose")):
        target.write_text(built.replace(old, new))
        assert not builder.build(root, check=True, run=[])


def test_the_seed_draws_what_a_check_runs(checkout, monkeypatch):
    root = checkout(lesson=LESSON, exercise=EXERCISE)
    monkeypatch.setenv("SEED", "7")
    assert sorted(builder.drawn(root, 9)) == ["exercises/02_exercise", "lessons/00_lesson"]
    assert builder.drawn(root, 1) == builder.drawn(root, 1)


def test_check_tells_a_missing_and_a_broken_notebook(checkout, capsys):
    root = checkout(lesson=LESSON)
    assert not builder.build(root, check=True)
    assert "00_lesson.ipynb is missing" in capsys.readouterr().out
    builder.build(root)
    (root / "notebooks/00_lesson.ipynb").write_text("<<<<<<< HEAD\n")
    assert not builder.build(root, check=True)
    assert "is no notebook" in capsys.readouterr().out
    assert builder.build(root) and builder.build(root, check=True)


@pytest.mark.parametrize(
    "cell, sentence",
    [
        ("x = undefined", "cell 00_lesson-code-004: NameError: name 'undefined'"),
        ("import os; os._exit(3)", "cell 00_lesson-code-004: Kernel died"),
    ],
)
def test_a_cell_that_fails_stops_the_build_and_nothing_is_written(checkout, cell, sentence):
    root = checkout(lesson=f"{LESSON}\n# %%\n{cell}\n")
    with pytest.raises(builder.BuildError) as stopped:
        builder.build(root)
    assert str(stopped.value).startswith(f"00_lesson.py, {sentence}")
    assert not list(root.glob("notebooks/*"))


def test_a_cell_that_never_ends_stops_the_build(checkout, monkeypatch):
    monkeypatch.setattr(builder, "CELL_TIMEOUT_S", 1)
    root = checkout(lesson=f"{LESSON}\n# %%\nwhile True: pass\n")
    with pytest.raises(builder.BuildError, match="code-004: still running after 1 s"):
        builder.build(root)


def test_a_tag_that_announces_an_error_that_never_comes_is_refused(checkout):
    root = checkout(lesson=LESSON.replace("1 / 0", "1 / 1"))
    with pytest.raises(builder.BuildError, match="tagged raises-exception, but it raises nothing"):
        builder.build(root)


def test_an_answer_cell_must_run_as_a_stub(checkout):
    root = checkout(exercise=EXERCISE + ANSWER + "### BEGIN SOLUTION\ny = 1\n### END SOLUTION\n")
    with pytest.raises(builder.BuildError, match="stubs.*cell q-answer: NotImplementedError"):
        builder.build(root)


def test_a_notebook_without_a_source_is_told_and_a_copy_of_ones_own_is_not(built, capsys):
    root = built(lesson=LESSON)
    built = (root / "notebooks/00_lesson.ipynb").read_text()
    (root / "notebooks/00_lesson-Copy1.ipynb").write_text(built)
    assert builder.build(root, check=True)
    (root / "notebooks/01_gone.ipynb").write_text(built)
    assert not builder.build(root, check=True)
    assert "notebooks/01_gone.ipynb has no source" in capsys.readouterr().out


def test_the_start_page_lists_what_is_built(built):
    root = built(lesson=LESSON, exercise=EXERCISE)
    assert (root / "START.md").read_text() == (
        "# Start\n\n- 00 [A lesson](notebooks/00_lesson.ipynb), 5 minutes\n\n"
        "- 02 [An exercise](exercises/02_exercise.ipynb), 10 minutes"
        " ([solution](solutions/02_exercise.ipynb))\n"
    )


def test_the_start_page_says_the_hours_of_all(checkout):
    root = checkout(lesson=LESSON, exercise=EXERCISE.replace("10 minutes", "80 minutes"))
    start = root / builder.START_SOURCE
    start.write_text("<!-- hours of lessons --> and <!-- hours of exercises --> hours\n")
    assert builder.start_page(root) == "0 and 1 hours\n"


def test_a_lesson_promises_the_minutes_that_are_counted(checkout):
    root = checkout(lesson=LESSON.replace("More prose", "word " * 30 * minutes.WORDS_A_MINUTE))
    path = root / "authoring/lessons/00_lesson.py"
    made = builder.build_lesson(path, run=False)["notebooks/00_lesson.ipynb"]
    assert made.cells[0].source.endswith("\nSome prose, for 30 minutes.")
    assert "[A lesson](notebooks/00_lesson.ipynb), 30 minutes\n" in builder.start_page(root)


@pytest.mark.parametrize("said", ["for an hour.", "for 5 minutes, not for 50 minutes."])
def test_a_lesson_that_does_not_promise_minutes_once_is_refused(checkout, said):
    root = checkout(lesson=LESSON.replace("for 60 to\n# 70 minutes.", said))
    with pytest.raises(source.SourceError, match=r"00_lesson\.py: the first cell says [02] times"):
        builder.build_lesson(root / "authoring/lessons/00_lesson.py", run=False)


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


@pytest.mark.parametrize("kind", ["lesson", "exercise"])
def test_new_prose_is_written_without_a_run_and_new_code_is_left(checkout, kind, capsys):
    sources = {"lesson": LESSON, "exercise": EXERCISE}
    root = checkout(**sources)
    builder.build(root)
    before = snapshot(root)
    assert builder.build(root, text=True) and snapshot(root) == before
    name, old, new = {
        "lesson": ("notebooks/00_lesson.ipynb", "More prose", ("6 * 7", "6 * 8")),
        "exercise": ("exercises/02_exercise.ipynb", "Double a number", ("2 * x", "x + x")),
    }[kind]
    outputs = [cell.get("outputs") for cell in read(root / name).cells]
    sources[kind] = sources[kind].replace(old, "New prose")
    assert builder.build(checkout(**sources), text=True)
    assert "New prose" in (root / name).read_text()
    assert [cell.get("outputs") for cell in read(root / name).cells] == outputs
    sources[kind] = sources[kind].replace("New prose", "Other prose").replace(*new)
    assert not builder.build(checkout(**sources), text=True)
    assert "not only prose has changed" in capsys.readouterr().out
    assert "New prose" in (root / name).read_text()


def test_the_readme_lists_the_lessons_with_their_exercises(checkout):
    root = checkout(lesson=LESSON, exercise=EXERCISE)
    (root / "authoring/exercises/02_exercise.py").rename(root / "authoring/exercises/00_first.py")
    builder.build(root, ["00_first"])
    assert (root / "README.md").read_text() == (
        f"# Course\n\n{builder.TABLE_BEGIN}\n"
        "| | lesson | exercises |\n|---|---|---|\n"
        "| 00 | [A lesson](notebooks/00_lesson.ipynb): printing, and an error "
        "| [00](exercises/00_first.ipynb) |\n"
        f"{builder.TABLE_END}\n\nMore.\n"
    )


def test_a_lesson_without_an_exercise_has_an_empty_place(checkout):
    last = builder.lesson_table(checkout(lesson=LESSON, exercise=EXERCISE)).splitlines()[-1]
    assert last == "| 00 | [A lesson](notebooks/00_lesson.ipynb): printing, and an error | |"


def test_a_readme_that_was_edited_between_the_marks_is_told(built, capsys):
    root = built(lesson=LESSON)
    page = root / "README.md"
    page.write_text(page.read_text().replace("# Course", "# The course"))
    assert builder.build(root, check=True)
    page.write_text(page.read_text().replace("printing, and", "printing and"))
    assert not builder.build(root, check=True)
    assert "README.md is not what its source gives" in capsys.readouterr().out


@pytest.mark.parametrize("mark", [builder.TABLE_BEGIN, builder.TABLE_END])
def test_a_readme_without_its_marks_is_refused(checkout, mark):
    root = checkout()
    (root / "README.md").write_text((root / "README.md").read_text().replace(mark, ""))
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


def test_stored_outputs_name_no_folder_of_this_machine(checkout):
    cell = "\n# %%\nimport sys\n\nprint('in', sys.prefix)\nsys.prefix\n"
    root = checkout(lesson=LESSON + cell)
    builder.build(root)
    said, shown = nbformat.read(root / "notebooks" / "00_lesson.ipynb", 4).cells[-1].outputs
    assert said.text == "in ~/course/.venv\n"
    assert shown.data["text/plain"] == "'~/course/.venv'"

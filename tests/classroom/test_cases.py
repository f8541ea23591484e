"""`check_of`: its cases come from a file, leave no names behind, and are tests where nbval runs."""

import json
import shutil

import pytest
from notebooks_made import ROOT, content, exercise, notebook

from simlib import InvalidCallError
from simlib.checks import check_of
from simlib.classroom.checks import verdict as module
from simlib.classroom.checks.verdict import Cases, NotSolved
from simlib.classroom.grading import commands, self_check, shell

CASES = """\
from simlib.checks.verdict import Verdict as Made

# %% 07.1 one
def is_right(value):
    return value == FIVE
said = "right" if is_right(one()) else "wrong"
verdict = Made("one", {"value": 1}, said, f"{one.__name__} of {FIVE}")
verdict

# %% 07.2 two
verdict = Made("two", {"value": 1}, "right" if two() == 2 else "wrong", "", 1)
verdict
"""
FIVE = 5


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """Work in a folder with cases beside the notebook."""
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "07_some.py").write_text(CASES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_task_is_checked_by_its_own_cases_with_the_names_of_the_notebook(beside):
    before = set(globals())
    assert check_of("07.1", lambda: 5).status == "right"
    assert check_of("07.1", lambda: 2).reason == "<lambda> of 5"
    assert check_of("07.2", lambda: 2).question == "two"
    assert set(globals()) == before


def test_names_of_a_learner_that_hide_python_s_own_break_no_check(beside, monkeypatch):
    (beside / "checks" / "07_some.py").write_text(CASES.replace("{FIVE}", "{max(FIVE, 1)}"))
    monkeypatch.setitem(globals(), "max", 4)
    assert check_of("07.1", lambda: 2).reason == "<lambda> of 5"


def test_the_review_has_tasks_of_its_own_name(beside):
    (beside / "checks" / "review.py").write_text(CASES.replace("07.", "review."))
    assert check_of("review.2", lambda: 2).question == "two"


def test_an_error_in_a_case_names_its_file_and_line(beside):
    with pytest.raises(TypeError) as caught:
        check_of("07.2", lambda missing: 2)
    last = caught.traceback[-1]
    assert str(last.path) == str(beside / "checks" / "07_some.py")
    assert CASES.splitlines()[last.lineno].startswith('verdict = Made("two"')


def test_what_is_not_there_is_said(beside, monkeypatch):
    with pytest.raises(InvalidCallError, match=r"07_some\.py has no task 07\.9"):
        check_of("07.9", print)
    sentence = f"the cases of task 0.7 are not here: `make install` in {ROOT} writes them"
    with pytest.raises(InvalidCallError, match=sentence):
        check_of("0.7", print)
    monkeypatch.setattr(module, "ROOT", beside / "site-packages")
    with pytest.raises(InvalidCallError, match="copy the folder exercises/checks of the course"):
        check_of("08.1", print)


@pytest.mark.parametrize("place", ["solutions", ".", "elsewhere"])
def test_cases_are_found_from_where_notebooks_are_opened(tmp_path, monkeypatch, place):
    course = tmp_path / "course"
    for folder in ("exercises/checks", "solutions", "elsewhere"):
        (course / folder).mkdir(parents=True)
    (course / "exercises/checks/07_some.py").write_text(CASES)
    monkeypatch.chdir(course / place)
    assert check_of("07.2", lambda: 2).status == "right"
    (course / "exercises/checks/07_some.py").unlink()
    installed = tmp_path / "installed"
    (installed / "exercises/checks").mkdir(parents=True)
    (installed / "exercises/checks/07_other.py").write_text(CASES)
    monkeypatch.setattr(module, "ROOT", installed)
    assert check_of("07.2", lambda: 2).status == "right"


def test_in_a_wheel_the_cases_lie_in_simlib_and_those_of_a_clone_come_first(beside, monkeypatch):
    (beside / "given").mkdir()
    (beside / "given" / "07_some.py").write_text(CASES)
    (beside / "given" / "08_more.py").write_text(CASES.replace("07.", "08."))
    (beside / "checks" / "07_some.py").write_text(CASES.replace("== 2", "== 3"))
    monkeypatch.setattr(module, "GIVEN", beside / "given")
    monkeypatch.setattr(module, "ROOT", beside / "site-packages")
    assert check_of("08.2", lambda: 2).status == "right"
    assert check_of("07.2", lambda: 3).status == "right"


@pytest.mark.parametrize(
    "test, is_error",
    [
        ("exercises/07_some.ipynb::Cell 0 (setup)", True),
        ("tests/browser/test_course.py::test_it[07_some.ipynb] (call)", False),
        ("", False),
    ],
)
def test_what_is_not_right_is_an_error_for_nbval_alone(beside, monkeypatch, test, is_error):
    monkeypatch.setenv("PYTEST_CURRENT_TEST", test)
    assert check_of("07.2", lambda: 2).status == "right"
    if not is_error:
        assert check_of("07.2", lambda: 3).status == "wrong"
        return
    with pytest.raises(NotSolved, match="two: wrong, 0 of 1 points"):
        check_of("07.2", lambda: 3)


def test_cases_that_were_handed_in_come_before_any_file(beside, monkeypatch):
    monkeypatch.setattr(module, "handed_in", Cases(CASES.replace("== 2", "== 3"), "handed in"))
    assert check_of("07.2", lambda: 2).status == "wrong"


# What a learner may do to the file, and to the folder

FORGED = """\
from simlib.checks.verdict import Verdict

# %% 04.1 mean_of_all
verdict = Verdict("mean_of_all", {"value": 2}, "right")
verdict
"""
WRONG = "def mean_of_all(rank, world_size, x):\n    return 1.0"


@pytest.fixture(scope="module")
def handed_out(tmp_path_factory):
    """A folder as students get it."""
    folder = tmp_path_factory.mktemp("handout") / "course"
    listing = commands.handout(ROOT, folder)
    assert {"exercises/checks/04_collectives.py", ".pristine/checks/04_collectives.py"} <= {
        *listing
    }
    return folder


@pytest.mark.parametrize("what", ["forged", "gone"])
def test_check_has_the_cases_that_were_handed_out(handed_out, what):
    one = exercise("04")
    made = notebook(one, {"mean_of_all": WRONG, "own_broadcast": True})
    path = handed_out / "exercises" / "04_collectives.ipynb"
    path.write_bytes(content(made))
    file = handed_out / "exercises" / "checks" / "04_collectives.py"
    if what == "forged":
        file.write_text(FORGED)
    else:
        shutil.rmtree(file.parent)
    said, notes = self_check.check_notebook(path)
    assert [result.status for result in said] == ["wrong", "right", "not written yet"]
    assert notes == []


def test_a_notebook_of_any_name_is_checked_by_the_installed_course(tmp_path):
    made = json.loads(json.dumps(notebook(exercise("04"), {"mean_of_all": True})))
    (tmp_path / "mine.ipynb").write_bytes(content(made))
    said, _ = self_check.check_notebook(tmp_path / "mine.ipynb")
    assert next(said).status == "right"


def test_in_the_shell_of_a_grading_run_a_call_checks_nothing():
    names = {"one": None, "check_of": shell.check_nothing}
    words = {"question": "one", "parts": {"value": 2}, "status": "right", "reason": "", "lines": []}

    class Bare:
        """As much of IPython's shell as is needed."""

        user_ns, execution_count = names, 1
        compile = type("Compile", (), {"_filename_map": {}})

        def run_cell(self, source, store_history):
            exec(source, names)
            return type("Done", (), {"error_before_exec": None, "error_in_exec": None})

    said = shell.run_check(Bare(), 'verdict = check_of("07.1", one)\nverdict', words)
    assert said["error"] is None and names["verdict"].earned == 2
    assert names["check_of"] is shell.check_nothing and "check" not in names
    own = names["check_of"]("07.1", None)
    assert (own.status, own.earned) == ("right", 0) and "07.1" in str(own)

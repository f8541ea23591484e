"""`check_of`: its cases come from a file, leave no names behind, and are tests where nbval runs."""

import doctest
import math

import pytest
import torch

import simlib
from simlib import InvalidCallError
from simlib.checks import check_of
from simlib.classroom.checks import verdict as module
from simlib.classroom.checks.verdict import Cases, NotSolved
from simlib.classroom.grading import shell

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
    write(tmp_path, "checks/07_some.py")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder, name, old="", new=""):
    """Write cases with a part exchanged."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(CASES.replace(old, new) if old else CASES)


def test_a_task_is_checked_by_its_own_cases_with_the_names_of_the_notebook(beside, monkeypatch):
    before = set(globals())
    assert check_of("07.1", lambda: 5).status == "right"
    assert check_of("07.1", lambda: 2).reason == "<lambda> of 5"
    assert check_of("07.2", lambda: 2).question == "two"
    assert set(globals()) == before
    write(beside, "checks/07_some.py", "{FIVE}", "{max(FIVE, 1)}")
    monkeypatch.setitem(globals(), "max", 4)  # a learner's name that hides Python's own
    assert check_of("07.1", lambda: 2).reason == "<lambda> of 5"
    write(beside, "checks/review.py", "07.", "review.")
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
    sentence = "task 0.7 are missing: to write them, run `make install` or `pip install -e .` in "
    with pytest.raises(InvalidCallError, match=sentence):
        check_of("0.7", print)
    monkeypatch.setattr(module, "ROOT", beside / "site-packages")
    with pytest.raises(InvalidCallError, match="copy the folder exercises/checks of the course"):
        check_of("08.1", print)


@pytest.mark.parametrize("place", ["solutions", ".", "elsewhere"])
def test_cases_are_found_from_where_notebooks_are_opened(tmp_path, monkeypatch, place):
    course, installed = tmp_path / "course", tmp_path / "installed"
    for folder in ("solutions", "elsewhere"):
        (course / folder).mkdir(parents=True)
    write(course, "exercises/checks/07_some.py")
    monkeypatch.chdir(course / place)
    assert check_of("07.2", lambda: 2).status == "right"
    (course / "exercises/checks/07_some.py").unlink()
    write(installed, "exercises/checks/07_other.py")
    monkeypatch.setattr(module, "ROOT", installed)
    assert check_of("07.2", lambda: 2).status == "right"


def test_in_a_wheel_the_cases_lie_in_simlib_and_those_of_a_clone_come_first(beside, monkeypatch):
    write(beside, "given/07_some.py")
    write(beside, "given/08_more.py", "07.", "08.")
    write(beside, "checks/07_some.py", "== 2", "== 3")
    monkeypatch.setattr(module, "GIVEN", beside / "given")
    monkeypatch.setattr(module, "ROOT", beside / "site-packages")
    assert check_of("08.2", lambda: 2).status == "right"
    assert check_of("07.2", lambda: 3).status == "right"
    monkeypatch.setattr(module, "handed_in", Cases(CASES.replace("== 2", "== 4"), "handed in"))
    assert check_of("07.2", lambda: 3).status == "wrong"  # cases handed in come before any file


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


# `simlib.guess`: a sentence on a guess, none where nobody guessed, and never an error


def said(capsys, *args, **options):
    assert simlib.guess(*args, **options) is None
    return capsys.readouterr().out.rstrip("\n")


def test_the_examples_in_its_documentation():
    found = doctest.testmod(module)
    assert (found.failed, found.attempted) == (0, 5)


@pytest.mark.parametrize("right", [12, "rank 1", None, torch.ones(3), math.nan])
def test_nobody_guessed_and_nothing_is_said(capsys, right):
    assert said(capsys, None, right, of=("a",)) == ""


@pytest.mark.parametrize(
    "yours, right, options, sentence",
    [
        (12.0, 12, {}, "Your guess is right: 12."),
        ("1,200", 1200, {}, "Your guess is right: 1,200."),
        (torch.tensor(3), 3.0, {}, "Your guess is right: 3."),
        (11, 12, {}, "Your guess was 11. The right value is 12."),
        (
            36,
            12,
            {},
            "Your guess was 36. The right value is 12. Your guess is 3 times that.",
        ),
        (0, 12, {}, "Your guess was 0. The right value is 12."),
        (-6, 12, {}, "Your guess was -6. The right value is 12."),
        (12, 0, {}, "Your guess was 12. The right value is 0."),
        (13, 12, {"within": 0.1}, "Your guess of 13 is near enough. The right value is 12."),
        (14, 12, {"within": 0.1}, "Your guess was 14. The right value is 12."),
        (math.inf, 12, {}, "Your guess was inf. The right value is 12."),
        (math.nan, 12, {}, "Your guess nan is not a number. The right value is 12."),
        ("many", 12, {}, "Your guess many is not a number. The right value is 12."),
        (True, 1, {}, "Your guess True is not a number. The right value is 1."),
        (True, False, {}, "Your guess was True. The right value is False."),
        ("DEADLOCK ", "deadlock", {}, "Your guess is right: deadlock."),
        (2, 3, {"of": (1, 2, 3)}, "Your guess was 2. The right value is 3."),
        ("c", "a", {"of": ("a", "b")}, "c is not one of these: a, b."),
        (
            10**400,
            12,
            {},
            f"Your guess {str(10**400)[:57]}... is not a number. The right value is 12.",
        ),
        (0.3, 0.1 + 0.2, {}, "Your guess is right: 0.3."),
        (0.31, 0.1 + 0.2, {}, "Your guess was 0.31. The right value is 0.3."),
        ("12,5", 12.5, {}, "Your guess is right: 12.5."),
        (
            "12,5",
            125,
            {},
            "Your guess was 12,5. The right value is 125. This is 10 times your guess.",
        ),
        ("1,200.5", 1200.5, {}, "Your guess is right: 1200.5."),
        ("1,20,0", 1200, {}, "Your guess 1,20,0 is not a number. The right value is 1,200."),
        ("7/4", 1.75, {}, "Your guess is right: 1.75."),
        (" 7 / 4", 1.75, {}, "Your guess is right: 1.75."),
        ("7/0", 1.75, {}, "Your guess 7/0 is not a number. The right value is 1.75."),
        ("'rank 0'", "rank 0", {"of": ("rank 0", "rank 1")}, "Your guess is right: rank 0."),
        ('"Rank 1"', "rank 0", {}, 'Your guess was "Rank 1". The right value is rank 0.'),
        ("0.6 %", 0.006, {}, "Your guess is right: 0.006."),
        (3, 1, {"of": range(4)}, "Your guess was 3. The right value is 1."),
        ("3", 3.0, {"of": range(4)}, "Your guess is right: 3."),
        (1e-320, 1e300, {}, "Your guess was 9.99989e-321. The right value is 1e+300."),
    ],
)
def test_what_is_said(capsys, yours, right, options, sentence):
    assert said(capsys, yours, right, **options) == sentence


class Odd:
    """Whatever is asked of it fails."""

    def __str__(self):
        raise RuntimeError

    __repr__ = __float__ = __eq__ = __bool__ = __str__
    __hash__ = None


@pytest.mark.parametrize("yours", [Odd(), object(), [1, 2], {}, b"x", print, torch.ones(3), 3 + 4j])
@pytest.mark.parametrize("right", [12, "rank 1", True])
def test_no_guess_is_an_error(capsys, yours, right):
    assert said(capsys, yours, right)
    assert said(capsys, yours, right, of=(1, "rank 1", True))

"""What students have: a handout, and `simlib check`, whose process has its time and its end."""

import json
import os
import re
import shutil
import signal
import sys
import time
import types
import zipfile

import nbformat
import psutil
import pytest
from notebooks_made import SOURCES, cell_of, content, exercise, hand_in, notebook
from terminals import Terminal

from simlib.classroom.grading import self_check, shell
from simlib.classroom.grading.sandbox import Limits
from simlib.cli import main
from simlib.core.environment import ROOT

COLLECTIVES = exercise("04")
UNTOUCHED = content(notebook(COLLECTIVES))
NAME = "04_collectives.ipynb"


# The handout


@pytest.fixture(scope="module")
def handed_out(tmp_path_factory):
    """A folder as students get it."""
    folder = tmp_path_factory.mktemp("handout") / "course"
    assert main(["handout", "--out", str(folder)]) == 0
    return folder


def test_a_handout_has_neither_solutions_nor_hidden_cells(
    handed_out, tmp_path, monkeypatch, capsys
):
    out, screen = tmp_path / "out.zip", Terminal(monkeypatch)
    assert main(["handout", "--out", str(out)]) == 0
    screen.hang_up()
    assert re.search(r"\r00:\d\d, writing the handout.* \r$", screen.getvalue())
    with zipfile.ZipFile(out) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        packed = {name.removeprefix("out/"): archive.read(name) for name in names}
    files = {path.relative_to(handed_out).as_posix(): path for path in handed_out.rglob("*")}
    assert packed == {name: path.read_bytes() for name, path in files.items() if path.is_file()}
    assert {f"exercises/{NAME}", "environment.yml", "exercises/checks/04_collectives.py"} <= {
        *packed
    }
    assert ".pristine/checks/04_collectives.py" in packed
    assert not [name for name in packed if "solutions" in name or "authoring" in name]
    books = [data for name, data in packed.items() if name.endswith(".ipynb")]
    assert not [data for data in books if b"seed = 1" in data or b"sum_and_count" in data]
    assert any("seed = 1" in cell.source for cell in COLLECTIVES.cells)
    assert "sum_and_count" in COLLECTIVES.questions["mean_of_all"].solution
    count = len(list((ROOT / "exercises").glob("*.ipynb")))
    assert f"{count} exercises, {len(packed)} files in all" in capsys.readouterr().out


def test_a_handout_overwrites_nothing(tmp_path, capsys):
    (tmp_path / "mine").write_text("")
    assert main(["handout", "--out", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err


# What `simlib check` says


@pytest.fixture
def workplace(tmp_path):
    """A student's notebook of exercise 04: an answer right, one wrong, one not written."""
    made = notebook(
        COLLECTIVES,
        {"mean_of_all": True, "own_broadcast": "def own_broadcast(rank, n, x, root):\n    pass"},
    )
    made["cells"] = [cell for cell in made["cells"] if cell["id"] != "mean_of_all-check"]
    hand_in(tmp_path, f".pristine/{NAME}", data=UNTOUCHED)
    hand_in(tmp_path, f"exercises/{NAME}", data=content(made))
    return tmp_path / "exercises" / NAME


def changed(path, change):
    """Change a notebook in its file."""
    made = json.loads(path.read_text())
    change(made)
    path.write_bytes(content(made))


def test_check_says_right_wrong_and_not_written(workplace, capsys):
    assert main(["check", str(workplace)]) == 1
    said = capsys.readouterr().out
    assert "mean_of_all: right, 2 of 2 points." in said
    assert "own_broadcast: wrong, 0 of 3 points." in said
    assert "ring_all_gather: not written yet." in said
    assert "1 of 3 right" in said


@pytest.mark.parametrize("is_checkout", [True, False], ids=["a checkout", "no copy"])
def test_check_uses_the_pristine_checks_of_a_checkout(tmp_path, is_checkout):
    made = notebook(COLLECTIVES, {"mean_of_all": True})
    cell_of(made, "mean_of_all-check")["source"] = "print('all is right')"
    hand_in(tmp_path, "exercises/04_collectives-Copy1.ipynb", data=content(made))
    if is_checkout:
        source = (SOURCES / "04_collectives.py").read_bytes()
        hand_in(tmp_path, "authoring/exercises/04_collectives.py", data=source)
    found, notes = self_check.check_notebook(tmp_path / "exercises/04_collectives-Copy1.ipynb")
    said = list(found)
    if is_checkout:
        assert [one.status for one in said] == ["right", "not written yet", "not written yet"]
        assert notes == ["changed cells, so the original cells were used: mean_of_all-check"]
    else:
        assert said[0].text == "mean_of_all: wrong. Its check gave no verdict."
        assert notes == [
            "this folder has no exercise of this name, so the notebook's own check cells were "
            "used. Was the notebook renamed?"
        ]


def test_a_notebook_of_any_name_is_checked_by_the_installed_course(tmp_path, capfd, monkeypatch):
    hand_in(tmp_path, "mine.ipynb", data=content(notebook(COLLECTIVES, {"mean_of_all": True})))
    screen = Terminal(monkeypatch)
    assert main(["check", str(tmp_path / "mine.ipynb")]) == 1
    screen.hang_up()
    assert "mean_of_all: right" in capfd.readouterr().out
    assert re.search(r"00:\d\d, mine\b.*00:\d\d, mine: 1 checked", screen.getvalue())


FORGED = """\
from simlib.checks.verdict import Verdict

# %% 04.1 mean_of_all
verdict = Verdict("mean_of_all", {"value": 2}, "right")
verdict
"""
WRONG = "def mean_of_all(rank, world_size, x):\n    return 1.0"


@pytest.mark.parametrize("what", ["forged", "gone"])
def test_check_has_the_cases_that_were_handed_out(handed_out, what):
    path = handed_out / "exercises" / NAME
    made = notebook(COLLECTIVES, {"mean_of_all": WRONG, "own_broadcast": True})
    path.write_bytes(content(made))
    file = handed_out / "exercises" / "checks" / "04_collectives.py"
    if what == "forged":
        file.write_text(FORGED)
    else:
        shutil.rmtree(file.parent)
    said, notes = self_check.check_notebook(path)
    assert [result.status for result in said] == ["wrong", "right", "not written yet"]
    assert notes == []


@pytest.mark.parametrize(
    "name, sentence",
    [
        (NAME, "not valid JSON"),
        ("notes.txt", "does not end in .ipynb"),
        ("empty", "no exercise in this folder"),
        ("folder.ipynb", "is a folder"),
        ("nowhere.ipynb", "cannot be opened"),
        (".", "not valid JSON"),
    ],
)
def test_check_refuses_what_it_cannot_read(tmp_path, capsys, name, sentence):
    hand_in(tmp_path, NAME, "notes.txt", data=b"{")
    (tmp_path / "empty").mkdir()
    (tmp_path / "folder.ipynb").mkdir()
    assert main(["check", str(tmp_path / name)]) == 2
    assert sentence in capsys.readouterr().err


def test_an_error_names_the_line_of_its_cell_and_no_file_of_ipython():
    with pytest.raises(SyntaxError) as caught:
        compile("\ndef f()\n    pass", "<ipython-input-5-d4afba8d24e8>", "exec")
    assert shell.in_words(caught.value) == "SyntaxError: expected ':' (line 2)"


# Its process


def step(source, kind="helper", question=None):
    return {"kind": kind, "question": question, "source": source}


def told_of(folder, *sources, limit_s=60):
    """What is told about these cells."""
    return list(self_check.run_steps([step(source) for source in sources], folder, limit_s))


def python(monkeypatch, source):
    """Have this source in the place of the program that runs a notebook."""
    monkeypatch.setattr(self_check, "COMMAND", [sys.executable, "-c", source])


def wait_for_the_end_of(pid):
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=5)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


ENDLESS = """\
try:
    while True:
        pass
except Exception:
    pass
"""
IMPATIENT = """\
import simlib.classroom.grading.self_check as public

def run_for_a_time(shell, source, limit_s, whole=public.run_for_a_time):
    return whole(shell, source, 1 if "while True" in source else 600)

public.run_for_a_time = run_for_a_time
public.main()
"""


def test_check_ends_a_cell_that_does_not_end(workplace, monkeypatch):
    own = [nbformat.v4.new_code_cell(source) for source in (ENDLESS, "import mine")]
    changed(workplace, lambda made: made["cells"].__setitem__(slice(1, 1), own))
    (workplace.parent / "mine.py").write_text("")
    python(monkeypatch, IMPATIENT)
    said, notes = self_check.check_notebook(workplace)
    assert next(said).status == "right"
    assert len(list(said)) == 2
    told = "the cell that begins with 'try:' fails: StillRunning: the check was stopped after 1 s"
    assert any(note.startswith(told) for note in notes)
    assert any(note.startswith("mine.py is next to the notebook") for note in notes)


def test_check_names_the_cell_that_ends_python(workplace):
    def end(made):
        cell_of(made, "own_broadcast-answer")["source"] += "\nimport os; os._exit(0)"

    changed(workplace, end)
    right, ended, not_written = self_check.check_notebook(workplace)[0]
    assert (right.status, not_written.status) == ("right", "not written yet")
    assert "not reached: the cell that begins with 'def own_broadcast" in ended.text


FORK = """\
import multiprocessing, os, time
other = multiprocessing.get_context("fork").Process(target=time.sleep, args=(50,))
other.start()
open("pid", "w").write(str(other.pid))
"""
LEAVE = """\
import os, time
pid = os.fork()
if pid == 0:
    os.setsid()
    time.sleep(50)
open("pid", "w").write(str(pid))
"""


@pytest.mark.parametrize("last, told", [("", "beside"), ("os._exit(0)", "begins")])
def test_what_a_cell_starts_ends_with_check(tmp_path, monkeypatch, last, told):
    monkeypatch.setattr(self_check, "END_S", 1)
    begun = time.monotonic()
    assert told in told_of(tmp_path, FORK, last)[-1]
    assert time.monotonic() - begun < 40
    wait_for_the_end_of(int((tmp_path / "pid").read_text()))


def test_check_leaves_no_folders_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    told_of(tmp_path, "import multiprocessing.util\nmultiprocessing.util.get_temp_dir()")
    assert not list(tmp_path.glob("pymp-*"))


@pytest.mark.parametrize("start", [FORK, LEAVE])
def test_check_ends_when_its_time_is_over_whoever_holds_the_pipe(tmp_path, monkeypatch, start):
    python(monkeypatch, f"{start}\nprint('{{}}', flush=True)\nwhile True: pass")
    begun = time.monotonic()
    assert told_of(tmp_path, limit_s=5) == [{}]
    assert time.monotonic() - begun < 40
    pid = int((tmp_path / "pid").read_text())
    if start == LEAVE:
        os.kill(pid, signal.SIGKILL)
    wait_for_the_end_of(pid)


def test_what_is_told_before_the_time_is_over_is_not_lost(tmp_path, monkeypatch):
    lines = r"""print('{"begins": "1"}\n{"begins": "2"}', flush=True)"""
    python(monkeypatch, f"{lines}\nwhile True: pass")
    told = self_check.run_steps([], tmp_path, 4)
    assert next(told) == {"begins": "1"}
    time.sleep(5)
    assert list(told) == [{"begins": "2"}]


def test_a_check_has_as_long_as_in_grading(tmp_path, monkeypatch):
    report_limits = (
        "import simlib.classroom.grading.self_check as public\n"
        "public.run_for_a_time = lambda shell, source, limit_s: {'error': f'{limit_s} s'}\n"
        "public.main()\n"
    )
    python(monkeypatch, report_limits)
    told = self_check.run_steps([step("", "check", "f"), step("")], tmp_path, 60)
    check, cell = (one["text"] for one in told if "text" in one)
    assert check.endswith(f": {Limits().cell_s} s") and cell == f"{Limits().answer_s} s"


@pytest.mark.parametrize("own_cell", ["", "# " + "x" * 200_000])
def test_check_says_why_python_did_not_start(workplace, capsys, own_cell):
    def add(made):
        cell_of(made, "mean_of_all-answer")["source"] += f"\n{own_cell}"

    changed(workplace, add)
    (workplace.parent / "queue.py").write_text("raise RuntimeError('no queue')")
    assert main(["check", str(workplace)]) == 1
    said = capsys.readouterr().out
    assert "mean_of_all: not reached: Python did not start: RuntimeError: no queue\n" in said


def test_python_that_does_not_start_in_time_is_ended(tmp_path):
    (tmp_path / "queue.py").write_text("while True: pass")
    told = told_of(tmp_path, "# " + "x" * 200_000, limit_s=3)
    assert told == [{"not started": "it gave no reason"}]


# What lies beside it


def test_modules_beside_a_notebook_are_told_but_not_those_that_it_writes(tmp_path):
    hand_in(tmp_path, "mine.py", "packed/__init__.py", "packed/deep.py", "bare/one.py", data=b"")
    hand_in(tmp_path, "unused.py", ".venv/lib/installed.py", "below/there.py", data=b"")
    cells = [
        "open('new.py', 'w').write('x = 1')",
        "%%writefile ./other.py\nx = 1",
        "import mine, packed.deep, bare.one, new, other",
        "import sys\nsys.path += ['.venv/lib', 'below']\nimport installed, there",
        "import os\nos.chdir('below')",
    ]
    for _ in range(2):  # the first time leaves the files
        assert told_of(tmp_path, *cells)[-1]["beside"] == ["bare/", "mine.py", "packed/"]
        assert (tmp_path / "new.py").exists() and (tmp_path / "other.py").exists()


def test_a_module_of_another_kind_does_no_harm(tmp_path, monkeypatch):
    odd = types.ModuleType("odd")
    odd.__file__ = 7
    monkeypatch.setitem(sys.modules, "odd", odd)
    assert self_check.modules_beside(str(tmp_path), set(), time.time()) == []

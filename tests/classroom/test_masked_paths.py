"""A checkout and submissions in a folder that the sandbox shows are not seen by what is graded."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from notebooks_made import content, exercise, hand_in, solved

from simlib.classroom.confinement import process_sandbox
from simlib.classroom.confinement.process_sandbox import OWN_SANDBOX
from simlib.classroom.grading import sandbox, whole_class
from simlib.classroom.grading.examiner import is_of_shell
from simlib.classroom.grading.own_folder import state_folder
from simlib.classroom.grading.sandbox import hiding
from simlib.classroom.grading.source import SOURCES
from simlib.cli import main
from simlib.core.environment import ROOT

ISOLATED = pytest.mark.usefixtures("isolated")
SEEN = """
import os, sys
import simlib, torch
for top in sys.argv[1:]:
    for above, folders, files in os.walk(top):
        for name in folders + files:
            path = os.path.join(above, name)
            print(path, os.path.isfile(path) and os.path.getsize(path))
if not os.statvfs(sys.argv[1] + "/course").f_flag & os.ST_RDONLY:
    print("can be written to")
"""


def seen(folder, tmp_path):
    """What a program in the sandbox finds below a folder: relative paths and sizes, as text."""
    run = Path(tempfile.mkdtemp(prefix="seen-", dir=tmp_path)) / "run"
    run.mkdir()
    with sandbox.own_user() as uid:
        command = [sys.executable, "-c", SEEN, str(folder)]
        done = subprocess.run(
            sandbox.sandboxed(command, run, uid, sandbox.Limits()),
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    return done.stdout.replace(f"{folder}/", "").splitlines()


def course_below(folder, monkeypatch):
    """A small checkout, a class, a report and a table below a folder that is not hidden itself."""
    course = folder / "course"
    for name in ("authoring/exercises/04.py", "exercises/checks/04.py", "python/lib/module.py"):
        (course / name).parent.mkdir(parents=True)
        (course / name).write_text("hidden")
    for name in ("class/alice/04.ipynb", "report/report.json", "system/library"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    (folder / "roster.csv").write_text("student\n")
    (folder / "link").symlink_to("class")
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755)
    shown = sandbox.python_folders()
    python = str(course / "python")
    monkeypatch.setattr(sandbox, "python_folders", lambda: [*shown, python])
    monkeypatch.setattr(sandbox, "ROOT", course)
    return hiding(folder / "link", folder / "report", folder / "roster.csv", folder / "none", None)


ALL_THAT_IS_SEEN = {
    "class False", "course False", "course/python False", "course/python/lib False",
    "course/python/lib/module.py 6", "link False", "report False", "roster.csv False",
    "system False", "system/library 1",
}  # fmt: skip


@contextlib.contextmanager
def system_folder(monkeypatch, above=None):
    """A folder of the system: one of those below /usr, or another that counts as one."""
    folder = Path(tempfile.mkdtemp(dir=above))
    try:
        if above is None:
            monkeypatch.setattr(sandbox, "SYSTEM", (*sandbox.SYSTEM, str(folder)))
        yield folder
    finally:
        shutil.rmtree(folder)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to write below /usr")


@ISOLATED
@pytest.mark.parametrize("above", [None, pytest.param("/usr/share", marks=needs_root)])
def test_in_a_system_folder_checkout_and_class_are_covered_but_not_its_python(
    tmp_path, monkeypatch, above
):
    with system_folder(monkeypatch, above) as folder, course_below(folder, monkeypatch):
        assert set(seen(folder, tmp_path)) == ALL_THAT_IS_SEEN


@pytest.mark.parametrize("what", ["a class", "GIVEN", "GIVEN_COURSE"])
def test_what_lies_in_the_folder_of_simlib_is_covered_where_simlib_is_seen(monkeypatch, what):
    place = Path(sandbox.SIMLIB) / "classroom" / "grading"
    if what != "a class":  # as in a wheel: what checks expect, and solutions
        monkeypatch.setattr(sandbox, what, place)
    with hiding(place if what == "a class" else None):
        words, _ = sandbox.covers(sandbox.shown())
    assert f"{sandbox.COURSE}/simlib/classroom/grading" in words


@ISOLATED
@pytest.mark.parametrize("place", ["/usr", sys.prefix])
def test_what_cannot_be_covered_is_refused(tmp_path, capsys, place):
    (tmp_path / "class").mkdir()
    assert main(["grade", place, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "students' code could read" in said and said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_what_a_call_names_is_hidden_while_each_notebook_is_graded(stand_in, tmp_path, monkeypatch):
    whole, found = whole_class.grade, []

    def grade(*given):
        found.append(sandbox.hidden_places())
        return whole(*given)

    monkeypatch.setattr(whole_class, "grade", grade)
    hand_in(tmp_path, "class/alice/04_collectives.ipynb", data=content(solved(exercise("04"))))
    assert main(["grade", str(tmp_path / "class"), "--out", str(tmp_path / "out")]) == 0
    places = {ROOT, ROOT / SOURCES, tmp_path / "class", tmp_path / "out", state_folder()}
    assert places == set(found[0])
    assert sandbox.hidden_places() == [ROOT]


@ISOLATED
def test_a_folder_in_python_of_a_hidden_checkout_is_hidden(tmp_path, monkeypatch):
    with system_folder(monkeypatch) as folder:
        with course_below(folder, monkeypatch):
            pass
        with hiding(folder / "course/python/lib", folder / "roster.csv", folder / "class/alice"):
            found = seen(folder, tmp_path)
        assert "course/python/lib False" in found and "class/alice False" in found
        assert not any("module.py" in one or "ipynb" in one for one in found)


# What is copied into a sandbox of a rank's own: plain files, however the folder changes


def test_links_and_pipes_are_not_copied(tmp_path):
    (tmp_path / "secret").write_text("of somebody else")
    home = tmp_path / "home"
    (home / "deep").mkdir(parents=True)
    (home / "deep" / "mine.py").write_text("x = 1")
    (home / "link").symlink_to(tmp_path / "secret")
    (home / "away").symlink_to(tmp_path)
    os.mkfifo(home / "pipe")  # to open it would wait for who writes
    assert process_sandbox._files_below(home) == {"deep/mine.py": b"x = 1"}


def test_no_more_is_copied_than_there_is_room_for(tmp_path, monkeypatch):
    for number in range(5):
        (tmp_path / str(number)).write_bytes(bytes(100))
    monkeypatch.setitem(process_sandbox.ROOM, process_sandbox.HOME, 250)
    assert sum(map(len, process_sandbox._files_below(tmp_path).values())) == 250
    monkeypatch.setattr(process_sandbox, "MAX_FILES", 2)
    assert len(process_sandbox._files_below(tmp_path)) == 2


@pytest.mark.parametrize("name", ["examiner: <ipython-input-2-0>", "/etc/passwd", "", None, 3])
def test_a_shell_names_no_cells_but_its_own(name):
    assert is_of_shell("<ipython-input-2-0123>") and not is_of_shell(name)


SEES = """
import os, sys
from pathlib import Path
from simlib.classroom.confinement import process_sandbox
from simlib.classroom.confinement.process_sandbox import OWN_SANDBOX

place = Path(sys.argv[1])
process_sandbox.ROOM = {str(place): process_sandbox.MB}
process_sandbox.KEPT = ()
process_sandbox.PYTHONS = (str(place / "venv"),)
process_sandbox.enter()
print(sorted(path.name for path in place.rglob("*")), (place / "venv" / "x").read_text())
"""


def test_a_python_below_a_folder_of_its_own_is_still_there(isolated, tmp_path):
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "x").write_text("there")
    (tmp_path / "of_others").write_text("hidden")
    command = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc"]
    done = subprocess.run(
        [*command, sys.executable, "-c", SEES, str(tmp_path)],
        env=os.environ | {OWN_SANDBOX: "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "['venv', 'x'] there\n", done.stderr

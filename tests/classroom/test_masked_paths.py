"""A checkout and submissions in a folder that the sandbox shows are not seen by what is graded."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from notebooks_made import content, exercise, hand_in, solved

from simlib.classroom.grading import sandbox, whole_class
from simlib.classroom.grading.sandbox import hiding
from simlib.classroom.grading.source import SOURCES
from simlib.cli import main
from simlib.core.environment import ROOT

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


@pytest.fixture(autouse=True)
def isolation():
    reason = sandbox.why_not()
    if reason:
        pytest.skip(reason)


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


def test_in_a_system_folder_checkout_and_class_are_covered_but_not_its_python(
    tmp_path, monkeypatch
):
    folder = Path(tempfile.mkdtemp())
    try:
        monkeypatch.setattr(sandbox, "SYSTEM", (*sandbox.SYSTEM, str(folder)))
        with course_below(folder, monkeypatch):
            assert set(seen(folder, tmp_path)) == ALL_THAT_IS_SEEN
    finally:
        shutil.rmtree(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to write below /usr")
def test_below_usr_checkout_and_class_are_covered_but_not_its_python(tmp_path, monkeypatch):
    folder = Path(tempfile.mkdtemp(dir="/usr/share"))
    try:
        with course_below(folder, monkeypatch):
            assert set(seen(folder, tmp_path)) == ALL_THAT_IS_SEEN
    finally:
        shutil.rmtree(folder)


def test_a_class_in_the_folder_of_simlib_is_covered_where_simlib_is_seen(monkeypatch):
    place = Path(sandbox.SIMLIB) / "classroom" / "grading"
    with hiding(place):
        words, _ = sandbox.covers(sandbox.shown())
    assert f"{sandbox.COURSE}/simlib/classroom/grading" in words


def test_what_checks_expect_is_covered_where_simlib_is_of_a_wheel(monkeypatch):
    monkeypatch.setattr(sandbox, "GIVEN", Path(sandbox.SIMLIB) / "classroom" / "grading")
    words, _ = sandbox.covers(sandbox.shown())
    assert f"{sandbox.COURSE}/simlib/classroom/grading" in words


@pytest.mark.parametrize("place", ["/usr", sys.prefix])
def test_what_cannot_be_covered_is_refused(tmp_path, capsys, place):
    (tmp_path / "class").mkdir()
    assert main(["grade", place, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "would be seen by what students wrote" in said and said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_what_a_call_names_is_hidden_while_each_notebook_is_graded(stand_in, tmp_path, monkeypatch):
    whole, found = whole_class.grade, []

    def grade(*given):
        found.append(sandbox.hidden_places())
        return whole(*given)

    monkeypatch.setattr(whole_class, "grade", grade)
    hand_in(tmp_path, "class/alice/04_collectives.ipynb", data=content(solved(exercise("04"))))
    assert main(["grade", str(tmp_path / "class"), "--out", str(tmp_path / "out")]) == 0
    assert {ROOT, ROOT / SOURCES, tmp_path / "class", tmp_path / "out"} == set(found[0])
    assert sandbox.hidden_places() == [ROOT]


def test_a_folder_in_python_of_a_hidden_checkout_is_hidden(tmp_path, monkeypatch):
    folder = Path(tempfile.mkdtemp())
    try:
        monkeypatch.setattr(sandbox, "SYSTEM", (*sandbox.SYSTEM, str(folder)))
        with course_below(folder, monkeypatch):
            pass
        with hiding(folder / "course/python/lib", folder / "roster.csv", folder / "class/alice"):
            found = seen(folder, tmp_path)
        assert "course/python/lib False" in found and "class/alice False" in found
        assert not any("module.py" in one or "ipynb" in one for one in found)
    finally:
        shutil.rmtree(folder)

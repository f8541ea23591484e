"""`simlib progress`: the table, what is run again, the page."""

import os
import pty
import subprocess
import sys

import pytest
from notebooks_made import ROOT, SOURCES, cell_of, content, exercise, hand_in, notebook

from simlib.classroom.grading import commands, progress, self_check
from simlib.cli import main

ANSWERED = {"mean_of_all": True, "own_broadcast": "def own_broadcast(rank, n, x, root):\n    pass"}
EXERCISES = {name: exercise(name) for name in ("01", "04")}


@pytest.fixture
def folder(tmp_path):
    """A learner's folder: exercise 01 as it came, of 04 one answer right, one wrong."""
    for one in EXERCISES.values():
        source = (SOURCES / f"{one.name}.py").read_bytes()
        hand_in(tmp_path, f"authoring/exercises/{one.name}.py", data=source)
        given = ANSWERED if one.name.startswith("04") else {}
        hand_in(tmp_path, f"exercises/{one.name}.ipynb", data=content(notebook(one, given)))
    return tmp_path / "exercises"


def test_one_table_has_every_exercise(folder, capsys):
    assert main(["progress", str(folder)]) == 1
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.splitlines() == [
        "exercise                right   points",
        "01_ranks_and_clusters  0 of 3   0 of 7  not begun",
        "04_collectives         1 of 3   2 of 8  "
        "mean_of_all right, own_broadcast wrong, ring_all_gather not written yet",
        "together               1 of 6  2 of 15",
    ]


def on_a_terminal(folder):
    """What `simlib progress` writes to its stderr, where that is a terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "simlib", "progress", str(folder)]
    environ = {name: text for name, text in os.environ.items() if name != "TQDM_DISABLE"}
    with open(ours, "rb", buffering=0) as screen:
        subprocess.run(command, cwd=ROOT, env=environ, stdout=subprocess.DEVNULL, stderr=theirs)
        os.write(theirs, b"END")
        os.close(theirs)
        said = b""
        while not said.endswith(b"END"):
            said += screen.read(1 << 16)
    return said.decode().removesuffix("END")


def test_on_a_terminal_a_bar_names_the_notebook_that_is_checked(folder):
    said = on_a_terminal(folder)
    assert "1 of 2 |" in said and "04_collectives" in said
    (folder / "04_collectives.ipynb").write_bytes(content(notebook(EXERCISES["04"])))
    assert on_a_terminal(folder) == ""  # no answer is new


def test_the_review_stands_last(folder, capsys):
    source = (SOURCES / "review.py").read_bytes()
    hand_in(folder.parent, "authoring/exercises/review.py", data=source)
    hand_in(folder, "review.ipynb", data=content(notebook(exercise("review"))))
    (folder / "04_collectives.ipynb").unlink()
    assert main(["progress", str(folder)]) == 1
    first, second, _ = capsys.readouterr().out.splitlines()[1:]
    assert first.startswith("01_ranks")
    assert second.split() == "review 0 of 10 0 of 10 not begun".split()


def test_in_the_copy_of_a_wheel_only_new_answers_are_checked(folder, tmp_path, monkeypatch):
    given = tmp_path / "wheel" / "exercises"
    given.mkdir(parents=True)
    for one in EXERCISES.values():
        (given / f"{one.name}.ipynb").write_bytes(content(notebook(one)))
    (folder.parent / "authoring").rename(tmp_path / "elsewhere")
    monkeypatch.setattr(self_check, "GIVEN_COURSE", given.parent)
    checked = []
    first, second = progress.progress_of(sorted(folder.glob("*.ipynb")), checked.append)
    assert [path.stem for path in checked] == ["04_collectives"]
    assert (first.right, second.right) == (0, 1)


def test_a_copy_of_the_folder_alone_is_checked_by_its_own_cells(folder, tmp_path, capsys):
    """Neither sources nor pristine exercises lie near, so nobody knows the stubs."""
    (tmp_path / "another").mkdir()
    away = folder.rename(tmp_path / "another" / "copy")
    assert main(["progress", str(away)]) == 1
    assert capsys.readouterr().out.splitlines()[1:3] == [
        "01_ranks_and_clusters  0 of 3   0 of 7  not begun",
        "04_collectives         1 of 3   2 of 8  "
        "mean_of_all right, own_broadcast wrong, ring_all_gather not written yet",
    ]


@pytest.fixture
def checks(monkeypatch):
    """``checks(status, points)``: what checks give; returns names of those that are run."""

    def give(status, points=0):
        ran, result = [], self_check.CheckResult("mean_of_all", status, "", points)

        def checked(path):
            ran.append(path.name)
            return iter([result]), []

        monkeypatch.setattr(progress, "check_notebook", checked)
        return ran

    return give


def right_only(path):
    """Exercise 04 with its right answer alone."""
    path.write_bytes(content(notebook(EXERCISES["04"], {"mean_of_all": True})))


def test_a_notebook_is_run_again_when_it_or_simlib_changes(folder, checks, monkeypatch):
    path, ran = folder / "04_collectives.ipynb", checks("right", 2)
    right_only(path)
    for _ in range(2):
        (found,) = progress.progress_of([path])
    assert ran == [path.name] and (found.right, found.points, found.of) == (1, 2, 2)
    monkeypatch.setattr(progress, "digest_of_simlib", lambda: "another one")
    progress.progress_of([path])
    assert len(ran) == 2
    path.write_bytes(path.read_bytes() + b"\n")
    progress.progress_of([path])
    assert len(ran) == 3


def test_a_notebook_is_run_again_when_its_handout_changes(tmp_path, checks):
    commands.handout(ROOT, tmp_path / "course")
    path, ran = tmp_path / "course/exercises/04_collectives.ipynb", checks("right", 2)
    right_only(path)
    progress.progress_of([path])
    cases = tmp_path / "course/.pristine/checks/04_collectives.py"
    cases.write_text(cases.read_text() + "\n")
    progress.progress_of([path])
    assert len(ran) == 2


def test_a_wrong_answer_is_tried_again(folder, checks):
    """Perhaps the machine was busy."""
    ran = checks("wrong")
    for _ in range(2):
        progress.progress_of([folder / "04_collectives.ipynb"])
    assert len(ran) == 2


def test_the_page_is_escaped_and_fetches_nothing(folder, capsys):
    path = folder.parent / "page.html"
    made = notebook(EXERCISES["04"], {})
    cell_of(made, "mean_of_all-answer")["source"] = "def mean_of_all(rank, n, x):\n    return x"
    (folder / "04_collectives.ipynb").write_bytes(content(made))
    assert main(["progress", str(folder), "--certificate", str(path), "--name", "<b>me</b>"]) == 1
    text = path.read_text(encoding="utf-8")
    assert "&lt;b&gt;me&lt;/b&gt;" in text and "<b>me" not in text
    assert "0 of 6" in text and "01_ranks_and_clusters" in text and "0 of 2" in text
    assert "<script" not in text and "src=" not in text and "http:" not in text
    assert "sent anywhere" in text


def test_a_notebook_that_cannot_be_checked_is_told(folder, capsys):
    (folder / "04_collectives.ipynb").write_text("{")
    assert main(["progress", str(folder)]) == 2
    line = capsys.readouterr().out.splitlines()[2]
    assert line.startswith("04_collectives") and "not valid JSON" in line


def test_a_folder_without_exercises_is_refused(tmp_path, capsys):
    assert main(["progress", str(tmp_path)]) == 2
    assert "there are no exercises (NN_name.ipynb) in this folder" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_told(folder, capsys, monkeypatch):
    monkeypatch.setattr(progress, "check_notebook", lambda path: (iter([]), []))
    assert main(["progress", str(folder), "--certificate", str(folder / "no" / "page.html")]) == 2
    assert "page.html: No such file or directory" in capsys.readouterr().err

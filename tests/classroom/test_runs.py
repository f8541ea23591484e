"""The runs of a class: which are made again, beside whom, and what is left of them; groups."""

import contextlib
import contextvars
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from simlib.classroom.grading import grade as grading
from simlib.classroom.grading import sandbox, session, whole_class
from simlib.classroom.grading.container import (
    MOUNTED,
    NAME,
    Group,
    clear_groups_of_the_dead,
    pids_in,
    settings_of,
)
from simlib.classroom.grading.exercise import Cell
from simlib.classroom.grading.grade import GraderFails, NotebookResult
from simlib.classroom.grading.merge_answers import MergedNotebook, Step
from simlib.classroom.grading.own_folder import NotOwn
from simlib.classroom.grading.sandbox import HIDDEN, Limits, hiding
from simlib.classroom.grading.session import CellResult, Session
from simlib.classroom.grading.texts import Cache
from simlib.classroom.grading.whole_class import SharedExclusiveLock

EXPECTED = whole_class.ClassGrader.expected
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root needs users of others")


def in_threads(function, *arguments):
    """Call a function in a thread of its own with each argument, and wait for all."""
    threads = [threading.Thread(target=function, args=(one,)) for one in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def ended_process():
    """The number of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


# A verdict that a limit has brought is final only for who was graded alone


def test_who_is_alone_begins_when_all_others_have_ended_and_nobody_begins_meanwhile():
    company, order = SharedExclusiveLock(), []
    entered, leave = threading.Event(), threading.Event()

    def alone():
        with company.shared() as visit:
            assert visit.alone()
            order.append("alone")

    def beside(name):
        with company.shared() as had_company:
            entered.set()
            leave.wait()
            order.append((name, had_company()))

    threads = [threading.Thread(target=beside, args=("first",)), threading.Thread(target=alone)]
    threads.append(threading.Thread(target=beside, args=("late",)))
    threads[0].start()
    entered.wait()
    threads[1].start()
    while not company._waiting:
        pass
    threads[2].start()
    leave.set()
    for thread in threads:
        thread.join()
    assert order == [("first", True), "alone", ("late", False)]


def grader_of(monkeypatch, tmp_path, look, limits=None):
    """A `ClassGrader` of one exercise that grades by ``look(content)``."""
    monkeypatch.setattr(whole_class, "grade", lambda content, *rest: look(content))
    exercises = {"e": SimpleNamespace(name="e", digest="", questions={})}
    grader = whole_class.ClassGrader(exercises, Cache(tmp_path), 1, limits or Limits())
    grader.expected = lambda exercise: None
    return grader


def cut_short_result(is_cut_short):
    return NotebookResult("e", "graded", "", [], cut_short=is_cut_short)


@pytest.mark.parametrize("has_company", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_what_went_wrong_beside_others_is_done_again_alone(
    monkeypatch, tmp_path, has_company, fails
):
    """A limit cut it short, or the grader itself failed."""
    looks, both, found = [], threading.Barrier(2), {}

    def look(content):
        looks.append(content)
        if has_company and len(looks) <= 2:
            both.wait()
        goes_wrong = content == b"bob" and looks.count(content) == 1
        if goes_wrong and fails:
            raise GraderFails("the examiner did not start")
        return cut_short_result(goes_wrong)

    grader = grader_of(monkeypatch, tmp_path, look)

    def grade(name):
        try:
            found[name] = grader._graded(name, None).cut_short
        except GraderFails:
            found[name] = "fails"

    in_threads(grade, *[b"bob", b"eve"][: 1 + has_company])
    assert looks.count(b"bob") == 1 + has_company and looks.count(b"eve") == has_company
    wanted = {b"bob": False, b"eve": False} if has_company else {b"bob": "fails" if fails else True}
    assert found == wanted


@pytest.mark.parametrize("cut_short, times", [(False, 1), (True, 2)])
def test_other_limits_grade_again_what_a_limit_cut_short(tmp_path, monkeypatch, cut_short, times):
    graded = []

    def look(content):
        graded.append(content)
        return cut_short_result(cut_short)

    for seconds in (240, 600, 600):
        grader = grader_of(monkeypatch, tmp_path, look, Limits(notebook_s=seconds))
        grader._result(b"bob", grader._exercises["e"], False)
    assert len(graded) == times


def test_a_solution_that_cannot_be_graded_stops_the_class_and_writes_no_table(desk, monkeypatch):
    desk.hand_in("ada/04_collectives.ipynb", "bob/04_collectives.ipynb")
    monkeypatch.setattr(whole_class.ClassGrader, "expected", EXPECTED)

    def fails(*given):
        raise OSError("no room left")

    monkeypatch.setattr(whole_class, "record", fails)
    said = desk.grade("--jobs", "1", code=2).err
    assert "the course's own solution cannot be graded here (04_collectives: OSError: no" in said
    assert said.count("\n") == 1 and not list(Path("report").rglob("*.csv"))


@as_root
@pytest.mark.parametrize("stopped", [False, True])
def test_a_grader_waits_where_all_user_ids_are_taken(monkeypatch, tmp_path, capsys, stopped):
    monkeypatch.setattr(sandbox, "TAKEN", tmp_path / "taken")
    monkeypatch.setattr(sandbox, "LAST_UID", sandbox.FIRST_UID + 1)
    sandbox.say_once.cache_clear()
    others = contextlib.ExitStack()
    assert [others.enter_context(sandbox.own_user()) for _ in range(2)] == [64600, 64601]
    waits = []

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 2:
            others.close()
        return stopped

    monkeypatch.setattr(sandbox, "time", SimpleNamespace(sleep=wait))
    with pytest.raises(KeyboardInterrupt) if stopped else sandbox.own_user() as uid:
        if stopped:
            sandbox.own_user().__enter__()
        assert uid == 64600
    others.close()
    assert capsys.readouterr().err.count("all 2 user ids for grading are in use") == 1


@as_root
def test_nobody_else_takes_the_user_ids_of_graders(tmp_path, monkeypatch):
    names = contextlib.ExitStack()
    for uid in range(sandbox.FIRST_UID, sandbox.LAST_UID + 1):
        name = names.enter_context(socket.socket(socket.AF_UNIX))
        with contextlib.suppress(OSError):
            name.bind(f"\0simlib-grading-{uid}")
    with names, sandbox.own_user() as uid:
        assert uid >= sandbox.FIRST_UID
    monkeypatch.setattr(sandbox, "TAKEN", tmp_path)
    tmp_path.chmod(0o777)
    with pytest.raises(NotOwn, match="other accounts can write"):
        sandbox.own_user().__enter__()


def test_what_is_hidden_from_students_is_so_wherever_they_are_graded(tmp_path, monkeypatch):
    seen = []
    grader = whole_class.ClassGrader({}, Cache(tmp_path), 1, Limits())
    monkeypatch.setattr(grader, "_one", lambda file, regrade: seen.append(HIDDEN.get()))
    files = [SimpleNamespace(student="bob"), SimpleNamespace(student="eve")]
    with hiding(tmp_path):
        grader.run(files, 2, lambda one: None)
    assert seen == [(tmp_path,)] * 2


# A cell of a student's own that ends runs late is found, and costs no answer its points

NAMES = ("first", "second", "third")


def merged(*own):
    """A notebook with three answers below cells of the student's own."""
    steps = [Step("helper", None, source) for source in own]
    for name in NAMES:
        cell = Cell(f"{name}-answer", "answer", name, f"def {name}(): pass")
        steps.append(Step("answer", cell, cell.source))
    return MergedNotebook(steps, dict.fromkeys(NAMES, "given"), [])


@pytest.fixture
def runs(monkeypatch):
    """Runs in which an answer ends the run if `ends(sources above, its question)` says so."""

    def use(ends):
        def run_notebook(part, limits, isolate):
            cells = {"examiner": CellResult("same")}
            own = [step.source for step in part.steps if step.kind == "helper"]
            for step in part.steps:
                if step.kind == "answer" and ends(own, step.cell.question):
                    break
                cells[step.identity] = CellResult("same")
            return Session(cells, "", 1.0, "")

        monkeypatch.setattr(grading, "run_notebook", run_notebook)
        return grading.Runner(lambda part: part, Limits(), True)

    return use


def test_an_own_cell_that_ends_every_answer_s_run_is_left_out_and_all_are_graded(runs):
    runner = runs(lambda own, question: "kill_later()" in own)
    done = runner.run(merged("import math", "kill_later()", "half = 2"))
    assert done.skipped == {}
    assert {f"{name}-answer" for name in NAMES} <= set(done.cells)
    assert len(done.notes) == 1 and "(kill_later()) was left out" in done.notes[0]


def test_two_answers_that_end_their_runs_are_set_aside_and_own_cells_stay(runs):
    runner = runs(lambda own, question: question != "third")
    done = runner.run(merged("import math"))
    assert set(done.skipped) == {"first", "second"} and done.notes == []
    assert "third-answer" in done.cells


@pytest.mark.parametrize("endless", ["first", "second", "third"])
@pytest.mark.parametrize("is_busy", [False, True])
def test_all_runs_of_a_notebook_take_twice_its_time_and_cost_no_other_answer(
    monkeypatch, endless, is_busy
):
    """``is_busy``: it only lacked time beside other notebooks."""
    clock, taken, beside = [0.0], [], [True]

    def run_notebook(part, limits, isolate):
        cells, ends = {"examiner": CellResult("same")}, endless in grading.answered(part)
        ends = ends and (beside[0] or not is_busy)
        taken.append(limits.notebook_s if ends else limits.notebook_s / 8)
        clock[0] += taken[-1]
        for step in part.steps:
            if ends and step.cell.question == endless:
                break
            cells[step.identity] = CellResult("same")
        return Session(cells, "", 1.0, "")

    def alone():
        had_company, beside[0] = beside[0], False
        return had_company

    monkeypatch.setattr(grading, "run_notebook", run_notebook)
    monkeypatch.setattr(grading, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    limits = Limits()
    turn = grading.Turn(2 * limits.notebook_s, alone)
    done = grading.Runner(lambda part: part, limits, True, turn).run(merged())
    assert sum(taken) <= 2 * limits.notebook_s
    graded = {name for name in NAMES if f"{name}-answer" in done.cells}
    assert graded == set(NAMES) - ({endless} if not is_busy else set())
    assert set(done.skipped) == set(NAMES) - graded


def test_a_second_look_has_what_the_first_has_left(monkeypatch, tmp_path):
    grader, lefts = grader_of(monkeypatch, tmp_path, None), []

    def grade(content, *rest):
        lefts.append(rest[-1].left_s)
        rest[-1].left_s -= 200
        grader._lock._here = dict.fromkeys(grader._lock._here, len(lefts) == 1)
        return NotebookResult("e", "graded", "", [], cut_short=True)

    monkeypatch.setattr(whole_class, "grade", grade)
    grader._graded(b"bob", None)
    assert lefts == [480, 280]


# What is left of a run


def test_a_grader_that_is_stopped_ends_what_it_runs():
    process = subprocess.Popen(["sleep", "600"])
    stop = threading.Event()
    stop.set()
    context = contextvars.copy_context()
    context.run(session.STOP.set, stop)
    with pytest.raises(KeyboardInterrupt):
        context.run(session.watch, process, Limits())
    session.end_group(process)


def test_folders_of_a_killed_grader_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for pid in (ended_process(), os.getpid()):
        (tmp_path / f"{session.FOLDERS}{pid}-x").mkdir()
    session.clear_after_the_dead()
    assert [one.name for one in tmp_path.iterdir()] == [f"{session.FOLDERS}{os.getpid()}-x"]


needs_groups = pytest.mark.skipif(
    os.geteuid() != 0 or not settings_of(MOUNTED, 1, 1), reason="only root makes control groups"
)


@needs_groups
def test_what_a_run_leaves_behind_is_ended_whatever_session_it_is_in():
    source = (
        "import os, sys\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        print(os.getpid(), flush=True)\n"
        "        os.close(1)\n"
        "        import time; time.sleep(98765)\n"
        "    os._exit(0)\n"
    )
    with Group(Limits()) as group:
        command = [*group.words, sys.executable, "-c", source]
        left = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        folders = list(group._folders)
        assert int(left) in pids_in(folders[0])
    assert not psutil.pid_exists(int(left)) or psutil.Process(int(left)).status() == "zombie"
    assert not any(folder.exists() for folder in folders)


@needs_groups
def test_a_run_gets_no_more_processes_than_its_group():
    source = (
        "import os, time\n"
        "for number in range(400):\n"
        "    try:\n        pid = os.fork()\n"
        "    except OSError:\n        break\n"
        "    if pid == 0:\n        time.sleep(98765)\n"
        "print(number)\n"
    )
    with Group(Limits(processes=20)) as group:
        command = [*group.words, sys.executable, "-c", source]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        number = int(process.stdout.readline())
    process.wait()
    assert number < 120


@needs_groups
def test_a_group_of_a_dead_grader_is_removed_with_who_is_in_it():
    folder = settings_of(MOUNTED, 1, 1)[0][0] / f"{NAME}-{ended_process()}-1"
    folder.mkdir()
    sleeper = subprocess.Popen(["sleep", "98765"])
    (folder / "cgroup.procs").write_text(str(sleeper.pid))
    clear_groups_of_the_dead()
    assert sleeper.wait() == -9 and not folder.exists()


def test_groups_of_the_second_version_are_set_as_linux_documents_them(tmp_path):
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids")
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids")
    assert settings_of(tmp_path, 1000, 50) == [
        (tmp_path, {"cpu.weight": "100", "memory.max": "1000", "pids.max": "50"})
    ]
    (tmp_path / "cgroup.subtree_control").write_text("cpu")
    assert settings_of(tmp_path, 1000, 50) == []

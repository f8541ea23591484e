"""A verdict that a limit has brought is final only for who was graded alone; groups of a run."""

import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import psutil
import pytest

from simlib.classroom.grading import whole_class
from simlib.classroom.grading.container import (
    MOUNTED,
    NAME,
    Group,
    clear_groups_of_the_dead,
    pids_in,
    settings_of,
)
from simlib.classroom.grading.grade import GraderFails, NotebookResult
from simlib.classroom.grading.sandbox import HIDDEN, Limits, hiding
from simlib.classroom.grading.texts import Cache
from simlib.classroom.grading.whole_class import SharedExclusiveLock


def test_who_is_alone_begins_when_all_others_have_ended_and_nobody_begins_meanwhile():
    company, order = SharedExclusiveLock(), []
    entered, leave = threading.Event(), threading.Event()

    def beside():
        with company.shared() as had_company:
            entered.set()
            leave.wait()
            order.append(("first", had_company()))

    def alone():
        with company.exclusive():
            order.append("alone")

    threads = [threading.Thread(target=beside)]
    threads[0].start()
    entered.wait()
    threads.append(threading.Thread(target=alone))
    threads[1].start()
    while not company._waiting:
        pass

    def late():
        with company.shared() as had_company:
            order.append(("late", had_company()))

    threads.append(threading.Thread(target=late))
    threads[2].start()
    leave.set()
    for thread in threads:
        thread.join()
    assert order == [("first", False), "alone", ("late", False)]


def grader_of(monkeypatch, tmp_path, look):
    """A `ClassGrader` of one exercise that grades by ``look(content)``."""
    monkeypatch.setattr(whole_class, "grade", lambda content, *rest: look(content))
    grader = whole_class.ClassGrader({}, Cache(tmp_path), 1, Limits())
    grader.expected = lambda exercise: None
    return grader


@pytest.mark.parametrize("has_company", [True, False])
def test_what_a_limit_cut_short_beside_others_is_graded_again_alone(
    monkeypatch, tmp_path, has_company
):
    looks, both = [], threading.Barrier(2)

    def look(content):
        looks.append(content)
        if has_company and len(looks) <= 2:
            both.wait()
        first = looks.count(content) == 1
        return NotebookResult("e", "graded", "", [], cut_short=content == b"bob" and first)

    grader = grader_of(monkeypatch, tmp_path, look)
    names = [b"bob", b"eve"] if has_company else [b"bob"]
    found = {}

    def grade(name):
        found[name] = grader._graded(name, None)

    threads = [threading.Thread(target=grade, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert looks.count(b"bob") == 1 + has_company and looks.count(b"eve") == has_company
    assert found[b"bob"].cut_short is not has_company


def test_a_grader_that_fails_beside_others_tries_again_alone(monkeypatch, tmp_path):
    looks, both = [], threading.Barrier(2)

    def look(content):
        looks.append(content)
        if len(looks) <= 2:
            both.wait()
        if content == b"bob" and looks.count(content) == 1:
            raise GraderFails("the examiner did not start")
        return NotebookResult("e", "graded", "", [])

    grader = grader_of(monkeypatch, tmp_path, look)
    found = {}

    def grade(name):
        found[name] = grader._graded(name, None).status

    threads = [threading.Thread(target=grade, args=(name,)) for name in (b"bob", b"eve")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {b"bob": "graded", b"eve": "graded"} and looks.count(b"bob") == 2


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
    limits = Limits(processes=20)
    source = (
        "import os, time\n"
        "for number in range(400):\n"
        "    try:\n        pid = os.fork()\n"
        "    except OSError:\n        break\n"
        "    if pid == 0:\n        time.sleep(98765)\n"
        "print(number)\n"
    )
    with Group(limits) as group:
        command = [*group.words, sys.executable, "-c", source]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        number = int(process.stdout.readline())
    process.wait()
    assert number < 120


@needs_groups
def test_a_group_of_a_dead_grader_is_removed_with_who_is_in_it():
    ended = subprocess.Popen(["true"])
    ended.wait()
    folder = settings_of(MOUNTED, 1, 1)[0][0] / f"{NAME}-{ended.pid}-1"
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


def test_what_is_hidden_from_students_is_so_wherever_they_are_graded(tmp_path, monkeypatch):
    seen = []
    grader = whole_class.ClassGrader({}, Cache(tmp_path), 1, Limits())
    monkeypatch.setattr(grader, "_one", lambda file, regrade: seen.append(HIDDEN.get()))
    files = [SimpleNamespace(student="bob"), SimpleNamespace(student="eve")]
    with hiding(tmp_path):
        grader.run(files, 2, lambda one: None)
    assert seen == [(tmp_path,)] * 2

"""Seconds that `simlib grade` takes for an honest notebook, alone and two at a time.

A busy machine shows in the wall clock; seconds of the processors, of all processes of a run, are
what it costs in any case. They are read while the processes live, ten times a second.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from .table import heading, interleave, line, spread

GOAL_S = 6.0
JOBS = 2
ROOT = Path(__file__).resolve().parents[1]
NAMES = ("01_ranks_and_clusters", "04_collectives", "05_building_all_reduce")


class Processors:
    """Seconds of the processors that this process and all below it have used."""

    def __init__(self):
        self._seconds = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def _watch(self):
        own = psutil.Process()
        while not self._stop.wait(0.1):
            for one in own.children(recursive=True):
                try:
                    used = one.cpu_times()
                    self._seconds[one.pid, one.create_time()] = used.user + used.system
                except psutil.Error:
                    pass

    @property
    def seconds(self):
        """What was used until now."""
        return sum(self._seconds.values())


def solved(exercise):
    """A notebook with the solutions, as the bytes of a file."""
    import nbformat

    cells = []
    for cell in exercise.cells:
        if cell.role != "hidden":
            made = nbformat.v4.new_code_cell(cell.source, id=cell.id)
            if cell.role == "answer":
                made.source = exercise.questions[cell.question].solution
            made.metadata = {"course": {"role": cell.role, "question": cell.question}}
            cells.append(made)
    return nbformat.writes(nbformat.v4.new_notebook(cells=cells)).encode()


def grading(rounds):
    """Print the seconds of an honest notebook, by exercise, and with two jobs."""
    from simlib.classroom.grading.exercise import read_exercise
    from simlib.classroom.grading.grade import grade
    from simlib.classroom.grading.sandbox import Limits, why_not
    from simlib.classroom.grading.whole_class import record

    heading(f"An honest notebook graded; load {os.getloadavg()[0]:.1f} at the beginning")
    if why_not():
        line("not measured", why_not())
        return
    folder = ROOT / "authoring" / "exercises"
    seed, limits = 5, Limits(notebook_s=900)
    prepared = {}
    for name in NAMES:
        exercise = read_exercise(folder / f"{name}.py")
        prepared[name] = exercise, solved(exercise), record(exercise, seed, limits)

    def once(name):
        exercise, content, expected = prepared[name]
        result = grade(content, exercise, expected, seed, limits)
        assert result.points == exercise.points, result
        return result

    def alone(name):
        begun = time.perf_counter()
        with Processors() as used:
            once(name)
        return time.perf_counter() - begun, used.seconds

    def two_at_a_time():
        begun = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(JOBS) as pool, Processors() as used:
            list(pool.map(once, 2 * NAMES))
        number = 2 * len(NAMES)
        return (time.perf_counter() - begun) / number, used.seconds / number

    ways = {name: lambda name=name: alone(name) for name in NAMES}
    measured = interleave(ways | {"two at a time": two_at_a_time}, rounds)
    for name, values in measured.items():
        wall_s, processors_s = zip(*values, strict=True)
        is_goal = name == "two at a time"
        goal = (f"<= {GOAL_S:g} s", min(wall_s) <= GOAL_S) if is_goal else ()
        line(f"{name}, s per notebook", spread(wall_s, digits=1), *goal)
        line(f"{name}, s of the processors", spread(processors_s, digits=1))
    grading_a_class()


def grading_a_class():
    """Print what the class of the tests takes: in all, by kind of notebook, and once more."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "grading")]
    from class_of_30 import DAMAGED, HONEST, HOSTILE, table_in, write_class
    from notebooks_made import exercise

    number = HONEST + len(DAMAGED) + len(HOSTILE)
    heading(f"A class of {number}, {HONEST} of them honest, {JOBS} at a time")
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        wanted = write_class(folder / "class", [exercise("01"), exercise("04")])
        command = [sys.executable, "-m", "simlib", "grade", str(folder / "class"), "--seed", "5"]
        command += ["--out", str(folder / "report"), "--jobs", str(JOBS)]
        for name in ("all of it, s", "the same again, s"):
            begun = time.perf_counter()
            subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            line(name, f"{time.perf_counter() - begun:.1f}")
        report = folder / "report" / "report.json"
        line("points as expected", f"{table_in(report) == wanted}")
        seconds = [
            sum(book["seconds"] for book in student["notebooks"])
            for student in json.loads(report.read_text(encoding="utf-8"))["students"]
        ]
    honest, hostile = [one for one in seconds[:HONEST] if one], seconds[-len(HOSTILE) :]
    mean = sum(honest) / len(honest) / JOBS
    goal = f"<= {GOAL_S:g} s", mean <= GOAL_S
    line(f"an honest notebook, s (of {len(honest)} that were run)", f"{mean:.1f}", *goal)
    line("hostile ones, s", spread(hostile, digits=1))

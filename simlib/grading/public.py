"""`simlib check`: what the public checks of a notebook say, for the student who writes it."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from .exercise import exercise_of, read_exercise
from .submission import Unreadable, parse, read_bytes
from .transplant import GIVEN, NOT_ATTEMPTED, Step, Transplant, beginning, failure, transplant

PRISTINE = ".pristine"
"""Folder of a handout in which the exercises lie as they were."""
SOURCES = Path("authoring") / "exercises"
"""Folder of a checkout in which the exercises are written."""
COMMAND = [sys.executable, "-m", "simlib.grading.inside.public"]
"""What runs a notebook's steps."""
RIGHT, WRONG, NOT_WRITTEN = "right", "wrong", "not written yet"


@dataclass(frozen=True)
class Said:
    """What a check says: the question's name, the status, and the text to read."""

    question: str
    status: str
    text: str


def exercises_in(path):
    """The notebooks to check of a path: itself, or what a folder has by the name of an exercise."""
    path = Path(path)
    return sorted(path.glob("[0-9][0-9]_*.ipynb")) or [path] if path.is_dir() else [path]


def pristine_of(path):
    """``(Exercise, whether it is pristine)`` of a notebook that somebody works in.

    The pristine copy lies in a folder of the handout, in a checkout it is made from the source;
    where there is neither, the notebook's own check cells are used.

    Raises
    ------
    Unreadable
        The notebook cannot be read.
    """
    path = Path(path).resolve()
    if path.exists() and path.suffix != ".ipynb":
        raise Unreadable(
            "there is no exercise in this folder"
            if path.is_dir()
            else "this is no notebook: its name does not end in .ipynb"
        )
    for folder in (path.parent.parent, path.parent):
        copy = named_like(path, folder / PRISTINE, ".ipynb")
        if copy:
            return exercise_of(json.loads(copy.read_text(encoding="utf-8")), copy.stem), True
        source = named_like(path, folder / SOURCES, ".py")
        if source:
            return read_exercise(source).without_hidden(), True
    parse(read_bytes(path))  # its reason is better than ours, where it cannot be read
    try:
        notebook = json.loads(path.read_text(encoding="utf-8-sig"))
        return exercise_of(notebook, path.stem), False
    except (KeyError, TypeError, ValueError, AttributeError):
        raise Unreadable(
            "its name is no exercise's, and it has no check cells of its own: work in the notebook "
            "that was handed out, under the name that it had"
        ) from None


def named_like(path, folder, ending):
    """The file of a folder whose name a notebook's begins with, such as 04_x for 04_x-Copy1."""
    names = (one for one in folder.glob(f"[0-9][0-9]_*{ending}") if path.stem.startswith(one.stem))
    return max(names, key=lambda one: len(one.stem), default=None)


def check_notebook(path, limit_s=600):
    """What is to be said about each question of a notebook, and notes: ``(iterator, list)``.

    Each question's `Said` comes as soon as its check has run; the list of notes is whole when the
    iterator is at its end.

    Parameters
    ----------
    path : str or Path
    limit_s : float
        Seconds for the whole notebook.

    Raises
    ------
    Unreadable, WrongNotebook
        It cannot be checked; the message is the reason.
    """
    exercise, is_pristine = pristine_of(path)
    if not exercise.questions:
        raise Unreadable("this notebook has no questions: is it an exercise?")
    found = transplant(exercise, parse(read_bytes(path)))
    if not is_pristine:  # its own cells are all there is, and nobody knows the stubs
        found = found_in_itself(exercise)
        found.notes.append(
            "the file's name is no exercise's (was it renamed?), so its own check cells were used"
        )
    steps = [
        {
            "kind": step.cell.role if step.cell else "helper",
            "question": step.cell.question if step.cell else None,
            "source": step.source,
        }
        for step in found.steps
    ]
    notes = list(found.notes)
    told = run_steps(steps, Path(path).resolve().parent, limit_s)
    return in_order(exercise.questions, found.found, told, notes), notes


def in_order(questions, found, told, notes):
    """Yield the `Said` of each question, in the order of the notebook, as soon as it is known."""
    by_question, begun = {}, ""
    for name in questions:
        while found.get(name) == GIVEN and name not in by_question:
            one = next(told, None)
            if one is None:
                break
            begun = one.get("begins", begun)
            take(one, by_question, notes)
        yield said_of(name, found.get(name), by_question.get(name), begun)
    for one in told:
        take(one, by_question, notes)


def take(one, by_question, notes):
    """Sort one thing that was told: a question's verdict, or a cell of the student's that fails."""
    if one.get("is_cell") and not one["question"]:
        notes.append(failure(one["source"], one["text"]))
    for file in one.get("beside", ()):
        notes.append(
            f"{file} lies beside the notebook and is not handed in with it: copy what you use of "
            "it into a cell"
        )
    if one.get("question"):
        by_question.setdefault(one["question"], one)


def found_in_itself(exercise):
    """A notebook's own cells as the steps to run."""
    steps = [
        Step("answer" if cell.role == "answer" else "pristine", cell, cell.source)
        for cell in exercise.cells
    ]
    return Transplant(steps, dict.fromkeys(exercise.questions, GIVEN), [])


def said_of(name, found, told, begun):
    """The `Said` of one question; ``begun`` is the cell that was begun last."""
    if found == NOT_ATTEMPTED:
        return Said(name, NOT_WRITTEN, f"{name}: not written yet. It is as it was handed out.")
    if found != GIVEN:
        return Said(name, WRONG, f"{name}: there is no cell that defines {name}.")
    if told is None:
        cell = f"the cell that begins with '{beginning(begun)}'"
        text = f"{name}: not reached: {cell} never ends, or ends Python"
        return Said(name, WRONG, text)
    text = told["text"]
    if told.get("is_cell"):
        text = f"{name}: wrong. Its cell fails: {text}"
    status = {"not written": NOT_WRITTEN}.get(told["status"], told["status"])
    return Said(name, status, text)


def run_steps(steps, folder, limit_s):
    """Run steps in a process of their own, in the notebook's folder; yields what is told."""
    with subprocess.Popen(
        COMMAND,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        text=True,
        encoding="utf-8",
    ) as process:
        timer = threading.Timer(limit_s, process.kill)
        timer.daemon = True
        timer.start()
        try:
            process.stdin.write(json.dumps(steps))
            process.stdin.close()
            for line in process.stdout:
                if line.startswith("{"):
                    yield json.loads(line)
        finally:
            timer.cancel()
            process.kill()

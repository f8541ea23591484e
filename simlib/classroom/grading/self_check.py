"""`simlib check`: run the public checks of a notebook, for the student who writes it.

``python -m simlib.classroom.grading.self_check`` is the process that runs the cells, as JupyterLab
does. It reads the steps as JSON. It writes a line of JSON at the beginning of each cell, for each
check, and at the end.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from ...core.environment import GIVEN_COURSE
from .exercise import CASES, exercise_of, read_exercise
from .merge_answers import (
    GIVEN,
    NOT_ATTEMPTED,
    MergedNotebook,
    Step,
    beginning,
    failure,
    merge_answers,
)
from .notebook_file import Unreadable, parse, read_bytes
from .sandbox import Limits
from .source import SOURCES, exercise_files

PRISTINE = ".pristine"
"""The folder in a handout that contains the unchanged exercises."""
COMMAND = [sys.executable, "-m", "simlib.classroom.grading.self_check"]
"""The command that runs a notebook's steps."""
POLL_S = 0.25
"""Seconds between two looks whether this program still runs."""
END_S = 5
"""Seconds in which the program must end by itself after its last line."""
TIDY_S = 1
"""Seconds in which the program's children must end when asked. After that, they are killed."""
RIGHT, WRONG, NOT_WRITTEN = "right", "wrong", "not written yet"


@dataclass(frozen=True)
class CheckResult:
    """The result of a check: the question's name, the status, the text for the student, and the
    points."""

    question: str
    status: str
    text: str
    points: int = 0


def exercises_in(path):
    """Return the notebooks to check at a path: the file itself, or all files in a folder whose
    names begin like exercises."""
    path = Path(path)
    return exercise_files(path, ".ipynb") or [path] if path.is_dir() else [path]


def pristine_of(path):
    """Return ``(Exercise, whether it is pristine)`` of a notebook in which a student works.

    A handout contains the pristine exercise. In a checkout, simlib makes it from the source. An
    installed wheel contains it. Otherwise simlib uses the notebook's own check cells.

    Raises
    ------
    Unreadable
        simlib cannot read the notebook.
    """
    path = Path(path).resolve()
    if path.exists() and path.suffix != ".ipynb":
        raise Unreadable(
            "there is no exercise in this folder"
            if path.is_dir()
            else "the file is no notebook, because its name does not end in .ipynb"
        )
    for folder in (path.parent.parent, path.parent):
        copy = named_like(path, folder / PRISTINE, ".ipynb")
        if copy:
            notebook = json.loads(copy.read_text(encoding="utf-8"))
            return exercise_of(notebook, copy.stem, cases_beside(copy)), True
        source = named_like(path, folder / SOURCES, ".py")
        if source:
            return read_exercise(source).as_shown(), True
    copy = named_like(path, GIVEN_COURSE / "exercises", ".ipynb")
    if copy:
        return exercise_of(json.loads(copy.read_text(encoding="utf-8")), copy.stem, ""), True
    parse(read_bytes(path))  # its reason is better than ours, where it cannot be read
    try:
        notebook = json.loads(path.read_text(encoding="utf-8-sig"))
        return exercise_of(notebook, path.stem, cases_beside(path)), False
    except (KeyError, TypeError, ValueError, AttributeError):
        raise Unreadable(
            "the file has no check cells, and not the name of an exercise: work in the notebook "
            "that was handed out, and keep its name"
        ) from None


def cases_beside(notebook):
    """Return the expected answers for a pristine notebook; empty if the handout has no such
    file."""
    path = notebook.parent / Path(CASES).name / f"{notebook.stem}.py"
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def named_like(path, folder, ending):
    """Return the file in a folder with whose name a notebook's name begins: 04_x for 04_x-Copy1."""
    names = (one for one in exercise_files(folder, ending) if path.stem.startswith(one.stem))
    return max(names, key=lambda one: len(one.stem), default=None)


def check_notebook(path, limit_s=600):
    """Check a notebook. Return ``(iterator, list)``: the results of its questions, and notes.

    Each question's `CheckResult` appears as soon as its check has run. The list of notes is
    complete when the iterator has ended.

    Parameters
    ----------
    path : str or Path
    limit_s : float
        Seconds for the whole notebook.

    Raises
    ------
    Unreadable, WrongNotebook
        simlib cannot check the notebook. The message gives the reason.
    """
    exercise, is_pristine = pristine_of(path)
    if not exercise.questions:
        raise Unreadable("this notebook has no questions: is this an exercise?")
    merged = merge_answers(exercise, parse(read_bytes(path)))
    if not is_pristine:  # its own cells are all there is, and nobody knows the stubs
        merged = own_cells(exercise)
        merged.notes.append(
            "this folder has no exercise of this name, so the notebook's own check cells were "
            "used. Was the notebook renamed?"
        )
    steps = [
        {
            "kind": step.cell.role if step.cell else "helper",
            "question": step.cell.question if step.cell else None,
            "source": step.source,
        }
        for step in merged.steps
    ]
    if exercise.cases:  # not those beside the notebook, which may have been changed
        steps.insert(0, {"kind": "cases", "question": None, "source": exercise.cases})
    notes = list(merged.notes)
    messages = run_steps(steps, Path(path).resolve().parent, limit_s)
    return in_order(exercise.questions, merged.found, messages, notes), notes


def in_order(questions, found, messages, notes):
    """Yield the `CheckResult` of each question, in the notebook's order, as soon as it is known."""
    by_question, reason = {}, ""
    for name in questions:
        while found.get(name) == GIVEN and name not in by_question:
            one = next(messages, None)
            if one is None:
                break
            reason = why_not_reached(one) or reason
            take(one, by_question, notes)
        yield result_of(name, found.get(name), by_question.get(name), reason)
    for one in messages:
        take(one, by_question, notes)


def why_not_reached(one):
    """Return why the run ended, if no message follows this one. None leaves the reason
    unchanged."""
    if "begins" in one:
        return f"the cell that begins with '{beginning(one['begins'])}' never ends, or ends Python"
    if "not started" in one:
        return f"Python did not start: {one['not started']}"
    return None


def take(one, by_question, notes):
    """Handle one message: a question's verdict, or the error of a cell of the student's own."""
    if one.get("is_cell") and not one["question"]:
        notes.append(failure(one["source"], one["text"]))
    for file in one.get("beside", ()):
        notes.append(
            f"{file} is next to the notebook and is not handed in with it: copy the code that "
            "you use into a cell"
        )
    if one.get("question"):
        by_question.setdefault(one["question"], one)


def own_cells(exercise):
    """Return the steps to run for a notebook without a pristine copy: its own cells."""
    steps = [
        Step("answer" if cell.role == "answer" else "pristine", cell, cell.source)
        for cell in exercise.cells
    ]
    return MergedNotebook(steps, dict.fromkeys(exercise.questions, GIVEN), [])


def result_of(name, found, message, reason):
    """Return the `CheckResult` of one question. If no message came for it, ``reason`` says why."""
    if found == NOT_ATTEMPTED:
        return CheckResult(
            name, NOT_WRITTEN, f"{name}: not written yet. It is as it was handed out."
        )
    if found != GIVEN:
        return CheckResult(name, WRONG, f"{name}: there is no cell that defines {name}.")
    if message is None:
        return CheckResult(name, WRONG, f"{name}: not reached: {reason}")
    text = message["text"]
    if message.get("is_cell"):
        text = f"{name}: wrong. Its cell fails: {text}"
    status = {"not written": NOT_WRITTEN}.get(message["status"], message["status"])
    return CheckResult(name, status, text, message.get("points", 0))


def run_steps(steps, folder, limit_s):
    """Run steps in a separate process, in the notebook's folder; yields its messages."""
    with tempfile.TemporaryFile() as request, tempfile.TemporaryFile() as errors:
        request.write(json.dumps(steps).encode())
        request.seek(0)
        with subprocess.Popen(
            COMMAND,
            stdin=request,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=folder,
            start_new_session=True,
        ) as process:
            try:
                yield from messages_of(process, errors, time.monotonic() + limit_s)
            finally:
                end_group(process)


def messages_of(process, errors, until):
    """Yield the messages of a process. After its last line, the process gets some time to end by
    itself."""
    has_begun = False
    for line in lines_of(process, until):
        if not line.startswith(b"{"):
            continue
        one = json.loads(line)
        has_begun = True
        yield one
        if "beside" in one:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            return
    if not has_begun:
        yield {"not started": last_line(errors)}


def lines_of(process, until):
    """Yield the lines that a process writes until it has ended. End the process if it takes too
    long.

    This does not wait for the end of the pipe, because children of the process may keep the pipe
    open for longer.
    """
    pipe, rest = process.stdout.fileno(), b""
    while True:
        if time.monotonic() > until:
            end_group(process)
        has_ended = process.poll() is not None
        is_ready, _, _ = select.select([pipe], [], [], 0 if has_ended else POLL_S)
        data = os.read(pipe, 1 << 16) if is_ready else b""
        if not data and (is_ready or has_ended):
            return
        *lines, rest = (rest + data).split(b"\n")
        yield from lines


def last_line(errors):
    """Return the last line of a process's stderr."""
    errors.seek(0)
    lines = errors.read().decode("utf-8", "replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "it gave no reason")


def end_group(process):
    """End a process and its children. A second call does no harm."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        # multiprocessing's tracker does not heed it, and frees what the others shared.
        os.killpg(process.pid, signal.SIGTERM)
        until = time.monotonic() + TIDY_S
        while time.monotonic() < until:
            process.poll()
            os.killpg(process.pid, 0)
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


class StillRunning(BaseException):
    """A cell does not end. This is no `Exception`, so that a loop in the cell that catches every
    `Exception` ends, too."""


def main():
    """Run the steps from standard input, and write the answers to the original stdout."""
    from ..checks import verdict  # these import torch, and the caller of this program needs none
    from .shell import new_shell

    steps, limits = json.load(sys.stdin), Limits()
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")

    def send(message):
        answers.write(json.dumps(message) + "\n")

    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)  # what cells print is theirs to look at
    here, there, began = os.getcwd(), set(os.listdir()), time.time()
    shell = new_shell()
    os.dup2(nothing, 2)
    failed = set()
    for step in steps:
        question = step["question"]
        if step["kind"] == "cases":
            verdict.handed_in = verdict.Cases(step["source"], "the exercise's checks")
            continue
        if step["kind"] == "check" and question in failed:
            continue
        send({"begins": step["source"]})
        limit_s = limits.cell_s if step["kind"] == "check" else limits.answer_s
        outcome = run_for_a_time(shell, step["source"], int(limit_s))
        if step["kind"] == "check":
            send({"question": question, **verdict_in(shell, outcome, question)})
        elif outcome["error"] is not None:
            message = {"question": question, "status": "wrong", "text": outcome["error"]}
            send(message | {"is_cell": True, "source": step["source"]})
            if question:
                failed.add(question)
    send({"beside": modules_beside(here, there, began)})


def run_for_a_time(shell, source, limit_s):
    """Run one cell. If it takes too long, end it, so that the cells after it can run."""
    from .shell import run_cell  # as above

    def too_long(*_):
        raise StillRunning(f"the check was stopped after {limit_s} s. Grading has the same limit")

    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(limit_s)
    try:
        return run_cell(shell, source)
    finally:
        signal.alarm(0)


def modules_beside(here, there, began):
    """Return files and folders next to the notebook that its cells may import but have not written.

    Parameters
    ----------
    here : str
        The notebook's folder.
    there : set of str
        The names in this folder before the first cell.
    began : float
        The time of the first cell, in seconds since the epoch.
    """
    found = set()
    for module, loaded in list(sys.modules.items()):
        file = getattr(loaded, "__file__", None)
        if not isinstance(file, str) or not is_older(file, began):
            continue
        name, _, below = os.path.relpath(file, here).partition(os.sep)
        package = module.partition(".")[0]
        if name in there and (not below or name == package != "simlib"):
            found.add(name + os.sep if below else name)
    return sorted(found)


def is_older(file, began):
    """Whether a file exists and was last written before a time."""
    try:
        return os.stat(file).st_ctime < began
    except (OSError, ValueError):
        return False


def verdict_in(shell, outcome, question):
    """Return the output of the check cell that has just run."""
    if outcome["error"] is not None:
        text = f"{question}: wrong. The check could not be run: {outcome['error']}"
        return {"status": "wrong", "text": text}
    verdict = shell.user_ns.get("verdict")
    if getattr(verdict, "question", None) != question:
        return {"status": "wrong", "text": f"{question}: wrong. Its check gave no verdict."}
    return {"status": verdict.in_words, "text": repr(verdict), "points": verdict.earned}


if __name__ == "__main__":
    main()

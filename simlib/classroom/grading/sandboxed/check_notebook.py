"""Run a student's notebook up to its public checks, for the student: on their own machine.

``python -m simlib.classroom.grading.sandboxed.check_notebook`` reads the steps as JSON and writes a
line of JSON where a cell begins, for each check, and at the end. The cells run here, in this
process, as they do in JupyterLab.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from ...checks import cases
from ..sandbox import Limits
from .shell import new_shell, run_cell


class StillRunning(BaseException):
    """A cell that does not end; no `Exception`, so that a loop which catches those ends, too."""


def main():
    """Run the steps of standard input; the answers go to what was standard output."""
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
            cases.handed_in = cases.Cases(step["source"], "the exercise's checks")
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
    """Run one cell, and end it where it takes too long; the others are run after it."""

    def too_long(*_):
        raise StillRunning(f"it was ended after {limit_s} s, as it is when it is graded")

    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(limit_s)
    try:
        return run_cell(shell, source)
    finally:
        signal.alarm(0)


def modules_beside(here, there, began):
    """Files and folders beside the notebook that its cells import, but for what they write.

    Parameters
    ----------
    here : str
        The notebook's folder.
    there : set of str
        The names in it before the first cell.
    began : float
        When that was, in seconds since the epoch.
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
    """Whether a file is there, and was last written before a time."""
    try:
        return os.stat(file).st_ctime < began
    except (OSError, ValueError):
        return False


def verdict_in(shell, outcome, question):
    """What the check cell that has just run says."""
    if outcome["error"] is not None:
        return {
            "status": "wrong",
            "text": f"{question}: wrong. The check could not be run: {outcome['error']}",
        }
    verdict = shell.user_ns.get("verdict")
    if getattr(verdict, "question", None) != question:
        return {"status": "wrong", "text": f"{question}: wrong. Its check gave no verdict."}
    return {"status": verdict.in_words, "text": repr(verdict), "points": verdict.earned}


if __name__ == "__main__":
    main()

"""Run a student's notebook up to its public checks, for the student: on their own machine.

``python -m simlib.grading.inside.public`` reads the steps as JSON and writes a line of JSON where
a cell begins, and for each check. The cells run here, in this process, as they do in JupyterLab.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from ..sandbox import Limits
from .shell import new_shell, run_cell

CHECK_S = 120
"""Seconds that a check may take; a student's cell may take as many as when it is graded."""


class StillRunning(BaseException):
    """A cell that does not end; no `Exception`, so that a loop which catches those ends, too."""


def main():
    """Run the steps of standard input; the answers go to what was standard output."""
    steps = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what cells print is theirs to look at
    shell = new_shell()
    failed = {}
    for step in steps:
        question = step["question"]
        if step["kind"] == "check" and question in failed:
            continue
        answers.write(json.dumps({"begins": step["source"]}) + "\n")
        limit_s = CHECK_S if step["kind"] == "check" else int(Limits().answer_s)
        came = run_for_a_time(shell, step["source"], limit_s)
        if step["kind"] == "check":
            told = {"question": question, **verdict_in(shell, came, question)}
            answers.write(json.dumps(told) + "\n")
        elif came["error"] is not None:
            told = {"question": question, "status": "wrong", "text": came["error"]}
            answers.write(json.dumps(told | {"is_cell": True, "source": step["source"]}) + "\n")
            if question:
                failed[question] = came["error"]
    answers.write(json.dumps({"beside": modules_beside(steps)}) + "\n")


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


def modules_beside(steps):
    """Files in the notebook's folder that its cells import, but for those that they write."""
    here = os.getcwd() + os.sep
    files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    names = sorted(file.removeprefix(here) for file in files if file.startswith(here))
    own = [name for name in names if os.sep not in name]
    return [n for n in own if not any(f"writefile {n}" in step["source"] for step in steps)]


def verdict_in(shell, came, question):
    """What the check cell that has just run says."""
    if came["error"] is not None:
        return {
            "status": "wrong",
            "text": f"{question}: wrong. The check could not be run: {came['error']}",
        }
    verdict = shell.user_ns.get("verdict")
    if getattr(verdict, "question", None) != question:
        return {"status": "wrong", "text": f"{question}: wrong. Its check gave no verdict."}
    return {"status": verdict.status, "text": repr(verdict)}


if __name__ == "__main__":
    main()

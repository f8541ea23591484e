"""Run a student's notebook up to its public checks, for the student: on their own machine.

``python -m simlib.grading.inside.public`` reads the steps as JSON and writes a line of JSON for
each check. The cells run here, in this process, as they do in JupyterLab.
"""

from __future__ import annotations

import json
import os
import sys

from .shell import new_shell, run_cell


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
        came = run_cell(shell, step["source"])
        if step["kind"] == "check":
            told = {"question": question, **verdict_in(shell, came, question)}
            answers.write(json.dumps(told) + "\n")
        elif came["error"] is not None:
            told = {"question": question, "status": "wrong", "text": came["error"]}
            answers.write(json.dumps(told | {"is_cell": True, "source": step["source"]}) + "\n")
            if question:
                failed[question] = came["error"]


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

"""`check_of`: the check of one task, whose cases lie in a file beside the exercise.

The file is made of the exercise's source, by every install: after an import, a cell for each task
that begins with ``# %% 07.3 batch_statistics`` and ends with its verdict. Nothing of it stands in
the notebook, where it could be read off.
"""

from __future__ import annotations

import builtins
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...core.environment import GIVEN, ROOT
from ...core.model.errors import InvalidCallError
from .verdict import RIGHT, Verdict

FOLDER = "checks"
"""Of the files with cases, beside the exercises."""
CELL = re.compile(r"^# %% (\w+\.\d+) (\S+)$", re.MULTILINE)
NBVAL = re.compile(r"\.ipynb::")
"""In the name of pytest's test, which the kernels that nbval starts find in their environment."""


class NotSolved(AssertionError):
    """A check that is not right, where pytest runs the notebook; the message is its verdict."""


@dataclass(frozen=True)
class Cases:
    """The cases of one exercise.

    Attributes
    ----------
    text : str
        Of the whole file.
    name : str
        What tracebacks call it: its path, if it is a file.
    """

    text: str
    name: str

    def head(self):
        """What every task needs, before the first of them."""
        return compile(CELL.split(self.text, maxsplit=1)[0], self.name, "exec")

    def of(self, task):
        """``(question, code)`` of a task such as ``"07.3"``; None where it has no such task."""
        found = list(CELL.finditer(self.text))
        ends = [one.start() for one in found[1:]] + [len(self.text)]
        for one, end in zip(found, ends, strict=True):
            if one[1] == task:
                above = "\n" * self.text.count("\n", 0, one.end())
                code = compile(above + self.text[one.end() : end], self.name, "exec")
                return one[2], code
        return None


handed_in: Cases | None = None
"""What is used in the place of any file: `simlib check` has the cases as they were handed out."""
instead: Callable[[str, Callable], Verdict] | None = None
"""What `check_of` does where cells run in grading, which checks the answers itself."""


def check_of(task: str, answer: Callable) -> Verdict:
    """Check the answer to a task: on worlds of several sizes, smallest first.

    The cases see the names of the notebook, and leave none there. Where pytest runs the notebook
    (`pytest --nbval`) a verdict that is not right is an error, so that the test fails.

    Parameters
    ----------
    task : str
        ``"07.3"`` is the third task of exercise 07, ``"review.3"`` that of the review.
    answer : callable
        The function that answers it.

    Returns
    -------
    Verdict

    Raises
    ------
    InvalidCallError
        There is no such task, or the file with its cases is nowhere to be found.
    """
    if instead:
        return instead(task, answer)
    cases = handed_in or cases_of(task)
    found = cases.of(task)
    if found is None:
        raise InvalidCallError(f"{cases.name} has no task {task}: is it of another edition?")
    question, code = found
    names = without_shadows(sys._getframe(1).f_globals)
    exec(cases.head(), names)
    names[question] = answer
    exec(code, names)
    verdict = names["verdict"]
    if verdict.status != RIGHT and is_test():
        raise NotSolved(repr(verdict))
    return verdict


def without_shadows(names):
    """A copy of a notebook's names; one such as ``len = 4`` means what Python means by it."""
    is_name = {name: name.startswith("__") or not hasattr(builtins, name) for name in names}
    return {name: value for name, value in names.items() if is_name[name]}


def cases_of(task):
    """The `Cases` of a task's exercise: beside the notebook, or else of the course installed."""
    number = str(task).partition(".")[0]
    here = Path.cwd()
    around = (here, here.parent / "exercises", here / "exercises", ROOT / "exercises")
    for folder in (*(one / FOLDER for one in around), GIVEN):
        for path in sorted(folder.glob("*.py")):
            if path.stem.partition("_")[0] == number:
                return Cases(path.read_text(encoding="utf-8"), str(path))
    if (ROOT / "authoring" / "exercises").is_dir():
        raise InvalidCallError(
            f"the cases of task {task} are not here: `make install` in {ROOT} writes them"
        )
    raise InvalidCallError(
        f"the cases of task {task} are not here: copy the folder exercises/{FOLDER} of the course "
        f"beside this notebook, so that there is {here / FOLDER}"
    )


def is_test():
    """Whether this kernel was started by nbval, to test a notebook."""
    return bool(NBVAL.search(os.environ.get("PYTEST_CURRENT_TEST", "")))

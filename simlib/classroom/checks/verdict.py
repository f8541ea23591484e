"""`Verdict` is the result of a check. `check_of` checks one task. `guess` checks a guess.

The cases of a task are in a file next to the exercise. Every install makes this file from the
exercise's source. The file begins with imports. A cell for each task follows. It begins with a line
such as ``# %% 07.3 batch_statistics`` and ends with the verdict. The notebook contains no cases.
"""

from __future__ import annotations

import builtins
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from ...core.draw.text import count
from ...core.environment import GIVEN, ROOT
from ...core.model.errors import InvalidCallError
from ..parts import VALUE, in_words

if TYPE_CHECKING:
    from ...core.results.run import Run

NOT_WRITTEN = "not written"
WRONG = "wrong"
RIGHT = "right"


@dataclass
class Verdict:
    """The outcome of one check. Its text is the same for every repeat of the same answer.

    Attributes
    ----------
    question : str
        Name of the question.
    parts : dict of str to int
        Points for a right answer, by part, for example ``{"value": 2}``. Other parts are
        ``"traffic"``, ``"time"`` and ``"memory"``.
    status : str
        ``"not written"``, ``"wrong"`` or ``"right"``.
    reason : str
        One or two sentences about the mistake and its likely cause, or about the counts.
    world_size : int or None
        The smallest world that fails. If all worlds are right, the largest world that was tried.
    lines : list of str
        Details, one line per rank or per rule.
    run : Run or None
        The run to which the verdict refers. ``verdict.run`` at the end of a cell draws its
        timeline.
    is_as_given : bool
        Whether the answer is still the broken program of a task to fix.
    lost : list of str
        The parts that get no points. If the values are wrong, no part gets points.
    """

    question: str
    parts: dict
    status: str
    reason: str = ""
    world_size: int | None = None
    lines: list = field(default_factory=list)
    run: Any = None
    is_as_given: bool = False
    lost: list = field(default_factory=lambda: [VALUE])

    @property
    def points(self) -> int:
        """Points for a right answer."""
        return sum(self.parts.values())

    @property
    def earned(self) -> int:
        """The points that the answer earns. An answer with right values may still lose some
        parts."""
        if self.status == RIGHT:
            return self.points
        if self.status == NOT_WRITTEN or VALUE in self.lost:
            return 0
        return sum(each for part, each in self.parts.items() if part not in self.lost)

    @property
    def in_words(self) -> str:
        """The status of the answer, or "partly right"."""
        return "partly right" if 0 < self.earned < self.points else self.status

    def __repr__(self) -> str:
        if self.status == NOT_WRITTEN and not self.is_as_given:
            return (
                f"{self.question}: not written yet. {self.reason}\n"
                "Write your answer in the cell above, run it, then run this cell again."
            )
        head = f"{self.question}: {self.in_words}, {self.earned} of {self.points} points."
        if self.is_as_given:
            head = f"{self.question}: not written yet. This is still the broken program."
        if self.status != RIGHT and self.world_size is not None:
            head += f" Smallest world that fails: {count(self.world_size, 'rank')}."
        text = [head, self.reason, *("  " + line for line in self.lines)]
        if self.status != RIGHT and self.run is not None and len(self.run.trace):
            text.append("To see who sent what to whom, run `verdict.run` in a new cell.")
        if self.status == WRONG and self.earned:
            text.append(in_words(self.parts, self.lost))
        return "\n".join(text)


def values_are_right(run: Run) -> str:
    """The first half of a sentence that continues with "but". Larger worlds are not tried yet."""
    return f"In this world of {run.world_size} the values are right"


FOLDER = "checks"
"""The folder of the files with cases, next to the exercises."""
CELL = re.compile(r"^# %% (\w+\.\d+) (\S+)$", re.MULTILINE)
NBVAL = re.compile(r"\.ipynb::")
"""Kernels that nbval starts find the name of pytest's test in their environment. It contains this
text."""


class NotSolved(AssertionError):
    """The error for a verdict that is not right, if pytest runs the notebook. It shows the
    verdict."""


@dataclass(frozen=True)
class Cases:
    """The cases of one exercise.

    Attributes
    ----------
    text : str
        Text of the whole file.
    name : str
        The name of the text in tracebacks. For a file, it is the path.
    """

    text: str
    name: str

    def head(self) -> CodeType:
        """The code that every task needs, before the first task."""
        return compile(CELL.split(self.text, maxsplit=1)[0], self.name, "exec")

    def of(self, task: str) -> tuple[str, CodeType] | None:
        """``(question, code)`` of a task such as ``"07.3"``. None if there is no such task."""
        found = list(CELL.finditer(self.text))
        ends = [one.start() for one in found[1:]] + [len(self.text)]
        for one, end in zip(found, ends, strict=True):
            if one[1] == task:
                above = "\n" * self.text.count("\n", 0, one.end())
                code = compile(above + self.text[one.end() : end], self.name, "exec")
                return one[2], code
        return None


handed_in: Cases | None = None
"""Cases to use instead of any file. `simlib check` puts the cases here that students received."""
instead: Callable[[str, Callable], Verdict] | None = None
"""A function that replaces `check_of` while grading runs the cells, and checks the answers."""


def check_of(task: str, answer: Callable) -> Verdict:
    """Check the answer to a task on worlds of several sizes, smallest first.

    The cases can use the notebook's names, but they add no names to the notebook. If pytest runs
    the notebook (`pytest --nbval`), a verdict that is not right is an error, so the test fails.

    Parameters
    ----------
    task : str
        ``"07.3"`` is the third task of exercise 07. ``"review.3"`` is the third task of the review.
    answer : callable
        The function that answers the task.

    Returns
    -------
    Verdict

    Raises
    ------
    InvalidCallError
        There is no such task, or simlib cannot find the file with its cases.
    """
    if instead:
        return instead(task, answer)
    cases = handed_in or cases_of(task)
    found = cases.of(task)
    if found is None:
        raise InvalidCallError(
            f"{cases.name} has no task {task}: does the notebook belong to another edition of the "
            "course?"
        )
    question, code = found
    names = without_shadows(sys._getframe(1).f_globals)
    exec(cases.head(), names)
    names[question] = answer
    exec(code, names)
    verdict = names["verdict"]
    if verdict.status != RIGHT and is_test():
        raise NotSolved(repr(verdict))
    return verdict


def without_shadows(names: Mapping[str, object]) -> dict[str, Any]:
    """A copy of a notebook's names, without names that hide Python's own names, such as ``len =
    4``."""
    is_name = {name: name.startswith("__") or not hasattr(builtins, name) for name in names}
    return {name: value for name, value in names.items() if is_name[name]}


def cases_of(task: str) -> Cases:
    """The `Cases` of a task's exercise, next to the notebook, or else from the installed course."""
    number = str(task).partition(".")[0]
    here = Path.cwd()
    around = (here, here.parent / "exercises", here / "exercises", ROOT / "exercises")
    for folder in (*(one / FOLDER for one in around), GIVEN):
        for path in sorted(folder.glob("*.py")):
            if path.stem.partition("_")[0] == number:
                return Cases(path.read_text(encoding="utf-8"), str(path))
    if (ROOT / "authoring" / "exercises").is_dir():
        raise InvalidCallError(
            f"the expected answers of task {task} are missing: to write them, run `make install` "
            f"or `pip install -e .` in {ROOT}"
        )
    raise InvalidCallError(
        f"the expected answers of task {task} are missing: copy the folder exercises/{FOLDER} of "
        f"the course next to this notebook, to {here / FOLDER}"
    )


def is_test() -> bool:
    """Whether this kernel was started by nbval, to test a notebook."""
    return bool(NBVAL.search(os.environ.get("PYTEST_CURRENT_TEST", "")))


THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?")
DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+")


def guess(yours: object, right: object, *, within: float = 0.0, of: Sequence = ()) -> None:
    """Print how a guess compares with the right value. Without a guess (None) it prints nothing.

    A wrong guess raises no error, so "Run All" does not stop.

    Parameters
    ----------
    yours : object
        The guess: a number, a text, True or False. If it is another object, `guess` only shows the
        guess. A text may contain a number as people write it, for example "1,200", "12,5", "7/4" or
        "0.6 %".
    right : object
        The right value.
    within : float
        A number is near enough if its error is at most this share of ``right``. 0.1 means 10 %.
    of : sequence
        The possible values, if the guess is a choice between values. If a value is a number, it
        counts as a name, for example of a rank or a chunk. So `guess` prints no ratio.

    Examples
    --------
    >>> guess(None, 12)
    >>> guess(12, 12)
    Your guess is right: 12.
    >>> guess(6, 12)
    Your guess was 6. The right value is 12. This is 2 times your guess.
    >>> guess(11.5, 12, within=0.1)
    Your guess of 11.5 is near enough. The right value is 12.
    >>> guess("Rank 0", "rank 1", of=("rank 0", "rank 1"))
    Your guess was rank 0. The right value is rank 1.
    """
    if yours is not None:
        print(said_of(yours, right, within, of))


def said_of(yours: object, right: object, within: float, of: Sequence) -> str:
    """The sentence that `guess` prints."""
    choices = [text(one) for one in of]
    if choices and folded(yours) not in map(folded, choices):
        return f"{text(yours)} is not one of these: {', '.join(choices)}."
    mine, other = number_of(yours), number_of(right)
    if other is None or choices:
        is_right = folded(yours) == folded(right)
        shown = next((one for one in choices if folded(one) == folded(yours)), text(yours))
        said = f"Your guess was {shown}. The right value is {text(right)}."
        return f"Your guess is right: {text(right)}." if is_right else said
    if mine is None:
        return f"Your guess {text(yours)} is not a number. The right value is {text(right)}."
    if mine == other or text(yours) == text(right):
        return f"Your guess is right: {text(right)}."
    if abs(mine - other) <= within * abs(other):
        return f"Your guess of {text(yours)} is near enough. The right value is {text(right)}."
    return f"Your guess was {text(yours)}. The right value is {text(right)}{how_far(mine, other)}."


def how_far(mine: float, other: float) -> str:
    """A clause with the ratio of the right value to the guess; empty if the ratio has no
    meaning."""
    if not (mine * other > 0 and math.isfinite(mine * other)) or other < 0:
        return ""
    if 1.5 <= other / mine < math.inf:
        return f". This is {other / mine:.3g} times your guess"
    return f". Your guess is {mine / other:.3g} times that" if mine / other >= 1.5 else ""


def number_of(value: Any) -> float | None:
    """The float of a value: a number, an array or tensor of one element, or a text of a number."""
    if isinstance(value, bool):
        return None
    try:
        number = written(value.strip()) if isinstance(value, str) else float(value)
    except Exception:  # whatever a learner has written there
        return None
    return None if math.isnan(number) else number


def written(line: str) -> float:
    """The value of a number as people write it: with commas, as a fraction, or in per cent."""
    if line.endswith("%"):
        return written(line[:-1].strip()) / 100
    if THOUSANDS.fullmatch(line):
        return float(line.replace(",", ""))
    if DECIMAL_COMMA.fullmatch(line):
        return float(line.replace(",", "."))
    return float(Fraction(line.replace(" ", "")) if "/" in line else line)


def folded(value: object) -> str:
    """A text in a form without upper case, outer spaces and quotes, to compare it with others."""
    return " ".join(text(value).casefold().strip(" '\"`").split())


def text(value: object) -> str:
    """A value in one line. Numbers have six digits."""
    number = number_of(value)
    if number is not None and not isinstance(value, str):
        return f"{number:,.0f}" if is_whole(number) else f"{number:.6g}"
    try:
        line = " ".join(str(value).split())
    except Exception:  # its own __str__ fails
        line = f"a {type(value).__name__}"
    return line if len(line) <= 60 else line[:57] + "..."


def is_whole(number: float) -> bool:
    """Whether a float is a whole number that floats represent exactly."""
    return number == math.floor(number) and abs(number) < 2**53 if math.isfinite(number) else False

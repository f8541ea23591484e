"""`Verdict`, what a check says; `check_of`, the check of one task; `guess`, a word on a guess.

The cases of a task lie in a file beside the exercise, which every install makes of the exercise's
source. After an import it has a cell for each task, which begins with
``# %% 07.3 batch_statistics`` and ends with its verdict. The notebook holds none of it.
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
        What a right answer is worth, by part: ``{"value": 2}``, say, or with ``"traffic"``,
        ``"time"`` and ``"memory"``.
    status : str
        ``"not written"``, ``"wrong"`` or ``"right"``.
    reason : str
        One or two sentences: what is wrong and a likely cause, or what was counted.
    world_size : int or None
        The smallest world that fails; the largest that was tried where all are right.
    lines : list of str
        Details, one line per rank or per rule.
    run : Run or None
        The run the verdict speaks of: ``verdict.run`` at the end of a cell draws its timeline.
    is_as_given : bool
        Whether the answer is still the broken program of a task to mend.
    lost : list of str
        The parts that a wrong answer does not earn; without the value it earns none.
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
        """What a right answer is worth."""
        return sum(self.parts.values())

    @property
    def earned(self) -> int:
        """Points earned: of a right answer all, of one with the right values its parts kept."""
        if self.status == RIGHT:
            return self.points
        if self.status == NOT_WRITTEN or VALUE in self.lost:
            return 0
        return sum(each for part, each in self.parts.items() if part not in self.lost)

    @property
    def in_words(self) -> str:
        """Its status, or "partly right"."""
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
            text.append("To see who sent what to whom in this run: `verdict.run` in a new cell.")
        if self.status == WRONG and self.earned:
            text.append(in_words(self.parts, self.lost))
        return "\n".join(text)


def values_are_right(run: Run) -> str:
    """The beginning of a sentence that goes on with "but": larger worlds are yet to be tried."""
    return f"In this world of {run.world_size} the values are right"


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

    def head(self) -> CodeType:
        """What every task needs, before the first of them."""
        return compile(CELL.split(self.text, maxsplit=1)[0], self.name, "exec")

    def of(self, task: str) -> tuple[str, CodeType] | None:
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


def without_shadows(names: Mapping[str, object]) -> dict[str, Any]:
    """A copy of a notebook's names; one such as ``len = 4`` means what Python means by it."""
    is_name = {name: name.startswith("__") or not hasattr(builtins, name) for name in names}
    return {name: value for name, value in names.items() if is_name[name]}


def cases_of(task: str) -> Cases:
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
            f"the cases of task {task} are not here: `make install` in {ROOT} writes them, "
            "and so does `pip install -e .` there"
        )
    raise InvalidCallError(
        f"the cases of task {task} are not here: copy the folder exercises/{FOLDER} of the course "
        f"beside this notebook, so that there is {here / FOLDER}"
    )


def is_test() -> bool:
    """Whether this kernel was started by nbval, to test a notebook."""
    return bool(NBVAL.search(os.environ.get("PYTEST_CURRENT_TEST", "")))


THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?")
DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+")


def guess(yours: object, right: object, *, within: float = 0.0, of: Sequence = ()) -> None:
    """Print how a guess compares with what it is; print nothing where nobody has guessed (None).

    It never raises, whatever was guessed, so it stops no Run All.

    Parameters
    ----------
    yours : object
        A number, or one of few: a text, True or False. Anything else is told apart, no more. A text
        may hold a number as people write it: "1,200", "12,5", "7/4".
    right : object
        What it is.
    within : float
        Share of ``right`` by which a number may be off and is near enough: 0.1 is 10 %.
    of : sequence
        Where one of few is to be guessed: these. Numbers among them are names, such as those of
        ranks and chunks: nothing is said of how many times as much.

    Examples
    --------
    >>> guess(None, 12)
    >>> guess(12, 12)
    Your guess is right: 12.
    >>> guess(6, 12)
    Your guess was 6, it is 12: 2 times as much.
    >>> guess(11.5, 12, within=0.1)
    Your guess of 11.5 is near enough: it is 12.
    >>> guess("Rank 0", "rank 1", of=("rank 0", "rank 1"))
    Your guess was rank 0, it is rank 1.
    """
    if yours is not None:
        print(said_of(yours, right, within, of))


def said_of(yours: object, right: object, within: float, of: Sequence) -> str:
    """The sentence that `guess` prints."""
    choices = [text(one) for one in of]
    if choices and folded(yours) not in map(folded, choices):
        return f"{text(yours)} is none of these: {', '.join(choices)}."
    mine, other = number_of(yours), number_of(right)
    if other is None or choices:
        is_right = folded(yours) == folded(right)
        shown = next((one for one in choices if folded(one) == folded(yours)), text(yours))
        said = f"Your guess was {shown}, it is {text(right)}."
        return f"Your guess is right: {text(right)}." if is_right else said
    if mine is None:
        return f"{text(yours)} is no number; it is {text(right)}."
    if mine == other or text(yours) == text(right):
        return f"Your guess is right: {text(right)}."
    if abs(mine - other) <= within * abs(other):
        return f"Your guess of {text(yours)} is near enough: it is {text(right)}."
    return f"Your guess was {text(yours)}, it is {text(right)}{how_far(mine, other)}."


def how_far(mine: float, other: float) -> str:
    """How many times as much or as little it is, as a clause; empty where that says nothing."""
    if not (mine * other > 0 and math.isfinite(mine * other)):
        return ""
    times, word = (other / mine, "much") if other > mine else (mine / other, "little")
    return f": {times:.3g} times as {word}" if 1.5 <= times < math.inf and other > 0 else ""


def number_of(value: Any) -> float | None:
    """A value as a float: numbers, arrays and tensors of one element, texts of a number."""
    if isinstance(value, bool):
        return None
    try:
        number = written(value.strip()) if isinstance(value, str) else float(value)
    except Exception:  # whatever a learner has written there
        return None
    return None if math.isnan(number) else number


def written(line: str) -> float:
    """A number as people write it, with a comma for thousands or for decimals, or as a fraction."""
    if THOUSANDS.fullmatch(line):
        return float(line.replace(",", ""))
    if DECIMAL_COMMA.fullmatch(line):
        return float(line.replace(",", "."))
    return float(Fraction(line.replace(" ", "")) if "/" in line else line)


def folded(value: object) -> str:
    """A text in which case, spaces and quotes round it do not count."""
    return " ".join(text(value).casefold().strip(" '\"`").split())


def text(value: object) -> str:
    """A value in a line; numbers with six digits."""
    number = number_of(value)
    if number is not None and not isinstance(value, str):
        return f"{number:,.0f}" if is_whole(number) else f"{number:.6g}"
    try:
        line = " ".join(str(value).split())
    except Exception:  # its own __str__ fails
        line = f"a {type(value).__name__}"
    return line if len(line) <= 60 else line[:57] + "..."


def is_whole(number: float) -> bool:
    """Whether a float is a whole number that it holds exactly."""
    return number == math.floor(number) and abs(number) < 2**53 if math.isfinite(number) else False

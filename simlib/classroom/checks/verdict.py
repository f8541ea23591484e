"""`Verdict`: what a check says, as data and as text. Pure Python."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...core.draw.text import count
from ..parts import VALUE, in_words

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
    run: object = None
    is_as_given: bool = False
    lost: list = field(default_factory=lambda: [VALUE])

    @property
    def points(self):
        """What a right answer is worth."""
        return sum(self.parts.values())

    @property
    def earned(self):
        """Points earned: of a right answer all, of one with the right values its parts kept."""
        if self.status == RIGHT:
            return self.points
        if self.status == NOT_WRITTEN or VALUE in self.lost:
            return 0
        return sum(each for part, each in self.parts.items() if part not in self.lost)

    @property
    def in_words(self):
        """Its status, or "partly right"."""
        return "partly right" if 0 < self.earned < self.points else self.status

    def __repr__(self):
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


def values_are_right(run):
    """The beginning of a sentence that goes on with "but": larger worlds are yet to be tried."""
    return f"In this world of {run.world_size} the values are right"

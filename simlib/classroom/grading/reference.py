"""The pristine material of an exercise: its cells as they were written, hidden ones too."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Cell:
    """A code cell of an exercise source.

    Attributes
    ----------
    id : str
    role : str or None
        ``"setup"``, ``"answer"``, ``"check"``, ``"hidden"``; None for code that stands by itself.
    question : str or None
    source : str
        The text; of an answer cell with its markers.
    weight : float or None
        Of a check or hidden cell: its share of the question's points, see `Exercise.weights_of`.
    shown : str
        The text as learners see it, which of a check is a call; of an answer as `source`.
    """

    id: str
    role: str | None
    question: str | None
    source: str
    weight: float | None = None
    shown: str = ""

    def __post_init__(self):
        object.__setattr__(self, "shown", self.shown or self.source)


@dataclass(frozen=True)
class Question:
    """One question: its name is that of the function that answers it.

    ``parts`` is ``{part: points}``, of `model.parts`; most questions have the value's only.
    """

    name: str
    title: str
    parts: dict
    stub: str
    solution: str

    @property
    def points(self):
        """What it is worth."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Exercise:
    """All that is pristine of one exercise.

    Attributes
    ----------
    name : str
        ``NN_name``, as the notebook is called without its ending.
    cells : tuple of Cell
        Its code cells, in order.
    ids : frozenset of str
        The ids of all cells that students are given, text cells too.
    questions : dict of str to Question
        In order.
    digest : str
        Changes with the source.
    cases : str
        What its checks expect, as `simlib.checks.check_of` reads it; empty where nobody knows.
    """

    name: str
    cells: tuple
    ids: frozenset
    questions: dict
    digest: str
    cases: str = ""

    @property
    def points(self):
        """What all questions are worth."""
        return sum(question.points for question in self.questions.values())

    @classmethod
    def from_dict(cls, data):
        """The exercise that `dataclasses.asdict` and JSON made plain data of."""
        return cls(
            data["name"],
            tuple(Cell(**one) for one in data["cells"]),
            frozenset(data["ids"]),
            {name: Question(**one) for name, one in data["questions"].items()},
            data["digest"],
            data["cases"],
        )

    def cells_of(self, question, role):
        """The cells of one question with one role."""
        return [cell for cell in self.cells if (cell.question, cell.role) == (question, role)]

    def as_shown(self):
        """The same with what students have only: no hidden cells, and checks as calls."""
        visible = tuple(
            replace(cell, source=cell.shown) for cell in self.cells if cell.role != "hidden"
        )
        return replace(self, cells=visible)

    def weights_of(self, question):
        """``[(Cell, weight)]`` of a question's check and hidden cells.

        Unless its source says otherwise, a hidden cell weighs 1, and the check beside it nothing:
        it is public, so whoever has read it could pass it with a table of answers.
        """
        checks, hidden = (self.cells_of(question, role) for role in ("check", "hidden"))
        usual = [(cell, 0 if hidden else 1) for cell in checks] + [(cell, 1) for cell in hidden]
        return [(cell, one if cell.weight is None else cell.weight) for cell, one in usual]

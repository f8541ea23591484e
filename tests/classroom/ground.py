"""An exercise made for hostile answers: the same small question many times, in two ranks.

So one notebook holds many of them, each beside answers that are innocent.
"""

import copy
from dataclasses import dataclass, field

import nbformat

from simlib.classroom.grading.exercise import read_exercise
from simlib.classroom.grading.sandbox import Limits
from simlib.classroom.grading.source import course_of, read_source, with_stubs, without_hidden

SEED = 5
LIMITS = Limits(notebook_s=500, cell_s=120, answer_s=60)
"""So wide that a busy machine does not reach them; tests of limits have narrower ones."""

HEAD = """\
# %% [markdown]
# # Exercises 97: sums
# %% role="setup"
import torch
import torch.distributed as dist

from simlib.checks import check, collective_nbytes, collectives, measure, only
"""

QUESTION = '''
# %% [markdown]
# ## 1. NAME (★, 1 minute, 1 point)
# %% role="answer" question="NAME" points=1
def NAME(rank, world_size, x):
    """Return the sum of the tensors x of all ranks."""
    ### BEGIN SOLUTION
    total = x.clone()
    dist.all_reduce(total)
    return total
    ### END SOLUTION
# %% role="check" question="NAME" points=1
verdict = check(
    "NAME",
    NAME,
    lambda rank, world_size: (torch.arange(3.0) + rank,),
    lambda xs: [sum(xs)] * len(xs),
    only("all_reduce"),
    collectives(lambda xs: 1),
    collective_nbytes(lambda xs: 12),
    worlds=(2,),
    timeout_s=LIMIT,
    points=1,
)
verdict
# %% role="hidden" question="NAME"
seed = 1
print(
    measure(
        NAME,
        lambda rank, world_size: (
            torch.randn(3, generator=torch.Generator().manual_seed(seed + rank)),
        ),
        worlds=(2,),
        timeout_s=LIMIT,
    )
)
'''

HONEST = """\
def NAME(rank, world_size, x):
    total = x.clone()
    dist.all_reduce(total)
    return total
"""


@dataclass(frozen=True)
class Case:
    """An answer, and what is to become of it.

    Attributes
    ----------
    source : str
        Its cell; NAME stands for the question, CANARY, PORT and RUN for what is on the host.
    status : str
        Empty where it is a matter of time which one it is.
    words : str
        Part of the reason, or of what the answer gave.
    points : int
    """

    source: str
    status: str
    words: str = ""
    points: int = field(default=0)


def right(source):
    """A `Case` that is odd but right, so that it gets its point."""
    return Case(source, "right", "Right", 1)


class Ground:
    """The exercise with its questions, and notebooks of it.

    Parameters
    ----------
    folder : Path
        Where its source is written.
    size : int
        How many questions it has.
    limit_s : float
        What its checks wait for ranks.
    """

    def __init__(self, folder, size, limit_s):
        self.names = [f"sum_{number:02d}" for number in range(size)]
        path = folder / "97_sums.py"
        text = HEAD + "".join(QUESTION.replace("NAME", name) for name in self.names)
        path.write_text(text.replace("LIMIT", str(limit_s)), encoding="utf-8")
        self.exercise = read_exercise(path)
        self._notebook = with_stubs(without_hidden(read_source(path, is_exercise=True)))

    def notebook(self, answers):
        """A notebook as it was handed out, with these sources as the first answers."""
        made = copy.deepcopy(self._notebook)
        cells = [cell for cell in made.cells if course_of(cell, "role") == "answer"]
        for cell, name, source in zip(cells, self.names, answers, strict=False):
            cell.source = source.replace("NAME", name)
        return made

    def bytes(self, answers, helpers=()):
        """The same as the bytes of a file, with cells of the student's own at the beginning."""
        made = self.notebook(answers)
        made.cells[1:1] = [nbformat.v4.new_code_cell(source) for source in helpers]
        return nbformat.writes(made).encode()

"""An exercise's hidden cells without ranks: what each hands to `measure`, under any seed."""

import re
from dataclasses import dataclass, field

from simlib.classroom.checks.compare import EXACT
from simlib.classroom.checks.complaints import WORLDS


@dataclass(frozen=True)
class Given:
    """What is given to all ranks of one world.

    Attributes
    ----------
    world_size : int
    by_rank : list of tuple
        By rank: its inputs.
    in_place : bool
    start : callable or None
        What runs the world, where it is not real ranks.
    """

    world_size: int
    by_rank: list
    in_place: bool = False
    start: object = None

    @property
    def by_argument(self):
        """For each argument: what it is, by rank."""
        return list(zip(*self.by_rank, strict=True))


@dataclass
class Asked:
    """What a check cell hands to `check`."""

    expected: callable
    rules: tuple
    worlds: list
    timed: list = field(default_factory=list)
    within: float = EXACT


class Solved:
    """An exercise whose setup, solutions and check cells have run here; nothing was checked.

    Parameters
    ----------
    exercise : Exercise
    """

    def __init__(self, exercise):
        self.asked = {}
        self._exercise = exercise
        self._measured = []
        self.names = {"__name__": "exercise"}
        for cell in exercise.cells:
            if cell.role == "hidden":
                continue
            is_answer = cell.role == "answer"
            source = exercise.questions[cell.question].solution if is_answer else cell.source
            self._run(source, cell.id)
            self.names |= {"check": self._check, "measure": self._measure, "print": print_nothing}

    def given(self, cell, seed):
        """``[Given]`` of a hidden cell under a seed, one for each world."""
        self._measured = []
        source = re.sub(r"(?m)^seed = 1$", f"seed = {seed}", cell.source)
        assert source != cell.source or seed == 1, f"{cell.id} has no line 'seed = 1'"
        self._run(source, cell.id)
        return self._measured

    def hidden(self):
        """The hidden cells."""
        return [cell for cell in self._exercise.cells if cell.role == "hidden"]

    def _run(self, source, name):
        exec(compile(source, name, "exec"), self.names)

    def _check(self, question, answer, inputs, expected, *rules, **options):
        worlds = given_to(inputs, options.get("worlds", WORLDS))
        timed = [*options.get("timed", ()), *options.get("memory", ())]
        for one in timed:
            worlds += given_to(one.inputs, [one.world_size])
        within = options.get("within", EXACT)
        rules_of_time = [one.rule for one in timed]
        self.asked[question] = Asked(expected, rules, worlds, rules_of_time, within)

    def _measure(self, answer, inputs, worlds=WORLDS, in_place=False, timeout_s=20, start=None):
        self._measured += given_to(inputs, worlds, in_place, start)


def print_nothing(*values):
    """Stands in for `print`."""


def given_to(inputs, worlds, *how):
    """``[Given]`` of a function of rank and world size, or of several."""
    return [
        Given(world_size, [draw(rank, world_size) for rank in range(world_size)], *how)
        for world_size in worlds
        for draw in ([inputs] if callable(inputs) else inputs)
    ]

"""Find a student's answers in a notebook, and put them between the pristine cells, in the right
order.

The grader uses only the source texts of a submission's answer cells and of the student's own cells.
A changed setup counts as one of the student's own cells. Everything else (setup, checks, hidden
cells, outputs, metadata) comes from the pristine exercise.

As a program, this file is the process that reads the students' files, within limits and apart from
the grader. It runs without simlib, because the import of simlib takes a second. Its first line of
input is JSON: the limits, and the exercises as plain data. Each request is a line of JSON and the
bytes of a file. Each answer is a line of JSON.
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
from dataclasses import dataclass, field

GIVEN, NOT_ATTEMPTED, NOT_FOUND = "given", "not attempted", "not found"
CHECKS = re.compile(r"^[ \t]*\w+[ \t]*=[ \t]*check(_of)?\(", re.MULTILINE)
DEF = re.compile(r"^([ \t]*)(?:async[ \t]+)?def[ \t]+(\w+)\b(?![ \t]*\([ \t]*self\b)", re.MULTILINE)
ASSIGNED = re.compile(r"^(\w+)[ \t]*(?::[^=\n]*)?=(?!=)", re.MULTILINE)
LONGEST_LINE = 60


class WrongNotebook(Exception):
    """A notebook that belongs to another exercise, or to none. The message gives the reason."""


@dataclass(frozen=True)
class Step:
    """One step of a merged notebook: a cell to run.

    Attributes
    ----------
    kind : str
        ``"pristine"`` for a cell of the exercise, ``"helper"`` for a cell of the student's own, and
        ``"answer"`` for an answer.
    cell : Cell or None
        The pristine cell. For an answer, it is the cell that the answer replaces.
    source : str
        The student's text; for a pristine cell, the text of the cell.
    number : int
        The number of a helper cell.
    """

    kind: str
    cell: object
    source: str
    number: int = 0

    @property
    def identity(self):
        """The id of the step's cell in a run."""
        return self.cell.id if self.cell else f"helper-{self.number}"


@dataclass(frozen=True)
class MergedNotebook:
    """The pristine cells of an exercise with the answers of a submission between them.

    Attributes
    ----------
    steps : list of Step
        The steps, without the checks of questions that have no answer. Hidden cells come last.
    found : dict of str to str
        The state of each question: `GIVEN`, `NOT_ATTEMPTED` or `NOT_FOUND`.
    notes : list of str
        Notes for the teacher on odd things.
    forms : dict of str to str
        For each question, a form that is the same for equal answers, see `likeness.form_of`.
    """

    steps: list
    found: dict
    notes: list
    forms: dict = field(default_factory=dict, compare=False)

    def without(self, left_out):
        """Return the notebook without some questions (with their answers and checks) and some
        helpers.

        Parameters
        ----------
        left_out : collection
            The names of the questions, and the steps, to leave out.
        """
        left_out = set(left_out)
        left = [
            step
            for step in self.steps
            if step not in left_out and not (step.cell and step.cell.question in left_out)
        ]
        return MergedNotebook(left, self.found, self.notes)


def merge_answers(exercise, submission):
    """The `MergedNotebook` of a submission and its exercise.

    Raises
    ------
    WrongNotebook
        No cell of the notebook belongs to this exercise, by its id or by the name of a function.
    """
    notes, cells = list(submission.notes), list(map(LookedAt, submission.cells))
    chosen = {name: choose(exercise, cells, name, notes) for name in exercise.questions}
    found = {}
    for name, index in chosen.items():
        is_given = index is not None and is_edited(cells[index], exercise, name)
        found[name] = GIVEN if is_given else NOT_FOUND if index is None else NOT_ATTEMPTED
    ids = {cell.id for cell in exercise.cells if cell.question}
    if all(index is None for index in chosen.values()) and not ids & submission.ids:
        raise WrongNotebook(
            f"the notebook has no cell of exercise {exercise.name}: is the notebook the lesson "
            "with the same name?"
        )
    notes += changed_cells(exercise, submission)
    helpers = helpers_by_anchor(exercise, cells, chosen)
    steps = helpers.pop(None, [])
    for cell in exercise.cells:
        if cell.role == "answer" and found[cell.question] == GIVEN:
            steps.append(Step("answer", cell, cells[chosen[cell.question]].source))
        elif cell.role != "answer" and found.get(cell.question, GIVEN) == GIVEN:
            steps.append(Step("pristine", cell, cell.source))
        steps += helpers.pop(cell.id, [])
    return MergedNotebook(hidden_last(steps), found, notes)


def hidden_last(steps):
    """Return the steps with all hidden cells at the end.

    When the student's ranks have seen a hidden input, no cell of the student may run any more, and
    no check whose output the student sees.
    """
    return sorted(steps, key=lambda step: step.cell is not None and step.cell.role == "hidden")


class LookedAt:
    """A student's cell, with facts that every question needs. They are computed only once.

    Attributes
    ----------
    id, role, question : str or None
    source : str
    bare : str
        See `bare`.
    defined, defined_at_top : frozenset of str
        All names that the cell defines, and the names that it defines without an indent; see
        `definitions`.
    has_check : bool
        Whether the cell calls a check.
    """

    def __init__(self, cell):
        self.id, self.role, self.question = cell.id, cell.role, cell.question
        self.source, self.bare = cell.source, bare(cell.source)
        self.defined, self.defined_at_top = definitions(cell.source)
        self.has_check = CHECKS.search(cell.source) is not None


def has_answers(exercise, cells):
    """Whether some cell answers a question of the exercise, right or not."""
    return any(choose(exercise, cells, name, []) is not None for name in exercise.questions)


def choose(exercise, cells, name, notes):
    """Return the index of the student's cell that answers a question, or None.

    simlib looks for the cell by metadata, then by cell id, then by the function's ``def``.
    JupyterLab copies the metadata of a cell to a copy of the cell, and to both parts of a split
    cell. So one of these ways may find several edited cells. Then the last of them counts that
    defines the function and is above the check. If there is no such cell, the last of all counts.
    One of the student's own cells may define the function, too. Such a cell runs at its own place,
    like all own cells. The check uses the function that exists when the check runs.
    """
    (cell,) = exercise.cells_of(name, "answer")
    end = place_of_check(exercise, cells, name)
    ways = {
        "metadata": lambda one: (one.role, one.question) == ("answer", name),
        "id": lambda one: one.id == cell.id,
        "def": lambda one: name in one.defined_at_top and not one.has_check,
        "def somewhere": lambda one: name in one.defined,
    }
    fallback = None
    for way, fits in ways.items():
        found = [index for index, one in enumerate(cells) if fits(one)]
        edited = [i for i in found if is_edited(cells[i], exercise, name)]
        defining = [i for i in edited if name in cells[i].defined]
        if len(defining) > 1:
            notes.append(
                f"{name}: {len(defining)} cells answer this question; the last of them above the "
                "check counts"
            )
        edited = [i for i in defining if i < end] or defining or edited
        if edited:
            if way.startswith("def"):
                notes.append(f"{name}: the grader found its answer only by the function's name")
            return edited[-1]
        if found and fallback is None:
            fallback = found[-1]
    return fallback


def place_of_check(exercise, cells, name):
    """Return the index of the last cell with a question's check; the number of cells if there is no
    check."""
    pristine = exercise.cells_of(name, "check")
    ids = {one.id for one in pristine}
    sources = {bare(text) for one in pristine for text in (one.source, one.shown)}

    def is_check(one):
        is_named = one.id in ids or (one.role, one.question) == ("check", name)
        return one.bare in sources or (is_named and one.has_check)

    places = [index for index, one in enumerate(cells) if is_check(one)]
    return max(places, default=len(cells))


def definitions(source):
    """Return ``(names, names at the top level)`` that a cell defines by ``=`` or ``def``, without
    methods."""
    defs = [match.groups() for match in DEF.finditer(source)]
    by_name = [match[1] for match in ASSIGNED.finditer(source)]
    at_top = frozenset([*by_name, *(name for indent, name in defs if not indent)])
    return at_top | {name for _, name in defs}, at_top


def is_edited(cell, exercise, name):
    """Whether an answer differs from the stub. Spaces and comments do not count."""
    return cell.bare not in ("", bare(exercise.questions[name].stub))


def bare(source):
    """Return a source without spaces and without comments on lines of their own."""
    lines = (line.strip() for line in source.splitlines())
    return "".join("".join(line.split()) for line in lines if not line.startswith("#"))


def changed_cells(exercise, submission):
    """Return notes on setup and check cells that are changed or missing. simlib uses the pristine
    cells instead."""
    by_id = {one.id: one.source.strip() for one in submission.cells}
    roles = {(one.role, one.question) for one in submission.cells}
    sources = {one.source.strip() for one in submission.cells}
    found = {"changed cells": [], "missing cells": []}
    for cell in exercise.cells:
        texts = {cell.source.strip(), cell.shown.strip()}
        as_it_was = by_id[cell.id] in texts if cell.id in by_id else texts & sources
        if cell.role in ("setup", "check") and not as_it_was:
            is_there = cell.id in by_id or (cell.role, cell.question) in roles
            found["changed cells" if is_there else "missing cells"].append(cell.id)
    told = {what: ", ".join(ids) for what, ids in found.items() if ids}
    return [f"{what}, so the original cells were used: {ids}" for what, ids in told.items()]


def helpers_by_anchor(exercise, cells, chosen):
    """Return ``{id of a pristine cell: [Step]}``, the student's own cells below each pristine cell.

    These also count as the student's own cells: a changed setup (below the pristine setup), a copy
    of an answer's or check's cell, and the other part of a split cell.

    Parameters
    ----------
    chosen : dict of str to int
        For each question, the index of the cell that answers it, see `choose`.
    """
    pristine = {cell.id: cell for cell in exercise.cells if cell.role != "hidden"}
    by_role = {(c.role, c.question): c.id for c in pristine.values() if c.role}
    by_source = {bare(handed_out(exercise, cell)): cell.id for cell in pristine.values()}
    whole = (cell for cell in pristine.values() if cell.role != "answer")  # not a solution
    by_source |= {bare(cell.source): cell.id for cell in whole}
    answers = {chosen[name]: by_role["answer", name] for name in reversed(exercise.questions)}
    check_of = {by_role["answer", name]: by_role["check", name] for name in exercise.questions}
    helpers, anchor, seen = {}, None, set()
    for index, one in enumerate(cells):
        text = one.bare
        place = one.id if one.id in pristine and one.id not in seen else None
        place = place or by_role.get((one.role, one.question)) or by_source.get(text)
        is_pristine = text in by_source
        if index in answers:
            place = answers[index]
        elif place and not is_pristine and is_free(pristine[place], one):
            place = None
        is_late = index in answers and check_of[place] in seen
        if place:
            anchor = anchor if is_late else place
            seen.add(place)
        is_own = not place or (pristine[place].role in ("setup", None) and not is_pristine)
        if is_own and text and index not in answers:
            helpers.setdefault(anchor, []).append(Step("helper", None, one.source, index))
    return helpers


def is_free(cell, one):
    """Whether a cell at the place of a pristine cell counts as the student's own."""
    return cell.role == "answer" or (cell.role == "check" and not one.has_check)


def handed_out(exercise, cell):
    """Return a pristine cell's source as students get it."""
    return exercise.questions[cell.question].stub if cell.role == "answer" else cell.shown


def beginning(source):
    """Return a cell's first line, which names the cell in messages."""
    return source.strip().partition("\n")[0][:LONGEST_LINE]


def failure(source, error):
    """Return the sentence on a failed cell of the student's own. `simlib check` uses it, too."""
    return f"the cell that begins with '{beginning(source)}' fails: {error}"


# The program


def main():
    """Answer requests until standard input ends."""
    from notebook_file import Exercise

    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="ascii")
    begin = json.loads(sys.stdin.buffer.readline())
    resource.setrlimit(resource.RLIMIT_AS, (begin["memory_bytes"], begin["memory_bytes"]))
    exercises = {name: Exercise.from_dict(one) for name, one in begin["exercises"].items()}
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        content = sys.stdin.buffer.read(request["nbytes"])
        allow_more_time(begin["seconds"])
        answers.write(json.dumps(answer(request, content, exercises)) + "\n")


def allow_more_time(seconds):
    """Let this process use this many more seconds of processor time. After that, Linux ends it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    until = int(used.ru_utime + used.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))


def answer(request, content, exercises):
    """Return the answer to a request, as plain data. If the file cannot be read, it contains the
    reason."""
    from notebook_file import Unreadable, parse

    try:
        submission = parse(content)
        if request["ask"] == "merge":
            return merged(exercises[request["exercise"]], submission)
        return about(submission, request["exercise"], exercises)
    except Unreadable as error:
        return {"unreadable": str(error)}
    except WrongNotebook as error:
        return {"wrong notebook": str(error)}
    except MemoryError:
        return {"unreadable": "the file takes too much memory to be read: clear its outputs"}


def merged(exercise, submission):
    """Return a `MergedNotebook` as plain data. Pristine cells are replaced by their ids."""
    from likeness import form_of

    found = merge_answers(exercise, submission)
    forms = {one.cell.question: form_of(one.source) for one in found.steps if one.kind == "answer"}
    steps = [
        [
            one.kind,
            one.cell and one.cell.id,
            "" if one.kind == "pristine" else one.source,
            one.number,
        ]
        for one in found.steps
    ]
    return {"steps": steps, "found": found.found, "notes": found.notes, "forms": forms}


def about(submission, name, exercises):
    """Return the exercise of a file, and whether the file has answers. Without a name, the cells
    decide."""
    cells = list(map(LookedAt, submission.cells))
    name = name or exercise_by_cells(cells, submission.ids, exercises)
    found = name in exercises and has_answers(exercises[name], cells)
    return {"exercise": name, "has answers": found}


def exercise_by_cells(cells, ids, exercises):
    """Return the exercise to which most of a notebook's cells belong, or None."""

    def likeness(exercise):
        own = sum(any(name in one.defined_at_top for one in cells) for name in exercise.questions)
        return own, len(exercise.ids & ids)

    best = max(exercises.values(), key=likeness)
    return best.name if any(likeness(best)) else None


if __name__ == "__main__":
    main()

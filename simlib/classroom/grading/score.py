"""Score one question of a run: find its points, and a reason in words for the student."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from ..parts import NO_RESULT, VALUE, in_words
from .merge_answers import GIVEN, failure
from .texts import clean, sentence

RIGHT, PARTLY, WRONG, LIMITS = "right", "partly right", "wrong", "broke the limits"
ALLOWED = "sent as allowed"
"""The output for a world in which the answer kept all rules. `known_answers.record` looks for these
words."""
LOST = "but "
"""If a world's values are right but parts are lost, the output begins with this word, and the names
of the parts follow."""
MARK = "| "
"""In the output of a hidden cell, the further lines of an error begin with this mark."""
PARTS_LOST = re.compile(rf"\d+: {LOST}(\w+(?:, \w+)*): ")
BY_PART = re.compile(r"By part: (.+)\.")
HIDDEN_FAIL = "The answer passes the public check, but not all hidden tests with other inputs."
VALUE_FAILS = "In hidden tests, which have other inputs, the answer's values are not right."
FULL = "[Errno 28] No space left on device"
UNKNOWN_NAME = re.compile(r"NameError: name '(\w+)' is not defined")


@dataclass
class QuestionResult:
    """The result of one question.

    Attributes
    ----------
    question, title : str
    points : float
        The points earned.
    of : int
        The most points possible.
    status : str
        ``"right"``, ``"partly right"``, ``"wrong"``, ``"not attempted"``, ``"not found"``, ``"broke
        the limits"``. If the notebook is not graded, the status of the notebook.
    reason : str
        The reason, in words for the student. It may contain text that the student's code printed.
    expected, got : str
        The expected and the actual value in the public check, if the answer was wrong there.
    hidden : str
        ``"right"``, ``"wrong"``, or empty if the run did not reach the hidden cells.
    lost : list of str
        The parts of the points that the answer does not earn; empty for a question without parts.
    known : str
        The known wrong answer with the same results, in words.
    seconds : float
    outputs : dict of str to str
        The outputs of check and hidden cells, by cell id. Only the teacher sees them.
    code : str
        The source of the cell that answers the question, shortened if it is too long to show.
    form : str
        A form that is the same for equal answers, see `likeness`; empty if the answer is not
        compared.
    """

    question: str
    title: str
    points: float
    of: int
    status: str
    reason: str = ""
    expected: str = ""
    got: str = ""
    hidden: str = ""
    lost: list = field(default_factory=list)
    known: str = ""
    seconds: float = 0.0
    outputs: dict = field(default_factory=dict)
    code: str = ""
    form: str = ""


def fetch_of(question):
    """Return the id of the cell that fetches a question's function. This cell comes before the
    check."""
    return f"{question}-fetch"


def score(question, exercise, merged, cells, skipped, expected):
    """Return the `QuestionResult` of one question."""
    result = QuestionResult(question.name, question.title, 0, question.points, "")
    if merged.found[question.name] != GIVEN:
        result.status = merged.found[question.name]
        result.reason = (
            "The function is as it was handed out."
            if result.status == "not attempted"
            else f"There is no cell that defines {question.name}."
        )
        return result
    if question.name in skipped:
        result.status, result.reason = LIMITS, sentence(skipped[question.name])
        return result
    if not runs_at_all(result, exercise, cells):
        return result
    checks = [(one, cells.get(one.id)) for one in exercise.cells_of(question.name, "check")]
    hidden = [(one, cells.get(one.id)) for one in exercise.cells_of(question.name, "hidden")]
    result.outputs = {one.id: clean(got.text) for one, got in checks + hidden if got}
    result.seconds = round(sum(got.seconds for _, got in checks + hidden if got), 2)
    if hidden:
        result.hidden = RIGHT if all(is_same(got) for _, got in hidden) else WRONG
    failed = [(one, got) for one, got in checks + hidden if not is_same(got)]
    if failed:
        explain(result, *telling(failed, question.parts, expected), expected)
    else:
        result.status = RIGHT
        result.reason = "Right, in public and in hidden tests." if hidden else "Right."
    if result.reason == HIDDEN_FAIL and failed[0][0].role == "check":
        result.reason = VALUE_FAILS
    if len(question.parts) > 1:
        earn_parts(result, question.parts, failed, expected)
    elif not any(one.role == "check" for one, _ in failed):
        result.points = earned(question, exercise, [one for one, _ in failed])
    if failed and result.points:
        result.status = PARTLY
    return result


def telling(failed, parts, expected):
    """Return the failed cell to report: the first one. For a question with parts, the first one
    that costs the value."""
    if len(parts) > 1:
        for cell, got in failed:
            if VALUE in lost_in(cell, got, expected):
                return cell, got
    return failed[0]


def earn_parts(result, parts, failed, expected):
    """Give a question the points of those parts that its cells have not lost."""
    lost = {part for cell, got in failed for part in lost_in(cell, got, expected)}
    result.lost = sorted(parts if VALUE in lost else lost)
    result.points = sum(points for part, points in parts.items() if part not in result.lost)
    told = in_words(parts, result.lost)
    if failed and result.points and told not in result.got:
        result.reason += f" With the hidden tests: {told}"


def lost_in(cell, got, expected):
    """Return the parts that a cell's output costs. A fault without a named part costs the value.

    A check names the lost parts in its last line. A hidden cell names them in its line about each
    world's rules. All other lines of a hidden cell must be as expected.
    """
    if got is None or got.word != "different":
        return {VALUE}
    said, wanted = got.text.splitlines(), expected.text(cell.id).splitlines()
    if cell.role == "check":
        found = BY_PART.fullmatch(said[-1]) if said else None
        each = re.findall(r"(\w+) 0 of \d+", found[1]) if found else []
        return set(each) or {VALUE}
    lost = {VALUE} if len(said) != len(wanted) else set()
    for line, want in zip(said, wanted, strict=False):
        if line != want:
            found = PARTS_LOST.match(line) if want.endswith(f": {ALLOWED}") else None
            lost |= set(found[1].split(", ")) if found else {VALUE}
    return lost


def runs_at_all(result, exercise, cells):
    """Whether the answer's cell and its function are usable. If not, write the reason into the
    result."""
    (cell,) = exercise.cells_of(result.question, "answer")
    for identity, what in (
        (cell.id, "The answer's cell fails"),
        (fetch_of(result.question), "The function cannot be used"),
    ):
        ran = cells.get(identity)
        said = json_in(ran)
        if said is None or said.get("error"):
            error = said["error"] if said else (ran.error if ran else "the cell was not reached")
            result.status = LIMITS if said is None or said.get("ended") else WRONG
            result.reason = f"{what}: {sentence(with_room(error))}"
            result.got = clean(said.get("output", "")) if said else ""
            return False
    return True


def earned(question, exercise, failed):
    """Return the points of a question whose public check passes, by the weights of the passed
    cells."""
    weights = exercise.weights_of(question.name)
    passed = sum(weight for cell, weight in weights if cell not in failed)
    points = round(question.points * passed / sum(weight for _, weight in weights), 2)
    return int(points) if points == int(points) else points


def is_same(got):
    """Whether a cell has run and nbval found the expected output."""
    return got is not None and got.word == "same"


def explain(result, cell, got, expected):
    """Write into a result which cell's output was not as expected, and how it differs."""
    if got is None or got.word in ("timeout", "gone"):
        result.status = LIMITS
        result.reason = "The answer was still running when its time was over."
        return
    result.status = WRONG
    text = clean(got.text)
    if cell.role == "hidden":
        result.reason = HIDDEN_FAIL
        return
    result.got = text
    result.expected = expected.text(cell.id)
    if text.startswith(f"{result.question}: not written yet. Rank"):
        result.status = "not attempted"
    # What ranks printed stands before what the check says.
    lines = text.splitlines()
    said = [n for n, line in enumerate(lines) if line.startswith(f"{result.question}: ")]
    after = lines[said[-1] + 1 :] if said else []
    result.reason = after[0] if after else text


def failures_of(merged, cells):
    """Return ``{source: sentence}`` of the student's own cells that failed."""
    ran = {s.source: cells.get(s.identity) for s in merged.steps if s.kind == "helper"}
    errors = {source: error_of(result) for source, result in ran.items() if result}
    return {source: failure(source, clean(error)) for source, error in errors.items() if error}


def error_of(result):
    """Return the error of a cell of the student's own; None if the cell raised no error."""
    said = json_in(result)
    if said is None and result.word == "timeout":
        return "the cell was still running when its time was over"
    if said is None:
        return "the cell ended the process that examines it"
    return said.get("error") and with_room(said["error"])


def with_room(error):
    """Return an error of a cell. If the cell wrote too much, add the limit to the text."""
    room = "your cells may write 8 MB and 2,000 files into their folder, twice as much into /tmp"
    return f"{error}; {room}" if FULL in error else error


def because_of(result, failures):
    """Return words to add to a reason, if the answer lacks a name that a failed cell defines."""
    missing = UNKNOWN_NAME.search(f"{result.reason}\n{result.got}")
    if missing is None:
        return ""
    for source, sentence_of_it in failures.items():
        if re.search(rf"\b{missing[1]}\b", source):
            return f" In your notebook, {sentence_of_it}"
    return ""


def is_cut_short(result):
    """Whether a limit ended a cell or the examiner's work for it, or a rank did not answer.

    A rank could print the same words itself. The only effect would be that the answer is graded
    again under other limits.
    """
    said = json_in(result)
    ended = result.word in ("timeout", "gone") or bool(said and said.get("ended"))
    return ended or f" {NO_RESULT}: " in result.text


def json_in(result):
    """Return the examiner's report on a student's cell; None if there is no report."""
    try:
        said = json.loads(result.text.strip().splitlines()[-1])
    except (AttributeError, IndexError, ValueError):
        return None
    return said if isinstance(said, dict) else None

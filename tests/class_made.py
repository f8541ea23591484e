"""A report of a made-up class, with all that can come of a notebook; nothing is run for it."""

from notebooks_made import exercise

from simlib.classroom.grading.grade import NotebookResult, without_points
from simlib.classroom.grading.reports import as_report
from simlib.classroom.grading.roster import Person
from simlib.classroom.grading.score import QuestionResult
from simlib.classroom.grading.whole_class import GradedFile

FOUR, FIVE = exercise("04"), exercise("05")
EXERCISES = {one.name: one for one in (FOUR, FIVE)}
SECRET = "tensor([0.573382, 1.31483])"
"""What a hidden cell printed."""
SCRIPT = "<script>document.title = 'caught'</script><img src=x onerror=\"document.title='caught'\">"
ESCAPES = "\x1b[31mred\x1b[0m\x1b]0;title\x07 \u202egnp.exe"
WRONG = """\
{name}: wrong, 0 of {points} points. Smallest world that fails: 3 ranks.
Rank 0 has the wrong value. It adds the buffer that it has just sent.
  rank 0: got [3, 3, 3], expected [3, 6, 9]
  rank 1: got [6, 6, 6], expected [3, 6, 9]
To see who sent what to whom, run `verdict.run` in a new cell."""
KNOWN = {
    "ring_all_gather": "a ring that passes whole tensors",
    "ring_reduce_scatter": "a ring that adds the wrong buffer",
}
WORDS = {
    "right": "Right, in public and in hidden tests.",
    "wrong": "Rank 0 has the wrong value. It adds the buffer that it has just sent.",
    "hidden": "It passes the public check, but not the hidden tests with other inputs.",
    "broke the limits": "The answer was still running when its time was over.",
    "not attempted": "The function is as it was handed out.",
    "not found": "There is no cell that defines it.",
}


def question(one, came):
    """The result of a question: a status, ``"hidden"``, ``"known"``, or ``"hostile"``."""
    status = {"hidden": "wrong", "known": "wrong", "hostile": "wrong"}.get(came, came)
    result = QuestionResult(one.name, one.title, 0, one.points, status, WORDS.get(came, ""))
    if came == "right":
        result.points, result.hidden = one.points, "right"
    elif came == "hidden":
        result.hidden = "wrong"
    elif came in ("wrong", "known"):
        result.reason, result.hidden = WORDS["wrong"], "wrong"
        result.expected = f"{one.name}: right"
        result.got = WRONG.format(name=one.name, points=one.points)
        result.known = KNOWN.get(one.name, "a sum of its own") if came == "known" else ""
    elif came == "hostile":
        result.reason = f"ValueError: {SCRIPT} {ESCAPES}"
        result.expected, result.hidden = f"{one.name}: right", "wrong"
        result.got = f"[0] {SCRIPT}\n{ESCAPES}\n" + "x" * 50_000
    result.outputs = {f"{one.name}-hidden": SECRET}
    if came != "not attempted":
        result.code = (
            f"def {one.name}(rank, world_size, x):\n    return x  # {came} {SCRIPT}{ESCAPES}"
        )
    return result


def graded(student, exercise, came, late=False, notes=()):
    """A notebook whose questions came out like this, one word each, in turn."""
    questions = [
        question(one, came[n % len(came)]) for n, one in enumerate(exercise.questions.values())
    ]
    result = NotebookResult(exercise.name, "graded", "", questions, list(notes), 1, 4.2)
    return handed(student, exercise.name, result, late)


def handed(student, name, result, late=False, file=None):
    """A file that was handed in, with its result."""
    file = file or f"{student}/{name}.ipynb"
    when = "2026-11-30T19:31:07+00:00" if late else "2026-11-29T10:02:44+00:00"
    return GradedFile(student, student, name, file, late, when, result)


def made_class(hostile=True):
    """The report of a class of 30, two of whom handed in nothing."""
    patterns = [
        ("right",), ("right", "known"), ("known", "right", "wrong"), ("right", "right", "hidden"),
        ("not attempted", "right"), ("right", "wrong", "not attempted"), ("right",),
        ("broke the limits", "right", "known"),
    ]  # fmt: skip
    files = []
    for number in range(1, 27):
        student, came = f"student_{number:02d}", patterns[number % len(patterns)]
        files.append(graded(student, FOUR, came, late=number % 9 == 0))
        if number % 5:
            files.append(graded(student, FIVE, patterns[(number * 3) % len(patterns)]))
    damaged = "the file is not valid JSON (line 1), so it is damaged or cut off"
    files.append(
        handed("student_27", FOUR.name, without_points(FOUR, "unreadable", damaged), late=True)
    )
    files.append(graded("student_28", FOUR, ("right",), notes=["mean_of_all: 2 cells answer this"]))
    nobody = NotebookResult("", "wrong notebook", "it is not clear which exercise it is", [])
    files.append(handed("student_28", "", nobody, file="student_28/notes.ipynb"))
    if hostile:
        files.append(graded(SCRIPT, FOUR, ("hostile",), notes=[SCRIPT + ESCAPES]))
        files.append(handed("=cmd|calc", "", nobody, file=SCRIPT))
    people = [Person(f"student_{n:02d}", f"Student {n:02d}", {}) for n in range(1, 31)]
    return as_report(files, people, EXERCISES, 42, True)

"""Which answers are told to be the same: apart from names, and not those that everybody gives."""

import pytest
from notebooks_made import ROOT, content, exercise, notebook

from simlib.classroom.grading.grade import Reader
from simlib.classroom.grading.likeness import equal_answers, form_of, given_by

FOUR = exercise("04")
NAME = "own_broadcast"
ANSWER = """\
def own_broadcast(rank, world_size, x):
    parts = []
    for other in range(world_size):
        if other == rank:
            continue
        try:
            request = dist.isend(x, dst=other)
        except ValueError as error:
            raise RuntimeError(error) from None
        parts.append((other, request))
    total = sum(number * 2 for number, _ in parts)
    import math as numbers

    def step(buffer):
        return numbers.floor(buffer)

    for _, request in parts:
        request.wait(step(buffer=total))
    return {"total": total, "count": len(parts), "rank": rank, "world": [world_size, rank, 3]}
"""
SAME = {
    "names": ANSWER.replace("parts", "mine").replace("error", "e").replace("other", "dst"),
    "a keyword of its own function": ANSWER.replace("buffer", "b"),
    "an import's name": ANSWER.replace("numbers", "m"),
    "parameters": ANSWER.replace("world_size", "n"),
    "comments": f"# mine\n\n{ANSWER.replace('= []', '= []  # none yet')}",
    "a docstring": ANSWER.replace("    parts = []", '    """Mine."""\n    parts = []', 1),
    "annotations": ANSWER.replace("rank, world_size, x)", "rank: int, world_size: int, x) -> dict"),
    "formatting": ANSWER.replace("    ", "  ").replace("dst=other", "dst = ( other )"),
    "a line of IPython": f"%%time\n{ANSWER}",
}
OTHER = {
    "a number": ANSWER.replace("* 2", "* 3"),
    "a name that is not its own": ANSWER.replace("isend", "send"),
    "a keyword": ANSWER.replace("dst=", "tag="),
    "other names in one another's place": ANSWER.replace("(other, request)", "(request, other)"),
}
NOT_COMPARED = {
    "small": "def own_broadcast(rank, world_size, x):\n    return dist.broadcast(x, 0)\n",
    "no Python": f"{ANSWER}\n)",
    "nested": "x = " + "(" * 5000 + ")" * 5000,
    "operators": "x = " + "-" * 9900 + "1",
    "long": ANSWER + "# padded\n" * 5000,
}


@pytest.mark.parametrize("what", SAME)
def test_what_differs_in_words_only_is_the_same(what):
    assert SAME[what] != ANSWER and form_of(SAME[what]) == form_of(ANSWER) != ""


@pytest.mark.parametrize("what", OTHER)
def test_what_does_something_else_is_another(what):
    assert OTHER[what] != ANSWER and form_of(OTHER[what]) not in ("", form_of(ANSWER))


@pytest.mark.parametrize("what", NOT_COMPARED)
def test_what_is_small_or_cannot_be_read_is_not_compared(what):
    assert form_of(NOT_COMPARED[what]) == ""


def groups(forms, given=()):
    """The groups of a class whose students gave these."""
    students = [
        {
            "student": f"student_{number:02d}",
            "notebooks": [
                {
                    "exercise": FOUR.name,
                    "questions": [{"question": NAME, "title": "", "code": "x", "form": form}],
                }
            ],
        }
        for number, form in enumerate(forms)
    ]
    return [one["students"] for one in equal_answers(students, lambda: given)]


@pytest.mark.parametrize(
    "forms, given, sizes",
    [
        ("aabc", "", [2]),
        ("aabbc", "", [2, 2]),
        ("abcd", "", []),
        ("aaa", "", [3]),
        ("aaaabbcdefg", "", [2]),  # more than a third gave a
        ("aaaabcdefghi", "", [4]),
        ("aabb", "a", [2]),
        (["", "", "a", "a"], "", [2]),
    ],
)
def test_a_group_is_told_unless_the_course_or_a_third_of_the_class_gave_it(forms, given, sizes):
    assert [len(one) for one in groups(forms, given)] == sizes


def test_what_the_course_gives_is_known_by_solutions_and_lessons():
    given = given_by([FOUR], ROOT / "notebooks")
    assert form_of(FOUR.questions[NAME].solution) in given
    assert form_of(ANSWER) not in given and len(given) > 100


def test_the_process_that_reads_a_file_tells_the_form_of_each_answer():
    data = content(notebook(FOUR, {NAME: ANSWER, "mean_of_all": "def mean_of_all(: pass"}))
    with Reader({FOUR.name: FOUR}) as reader:
        assert reader.merge(data, FOUR.name).forms == {NAME: form_of(ANSWER), "mean_of_all": ""}

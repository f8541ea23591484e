"""Functions that several lessons define anew, because each stands alone, have one text."""

import ast
from pathlib import Path

LESSONS = Path(__file__).resolve().parents[2] / "authoring" / "lessons"


def definitions(path):
    """``{name: text}`` of the functions and classes of a lesson; the first of a name."""
    found = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.setdefault(node.name, ast.unparse(node))
    return found


def everywhere(name):
    """``{lesson: text}`` of all lessons that define a name."""
    found = {path.stem: definitions(path) for path in sorted(LESSONS.glob("*.py"))}
    return {lesson: names[name] for lesson, names in found.items() if name in names}


DIFFER = {
    "ring": "the first stops after some steps, for its lab",
    "recursive_doubling": "the first folds other worlds than powers of two",
    "rabenseifner": "the first folds; the second may begin with the farthest partner",
}


def test_two_parts_of_lesson_05_have_the_same_functions():
    first, second = (definitions(path) for path in sorted(LESSONS.glob("05_*_all_reduce.py")))
    different = {name for name in first.keys() & second.keys() if first[name] != second[name]}
    assert different == set(DIFFER)
    assert {"bring", "timed", "swap"} <= first.keys() & second.keys()


def test_their_rings_differ_in_the_steps_only():
    first, second = (
        definitions(path)["ring"] for path in sorted(LESSONS.glob("05_*_all_reduce.py"))
    )
    assert first.replace(", steps=None", "").replace("[:steps]", "") == second


def test_three_parts_of_lesson_13_have_the_same_functions():
    first, second, third = (definitions(path) for path in sorted(LESSONS.glob("13_*.py"))[:3])
    for name in ("start", "loss_of", "gradients", "network"):
        assert first[name] == second[name] == third[name]
    assert [second[name] for name in ("together", "apart")] == [third["together"], third["apart"]]


def test_the_reader_of_letters_has_one_text_in_all_lessons():
    texts = everywhere("Reader")
    assert {lesson[:2] for lesson in texts} >= {"07", "08", "09"}
    assert len(set(texts.values())) == 1, sorted(texts)

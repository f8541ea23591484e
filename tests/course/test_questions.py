"""docs/questions.md: each program prints what its answer says, to the last character."""

import contextlib
import io
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "questions.md"
OF_LESSON = {"11": 6, "12": 10, "18": 4, "19": 4, "20": 4, "21": 4}
LONGEST = 30
"""Lines of a program: more do not fit on a screen beside the question."""
FORM = re.compile(
    r"(?P<question>.+?)\n\n"
    r"```python\n(?P<program>.+?)\n```\n\n"
    r"<details><summary>Answer</summary>\n\n"
    r"```text\n(?P<output>.+?)\n```\n\n"
    r"\*\*Tempting:\*\* (?P<belief>.+?)\n\n"
    r"\*\*Why:\*\* (?P<why>.+?)\n\n"
    r"\*\*Lesson:\*\* \[\d\d .+?\]\((?P<lesson>\S+)\)\n\n"
    r"</details>\n",
    re.DOTALL,
)


class Question(NamedTuple):
    """One of them, as it stands on the page."""

    title: str
    question: str
    program: str
    output: str
    belief: str
    why: str
    lesson: str


def questions_of(page):
    """All questions of a page, in order. One that lacks a part raises, named by its title."""
    found = []
    for section in re.split(r"^### ", page, flags=re.M)[1:]:
        title, _, text = section.partition("\n\n")
        text = text.partition("\n## ")[0]
        match = FORM.fullmatch(text.rstrip("\n") + "\n")
        if not match:
            raise ValueError(f"{title}: a part is missing, or not in its place")
        found.append(Question(title, **match.groupdict()))
    return found


QUESTIONS = questions_of(PAGE.read_text(encoding="utf-8"))


def printed(program, name):
    """What a program prints, run as a cell of its own."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(program, name, "exec"), {"__name__": "__main__"})
    return said.getvalue().rstrip("\n")


@pytest.mark.parametrize("one", QUESTIONS, ids=lambda one: one.title.partition(".")[0])
def test_a_program_prints_what_its_answer_says(one):
    assert printed(one.program, "question.py") == one.output


def test_their_titles_count_them():
    numbers, _, titles = zip(*(one.title.partition(". ") for one in QUESTIONS), strict=True)
    assert numbers == tuple(str(n + 1) for n in range(sum(OF_LESSON.values())))
    assert len(set(titles)) == len(titles)


def test_each_leads_to_its_lesson():
    lessons = [one.lesson for one in QUESTIONS]
    assert all((PAGE.parent / lesson).is_file() for lesson in lessons)
    numbers = [Path(lesson).name[:2] for lesson in lessons]
    assert {number: numbers.count(number) for number in numbers} == OF_LESSON
    assert numbers == sorted(numbers)


def test_each_asks_and_its_program_is_short_and_complete():
    for one in QUESTIONS:
        assert "?" in one.question, one.title
        assert len(one.program.splitlines()) <= LONGEST, one.title
        assert "\nimport simlib\n" in one.program and "def main(rank, world_size" in one.program
        assert max(map(len, one.program.splitlines())) <= 100, one.title


def test_the_readme_leads_to_the_page():
    assert "(docs/questions.md)" in (ROOT / "README.md").read_text(encoding="utf-8")


# The rules themselves: a page that breaks one is told so.


@pytest.mark.parametrize(
    "part", ["```python", "<details>", "```text", "**Tempting", "**Why", "**Lesson"]
)
def test_a_question_that_lacks_a_part_is_told(part):
    page = PAGE.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"^1\. .*: a part is missing"):
        questions_of(page.replace(part, "", 1))

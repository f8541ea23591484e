"""The documentation keeps to plain words, and the check finds the others."""

from pathlib import Path

import plain_words
import pytest

ROOT = Path(__file__).resolve().parents[2]
WORDS = {"anew": "again", "sort of": "kind of"}


def test_pages_use_plain_words():
    assert list(plain_words.complaints(ROOT, plain_words.read_words())) == []


@pytest.mark.parametrize(
    "text, found",
    [
        ("Run it.\nRun it Anew.", [(2, "anew", "again")]),
        ("A sort\nof rank.", [(1, "sort of", "kind of")]),
        ("Renewed. Sorts.", []),
        ("`anew`, [a page](anew.md)\n```\nanew\n```\n", []),
        ("```\ncode\n```\nanew", [(4, "anew", "again")]),
    ],
)
def test_listed_words_are_found_outside_of_code(text, found):
    assert list(plain_words.dialect_in(text, WORDS)) == found


def test_a_complaint_names_page_line_and_better_word(tmp_path):
    (tmp_path / "docs" / "design").mkdir(parents=True)
    (tmp_path / "docs" / "design" / "page.md").write_text("Plain.\nStart anew.\n")
    assert list(plain_words.complaints(tmp_path, WORDS)) == ["docs/design/page.md:2: anew -> again"]


def test_the_text_of_a_lesson_is_searched_and_its_code_is_not(tmp_path):
    (tmp_path / "authoring" / "lessons").mkdir(parents=True)
    source = "# %% [markdown]\n# Plain.\n\n# %%\nanew = 1\n\n# %% [markdown]\n# Start anew.\n"
    (tmp_path / "authoring" / "lessons" / "01_a.py").write_text(source)
    found = ["authoring/lessons/01_a.py:8: anew -> again"]
    assert list(plain_words.complaints(tmp_path, WORDS)) == found

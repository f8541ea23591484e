"""Find dialect in docs, lessons and exercises: ``python scripts/plain_words.py``, in ``make lint``.

``plain_words.toml`` lists the words, each with a better one. Code is not searched.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_suffix(".toml")
PAGES = ("README.md", "START.md", "DESIGN.md", "CONTRIBUTING.md", "docs/**/*.md",
         "notebooks/glossary.md", "authoring/lessons/*.py", "authoring/exercises/*.py")  # fmt: skip
CODE = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)\n]*\)", re.DOTALL)
"""Fenced code, code in a sentence, and the targets of links."""
CODE_CELL = re.compile(
    r"^# %%(?! \[markdown\]).*?(?=^# %% \[markdown\]|\Z)", re.DOTALL | re.MULTILINE
)
"""Cells of a lesson's or exercise's source from a code cell to the next text."""


def read_words():
    """``{word: better word}``."""
    return tomllib.loads(LIST.read_text(encoding="utf-8"))


def without_code(text, code=CODE):
    """The text with code blanked out; its lines stay where they are."""
    return code.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)


def dialect_in(text, words):
    """Yield ``(line number, word, better word)`` of each listed word, also across line ends."""
    phrases = (r"\s+".join(map(re.escape, word.split())) for word in words)
    text = without_code(text)
    for match in re.finditer(rf"\b(?:{'|'.join(phrases)})\b", text, re.IGNORECASE):
        word = " ".join(match.group().lower().split())
        yield text.count("\n", 0, match.start()) + 1, word, words[word]


def complaints(root, words):
    """One line for each listed word in the pages below a folder."""
    for pattern in PAGES:
        for page in sorted(root.glob(pattern)):
            text = page.read_text(encoding="utf-8")
            text = without_code(text, CODE_CELL) if page.suffix == ".py" else text
            for line, word, better in dialect_in(text, words):
                yield f"{page.relative_to(root).as_posix()}:{line}: {word} -> {better}"


if __name__ == "__main__":
    found = list(complaints(ROOT, read_words()))
    print("\n".join(found), end="\n" if found else "")
    sys.exit(bool(found))

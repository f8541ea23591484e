"""Find dialect in the documentation: ``python scripts/plain_words.py``, part of ``make lint``.

``plain_words.toml`` lists the words, each with a better one. Code is not searched.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_suffix(".toml")
PAGES = ("README.md", "START.md", "DESIGN.md", "CONTRIBUTING.md", "docs/**/*.md")
CODE = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)\n]*\)", re.DOTALL)
"""Fenced code, code in a sentence, and the targets of links."""


def read_words():
    """``{word: better word}``."""
    return tomllib.loads(LIST.read_text(encoding="utf-8"))


def without_code(text):
    """The text with code blanked out; its lines stay where they are."""
    return CODE.sub(lambda code: re.sub(r"[^\n]", " ", code.group()), text)


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
            for line, word, better in dialect_in(page.read_text(encoding="utf-8"), words):
                yield f"{page.relative_to(root).as_posix()}:{line}: {word} -> {better}"


if __name__ == "__main__":
    found = list(complaints(ROOT, read_words()))
    print("\n".join(found), end="\n" if found else "")
    sys.exit(bool(found))

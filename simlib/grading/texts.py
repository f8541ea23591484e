"""Texts that students wrote, made harmless for terminals, tables and pages."""

from __future__ import annotations

import re
import unicodedata

LONGEST_TEXT = 2000
ANSI = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\))")


def readable(text):
    """A name or a text in one of the ways in which Unicode can write it, and that can be written.

    Names of files on macOS have their accents apart, and those of Linux may be no text at all.
    """
    return unicodedata.normalize("NFC", text.encode("utf-8", "replace").decode("utf-8"))


def one_line(text):
    """A text without line ends and control characters: nothing in it moves a terminal."""
    return "".join(char if char.isprintable() else " " for char in text)


def clean(text):
    """A text without control codes of terminals, and not too long."""
    text = ANSI.sub("", str(text))
    text = "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)
    if len(text) > LONGEST_TEXT:
        text = text[:LONGEST_TEXT] + " ..."
    return text


def sentence(text):
    """A text as a sentence."""
    text = clean(text).strip() or "it gave no answer that can be read"
    return text[:1].upper() + text[1:] + "." * (not text.endswith((".", "!", "?")))

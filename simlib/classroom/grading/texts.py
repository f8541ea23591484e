"""Texts that students wrote, made harmless for terminals, tables and pages."""

from __future__ import annotations

import re
import unicodedata

LONGEST_TEXT = 2000
ANSI = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\))")
INVISIBLE = "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
"""Fillers of Hangul and Khmer, a joiner and an empty Braille cell: letters that show nothing."""
VARIATION_SELECTORS = range(0x180B, 0x1810), range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0)
FULL_WIDTH = range(0xFF01, 0xFF5F)


def readable(text):
    """A name or a text in one of the ways in which Unicode can write it, and that can be written.

    Names of files on macOS have their accents apart, and those of Linux may be no text at all.
    """
    return unicodedata.normalize("NFC", text.encode("utf-8", "replace").decode("utf-8"))


def is_disguised(char):
    """Whether a character is not to be seen, moves others, or is a wide twin of an ASCII one."""
    code = ord(char)
    return (
        unicodedata.category(char) == "Cf"
        or char in INVISIBLE
        or any(code in codes for codes in (FULL_WIDTH, *VARIATION_SELECTORS))
    )


def undisguised(text):
    """A text with the code points of characters that are not what they look like: `<U+202E>`."""
    if text.isascii():
        return text
    return "".join(f"<U+{ord(char):04X}>" if is_disguised(char) else char for char in text)


def one_line(text):
    """A text without line ends and control characters: nothing in it moves a terminal."""
    return "".join(char if char.isprintable() else " " for char in undisguised(text))


def clean(text):
    """A text without control codes of terminals, and not too long."""
    text = undisguised(ANSI.sub("", str(text)))
    text = "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)
    if len(text) > LONGEST_TEXT:
        text = text[:LONGEST_TEXT] + " ..."
    return text


def sentence(text):
    """A text as a sentence."""
    text = clean(text).strip() or "it gave no answer that can be read"
    return text[:1].upper() + text[1:] + "." * (not text.endswith((".", "!", "?")))

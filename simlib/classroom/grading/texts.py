"""Texts that students wrote, made harmless; files written whole; results kept in a folder."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import tempfile
import unicodedata
from pathlib import Path

from ...core.environment import FOLDER

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
    return "".join([f"<U+{ord(char):04X}>" if is_disguised(char) else char for char in text])


def one_line(text):
    """A text without line ends and control characters: nothing in it moves a terminal."""
    return "".join([char if char.isprintable() else " " for char in undisguised(text)])


def clean(text):
    """A text without control codes of terminals, and not too long."""
    text = undisguised(ANSI.sub("", str(text)))
    text = "".join([char if char.isprintable() or char in "\n\t" else "?" for char in text])
    if len(text) > LONGEST_TEXT:
        text = text[:LONGEST_TEXT] + " ..."
    return text


def sentence(text):
    """A text as a sentence."""
    text = clean(text).strip() or "it gave no answer that can be read"
    return text[:1].upper() + text[1:] + "." * (not text.endswith((".", "!", "?")))


SEEDS = range(2**64)
"""Seeds of hidden tests: too many for anybody to try them, or to keep a table of them."""


class Cache:
    """A folder of results; each is written in one piece, so an interrupted run can go on.

    Parameters
    ----------
    folder : Path
    """

    def __init__(self, folder):
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder.chmod(0o700)

    def seed(self, wanted=None):
        """The seed of this report: the one asked for, the one of the last time, or a new one."""
        with contextlib.suppress(ValueError):
            return int(self._kept("seed", wanted))
        return self.seed(secrets.randbits(64))

    def deadline(self, wanted=None):
        """The deadline of this report: the one asked for, or the one of the last time.

        Parameters
        ----------
        wanted : str or None
            In ISO 8601; ``"none"`` takes away the one of the last time.
        """
        return self._kept("deadline", "" if wanted == "none" else wanted)

    def _kept(self, name, wanted):
        """A text that is kept from now on; what was kept where None is wanted, or nothing."""
        stored = self._folder / name
        if wanted is None:
            with contextlib.suppress(OSError, ValueError):
                return stored.read_text(encoding="utf-8")
            return ""
        write(stored, str(wanted))
        return str(wanted)

    def get(self, *key):
        """What is stored under a key; None where nothing is, or what a crash left of it."""
        with contextlib.suppress(OSError, ValueError):
            return json.loads(self._path(key).read_text(encoding="utf-8"))

    def put(self, value, *key):
        """Store plain data under a key."""
        write(self._path(key), json.dumps(value))

    @contextlib.contextmanager
    def locked(self):
        """Keep others from writing the same report meanwhile.

        Raises
        ------
        ValueError
            Somebody does.
        """
        with open(self._folder / "lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    f"another simlib grade is at work in {self._folder.parent}: wait for its end, "
                    "or name another folder by --out"
                ) from None
            yield

    def _path(self, key):
        return self._folder / hashlib.sha256(json.dumps(key).encode()).hexdigest()


def write(path, text):
    """Write a file so that it is there whole or not at all; what is no text in it becomes '?'."""
    file = tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=".new-", delete=False, encoding="utf-8", errors="replace"
    )
    try:
        with file:
            file.write(text)
        os.chmod(file.name, 0o644)
        os.replace(file.name, path)
    except BaseException:
        os.unlink(file.name)
        raise


def digest(data):
    """The fingerprint of some bytes."""
    return hashlib.sha256(data).hexdigest()


def digest_of_simlib():
    """Changes with any source of simlib."""
    found = hashlib.sha256()
    for path in sorted(FOLDER.rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()

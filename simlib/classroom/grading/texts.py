"""Texts that students wrote, made harmless; results kept in a folder."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import unicodedata

from ...core.environment import FOLDER
from .own_folder import OwnFolder, own_key

LONGEST_TEXT = 2000
ANSI = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\))")
INVISIBLE = "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
"""Letters without a visible form: fillers of Hangul and Khmer, a joiner, an empty Braille cell."""
VARIATION_SELECTORS = range(0x180B, 0x1810), range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0)
FULL_WIDTH = range(0xFF01, 0xFF5F)


def readable(text):
    """A name or a text in one form of Unicode, so that it can be compared and written.

    In file names of macOS accents are separate characters. File names of Linux may be no text at
    all.
    """
    return unicodedata.normalize("NFC", text.encode("utf-8", "replace").decode("utf-8"))


def is_disguised(char):
    """Whether a character is invisible, moves others, or is a wide twin of an ASCII character."""
    code = ord(char)
    return (
        unicodedata.category(char) == "Cf"
        or char in INVISIBLE
        or any(code in codes for codes in (FULL_WIDTH, *VARIATION_SELECTORS))
    )


def undisguised(text):
    """A text that shows misleading characters as code points: `<U+202E>`."""
    if text.isascii():
        return text
    return "".join([f"<U+{ord(char):04X}>" if is_disguised(char) else char for char in text])


def one_line(text):
    """A text without line ends and control characters, so that it does not change a terminal."""
    return "".join([char if char.isprintable() else " " for char in undisguised(text)])


def clean(text, most=LONGEST_TEXT):
    """A text without control codes of terminals, and of limited length."""
    text = undisguised(ANSI.sub("", str(text)))
    text = "".join([char if char.isprintable() or char in "\n\t" else "?" for char in text])
    if len(text) > most:
        text = text[:most] + " ..."
    return text


def sentence(text):
    """A text as a sentence."""
    text = clean(text).strip() or "the answer cannot be read"
    return text[:1].upper() + text[1:] + "." * (not text.endswith((".", "!", "?")))


SEEDS = range(2**64)
"""Seeds of hidden tests. There are too many to try them all, or to keep a table."""


class Cache:
    """A folder of results. Each result is written in one piece, so an interrupted run can continue.

    Each result has a mark (HMAC) that only the caller's key can make. Files of other people are
    ignored.

    Parameters
    ----------
    folder : OwnFolder or Path

    Attributes
    ----------
    has_others : bool
        Whether it has found a file without the caller's mark.
    """

    def __init__(self, folder):
        self._folder = OwnFolder.of(folder)
        os.fchmod(self._folder.descriptor, 0o700)
        self._key = own_key()
        self.has_others = False

    def seed(self, wanted=None):
        """The seed of this report: the given seed, the last call's seed, or a new one."""
        with contextlib.suppress(ValueError):
            return int(self._kept("seed", wanted))
        return self.seed(secrets.randbits(64))

    def rule(self, name, wanted=None):
        """A rule of this report, such as its deadline: the given one, or the last call's.

        Parameters
        ----------
        name : str
        wanted : str or None
            ``"none"`` removes the rule of the last call.
        """
        return self._kept(name, "" if wanted == "none" else wanted)

    def tables(self, wanted):
        """The names of the tables that the last call wrote. The new names are kept from now on."""
        earlier = self._kept("tables", None).splitlines()
        self._kept("tables", "\n".join(wanted))
        return earlier

    def _kept(self, name, wanted):
        """A text that is kept from now on. With None, the text that was kept before, or None."""
        if wanted is None:
            return self._read(name) or ""
        self._write(name, str(wanted))
        return str(wanted)

    def get(self, *key):
        """The data under a key; None if there are none, or if a crash has damaged them."""
        stored = self._read(self._name(key))
        return None if stored is None else json.loads(stored)

    def put(self, value, *key):
        """Store plain data under a key."""
        self._write(self._name(key), json.dumps(value))

    @contextlib.contextmanager
    def locked(self):
        """Within the block, no other process can write the same report.

        Raises
        ------
        ValueError
            Another process is writing the report.
        """
        with open(self._folder.open("lock", os.O_WRONLY | os.O_CREAT), "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    f"another simlib grade is running in {self._folder.path.parent}: wait until it "
                    "ends, or name another folder by --out"
                ) from None
            yield

    def _name(self, key):
        return hashlib.sha256(json.dumps(key).encode()).hexdigest()

    def _mark(self, name, text):
        return hmac.digest(self._key, f"{name}\n{text}".encode(), "sha256").hex()

    def _read(self, name):
        """A text with a right mark, else None. A text with a wrong mark is removed."""
        try:
            mark, _, text = self._folder.read(name).partition("\n")
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            mark, text = "", ""
        if hmac.compare_digest(mark.encode(), self._mark(name, text).encode()):
            return text
        self.has_others = True
        self._folder.remove(name)
        return None

    def _write(self, name, text):
        self._folder.write(name, f"{self._mark(name, text)}\n{text}", 0o600)


def digest(data):
    """The fingerprint of some bytes."""
    return hashlib.sha256(data).hexdigest()


def digest_of_simlib():
    """A number that changes with any source of simlib."""
    found = hashlib.sha256()
    for path in sorted(FOLDER.rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()

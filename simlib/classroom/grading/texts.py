"""Make texts from students harmless, and keep results in a folder."""

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
"""Letters that are invisible: fillers of Hangul and Khmer, a joiner, and an empty Braille cell."""
VARIATION_SELECTORS = range(0x180B, 0x1810), range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0)
FULL_WIDTH = range(0xFF01, 0xFF5F)


def readable(text):
    """Return a name or a text in one form of Unicode, so that simlib can compare and write it.

    In macOS's file names, accents are separate characters. A file name in Linux may be no valid
    text.
    """
    return unicodedata.normalize("NFC", text.encode("utf-8", "replace").decode("utf-8"))


def is_disguised(char):
    """Whether a character is invisible, moves other characters, or is a wide form of an ASCII
    character."""
    code = ord(char)
    return (
        unicodedata.category(char) == "Cf"
        or char in INVISIBLE
        or any(code in codes for codes in (FULL_WIDTH, *VARIATION_SELECTORS))
    )


def undisguised(text):
    """Return a text in which misleading characters are shown as code points: `<U+202E>`."""
    if text.isascii():
        return text
    return "".join([f"<U+{ord(char):04X}>" if is_disguised(char) else char for char in text])


def one_line(text):
    """Return a text without line ends and control characters, so that it cannot affect a
    terminal."""
    return "".join([char if char.isprintable() else " " for char in undisguised(text)])


def clean(text, most=LONGEST_TEXT):
    """Return a text without terminals' control codes, shortened to ``most`` characters."""
    text = undisguised(ANSI.sub("", str(text)))
    text = "".join([char if char.isprintable() or char in "\n\t" else "?" for char in text])
    if len(text) > most:
        text = text[:most] + " ..."
    return text


def sentence(text):
    """Return a text as a sentence, with a full stop."""
    text = clean(text).strip() or "the answer cannot be read"
    return text[:1].upper() + text[1:] + "." * (not text.endswith((".", "!", "?")))


SEEDS = range(2**64)
"""The possible seeds of hidden tests. They are too many for anybody to try them all or to keep a
table."""


class Cache:
    """A folder with results. simlib writes each result as a whole, so an interrupted run can
    continue.

    Each result has a mark (HMAC) that only the caller's key can make. simlib ignores files that
    other people wrote.

    Parameters
    ----------
    folder : OwnFolder or Path

    Attributes
    ----------
    has_others : bool
        Whether the cache has found a file without the caller's mark.
    """

    def __init__(self, folder):
        self._folder = OwnFolder.of(folder)
        os.fchmod(self._folder.descriptor, 0o700)
        self._key = own_key()
        self.has_others = False

    def seed(self, wanted=None):
        """Return the seed of this report: the given seed, else the last call's seed, else a new
        seed."""
        with contextlib.suppress(ValueError):
            return int(self._kept("seed", wanted))
        return self.seed(secrets.randbits(64))

    def rule(self, name, wanted=None):
        """Return a rule of this report, such as its deadline: the given rule, else the rule of the
        last call.

        Parameters
        ----------
        name : str
        wanted : str or None
            ``"none"`` removes the rule of the last call.
        """
        return self._kept(name, "" if wanted == "none" else wanted)

    def tables(self, wanted):
        """Return the names of the tables that the last call wrote. Keep the new names for the next
        call."""
        earlier = self._kept("tables", None).splitlines()
        self._kept("tables", "\n".join(wanted))
        return earlier

    def _kept(self, name, wanted):
        """Keep a text for later calls, and return it. For None, return the text that was kept
        before, or None."""
        if wanted is None:
            return self._read(name) or ""
        self._write(name, str(wanted))
        return str(wanted)

    def get(self, *key):
        """Return the data under a key; None if there are none, or if a crash has damaged them."""
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
        """Return a text if its mark is right, else None. Remove a text with a wrong mark."""
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
    """Return a fingerprint of some bytes."""
    return hashlib.sha256(data).hexdigest()


def digest_of_simlib():
    """Return a text that changes whenever a source of simlib changes."""
    found = hashlib.sha256()
    for path in sorted(FOLDER.rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()

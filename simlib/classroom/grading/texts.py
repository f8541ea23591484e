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


def clean(text, most=LONGEST_TEXT):
    """A text without control codes of terminals, and not too long."""
    text = undisguised(ANSI.sub("", str(text)))
    text = "".join([char if char.isprintable() or char in "\n\t" else "?" for char in text])
    if len(text) > most:
        text = text[:most] + " ..."
    return text


def sentence(text):
    """A text as a sentence."""
    text = clean(text).strip() or "it gave no answer that can be read"
    return text[:1].upper() + text[1:] + "." * (not text.endswith((".", "!", "?")))


SEEDS = range(2**64)
"""Seeds of hidden tests: too many for anybody to try them, or to keep a table of them."""


class Cache:
    """A folder of results; each is written in one piece, so an interrupted run can go on.

    Each bears a mark (HMAC) that only the caller's key makes. What another has put there is as if
    it were not.

    Parameters
    ----------
    folder : OwnFolder or Path

    Attributes
    ----------
    has_others : bool
        Whether something was found that bears no mark of the caller's.
    """

    def __init__(self, folder):
        self._folder = OwnFolder.of(folder)
        os.fchmod(self._folder.descriptor, 0o700)
        self._key = own_key()
        self.has_others = False

    def seed(self, wanted=None):
        """The seed of this report: the one asked for, the one of the last time, or a new one."""
        with contextlib.suppress(ValueError):
            return int(self._kept("seed", wanted))
        return self.seed(secrets.randbits(64))

    def rule(self, name, wanted=None):
        """A rule of this report, such as its deadline: as asked for, or as the last time.

        Parameters
        ----------
        name : str
        wanted : str or None
            ``"none"`` takes away the one of the last time.
        """
        return self._kept(name, "" if wanted == "none" else wanted)

    def tables(self, wanted):
        """The names of the tables that were written the last time; these are kept from now on."""
        earlier = self._kept("tables", None).splitlines()
        self._kept("tables", "\n".join(wanted))
        return earlier

    def _kept(self, name, wanted):
        """A text that is kept from now on; what was kept where None is wanted, or nothing."""
        if wanted is None:
            return self._read(name) or ""
        self._write(name, str(wanted))
        return str(wanted)

    def get(self, *key):
        """What is stored under a key; None where nothing is, or what a crash left of it."""
        stored = self._read(self._name(key))
        return None if stored is None else json.loads(stored)

    def put(self, value, *key):
        """Store plain data under a key."""
        self._write(self._name(key), json.dumps(value))

    @contextlib.contextmanager
    def locked(self):
        """Keep others from writing the same report meanwhile.

        Raises
        ------
        ValueError
            Somebody does.
        """
        with open(self._folder.open("lock", os.O_WRONLY | os.O_CREAT), "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    f"another simlib grade is at work in {self._folder.path.parent}: wait for its "
                    "end, or name another folder by --out"
                ) from None
            yield

    def _name(self, key):
        return hashlib.sha256(json.dumps(key).encode()).hexdigest()

    def _mark(self, name, text):
        return hmac.digest(self._key, f"{name}\n{text}".encode(), "sha256").hex()

    def _read(self, name):
        """A text that bears its mark; None where there is none, and what bears another goes."""
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
    """Changes with any source of simlib."""
    found = hashlib.sha256()
    for path in sorted(FOLDER.rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()

"""`guess`: a learner's guess beside what it is, in a sentence. Never an error: a lesson goes on."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from fractions import Fraction

THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d*)?")
DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+")


def guess(yours: object, right: object, *, within: float = 0.0, of: Sequence = ()) -> None:
    """Print how a guess compares with what it is; print nothing where nobody has guessed (None).

    It never raises, whatever was guessed, so it stops no Run All.

    Parameters
    ----------
    yours : object
        A number, or one of few: a text, True or False. Anything else is told apart, no more. A text
        may hold a number as people write it: "1,200", "12,5", "7/4".
    right : object
        What it is.
    within : float
        Share of ``right`` by which a number may be off and is near enough: 0.1 is 10 %.
    of : sequence
        Where one of few is to be guessed: these. Numbers among them are names, such as those of
        ranks and chunks: nothing is said of how many times as much.

    Examples
    --------
    >>> guess(None, 12)
    >>> guess(12, 12)
    Your guess is right: 12.
    >>> guess(6, 12)
    Your guess was 6, it is 12: 2 times as much.
    >>> guess(11.5, 12, within=0.1)
    Your guess of 11.5 is near enough: it is 12.
    >>> guess("Rank 0", "rank 1", of=("rank 0", "rank 1"))
    Your guess was rank 0, it is rank 1.
    """
    if yours is not None:
        print(said_of(yours, right, within, of))


def said_of(yours, right, within, of):
    """The sentence that `guess` prints."""
    choices = [text(one) for one in of]
    if choices and folded(yours) not in map(folded, choices):
        return f"{text(yours)} is none of these: {', '.join(choices)}."
    mine, other = number_of(yours), number_of(right)
    if other is None or choices:
        is_right = folded(yours) == folded(right)
        shown = next((one for one in choices if folded(one) == folded(yours)), text(yours))
        said = f"Your guess was {shown}, it is {text(right)}."
        return f"Your guess is right: {text(right)}." if is_right else said
    if mine is None:
        return f"{text(yours)} is no number; it is {text(right)}."
    if mine == other or text(yours) == text(right):
        return f"Your guess is right: {text(right)}."
    if abs(mine - other) <= within * abs(other):
        return f"Your guess of {text(yours)} is near enough: it is {text(right)}."
    return f"Your guess was {text(yours)}, it is {text(right)}{how_far(mine, other)}."


def how_far(mine, other):
    """How many times as much or as little it is, as a clause; empty where that says nothing."""
    if not (mine * other > 0 and math.isfinite(mine * other)):
        return ""
    times, word = (other / mine, "much") if other > mine else (mine / other, "little")
    return f": {times:.3g} times as {word}" if 1.5 <= times < math.inf and other > 0 else ""


def number_of(value):
    """A value as a float: numbers, arrays and tensors of one element, texts of a number."""
    if isinstance(value, bool):
        return None
    try:
        number = written(value.strip()) if isinstance(value, str) else float(value)
    except Exception:  # whatever a learner has written there
        return None
    return None if math.isnan(number) else number


def written(line):
    """A number as people write it, with a comma for thousands or for decimals, or as a fraction."""
    if THOUSANDS.fullmatch(line):
        return float(line.replace(",", ""))
    if DECIMAL_COMMA.fullmatch(line):
        return float(line.replace(",", "."))
    return float(Fraction(line.replace(" ", "")) if "/" in line else line)


def folded(value):
    """A text in which case, spaces and quotes round it do not count."""
    return " ".join(text(value).casefold().strip(" '\"`").split())


def text(value):
    """A value in a line; numbers with six digits."""
    number = number_of(value)
    if number is not None and not isinstance(value, str):
        return f"{number:,.0f}" if is_whole(number) else f"{number:.6g}"
    try:
        line = " ".join(str(value).split())
    except Exception:  # its own __str__ fails
        line = f"a {type(value).__name__}"
    return line if len(line) <= 60 else line[:57] + "..."


def is_whole(number):
    """Whether a float is a whole number that it holds exactly."""
    return number == math.floor(number) and abs(number) < 2**53 if math.isfinite(number) else False

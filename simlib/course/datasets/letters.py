"""Text for a small language model: lines with numbers in words, which need no download."""

from __future__ import annotations

import itertools

import torch

ONES = "zero one two three four five six seven eight nine".split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
IGNORED = -100
"""The number that fills up a short line. It is the default ``ignore_index`` of torch's losses."""


def lines() -> list[str]:
    """81 lines, each with two consecutive numbers, such as ``"six, seven."``.

    A line has 9 to 29 letters. Comma, space and full stop count as letters.
    """
    spelt = ONES + [f"{ten} {one}" for ten in TENS for one in ONES[1:]]
    return [f"{one}, {other}." for one, other in itertools.pairwise(spelt)]


def alphabet() -> str:
    """The letters that occur in the lines, in order."""
    return "".join(sorted(set("".join(lines()))))


def load() -> torch.Tensor:
    """The lines as numbers.

    Returns
    -------
    torch.Tensor
        An int64 tensor with a row for each line of `lines`. A row contains the places of the line's
        letters in `alphabet`. `IGNORED` fills it up to the length of the longest line. A model has
        to guess all letters of a row except the first.
    """
    place = {letter: number for number, letter in enumerate(alphabet())}
    rows = [torch.tensor([place[letter] for letter in line]) for line in lines()]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=IGNORED)

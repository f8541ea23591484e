"""`simlib.guess`: a sentence on a guess, none where nobody guessed, and never an error."""

import doctest
import math

import pytest
import torch

import simlib
from simlib.classroom.checks import verdict


def said(capsys, *args, **options):
    assert simlib.guess(*args, **options) is None
    return capsys.readouterr().out.rstrip("\n")


def test_the_examples_in_its_documentation():
    found = doctest.testmod(verdict)
    assert (found.failed, found.attempted) == (0, 5)


@pytest.mark.parametrize("right", [12, "rank 1", None, torch.ones(3), math.nan])
def test_nobody_guessed_and_nothing_is_said(capsys, right):
    assert said(capsys, None, right, of=("a",)) == ""


@pytest.mark.parametrize(
    "yours, right, options, sentence",
    [
        (12.0, 12, {}, "Your guess is right: 12."),
        ("1,200", 1200, {}, "Your guess is right: 1,200."),
        (torch.tensor(3), 3.0, {}, "Your guess is right: 3."),
        (11, 12, {}, "Your guess was 11, it is 12."),
        (36, 12, {}, "Your guess was 36, it is 12: 3 times as little."),
        (0, 12, {}, "Your guess was 0, it is 12."),
        (-6, 12, {}, "Your guess was -6, it is 12."),
        (12, 0, {}, "Your guess was 12, it is 0."),
        (13, 12, {"within": 0.1}, "Your guess of 13 is near enough: it is 12."),
        (14, 12, {"within": 0.1}, "Your guess was 14, it is 12."),
        (math.inf, 12, {}, "Your guess was inf, it is 12."),
        (math.nan, 12, {}, "nan is no number; it is 12."),
        ("many", 12, {}, "many is no number; it is 12."),
        (True, 1, {}, "True is no number; it is 1."),
        (True, False, {}, "Your guess was True, it is False."),
        ("DEADLOCK ", "deadlock", {}, "Your guess is right: deadlock."),
        (2, 3, {"of": (1, 2, 3)}, "Your guess was 2, it is 3."),
        ("c", "a", {"of": ("a", "b")}, "c is none of these: a, b."),
        (10**400, 12, {}, f"{str(10**400)[:57]}... is no number; it is 12."),
        (0.3, 0.1 + 0.2, {}, "Your guess is right: 0.3."),
        (0.31, 0.1 + 0.2, {}, "Your guess was 0.31, it is 0.3."),
        ("12,5", 12.5, {}, "Your guess is right: 12.5."),
        ("12,5", 125, {}, "Your guess was 12,5, it is 125: 10 times as much."),
        ("1,200.5", 1200.5, {}, "Your guess is right: 1200.5."),
        ("1,20,0", 1200, {}, "1,20,0 is no number; it is 1,200."),
        ("7/4", 1.75, {}, "Your guess is right: 1.75."),
        (" 7 / 4", 1.75, {}, "Your guess is right: 1.75."),
        ("7/0", 1.75, {}, "7/0 is no number; it is 1.75."),
        ("'rank 0'", "rank 0", {"of": ("rank 0", "rank 1")}, "Your guess is right: rank 0."),
        ('"Rank 1"', "rank 0", {}, 'Your guess was "Rank 1", it is rank 0.'),
        (3, 1, {"of": range(4)}, "Your guess was 3, it is 1."),
        ("3", 3.0, {"of": range(4)}, "Your guess is right: 3."),
        (1e-320, 1e300, {}, "Your guess was 9.99989e-321, it is 1e+300."),
    ],
)
def test_what_is_said(capsys, yours, right, options, sentence):
    assert said(capsys, yours, right, **options) == sentence


class Odd:
    """Whatever is asked of it fails."""

    def __str__(self):
        raise RuntimeError

    __repr__ = __float__ = __eq__ = __bool__ = __str__
    __hash__ = None


@pytest.mark.parametrize("yours", [Odd(), object(), [1, 2], {}, b"x", print, torch.ones(3), 3 + 4j])
@pytest.mark.parametrize("right", [12, "rank 1", True])
def test_no_guess_is_an_error(capsys, yours, right):
    assert said(capsys, yours, right)
    assert said(capsys, yours, right, of=(1, "rank 1", True))

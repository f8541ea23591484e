"""Compare a value with the expected value. Say what is wrong, and what is the likely cause."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch

SHOWN = 6  # elements of a tensor that a verdict prints
DEEPEST, LONGEST = 20, 1000  # levels and values of a container
_NOTHING = object()
EXACT = 1e-5  # share by which floats that are equal may differ


def describe(value: object) -> str:
    """A value as short text in Python's notation: at most a few elements of a tensor.

    The text shows containers down to `DEEPEST` levels, and at most `LONGEST` values in all.
    """
    return text_of(value, itertools.count(1), 0)


def text_of(value: object, counted: Iterator[int], depth: int) -> str:
    """Do the work of `describe`, with the number of values written so far and the depth."""
    if next(counted) > LONGEST or depth > DEEPEST:
        return "..."

    def inside(items):
        return ", ".join(
            text_of(one, counted, depth + 1) for one in itertools.islice(items, LONGEST)
        )

    if isinstance(value, torch.Tensor):
        return describe_tensor(value)
    if isinstance(value, tuple):
        return "(" + inside(value) + "," * (len(value) == 1) + ")"
    if isinstance(value, list):
        return "[" + inside(value) + "]"
    if isinstance(value, dict):
        pairs = itertools.islice(value.items(), LONGEST)
        return "{" + ", ".join(f"{inside([key])}: {inside([one])}" for key, one in pairs) + "}"
    if isinstance(value, float):
        return f"{value:g}"
    try:
        text = repr(value)
    except Exception:  # a number of too many digits
        return kind_of(value)
    return text if len(text) <= 60 else text[:57] + "..."


def kind_of(value: object) -> str:
    """The name of a value's class with its article, such as ``"an int"``."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def describe_tensor(tensor: torch.Tensor) -> str:
    """A tensor as torch prints it, flat, with its shape and dtype if they are unusual."""
    flat = first_of(tensor.detach(), SHOWN).tolist()
    numbers = [f"{x:g}" if isinstance(x, float) else str(x) for x in flat]
    if tensor.is_floating_point():
        numbers = [text + "." * text.lstrip("-").isdigit() for text in numbers]
    text = ", ".join(numbers + ["..."] * (tensor.numel() > SHOWN))
    if tensor.dim() == 0:
        return f"tensor({text})"
    if tensor.dtype not in (torch.float32, torch.int64):
        return f"tensor([{text}], dtype={dtype_name(tensor)})"
    return f"tensor([{text}])" + f" of shape {tuple(tensor.shape)}" * (tensor.dim() > 1)


def first_of(tensor: torch.Tensor, number: int) -> torch.Tensor:
    """The first elements of a tensor, flat. Only these are copied, even from a large tensor."""
    for dim in range(tensor.dim()):
        below = math.prod(tensor.shape[dim + 1 :])
        tensor = tensor.narrow(dim, 0, min(tensor.shape[dim], number // max(1, below) + 1))
    return tensor.flatten()[:number]


def first_unseen(got: Any, want: Any) -> str:
    """A clause with the first difference of two tensors, if `describe` does not show it; else
    empty."""
    both = isinstance(got, torch.Tensor) and isinstance(want, torch.Tensor)
    if not both or got.shape != want.shape or describe(got) != describe(want):
        return ""
    other = ~torch.isclose(got, want, rtol=1e-5, atol=1e-6, equal_nan=True)
    if not other.any():
        return ""
    index = tuple(other.nonzero()[0].tolist())
    place = index[0] if len(index) == 1 else index
    return f"; element {place} differs: {got[index].item():g}, not {want[index].item():g}"


def dtype_differs(got: Any, want: Any) -> bool:
    """Whether both are tensors of the same shape but of different dtypes."""
    both = isinstance(got, torch.Tensor) and isinstance(want, torch.Tensor)
    return both and got.shape == want.shape and got.dtype != want.dtype


def dtype_name(tensor: torch.Tensor) -> str:
    """``"float32"`` for a float32 tensor."""
    return str(tensor.dtype).removeprefix("torch.")


def difference(got: Any, want: Any, within: float = EXACT) -> str | None:
    """The words after "rank 0" that say why `got` differs from `want`; None if they are equal.

    Tensors must agree in shape and dtype. Floats may have a relative error of 1e-5. Integers must
    be equal. nan equals nan. Floats outside of tensors may have a relative error of ``within``.
    """
    if want is None:
        return None if got is None else f"has {describe(got)}, but nothing (None) is expected"
    if got is None:
        return "returns None: does the function always reach a `return`?"
    if isinstance(want, torch.Tensor):
        return tensor_difference(got, want)
    if isinstance(want, (list, tuple)):
        return list_difference(got, want, within)
    if isinstance(want, dict):
        if not isinstance(got, dict) or got.keys() != want.keys():
            expected = f"a dict with {', '.join(map(str, want))}" if want else "an empty dict"
            return f"has {describe(got)}, but {expected} is expected"
        wrong = {key: text for key in want if (text := difference(got[key], want[key], within))}
        return next((f"at {key!r} {text}" for key, text in wrong.items()), None)
    if isinstance(want, str):
        return None if got == want else f"has {describe(got)}, but {want!r} is expected"
    if isinstance(got, bool) or not isinstance(got, (int, float)):
        return no_number(got)
    return None if same_number(got, want, within) else "has the wrong value"


def no_number(got: object) -> str:
    """Words about a `got` that should be a number of Python's own, and how to make one."""
    item = ": convert it with .item()"
    if isinstance(got, np.generic):
        return f"has a numpy {type(got).__name__}, but a Python number is expected{item}"
    of_one = isinstance(got, torch.Tensor) and got.numel() == 1
    return f"has {kind_of(got)}, but a number is expected{item if of_one else ''}"


def same_number(got: Any, want: Any, within: float = EXACT) -> bool:
    """Whether two numbers are equal. Floats may have a relative error. nan equals nan."""
    if isinstance(got, Integral) and isinstance(want, Integral):
        return got == want
    try:
        if not math.isfinite(want):
            return got == want or math.isnan(got) and math.isnan(want)
        return abs(got - want) <= max(within * abs(want), EXACT)
    except OverflowError:  # an int that no float can hold
        return False


def tensor_difference(got: object, want: torch.Tensor) -> str | None:
    """`difference` for an expected tensor."""
    if not isinstance(got, torch.Tensor):
        return f"has {kind_of(got)}, but a tensor is expected"
    if got.shape != want.shape:
        return f"has a tensor of shape {tuple(got.shape)}, but {tuple(want.shape)} is expected"
    if got.dtype != want.dtype:
        return f"has dtype {dtype_name(got)}, but {dtype_name(want)} is expected"
    if want.is_floating_point():
        if got.isnan().any() and not want.isnan().any():
            return "has nan (not a number). 0 / 0 gives nan, and every sum with nan is nan"
        same = torch.allclose(got, want, rtol=1e-5, atol=1e-6, equal_nan=True)
    else:
        same = torch.equal(got, want)
    return None if same else "has the wrong value"


def list_difference(got: Any, want: Sequence, within: float = EXACT) -> str | None:
    """`difference` for an expected list."""
    if not isinstance(got, (list, tuple)):
        return f"has {kind_of(got)}, but {kind_of(want)} is expected"
    if len(got) != len(want):
        return f"has a list of length {len(got)}, but length {len(want)} is expected"
    index, one, _, wrong = first_wrong(got, want, within) or (None,) * 4
    if one is None and wrong:
        return f"has None at index {index}: nothing was put there"
    return wrong and _at(index, wrong)


def first_wrong(got: Any, want: Any, within: float = EXACT):
    """The first difference of two lists: ``(index, got, want, what is wrong)``; None if none."""
    both = itertools.zip_longest(got, want, fillvalue=_NOTHING)
    for index, (one, other) in enumerate(both):
        is_short = one is _NOTHING or other is _NOTHING
        wrong = "is too short or too long" if is_short else difference(one, other, within)
        if wrong:
            return index, one, other, wrong
    return None


def _at(index, wrong):
    """``at index 2 has ...``, or in a nested list ``at index [2][0] has ...``."""
    if not wrong.startswith("at index "):
        return f"at index {index} {wrong}"
    inner, rest = wrong.removeprefix("at index ").split(" ", 1)
    return f"at index [{index}]{inner if inner.startswith('[') else f'[{inner}]'} {rest}"


def first_different(got: Any, want: Any, within: float = EXACT):
    """The first index at which two lists differ, and the values there: ``(index, got, want)``."""
    index, *values, wrong = first_wrong(got, want, within) or (None,) * 4
    told = ("nothing" if value is _NOTHING else describe(value) for value in values)
    return wrong and (index, *told)


@dataclass(frozen=True)
class OneOf:
    """Several possible results of one mistake: ``OneOf(candidates)``. A result is a list by
    rank."""

    candidates: list


def known_mistake(
    got: Sequence, given: Sequence, mistakes: Mapping[str, Callable | str]
) -> str | None:
    """The sentence of the known mistake that gives these values, else None.

    Parameters
    ----------
    got : list
        The answer's values, by rank.
    given : list of tuple
        For each argument of the answer its values, by rank.
    mistakes : dict of str to callable
        A sentence about a mistake, and a function that returns the values which the mistake
        produces, or `OneOf` several lists of values.
    """
    for text, gives in mistakes.items():
        if isinstance(gives, str):
            continue  # known by an error, not by values
        values = gives(*given)
        candidates = values.candidates if isinstance(values, OneOf) else [values]
        if any(all_equal(got, candidate) for candidate in candidates):
            return text
    return None


def likely_cause(
    got: Sequence, want: Sequence, given: Sequence, is_passed: bool = True
) -> str | None:
    """One likely cause of wrong values, as a sentence. None if no known cause fits.

    Parameters
    ----------
    got, want : list
        The answer's values and the expected values, by rank.
    given : list of tuple
        For each argument of the answer its values, by rank.
    is_passed : bool
        Whether ranks have communicated. If no rank has communicated, equal values are equal by
        chance.
    """
    failing = [rank for rank in range(len(got)) if difference(got[rank], want[rank])]
    if given and all(not difference(got[rank], given[0][rank]) for rank in failing):
        return "This is still the rank's own input: the rank neither added to it nor replaced it."
    first = failing[0]
    owner = next((r for r in range(len(want)) if not difference(got[first], want[r])), None)
    if is_passed and owner is not None and want[owner] is not None:
        return (
            f"Rank {first} has the value that rank {owner} should have: check the direction "
            "and the order in which values are passed."
        )
    if isinstance(want[first], tuple) and not difference(got[first][::-1], want[first]):
        return "The values are right, but the function returns them in the other order."
    if same_numbers(got[first], want[first]):
        return "The value has the right numbers in a wrong order."
    right = [rank for rank in range(len(got)) if rank not in failing]
    if is_passed and len(right) == 1 and all_equal(want, [want[0]] * len(want)):
        return f"Only rank {right[0]} is right: do the other ranks learn the result?"
    return None


def same_numbers(got: object, want: Any) -> bool:
    """Whether two tensors of one shape have the same numbers, in any order."""
    if not isinstance(got, torch.Tensor) or got.shape != want.shape or got.dtype != want.dtype:
        return False
    return difference(got.flatten().sort().values, want.flatten().sort().values) is None


def all_equal(got: Sequence, want: Sequence) -> bool:
    """Whether each rank's value equals its expected value."""
    return all(not difference(one, other) for one, other in zip(got, want, strict=True))

"""Names of collectives and dtypes in torch's recorder, torch's profiler, NCCL and simlib.

Each of these spells a collective in its own way: simlib's ``all_gather`` is ``_allgather_base``,
``ALLGATHER_coalesced`` or ``AllGather``.
"""

from __future__ import annotations

import functools
import re

import torch

from ..collectives.schedules import KINDS as COLLECTIVES
from ..model.trace import P2P_KINDS

KINDS = {kind.replace("_", ""): kind for kind in (*COLLECTIVES, *P2P_KINDS)}
"""simlib's kinds, by their names without underscores."""
OTHER_WORDS = {"allreducebarrier": "barrier", "bcast": "broadcast"}
ENDING = re.compile(r"(v?single|v|oop|base|sparse|(into)?(tensor)?coalesced)$")
"""Endings that say how a call was made. They are no part of the kind."""
DTYPES = {
    "uint8": "Byte",
    "int8": "Char",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "float16": "Half",
    "float32": "Float",
    "float64": "Double",
    "complex32": "ComplexHalf",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
    "bool": "Bool",
    "bfloat16": "BFloat16",
}
"""The names of dtypes in torch's C++. Newer dtypes use their own name, as ``Float8_e4m3fn``."""
IN_CPP = {theirs.lower(): ours for ours, theirs in DTYPES.items()} | {
    "long int": "int64",
    "short int": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
}
"""simlib's names, by the names of torch and of the compiler in small letters."""
TORCH = {name: one for name, one in vars(torch).items() if isinstance(one, torch.dtype)}
"""All dtypes by torch's names."""


@functools.lru_cache(maxsize=256)
def kind_of(word: str) -> str | None:
    """simlib's name of a collective, ``send`` or ``recv``; None for any other word."""
    letters = word.replace("_", "").lower()
    return KINDS.get(letters) or OTHER_WORDS.get(letters) or KINDS.get(ENDING.sub("", letters))


@functools.lru_cache(maxsize=256)
def dtype_of(word: str) -> tuple[str, int] | None:
    """simlib's name of a dtype, and the bytes of an element; None if torch has no such dtype."""
    plain = word.lower().removeprefix("c10::")
    name = IN_CPP.get(plain, plain)
    dtype = TORCH.get(name)
    return (str(dtype).removeprefix("torch."), dtype.itemsize) if dtype is not None else None


def word_of_dtype(name: str) -> str:
    """The name that torch's recorder has for a dtype of simlib."""
    return DTYPES.get(name, name.capitalize())

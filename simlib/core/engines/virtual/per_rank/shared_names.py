"""Names of shared modules to which several ranks have given different values.

On real ranks, each rank has its own value. In a simulation, the last value counts for all ranks.
simlib notices names that the learner's own lines set (``torch.flag = rank``), by the class of the
module. It also notices names that functions of a package with C extensions set by ``global``. It
compares those names when another rank continues.
"""

from __future__ import annotations

import dis
import importlib
import operator
import sys
from collections.abc import Iterator
from types import CodeType, ModuleType

import cloudpickle

from ....environment import is_learners
from ....record.recorder import Recorder
from ....record.this_rank import here as local

_STORE_GLOBAL = dis.opmap["STORE_GLOBAL"]
_OF_RANK = {("sys", name) for name in ("stdout", "stderr", "argv", "path")} | {("os", "environ")}
_ABSENT = object()


class SharedNames:
    """The names that ranks set in modules that they share.

    Attributes
    ----------
    is_seen : bool
        Whether there are names to compare when another rank continues.
    """

    def __init__(self) -> None:
        self.is_seen = False
        self._names: dict[tuple[str, str], tuple[dict, tuple]] = {}
        self._watched = type("module", (ModuleType,), _methods(self._note))
        self.begin()

    def begin(self) -> None:
        """Forget the names that ranks have set."""
        self._set: dict[tuple[str, str], dict[int, tuple]] = {}
        self._before = self._values()

    def watch(self, module: ModuleType) -> None:
        """Watch the names that the learner's lines set in a module."""
        if type(module) is ModuleType:
            module.__class__ = self._watched

    def watch_globals(self, module: ModuleType, code: CodeType | None) -> None:
        """Watch the names that functions of a module, from this code, set in it by ``global``."""
        for place, name in _globals_set(code) if code else ():
            key = module.__name__, name
            if key not in self._names:
                self._names[key] = vars(module), place
                self._before.append(vars(module).get(name, _ABSENT))
        self.is_seen = bool(self._names)

    def compare(self, rank: int, module: ModuleType, other: ModuleType | None) -> None:
        """Note the names that this rank had set by ``global`` while only it had the module."""
        for (of_module, name), (names, place) in self._names.items():
            if of_module == module.__name__ and name in names and hasattr(other, name):
                if not _are_alike([names[name], getattr(other, name)]):
                    self._set.setdefault((of_module, name), {})[rank] = names[name], place

    def look(self, rank: int) -> None:
        """Note the names that this rank, which has run until now, has set by ``global``."""
        now = self._values()
        if any(map(operator.is_not, self._before, now)):
            for before, value, (key, (_, place)) in zip(
                self._before, now, self._names.items(), strict=True
            ):
                if before is not value:
                    self._set.setdefault(key, {})[rank] = value, place
            self._before = now

    def _values(self):
        return [names.get(name, _ABSENT) for (_, name), (names, _) in self._names.items()]

    def _note(self, module, name, value, frame):
        rank = local.__dict__.get("rank")
        if rank is None or not is_learners(frame.f_code.co_filename):
            return
        key = module.__name__, name
        if key not in _OF_RANK:
            self._set.setdefault(key, {})[rank] = value, Recorder.place(frame)

    def of_many(self) -> list[tuple[str, str, dict[int, tuple]]]:
        """Module, name and ``{rank: place}`` of names that ranks have set to different values."""
        return [
            (module, name, {rank: place for rank, (_, place) in sorted(by_rank.items())})
            for (module, name), by_rank in self._set.items()
            if len(by_rank) > 1 and not _are_alike([value for value, _ in by_rank.values()])
        ]


def _methods(note):
    def __setattr__(module, name, value):
        note(module, name, value, sys._getframe(1))
        ModuleType.__setattr__(module, name, value)

    def __reduce__(module):  # cloudpickle knows modules by their class
        return importlib.import_module, (module.__name__,)

    return {"__setattr__": __setattr__, "__reduce__": __reduce__}


def _are_alike(values):
    first, *others = values
    if all(value is first for value in others):
        return True
    try:
        return len({cloudpickle.dumps(value) for value in values}) == 1
    except BaseException:  # a group, say: each rank has its own; or code of the learner's raises
        return False


def _globals_set(code: CodeType) -> Iterator[tuple[tuple[str, int, str], str]]:
    """For each global that functions of this code set: the function's place, and the name."""
    for function in code.co_consts:
        if isinstance(function, CodeType):
            if _STORE_GLOBAL in function.co_code[::2]:
                place = function.co_filename, function.co_firstlineno, function.co_name
                for one in dis.get_instructions(function):
                    if one.opcode == _STORE_GLOBAL:
                        yield place, one.argval
            yield from _globals_set(function)

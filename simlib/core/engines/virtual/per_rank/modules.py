"""Each rank's own modules. Each rank gets its own copies of its imports, as a process would.

The contents of a module belong to a rank: groups and ranks in globals, attributes of classes,
caches, constants from the environment. So each rank has its own copies of its imports, which are in
``sys.modules`` only while its thread runs. Ranks share Python's modules, torch, numpy, the modules
that this process had imported before any rank, and packages with C extensions, because C code keeps
pointers to one copy of its package. They also share packages that cannot be loaded twice.
"""

from __future__ import annotations

import functools
import importlib.machinery
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ....record.this_rank import here as local

if TYPE_CHECKING:
    from .shared_names import SharedNames

_bootstrap = sys.modules["_frozen_importlib"]
SHARED = {*sys.stdlib_module_names, "torch", "numpy", "simlib"}
"""Packages that all ranks share."""


class ModulesInTurn:
    """Finds modules for ranks, and keeps for each rank its own modules.

    Parameters
    ----------
    names : SharedNames
        It notes the names that ranks set in modules that they share.

    Attributes
    ----------
    of_rank : list of dict
        By rank, its own modules by name. The modules of the running rank are in ``sys.modules``.
    shared : dict of str to str
        Packages that ranks have imported but share, with the reasons.
    names : SharedNames
    """

    def __init__(self, names: SharedNames) -> None:
        self._main = sys.modules["__main__"]
        self._before = {name.partition(".")[0] for name in sys.modules} - {"__main__"}
        self._packages: dict[str, str | None] = {}
        self.names = names
        self.begin(0)
        for module in list(sys.modules.values()):
            if module is not self._main:
                self.names.watch(module)
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]
        lock_of = _bootstrap._get_module_lock
        _bootstrap._get_module_lock = lambda name: lock_of(self._name_of_lock(name))

    def begin(self, size: int) -> None:
        """Forget all modules of ranks, and expect ``size`` new ranks."""
        for name in getattr(self, "_names", ()):
            sys.modules.pop(name, None)
        sys.modules["__main__"] = self._main
        self.shared: dict[str, str] = {}
        self._names = {"__main__"}
        self.of_rank: list[dict] = [{"__main__": self._main} for _ in range(size)]
        self.names.begin()

    def find_spec(self, name, path=None, target=None):
        """The result of Python's own finders. If a rank imports the module, note that it is the
        rank's."""
        rank = local.__dict__.get("rank")
        if rank is None:
            return None
        spec = self._found(name, path, target)
        if spec is None:
            return None
        if not self._is_own(name.partition(".")[0]):
            return self._to_be_watched(spec)
        self._names.add(name)
        self.of_rank[rank].setdefault(name, None)
        execute = getattr(spec.loader, "exec_module", None)
        if _is_installed(spec.origin) and getattr(execute, "func", None) != self._execute:
            spec.loader.exec_module = functools.partial(self._execute, execute)
        return spec

    def _found(self, name, path, target):
        for finder in sys.meta_path:
            if finder is not self:
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    return spec
        return None

    def _to_be_watched(self, spec):
        """The spec of a module that ranks share. The module is watched when it is made."""
        execute = getattr(spec.loader, "exec_module", None)
        is_watched = getattr(execute, "func", None) == self._execute_shared
        if execute is not None and not is_watched and not isinstance(spec.loader, type):
            spec.loader.exec_module = functools.partial(self._execute_shared, execute)
        return spec

    def _execute_shared(self, execute, module):
        execute(module)
        self._watch(module)

    def _watch(self, module):
        self.names.watch(module)
        if module.__name__.partition(".")[0] in self.shared:
            find_code = getattr(module.__loader__, "get_code", None)
            self.names.watch_globals(module, find_code and find_code(module.__name__))

    def _execute(self, execute, module):
        """Load an installed module. If a second copy is impossible, all ranks share the first
        copy."""
        try:
            execute(module)
        except Exception as error:
            if not self._share(module.__name__, f"a second copy of it raises {error!r}"):
                raise

    def _share(self, name, why):
        """Let all ranks share the first whole copy of a package; returns whether there is one."""
        package = name.partition(".")[0]
        had = next((r for r, own in enumerate(self.of_rank) if _is_complete(own.get(name))), None)
        if had is None:
            return False
        first = self.of_rank[had]
        self.shared[package] = self._packages[package] = why
        for one in _within(package, first):
            second, sys.modules[one] = sys.modules.get(one), first[one]
            self._names.discard(one)
            if first[one] is not None:
                self._watch(first[one])
                self.names.compare(had, first[one], second)
        for own in self.of_rank:
            for one in list(_within(package, own)):
                del own[one]
        return True

    def _is_own(self, package):
        if package in SHARED or package in self._before:
            return False
        if package not in self._packages:
            self._packages[package] = "it has C extensions" if _has_extensions(package) else None
        why = self._packages[package]
        if why is not None:
            self.shared[package] = why
        return why is None

    def _name_of_lock(self, name):
        """The lock on the import of a module. A rank may wait for others while it imports."""
        rank = local.__dict__.get("rank")
        if rank is None or not self._is_own(name.partition(".")[0]):
            return name
        return f"{name} of rank {rank}"


def _is_complete(module):
    return module is not None and not getattr(module.__spec__, "_initializing", False)


def _within(package: str, names: Iterable[str]) -> Iterable[str]:
    return [one for one in names if one.partition(".")[0] == package]


def _has_extensions(package):
    """Whether a package is written in C, or contains C code in its folders."""
    spec = importlib.machinery.PathFinder.find_spec(package)
    if spec is None:
        return False
    endings = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    if spec.origin and spec.origin.endswith(endings):
        return True
    folders = spec.submodule_search_locations or ()
    return any(
        file.name.endswith(endings)
        for folder in folders
        if _is_installed(folder)
        for file in Path(folder).rglob("*")
    )


def _is_installed(place):
    """Whether a file or folder is where packages are installed, and so is not the learner's."""
    return place is not None and any(part.endswith("-packages") for part in Path(place).parts)

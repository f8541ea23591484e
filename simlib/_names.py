"""Public modules under the names by which programs import them.

Exercises say ``from simlib.checks import check``; the module is `simlib.classroom.checks`. Both
names give the same module. This is also so for the modules below it.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

PUBLIC = {
    "checks": "classroom.checks",
    "clusters": "core.clusters",
    "collectives": "core.collectives",
    "datasets": "course.datasets",
    "devices": "core.devices",
    "draw": "core.draw",
    "engines": "core.engines",
    "engines.canary": "testing.canary",
    "errors": "core.model.errors",
    "grading": "classroom.grading",
    "labs": "course.labs",
    "mpi": "cluster.mpi",
    "practice": "cluster.practice",
    "scale": "core.scale",
}
"""The name below `simlib` -> the place of the module below `simlib`."""


def real_name(name: str) -> str | None:
    """The full name of the module that a public name means; None for any other name."""
    package, _, rest = name.partition(".")
    parts = rest.split(".")
    for count in (2, 1):
        public, below = ".".join(parts[:count]), parts[count:]
        if package == __package__ and public in PUBLIC:
            return ".".join([package, PUBLIC[public], *below])
    return None


class PublicNames(MetaPathFinder):
    """Finds the modules of `PUBLIC`, for ``sys.meta_path``."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        real = real_name(name)
        found = importlib.util.find_spec(real) if real is not None else None
        if found is None:
            return None
        is_package = found.submodule_search_locations is not None
        return ModuleSpec(name, TheSame(found), origin=found.origin, is_package=is_package)


class TheSame(InspectLoader):
    """A loader for a module that is already loaded under another name."""

    def __init__(self, spec: ModuleSpec) -> None:
        self._spec = spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return import_module(self._spec.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has just replaced it

    def get_code(self, fullname: str) -> CodeType | None:
        """For ``python -m``."""
        return self._spec.loader.get_code(self._spec.name)

    def get_source(self, fullname: str) -> str | None:
        return self._spec.loader.get_source(self._spec.name)


def install() -> None:
    """From now on, find modules by their public names."""
    if not any(isinstance(one, PublicNames) for one in sys.meta_path):
        sys.meta_path.insert(0, PublicNames())  # before those that would load it a second time

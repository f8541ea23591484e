"""Something that is done to a module of torch once it is imported, which may be never."""

from __future__ import annotations

import importlib.util
import sys


def when_imported(name, act):
    """Call ``act(module)`` when the module of this name is there: now, or right after its import.

    Nothing is imported for it: that may take seconds, which a rank that does without the module
    need not wait for.

    Parameters
    ----------
    name : str
        The module's full name.
    act : callable
        What is done to it, once in a process.
    """
    if name in sys.modules:
        act(sys.modules[name])
    else:
        sys.meta_path.insert(0, _AtImport(name, act))


class _AtImport:
    """Finds the module as Python would, and acts once it is there."""

    def __init__(self, name, act):
        self._name, self._act = name, act

    def find_spec(self, name, path=None, target=None):
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_act(module):
            execute(module)
            self._act(module)

        spec.loader.exec_module = execute_and_act
        return spec

"""The pages of the reference: every public name, from its docstring."""

import importlib
import sys
from types import ModuleType

from sphinx.pycode import ModuleAnalyzer

ALGORITHMS = ("all_reduce", "broadcast", "parts", "reduce")
"""Modules of algorithms; `parts` has those of scatter, gather, all_gather..."""
GROUPS = {
    "simlib": "Running, recording, and what comes back",
    "simlib.clusters": "Modelled machines",
    "simlib.scale": "Closed formulas: what a step takes, and what goes wrong",
    "simlib.collectives": "Collectives as messages",
    **{f"simlib.collectives.{name}": "algorithms, with cost and source" for name in ALGORITHMS},
    "simlib.labs": "Pictures with sliders",
    "simlib.checks": "Checks of exercises",
    "simlib.course.datasets.digits": "Images of digits",
    "simlib.course.datasets.letters": "Text for small language models",
    "simlib.core.record.lightning": "Lightning on recorded ranks",
}
"""Modules of the reference, and what each is about."""


def names_of(module):
    """The public names of a module: of its `__all__`, else the functions and classes it defines."""
    found = importlib.import_module(module)
    names = getattr(found, "__all__", None)
    if names is not None:
        return [name for name in names if not isinstance(getattr(found, name), ModuleType)]
    return [
        name
        for name, value in vars(found).items()
        if getattr(value, "__module__", None) == found.__name__ and not name.startswith("_")
    ]


def pages():
    """``{name of the file: its text}``: a list of all, and a page for each module."""
    listed = "".join(f"   {module}\n" for module in GROUPS)
    made = {"index.rst": f"{_title('Reference')}.. toctree::\n   :maxdepth: 2\n\n{listed}"}
    for module, about in GROUPS.items():
        found = importlib.import_module(module)
        names = names_of(module)
        called = "".join(f"   {name}\n" for name in names if callable(getattr(found, name)))
        constants = [name for name in names if not callable(getattr(found, name))]
        made[f"{module}.rst"] = (
            f"{_title(f'{module}: {about}')}.. currentmodule:: {module}\n\n"
            f".. autosummary::\n   :toctree: names\n\n{called}\n"
            + "".join(f".. data:: {name}\n\n   {_told(found, name)}\n\n" for name in constants)
        )
    return made


def _told(package, name):
    """What a constant's module says below it, in one line."""
    for module in sys.modules.values():
        here = getattr(module, "__name__", "")
        if here.startswith(package.__name__) and name in vars(module):
            told = ModuleAnalyzer.for_module(here).find_attr_docs().get(("", name))
            if told:
                return " ".join(" ".join(told).split())
    return "A constant."


def _title(words):
    return f"{words}\n{'=' * len(words)}\n\n"

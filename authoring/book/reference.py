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
FIRST = {
    "simlib": "run simulate Run Cluster compute load compare diagnose submit Job".split(),
    "simlib.scale": "time_of step_time sync_time pipeline_time zero_time".split(),
    "simlib.collectives": "schedule choose Schedule".split(),
    "simlib.labs": "ping_pong_lab rounds_lab crossover_lab break_even_lab pipeline_lab".split(),
    "simlib.checks": "check_of check Verdict".split(),
}
"""By module, the names that readers need first, in this order."""
INTRODUCTION = (
    "Each table shows a name and the first sentence about it. Click a name for the rest.\n"
)


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
    """``{name of the file: its text}``: tables of all names, and a page for each module."""
    listed = "".join(f"   {module}\n" for module in GROUPS)
    toctree = f".. toctree::\n   :hidden:\n   :maxdepth: 1\n\n{listed}\n"
    tables = [
        f"{_title(f'{module}: {about}', '-')}{_tables(module, ':nosignatures:')}"
        for module, about in GROUPS.items()
    ]
    made = {"index.rst": "\n".join([_title("Reference"), INTRODUCTION, toctree, *tables])}
    for module, about in GROUPS.items():
        found = importlib.import_module(module)
        constants = [name for name in names_of(module) if not callable(getattr(found, name))]
        made[f"{module}.rst"] = (
            f"{_title(f'{module}: {about}')}{_tables(module, ':toctree: names')}"
            + "".join(f".. data:: {name}\n\n   {_told(found, name)}\n\n" for name in constants)
        )
    return made


def _tables(module, option):
    """A table for each sort of a module's names: a name, and the first sentence about it."""
    found, sorts = importlib.import_module(module), {}
    names = [name for name in names_of(module) if callable(getattr(found, name))]
    first = sorts["Start here"] = FIRST.get(module, [])
    for name in names:
        if name not in first:
            sorts.setdefault(_sort(getattr(found, name)), []).append(name)
    listed = {sort: "".join(f"   {name}\n" for name in sorts[sort]) for sort in sorts}
    return f".. currentmodule:: {module}\n\n" + "".join(
        f".. rubric:: {sort}\n\n.. autosummary::\n   {option}\n\n{listed[sort]}\n"
        for sort in ("Start here", "Functions", "Classes", "Errors")
        if listed.get(sort)
    )


def _sort(value):
    if not isinstance(value, type):
        return "Functions"
    return "Errors" if issubclass(value, BaseException) else "Classes"


def _told(package, name):
    """What a constant's module says below it, in one line."""
    for module in sys.modules.values():
        here = getattr(module, "__name__", "")
        if here.startswith(package.__name__) and name in vars(module):
            told = ModuleAnalyzer.for_module(here).find_attr_docs().get(("", name))
            if told:
                return " ".join(" ".join(told).split())
    return "A constant."


def _title(words, line="="):
    return f"{words}\n{line * len(words)}\n\n"

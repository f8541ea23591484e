"""What a lesson imports and defines, without running anything else of it."""

from __future__ import annotations

import ast
from pathlib import Path

import jupytext

import simlib

LESSONS = Path(__file__).resolve().parents[1] / "authoring" / "lessons"
KEPT = ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef


def names_of(lesson, is_kept=lambda names: False):
    """The names of a lesson's imports, functions, classes, and some of its values.

    Parameters
    ----------
    lesson : str
        As its file is called.
    is_kept : callable
        ``is_kept(names)``: whether an assignment to these is carried out, a set of str.
    """
    path = LESSONS / f"{lesson}.py"
    names = {"__name__": "lesson"}
    for cell in jupytext.read(path, fmt="py:percent").cells:
        if cell.cell_type == "code":
            kept = [one for one in ast.parse(cell.source).body if _stays(one, is_kept)]
            exec(compile(ast.Module(kept, []), f"<{lesson}>", "exec"), names)
    return names


def _stays(statement, is_kept):
    if not isinstance(statement, ast.Assign):
        return isinstance(statement, KEPT)
    targets = ast.walk(ast.Tuple(statement.targets))
    return is_kept({one.id for one in targets if isinstance(one, ast.Name)})


ENGINES = ("run", "simulate")


def start(engine, program, world_size, *args):
    """A `Run`, by the engine of this name."""
    if engine == "run":
        return simlib.run(program, world_size, args=args)
    cluster = simlib.clusters.ethernet_10g(5, device=simlib.Device(flops_per_s=100e9))
    return simlib.simulate(program, world_size, args=args, cluster=cluster)

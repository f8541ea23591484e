"""What a lesson imports and defines, without running the rest of it; what learners write in it."""

from __future__ import annotations

import ast
import re
import textwrap
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
            code = compile(ast.Module(kept, []), f"<{lesson}>", "exec", dont_inherit=True)
            exec(code, names)
    return names


def _stays(statement, is_kept):
    if not isinstance(statement, ast.Assign):
        return isinstance(statement, KEPT)
    targets = ast.walk(ast.Tuple(statement.targets))
    return is_kept({one.id for one in targets if isinstance(one, ast.Name)})


ANSWER = re.compile(r"<summary>Answer</summary>\n(.*?)</details>", re.DOTALL)


def written(lesson, name):
    """The code cells from the stub of ``name`` to its folded answer: as stored, and answered.

    An answer is a whole function, method or class. Or it stands in the place of the lines that are
    marked as the learner's: a block in the place of all, each inline ``return ...`` in that of one.

    Parameters
    ----------
    lesson : str
        As its file is called.
    name : str
        What the stub defines.
    """
    cells = jupytext.read(LESSONS / f"{lesson}.py", fmt="py:percent").cells
    stub = re.compile(rf"^ *(?:def |class ){name}\b|^{name} = None", re.MULTILINE)
    begin = next(k for k, cell in enumerate(cells) if stub.search(cell.source))
    end = next(k for k, cell in enumerate(cells) if k > begin and ANSWER.search(cell.source))
    source = "\n".join(cell.source for cell in cells[begin:end] if cell.cell_type == "code")
    answer, lines = ANSWER.search(cells[end].source)[1], source.split("\n")
    marked = re.compile(rf"#.*\byours?\b|^{name} = None")
    places = [slice(k, k + 1) for k, line in enumerate(lines) if marked.search(line)]
    pieces = re.findall(rf"`((?:return|{name} =) .*?)`", answer)
    if block := _block(answer):
        if stub.match(block):
            nodes = ast.walk(ast.parse(source))
            node = next(one for one in nodes if getattr(one, "name", None) == name)
            places = [slice(node.lineno - 1, node.end_lineno)]
        places, pieces = [slice(places[0].start, places[-1].stop)], [block]
    for place, piece in zip(places, pieces, strict=True):
        depth = min(len(line) - len(line.lstrip()) for line in lines[place] if line)
        lines[place] = textwrap.indent(piece, " " * depth).split("\n")
    return source, "\n".join(lines)


def _block(answer):
    """The lines of code of a folded answer, if it has any."""
    return textwrap.dedent(re.sub(r"^(?! {4}).+", "", answer, flags=re.MULTILINE)).strip("\n")


ENGINES = ("run", "simulate")


def start(engine, program, world_size, *args):
    """A `Run`, by the engine of this name."""
    if engine == "run":
        return simlib.run(program, world_size, args=args)
    cluster = simlib.clusters.ethernet_10g(8, device=simlib.Device(flops_per_s=100e9))
    return simlib.simulate(program, world_size, args=args, cluster=cluster)

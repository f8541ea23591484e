"""What a lesson defines, taken out of its source: one copy of what learners read and we measure."""

from __future__ import annotations

import ast
from pathlib import Path

LESSONS = Path(__file__).parent.parent / "authoring" / "lessons"


def lesson_names(lesson, wanted):
    """Functions and classes of a lesson, and its imports, by name: as a notebook would define them.

    Nothing else of the lesson is run. Ranks get the definitions by value.

    Parameters
    ----------
    lesson : str
        The source's name, without its ending.
    wanted : set of str

    Raises
    ------
    LookupError
        If the lesson no longer defines one of them.
    """
    import jupytext

    cells = jupytext.read(LESSONS / f"{lesson}.py", fmt="py:percent").cells
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    names = {"__name__": f"lesson_{lesson[:2]}"}
    for node in ast.parse(code).body:
        is_import = isinstance(node, (ast.Import, ast.ImportFrom))
        if is_import or getattr(node, "name", None) in wanted:
            exec(compile(ast.Module([node], []), lesson, "exec"), names)
    missing = wanted - names.keys()
    if missing:
        raise LookupError(f"lesson {lesson} does not define {', '.join(sorted(missing))}")
    return names

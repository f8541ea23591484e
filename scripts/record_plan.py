"""Record how long the plans of lesson 17 take in code, into ``notebooks/recorded/plan``.

    python scripts/record_plan.py

A plan takes one to five minutes, so a cell reads the recording.
"""

import ast
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from simlib.classroom.grading.source import read_source  # noqa: E402

LESSON = ROOT / "authoring" / "lessons" / "17_prove_it_wrong.py"
RECORDED = ROOT / "notebooks" / "recorded" / "plan" / "steps.json"
VALUES = {"AXIS", "RING", "SIZES", "CUTS"}


def main():
    """Run the lesson's ``in_code`` on each of its plans, and write their seconds."""
    names = lesson()
    found = {name: names["in_code"](name) for name in names["CUTS"]}
    RECORDED.parent.mkdir(parents=True, exist_ok=True)
    RECORDED.write_text(json.dumps(found, indent=1) + "\n")
    print(RECORDED.read_text())


def lesson():
    """The names of the lesson that its program needs."""
    names = {"__name__": "lesson"}
    for cell in read_source(LESSON, is_exercise=False).cells:
        if cell.cell_type == "code":
            kept = [node for node in ast.parse(cell.source).body if is_needed(node)]
            exec(compile(ast.Module(kept, []), "<lesson>", "exec"), names)
    return names


def is_needed(node):
    """Whether a statement belongs to the program or to its plans."""
    if isinstance(node, ast.Assign):
        targets = ast.walk(ast.Tuple(node.targets))
        return bool({one.id for one in targets if isinstance(one, ast.Name)} & VALUES)
    return isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef)


if __name__ == "__main__":
    main()

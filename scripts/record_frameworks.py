"""Record the runs that lesson 15 shows where Lightning and accelerate are not installed.

    python scripts/record_frameworks.py

It runs all parts of the lesson, with the extra `frameworks`, and keeps each run that they look at
in ``notebooks/recorded_frameworks``: the trace, and what the ranks returned or the error said.
"""

import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "authoring")]

from build import execute, isolate_kernels, with_neutral_places  # noqa: E402

from simlib.classroom.grading.source import read_source  # noqa: E402

RECORDED = ROOT / "notebooks" / "recorded_frameworks"
PARTS = sorted((ROOT / "authoring" / "lessons").glob("15_*.py"))

# Appended to the cell that defines `look`: what it gives is kept.
KEEP = """
_look = look


def look(name, *given, **options):
    assert hasattr(L, "Trainer"), "to record, install the frameworks: make frameworks"
    error = None
    try:
        run = _look(name, *given, **options)
    except simlib.SimlibError as caught:
        error, run = caught, caught.run
    run.save(Path({kept!r}, name + ".json"))
    said = error and [type(error).__name__, str(error)]
    kept = json.dumps({{"results": None if error else run.results, "error": said}})
    Path({kept!r}, name + "_results.json").write_text(kept + "\\n")
    if error:
        raise error
    return run
"""


def main():
    """Run all parts of the lesson and put their runs into the place of the old ones."""
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder, "kept")
        kept.mkdir()
        isolate_kernels(Path(folder))
        for part in PARTS:
            notebook = read_source(part, is_exercise=False)
            code = [cell for cell in notebook.cells if cell.cell_type == "code"]
            definition = next(cell for cell in code if "def look(" in cell.source)
            definition.source += KEEP.format(kept=str(kept))
            execute(notebook, ROOT / "notebooks", part.name)
        for old in RECORDED.glob("*.json"):
            old.unlink()
        for new in sorted(kept.glob("*.json")):
            shutil.copy(new, RECORDED)
            path = RECORDED / new.name
            path.write_text(with_neutral_places(path.read_text()))


if __name__ == "__main__":
    main()

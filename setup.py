"""What pyproject.toml cannot say: every install writes what the checks of exercises expect.

A clone has the sources of exercises only: `exercises/checks` is made of them here, whatever
setuptools is asked for. A wheel gets a copy, and a copy of the whole course.
"""

import shutil
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from simlib.classroom.grading.exercise import CASES, SourceError, write_checks  # noqa: E402
from simlib.course.open_lab.own_copy import files_of  # noqa: E402


class BuildWithCourse(build_py):
    """Copies the course and `exercises/checks` into simlib, which then needs no clone."""

    def run(self):
        super().run()
        if not self.editable_mode:  # which is a clone
            simlib = Path(self.build_lib) / "simlib"
            given = simlib / "classroom" / "checks" / "given"
            shutil.copytree(ROOT / CASES, given, dirs_exist_ok=True)
            for name, path in files_of(ROOT).items():
                target = simlib / "course" / "given" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)


try:
    write_checks(ROOT)
except (SourceError, SyntaxError) as error:  # a teacher is in the midst of one
    print(f"The checks of exercises stay as they are: {error}", file=sys.stderr)
setup(cmdclass={"build_py": BuildWithCourse})

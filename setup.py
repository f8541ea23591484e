"""What pyproject.toml cannot say: every install writes what the checks of exercises expect.

A clone has the sources of exercises only: `exercises/checks` is made of them here, whatever
setuptools is asked for. A wheel gets a copy.
"""

import shutil
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from simlib.classroom.grading.exercise import CASES, SourceError, write_checks  # noqa: E402


class BuildWithCases(build_py):
    """Copies `exercises/checks` to `classroom/checks/given`, where simlib needs no clone."""

    def run(self):
        super().run()
        if not self.editable_mode:  # which is a clone
            given = Path(self.build_lib) / "simlib" / "classroom" / "checks" / "given"
            shutil.copytree(ROOT / CASES, given, dirs_exist_ok=True)


try:
    write_checks(ROOT)
except (SourceError, SyntaxError) as error:  # a teacher is in the midst of one
    print(f"The checks of exercises stay as they are: {error}", file=sys.stderr)
setup(cmdclass={"build_py": BuildWithCases})

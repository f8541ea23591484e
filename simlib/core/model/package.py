"""Where this package lies, and its version."""

from __future__ import annotations

from pathlib import Path

VERSION = "0.1.0"
FOLDER = Path(__file__).parent.parent.parent
"""The folder ``simlib``, by the path it was imported by: frames name their files so."""
ROOT = FOLDER.resolve().parent
"""What stands on the import path: the repository, or site-packages."""
GIVEN = FOLDER / "classroom" / "checks" / "given"
"""What checks of exercises expect, in a wheel only: a clone has it in `exercises/checks`."""

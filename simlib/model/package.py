"""Where this package lies, and its version."""

from __future__ import annotations

from pathlib import Path

VERSION = "0.1.0"
FOLDER = Path(__file__).resolve().parent.parent
"""The folder ``simlib``."""
ROOT = FOLDER.parent
"""What stands on the import path: the repository, or site-packages."""

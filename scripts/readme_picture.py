"""Draw the picture in README.md, by simlib itself: ``python scripts/readme_picture.py [FILE]``.

It is the program of the book's first page, simulated: every machine draws the same run.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "timeline.png"
sys.path.insert(0, str(ROOT / "authoring"))

from book import first_program  # noqa: E402


def draw(path):
    """Write the timeline of the run to a PNG file."""
    path.write_bytes(first_program.simulated()._repr_png_())


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE)

"""Build the book: ``python authoring/build_book.py``, or ``make book``.

The lessons as they are stored, nothing is run; the runs in them play. The book needs no kernel and
no network, and opens from its folder: `build/book/html/index.html`.

"""

import os
import shutil
import sys
from pathlib import Path

from simlib.core.draw.display import bar

HERE = Path(__file__).resolve().parent / "book"
ROOT = HERE.parents[1]
FOLDER = ROOT / "build" / "book"


def build(folder=FOLDER, root=ROOT):
    """Build the book into a folder, anew; returns the path of its first page.

    Raises
    ------
    SystemExit
        Sphinx is not installed, or has warned.
    """
    print("building the book, which takes two minutes ...", file=sys.stderr)
    try:
        with bar(None, "importing Sphinx"):
            from book.stage import Stage
            from sphinx.cmd.build import build_main
    except ImportError:
        sys.exit("The book needs Sphinx: make book installs it.")
    shutil.rmtree(folder, ignore_errors=True)
    Stage(root, folder).all()
    os.environ["BOOK_EXTRA"] = str(folder / "extra")
    html = folder / "html"
    words = ["-c", str(HERE), "-b", "html", "-q", "-W", "--keep-going", "-d", str(folder / "trees")]
    if build_main([*words, str(folder / "source"), str(html)]):
        sys.exit("The book was not built: see above.")
    return html / "index.html"


if __name__ == "__main__":
    print(f"Open {build()}")

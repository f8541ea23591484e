"""What plays of a lesson's outputs: kept beside the notebook, for the book.

A stored notebook holds pictures. `authoring/playable/NN_name.zip` holds for those that show a run
what `simlib.draw.player.page` makes a page of, and for a lab the pictures along its sliders: a JSON
file for each output, named by its cell and its place among the cell's outputs.
"""

import io
import json
import zipfile
from pathlib import Path

FOLDER = "authoring/playable"
KERNEL_FILE = Path(__file__).with_name("playable_kernel.py")
MIME = "application/vnd.simlib.page+json"


def beside(notebook):
    """The path of the file that goes with a notebook's, both from the repository's root."""
    return f"{FOLDER}/{notebook.removeprefix('notebooks/').removesuffix('.ipynb')}.zip"


def take_pages(notebook):
    """Take out, in place, what plays; returns ``{name: page}``."""
    return {
        f"{cell.id}-{place}.json": output.data.pop(MIME)
        for cell in notebook.cells
        for place, output in enumerate(cell.get("outputs", []))
        if MIME in output.get("data", {})
    }


def packed(pages, neutral):
    """The bytes of the file that keeps pages; ``neutral`` takes this machine out of a text."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for name, page in pages.items():
            text = neutral(json.dumps(page, separators=(",", ":"), ensure_ascii=False))
            file.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def read_pages(path):
    """``{name: page}`` of such a file; none where there is no file."""
    if not Path(path).exists():
        return {}
    with zipfile.ZipFile(path) as file:
        return {name: json.loads(file.read(name)) for name in file.namelist()}


def names_in(path):
    """The names of the pages in a file, or in its bytes."""
    with zipfile.ZipFile(path if isinstance(path, Path) else io.BytesIO(path)) as file:
        return file.namelist()


def difference(path, made):
    """In what a kept file differs from what was just made; times differ always, so by names."""
    if not path.exists():
        return f"{path.name} is missing"
    kept, now = names_in(path), names_in(made)
    odd = sorted(set(kept) ^ set(now))
    return f"{path.name} has not the pages of its notebook: {', '.join(odd)}" if odd else ""

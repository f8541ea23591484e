"""`simlib handout`: what students get, as a folder or a zip: no solutions, nothing hidden."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from .release_version import write_checks
from .self_check import PRISTINE
from .source import exercise_files

FILES = ("LICENSE", "constraints.txt", "pyproject.toml")
FOLDERS = ("exercises", "notebooks", "simlib")
LEFT_OUT = shutil.ignore_patterns(
    "__pycache__", ".ipynb_checkpoints", ".*", "*.egg-info", "*.orig", "*.rej", "simlib-jobs"
)
README = """\
# Rank by Rank: exercises

Distributed training from a notebook cell. `notebooks/` has the lessons, `exercises/` what you hand
in. You need Python 3.11 or newer on Linux or macOS; on Windows, work inside WSL2. No GPU is needed.

## Install

In this folder, once:

    python3 -m venv .venv
    .venv/bin/python -m pip install -c constraints.txt ".[course,cluster]"

or, with conda: `conda env create -f environment.yml`, then `conda activate rank-by-rank`.

## Work

    .venv/bin/jupyter lab

Open an exercise, write each function where it says `# YOUR CODE HERE`, run its cell, then the check
below it. A check says "not written yet", "wrong" with the smallest world that fails, or "right";
"partly right" where a task has points by part, and the values are right.

To check a whole notebook as it is on disk:

    .venv/bin/simlib check exercises/01_ranks_and_clusters.ipynb

or all of them: `.venv/bin/simlib check exercises`. Save first: it reads the file, not the window.
It runs everything from top to bottom, which is also what counts in the end.

- Your own cells may stand anywhere, and take 20 seconds each. What you import from a file of your
  own is not handed in: write it into a cell. Leave the cells of the exercise where they are.
- The checks that count are the original ones, whatever became of those in your notebook.
- There are hidden tests, too: the same functions with other inputs, under the same rules.
- Outputs do not count, so it does not matter which ones are saved.

## Hand in

The notebooks of `exercises/`, saved, under the names they have.
"""


class CannotHandOut(Exception):
    """There is nothing to hand out, or something in the way; the message is the reason."""


def handout(root, target):
    """Write a release for students.

    Parameters
    ----------
    root : Path
        The checkout.
    target : str or Path
        A folder that does not exist yet or is empty, or a file that ends in ``.zip``.

    Returns
    -------
    list of str
        What is in it, sorted.

    Raises
    ------
    CannotHandOut
        The checkout has no built exercises, or the folder is not empty.
    """
    root, target = Path(root), Path(target)
    if not exercise_files(root / "exercises", ".ipynb"):
        raise CannotHandOut(f"{root} has no exercises to hand out: a handout is made in a checkout")
    if target.suffix == ".zip":
        with tempfile.TemporaryDirectory() as above:
            folder = Path(above) / target.stem
            fill(root, folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.make_archive(str(target.with_suffix("")), "zip", above, target.stem)
            return listing(folder)
    if target.exists() and any(target.iterdir()):
        raise CannotHandOut(f"{target} is not empty: name a folder that is, or remove it")
    fill(root, target)
    return listing(target)


def fill(root, folder):
    """Put everything into a folder."""
    write_checks(root)
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copy(root / name, folder / name)
    for name in FOLDERS:
        shutil.copytree(root / name, folder / name, ignore=LEFT_OUT)
    shutil.copytree(folder / "exercises", folder / PRISTINE)
    recipe = (root / "environment.yml").read_text(encoding="utf-8").replace("- -e .", "- .")
    (folder / "environment.yml").write_text(recipe, encoding="utf-8")
    (folder / "README.md").write_text(README, encoding="utf-8")


def listing(folder):
    """The files of a folder, by their paths within it."""
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )

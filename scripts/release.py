"""Build what a release is made of into `dist/`, and check it: ``make release``.

The wheel with its source distribution, tried on every Python that is here (`try_wheel.py`); the
book, and the handout for a class, each as a zip; SHA256SUMS of all. Where CHANGELOG.md does not yet
say when this version was released, that is a rehearsal, and the last line says so.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import try_wheel
import yaml

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
HEADING = re.compile(r"^## (?P<version>\S+), (?P<when>.+)$", re.MULTILINE)
DATE = re.compile(r"\d{4}-\d\d-\d\d")
BOOK = ("index.html", "notebooks/00_start_here.html", "_static/book.js")
HANDOUT = ("exercises/02_send_and_recv.ipynb", "notebooks/00_start_here.ipynb", "pyproject.toml")


class Refused(Exception):
    """Why there is no release; the message is one sentence."""


def version_and_date(root=ROOT):
    """This version, and when it was released as CHANGELOG.md says: None for not yet.

    Raises
    ------
    Refused
        pyproject.toml, CITATION.cff and CHANGELOG.md do not name the same version.
    """
    said = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    cited = str(yaml.safe_load((root / "CITATION.cff").read_text())["version"])
    newest = HEADING.search((root / "CHANGELOG.md").read_text())
    changed = newest["version"] if newest else "nothing"
    if not said == cited == changed:
        raise Refused(
            f"pyproject.toml says {said}, CITATION.cff {cited}, CHANGELOG.md {changed}: "
            "these files must name the same version"
        )
    return said, newest["when"] if DATE.fullmatch(newest["when"]) else None


def refuse_changes(root=ROOT):
    """Refuse a checkout with changes that no commit has."""
    asked = ["git", "-C", str(root), "status", "--porcelain"]
    changed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split("\n")
    if changed[0]:
        raise Refused(f"{changed[0][3:]} is not committed: a release is built from a commit")


def make_wheel():
    """The wheel and the source distribution, tried."""
    code = try_wheel.main([])
    if code == try_wheel.UNTRIED:
        raise Refused("the wheel could not be tried, because the network does not answer")
    if code:
        raise Refused("a test of the wheel failed: see above")
    for path in (try_wheel.FOLDER / "dist").iterdir():
        shutil.copy(path, DIST)


def call(what, *words):
    """Run this Python with some words; refuse where that fails."""
    if subprocess.run([sys.executable, *words]).returncode:
        raise Refused(f"{what} could not be made: see above")


def make_book(version):
    """The book as a zip."""
    call("the book", ROOT / "authoring" / "build_book.py")
    html = ROOT / "build" / "book" / "html"
    name = DIST / f"rank-by-rank-book-{version}"
    check_zip(Path(shutil.make_archive(str(name), "zip", html)), BOOK)


def make_handout(version):
    """What a class is given, as a zip."""
    path = DIST / f"rank-by-rank-handout-{version}.zip"
    call("the handout", "-m", "simlib", "handout", "--out", path)
    check_zip(path, HANDOUT)


def check_zip(path, wanted):
    """Refuse a zip that is damaged, or lacks one of these files, in a folder or not."""
    with zipfile.ZipFile(path) as file:
        damaged, names = file.testzip(), file.namelist()
    missing = [one for one in wanted if not any(f"/{name}".endswith(f"/{one}") for name in names)]
    if damaged or missing:
        raise Refused(
            f"{path.name}: {damaged or missing[0]} is {'damaged' if damaged else 'missing'}"
        )


def write_sums():
    """SHA256SUMS of all files, and a line for each: its size."""
    lines = []
    for path in sorted(DIST.iterdir()):
        lines.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}")
        print(f"{path.stat().st_size / 1e6:7.1f} MB  dist/{path.name}")
    (DIST / "SHA256SUMS").write_text("\n".join(lines) + "\n")


def main():
    """Make the release; the exit code."""
    try:
        version, date = version_and_date()
        refuse_changes()
        shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir()
        make_wheel()
        make_book(version)
        make_handout(version)
    except Refused as refusal:
        print(f"No release: {refusal}.", file=sys.stderr)
        return 1
    write_sums()
    if date is None:
        print(f"A rehearsal: CHANGELOG.md does not say when {version} was released.")
    else:
        print(f"Version {version} of {date} is in dist/: tag this commit v{version}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())

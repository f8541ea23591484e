"""What README.md, DESIGN.md and docs/ say is so: outputs, rooms, files, kinds of errors."""

import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import readme_picture
from PIL import Image

from simlib.core.model import errors

ROOT = Path(__file__).resolve().parents[2]
DESIGN = [ROOT / "DESIGN.md", *sorted((ROOT / "docs" / "design").glob("*.md"))]
PACKAGES = [ROOT / "simlib" / name for name in ("core", "cluster", "classroom", "course")]
PLACES = (ROOT, ROOT / "simlib", *PACKAGES)
LARGEST_PICTURE = 100_000


def text_of(name):
    return (ROOT / name).read_text(encoding="utf-8")


def first_column(page, heading):
    """What stands in backticks in the first column of the table below a heading, by row."""
    section = page.partition(f"{heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\|.*`.*", section, re.M)
    return [re.findall(r"`(\w+)`", row.split("|")[1]) for row in rows]


def missing_files(text):
    """Paths in backticks, such as `model/trace`, that are neither in simlib nor in the checkout."""
    for path in sorted(set(re.findall(r"`((?:[a-z]\w*/)+\w+(?:\.\w+)?)/?`", text))):
        places = [root / f"{path}{end}" for root in PLACES for end in ("", ".py")]
        if not any(place.exists() for place in places):
            yield path


@pytest.mark.parametrize("page", ["README.md", "docs/simulate.md", "docs/large-models.md"])
def test_the_examples_print_what_the_page_says(page, tmp_path):
    programs, outputs = (
        re.findall(f"```{language}\n(.*?)```", text_of(page), re.DOTALL)
        for language in ("python", "text")
    )
    assert programs
    for program, output in zip(programs, outputs, strict=True):
        (tmp_path / "example.py").write_text(program)
        command = [sys.executable, "example.py"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.stdout.strip() == output.strip(), done.stderr


def test_the_readme_fits_on_a_few_screens():
    assert len(text_of("README.md").splitlines()) <= 180  # 47 of them are the table of lessons


def test_the_picture_in_the_readme_is_drawn_by_its_script(tmp_path):
    assert f"]({readme_picture.PICTURE.relative_to(ROOT)})" in text_of("README.md")
    assert readme_picture.PICTURE.stat().st_size <= LARGEST_PICTURE
    readme_picture.draw(tmp_path / "again.png")
    with Image.open(readme_picture.PICTURE) as stored, Image.open(tmp_path / "again.png") as drawn:
        assert stored.size == drawn.size
        assert stored.convert("RGB").getpixel((0, 0)) == (255, 255, 255)


def test_the_packages_and_rooms_of_the_design_are_those_that_import_linter_holds():
    contracts = tomllib.loads(text_of("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    packages, rooms = ([re.findall(r"\w+", one) for one in of["layers"]] for of in contracts[:2])
    (*above, (core,)) = first_column(text_of("DESIGN.md"), "## The packages")[:5]
    assert sorted(above) == sorted([name] for name in packages[2])
    assert [core] == packages[3]
    assert first_column(text_of("DESIGN.md"), "## The packages")[5:] == rooms


def test_files_that_a_page_of_the_design_names_are_there():
    found = {page.name: list(missing_files(page.read_text(encoding="utf-8"))) for page in DESIGN}
    assert found == {page.name: [] for page in DESIGN}


def test_every_kind_of_error_is_explained():
    rows = re.findall(r"^\| `(\w+)` \|", text_of("docs/errors.md"), re.M)
    classes = [each for _, each in inspect.getmembers(errors, inspect.isclass)]
    kinds = {each.kind for each in classes if issubclass(each, errors.SimlibError)}
    assert set(rows) == kinds - {errors.SimlibError.kind}
    assert f"`{errors.RunInterrupted.kind}`" in text_of("docs/errors.md")


# The rules themselves: a page that breaks one is told so.


def test_a_file_that_is_not_there_is_told():
    text = "`model/trace`, `model/gone`, `tests/house/test_pages.py`, `docs`, `/dev/shm`"
    assert list(missing_files(text)) == ["model/gone"]


def test_only_the_table_below_the_heading_is_read():
    table = "| room | job |\n|---|---|\n| `a`, `b` | `c` |"
    page = f"# A\n| `x` | y |\n## B\n{table}\n## C\n| `z` | y |"
    assert first_column(page, "## B") == [["a", "b"]]

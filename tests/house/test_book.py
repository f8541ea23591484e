"""The parts of the book: links, outputs, the reference. The built book: see tests/browser."""

import base64
import importlib
import re
import zipfile
from pathlib import Path
from types import SimpleNamespace

import nbformat
import playable
import pytest
import torch
import torch.distributed as dist
from book import links, progress, reference, texts
from book.outputs import Assets, book_outputs
from book.stage import Stage, staged_paths
from build import settle_pages
from docutils.core import publish_doctree
from playable import packed
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace
from terminals import Terminal

import simlib
from simlib import facade
from simlib.core.draw.player.page import page_of
from simlib.course.labs.sliders import FALLBACK

ROOT = Path(__file__).resolve().parents[2]


def main(rank, world_size):
    simlib.compute(1e-3)


def circle(rank, world_size):
    dist.recv(torch.empty(1), 1 - rank)


# Links


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """A stage of this checkout, in a repository whose address is known."""

    def make(repository="https://example.org/owner/name@dev"):
        monkeypatch.setenv("REPOSITORY", repository)
        return Stage(ROOT, tmp_path)

    return make


@pytest.mark.parametrize(
    "text, made",
    [
        ("[a](../notebooks/glossary.md#units)", "[a](../notebooks/glossary.md#units)"),
        ("[the `x`](install.md)", "[the `x`](../docs/install.md)"),
        ("[home](../README.md)", "[home](../index.md)"),
        (
            "[code](../simlib/cli.py)",
            "[code](https://example.org/owner/name/blob/dev/simlib/cli.py)",
        ),
        ("[answers](../solutions/review.ipynb)", "answers"),
        ("[web](https://example.org/)", "[web](https://example.org/)"),
        ("[here](#units)", "[here](#units)"),
        (
            "`[not](a.md)` and\n```\n[not](b.md)\n```\n",
            "`[not](a.md)` and\n```\n[not](b.md)\n```\n",
        ),
        ("![badge](https://example.org/a.svg)", "![badge](https://example.org/a.svg)"),
        ("- a\n\n  ```\n  [b](c)\n  ```", "- a\n\n  ```\n  [b](c)\n  ```"),
    ],
)
def test_links_lead_within_the_book_or_to_the_repository(stage, text, made):
    assert stage().text("docs/cluster.md", text) == made


def test_without_a_repository_links_out_of_the_book_are_words(stage):
    assert stage("").text("docs/cluster.md", "[code](../simlib/cli.py)") == "code"


@pytest.mark.parametrize(
    "origin, found",
    [
        ("https://a.org/b/c.git\n", ("https://a.org/b/c", "main")),
        ("https://user:secret@a.org/b/c.git\n", ("https://a.org/b/c", "main")),
        ("/a/folder\n", None),
    ],
)
def test_the_repository_is_the_origin_of_the_web_without_its_password(
    tmp_path, monkeypatch, origin, found
):
    monkeypatch.delenv("REPOSITORY", raising=False)
    told = SimpleNamespace(stdout=origin)
    monkeypatch.setattr(links.subprocess, "run", lambda *_, **__: told)
    assert links.repository(tmp_path) == found


COLAB = "https://colab.research.google.com/github/owner/name/blob/dev/notebooks/"


@pytest.mark.parametrize("folder, words", [("", "Open in Colab"), ("de/", "In Colab öffnen")])
def test_a_lesson_opens_in_colab_where_its_repository_is_on_github(stage, folder, words):
    told = stage("https://github.com/owner/name@dev").told(f"notebooks/{folder}00_x.ipynb")
    assert f"[{words}]({COLAB}{folder}00_x.ipynb)" in told
    assert "%pip install git+https://github.com/owner/name@dev\n" in told
    for other in ("", "https://example.org/owner/name@dev"):
        assert "olab" not in stage(other).told(f"notebooks/{folder}00_x.ipynb")


def test_lessons_of_one_number_have_letters_in_the_list_beside_the_pages(stage):
    listed = stage("").chapters().splitlines()
    assert listed[:2] == [
        "00 a Start here <notebooks/00_start_here>",
        "00 b Your first training <notebooks/00_your_first_training>",
    ]
    assert "03 When it hangs <notebooks/03_when_it_hangs>" in listed


# What search engines and the search read


PAGE = """
A page
======

.. container:: rbr-reading

   You are reading.

*Words: the glossary.*

Ranks   wait for each other.

.. raw:: html

   <b>no text</b>

::

   dist.recv(x)

And for *nothing* else.

Below
-----

More.
"""


def test_a_page_is_described_by_its_first_paragraph_and_searched_by_its_sections():
    tree = publish_doctree(PAGE, settings_overrides={"doctitle_xform": False})
    assert texts.description(tree) == "Ranks wait for each other."
    words = "Words: the glossary. Ranks wait for each other. And for nothing else. dist.recv(x)"
    assert texts.sections_of(tree) == [["a-page", words], ["below", "More."]]
    long = texts.description(publish_doctree("word " * 100))
    assert long.endswith("word ...") and len(long) <= 160


# Outputs


def code_cell(*outputs):
    return nbformat.v4.new_code_cell("run", outputs=list(outputs), id="lesson-code-1")


def shown(**data):
    return nbformat.v4.new_output("display_data", {k.replace("_", "/"): v for k, v in data.items()})


def html_of_cell(cell, pages, folder):
    (output,) = book_outputs(cell, pages, Assets(folder), "../")
    return output["data"]["text/html"]


def test_a_run_is_the_playable_one_and_its_picture_is_for_paper(tmp_path):
    run = simlib.simulate(main, 2)
    picture = base64.b64encode(run._repr_png_()).decode()
    cell = code_cell(shown(image_png=picture, text_plain=repr(run)))
    pages = {"lesson-code-1-0.json": {"run": page_of("<b>", [run])}}
    html = html_of_cell(cell, pages, tmp_path)
    assert 'data-src="../runs/lesson-code-1-0.html"' in html and "&lt;b&gt;" in html
    assert html.index("rbr-run") < html.index("rbr-printed") < html.index("../pictures/")
    assert 'class="rbr-picture dark-light only-dark"' in html
    assert "main" in (tmp_path / "runs" / "lesson-code-1-0.html").read_text()
    cell = code_cell(shown(text_plain=repr(run)))
    book_outputs(cell, pages, Assets(tmp_path), "../", "de")  # a translation has pages of its own
    names = {path.name for path in (tmp_path / "runs").iterdir()}
    assert names == {"lesson-code-1-0.html", "de-lesson-code-1-0.html"}


def test_of_a_hang_the_picture_stays_above_the_run(tmp_path):
    with pytest.raises(simlib.DeadlockError) as caught:
        simlib.simulate(circle, 2)
    run = caught.value.run
    picture = base64.b64encode(run.graph._repr_png_()).decode()
    cell = code_cell(shown(image_png=picture, text_plain=str(run.graph)))
    html = html_of_cell(cell, {"lesson-code-1-0.json": {"run": page_of("", [run])}}, tmp_path)
    assert html.index("rbr-picture") < html.index("rbr-run")
    assert "DEADLOCK" not in (tmp_path / "runs" / "lesson-code-1-0.html").read_text().upper()


def test_empty_outputs_go_and_texts_stay(tmp_path):
    text = nbformat.v4.new_output("stream", text="said")
    cell = code_cell(shown(text_plain=""), text)
    assert book_outputs(cell, {}, Assets(tmp_path), "../") == [text]


# What plays


def test_pages_that_lack_one_of_the_notebook_are_told(tmp_path, capsys):
    (tmp_path / "authoring").mkdir()
    kept = packed({"a-0.json": {}}, str)
    assert settle_pages(tmp_path, "authoring/a.zip", kept, False, False)
    assert settle_pages(tmp_path, "authoring/a.zip", kept, True, False)
    assert not settle_pages(tmp_path, "authoring/a.zip", packed({"b-0.json": {}}, str), True, False)
    assert "has not the pages of its notebook: a-0.json, b-0.json" in capsys.readouterr().out


def test_every_picture_of_a_run_in_a_lesson_plays():
    """In stored lessons: what is a run, a timeline, a player or a wait-for graph by its text."""
    for path in sorted((ROOT / "notebooks").rglob("*.ipynb")):
        place = path.relative_to(ROOT).as_posix()
        pages = playable.read_pages(ROOT / playable.beside(place))
        cells = {cell.id: cell for cell in nbformat.read(path, 4).cells}
        for name in pages:
            cell, _, place = name.removesuffix(".json").rpartition("-")
            assert cells[cell].outputs[int(place)].data, name
        for cell in cells.values():
            for place, output in enumerate(cell.get("outputs", [])):
                text = output.get("data", {}).get("text/plain", "")
                is_run = text.startswith(("  rank ", "player of")) or " ranks: " in text[:80]
                if is_run and "image/png" in output.data:
                    assert f"{cell.id}-{place}.json" in pages, f"{path.name}: {cell.id}"


def test_every_lab_in_a_lesson_moves():
    """In stored lessons: what is a lab by its text has sliders with at least two pictures each."""
    labs = 0
    for path in sorted((ROOT / "notebooks").rglob("*.ipynb")):
        pages = playable.read_pages(ROOT / playable.beside(path.relative_to(ROOT).as_posix()))
        for cell in nbformat.read(path, 4).cells:
            for place, output in enumerate(cell.get("outputs", [])):
                if FALLBACK in output.get("data", {}).get("text/plain", ""):
                    strips = pages[f"{cell.id}-{place}.json"]["lab"]
                    assert all(len(set(strip["pictures"])) > 1 for strip in strips), path.name
                    labs += 1
    assert labs >= 14


def test_pages_hold_nothing_of_the_machine_that_built_them():
    places = [str(ROOT), str(Path.home()) + "/", "/home/"]
    for path in sorted((ROOT / playable.FOLDER).rglob("*.zip")):
        with zipfile.ZipFile(path) as file:
            for name in file.namelist():
                text = file.read(name).decode()
                assert not [place for place in places if place in text], name


# The reference


def test_the_reference_has_every_public_name():
    assert set(reference.names_of("simlib")) == {
        name
        for name in facade.__all__
        if not hasattr(getattr(facade, name), "__path__")
        and type(getattr(facade, name)).__name__ != "module"
    }
    for module in reference.GROUPS:
        found = importlib.import_module(module)
        assert all(getattr(found, name).__doc__ for name in reference.names_of(module)), module


def test_the_reference_begins_with_the_names_that_readers_need_first():
    text = reference.pages()["index.rst"]
    places = [text.index(f"\n   {name}\n") for name in ("run", "simulate", "Cluster", "doctor")]
    assert places == sorted(places) and ":nosignatures:" in text
    for module in reference.GROUPS:
        found = importlib.import_module(module)
        called = [name for name in reference.names_of(module) if callable(getattr(found, name))]
        assert [name for name in called if f"\n   {name}\n" not in text] == [], module


def test_a_notebook_that_nobody_builds_is_not_in_the_book(tmp_path):
    names = ("notebooks/02_x.ipynb", "notebooks/de/02_x.ipynb", "exercises/02_x.ipynb")
    sources = ("lessons/02_x.py", "lessons/de/02_x.md", "exercises/02_x.py")
    copies = ("notebooks/.ipynb_checkpoints/02_x-checkpoint.ipynb", "exercises/02_x-Copy1.ipynb")
    for name in (*names, *copies, *(f"authoring/{source}" for source in sources)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert staged_paths(tmp_path) == list(names)


def test_the_book_has_all_lessons_exercises_and_guides():
    """By the sources of the notebooks, and by the lists that the first page has of its chapters."""
    sources = {
        f"{built}/{path.stem}.ipynb"
        for kind, built in (("lessons", "notebooks"), ("exercises", "exercises"))
        for path in (ROOT / "authoring" / kind).glob("*.py")
    }
    paths = set(staged_paths(ROOT))
    assert sources <= paths
    chapters = (ROOT / "authoring/book/index.md").read_text()
    guides = {path for path in paths if path.startswith("docs/") and "/design/" not in path}
    assert [path for path in guides if path.removesuffix(".md") not in chapters.split()] == []
    assert not [path for path in paths if path.startswith("solutions")]


# How far it is


def test_a_bar_counts_each_page_read_and_each_page_written(tmp_path, monkeypatch):
    for name in ("index", "other"):
        (tmp_path / f"{name}.rst").write_text(":orphan:\n\nTitle\n=====\n")
    screen, out = Terminal(monkeypatch), tmp_path / "out"
    with docutils_namespace():
        app = Sphinx(tmp_path, None, out, out, "html", confoverrides={}, status=None, warning=None)
        progress.Progress(app)
        app.build()
    screen.hang_up()
    assert "4 of 4 |" in screen.getvalue() and "other" in screen.getvalue()


def test_a_bar_counts_each_text_that_is_staged(stage, monkeypatch):
    screen, book = Terminal(monkeypatch), stage()
    book.paths, book.landing = ["docs/hub.md"], lambda: ""
    monkeypatch.setattr(reference, "pages", dict)
    book.all()
    screen.hang_up()
    assert re.search(r"0 of 3 \|.*hub.*1 of 3 .*reference.*3 of 3 ", screen.getvalue())

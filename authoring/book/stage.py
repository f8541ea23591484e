"""The sources of the book, staged for Sphinx: the repository's texts, and notebooks with runs."""

import re
from pathlib import Path

import build as builder
import nbformat
import playable

from book import links, reference
from book.outputs import Assets, book_outputs, picture_html, run_html
from simlib.classroom.grading.source import course_of
from simlib.core.draw.display import bar

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
TEXTS = (
    *("START.md", "DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md", "notebooks/glossary.md"),
    *("docs/*.md", "docs/design/*.md"),
)
NOTEBOOKS = ("notebooks/*.ipynb", "notebooks/*/*.ipynb", "exercises/*.ipynb")
BUILT_FROM = {"notebooks": "lessons", "exercises": "exercises"}
"""By the folder of a notebook, where in `authoring/` its source lies."""
FOLDED = {"check": ("hide-cell", "the check"), "setup": ("hide-input", "the imports")}
"""By a cell's role in an exercise: what the book folds of it, and how that is called."""
GUESS = re.compile(r"^\w+ = None\b", re.MULTILINE)
"""In the code of a cell whose outcome is to be guessed first."""
NOTE = "rbr-reading"
READING = {
    "notebooks": "You are reading: what cells gave is stored, and their runs play. To run them "
    "yourself, [install](../docs/install.md) the course.",
    "exercises": "You are reading. To write answers and have them checked, "
    "[install](../docs/install.md) the course.",
    "de": "Hier liest du nur: Was die Zellen ergaben, ist gespeichert, und ihre Läufe spielen. Um "
    "sie selbst auszuführen, [installiere](../../docs/install.md) den Kurs.",
}
"""By the folder of a notebook, what stands below its title."""
IN_COLAB = {
    "de": "[In Colab öffnen]({address}). Führe dort zuerst diese Zeile in einer neuen Zelle aus:",
    "": "[Open in Colab]({address}). There, first run this line in a new cell:",
}
INSTALL = "```text\n%pip install git+{0}@{1}\n```"
"""What follows where Colab can read the repository: its own machine has no simlib."""
SOLUTION = "solutions/"
SOLUTION_LINK = re.compile(r" \(\[solution\]\([^)]*\)\)")
START_TITLE = "All lessons and exercises"
LANDING = "landing"


def staged_paths(root):
    """The texts and notebooks of the book: paths from the repository's root.

    Notebooks are those that are built: others, and their copies, belong to who works here.
    """
    found = [path.relative_to(root) for pattern in TEXTS for path in sorted(root.glob(pattern))]
    for pattern in NOTEBOOKS:
        notebooks = [path.relative_to(root) for path in sorted(root.glob(pattern))]
        found += [one for one in notebooks if _has_source(root, one)]
    return [path.as_posix() for path in found]


def _has_source(root, notebook):
    folder, *rest = notebook.parts
    source = root.joinpath("authoring", BUILT_FROM[folder], *rest)
    return any(source.with_suffix(ending).exists() for ending in (".py", ".md"))


class Stage:
    """Writes the sources of a book into a folder.

    Parameters
    ----------
    root : Path
        The checkout.
    folder : Path
        Empty: gets ``source/``, and ``extra/``, which goes to the book's root as it is.
    """

    def __init__(self, root, folder):
        self.root, self.source = Path(root), Path(folder) / "source"
        self.assets = Assets(Path(folder) / "extra")
        self.paths = staged_paths(self.root)
        self.repository = links.repository(self.root)

    def all(self):
        """Stage everything."""
        count = len(self.paths)
        with bar(count + 2, "") as show:
            for number, place in enumerate(self.paths):
                show(Path(place).stem, number)
                text = (self.root / place).read_text(encoding="utf-8")
                stage = self.notebook if place.endswith(".ipynb") else self.text
                self.write(place, stage(place, text))
            show("reference", count)
            for name, text in reference.pages().items():
                self.write(f"reference/{name}", text)
            show("first page", count + 1)
            self.write("index.md", self.landing())
            show("", count + 2)

    def write(self, place, text):
        """Write a staged source."""
        path = self.source / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def text(self, place, text):
        """A Markdown text as the book has it."""
        if place == "START.md":
            text = SOLUTION_LINK.sub("", text.replace("# Rank by Rank", f"# {START_TITLE}", 1))
        up = "../" * place.count("/")

        def change(words, path, anchor):
            after = f"#{anchor}" if anchor else ""
            if path in self.paths:
                return f"[{words}]({up or './'}{path}{after})"
            if path == "README.md":
                return f"[{words}]({up or './'}index.md)"
            if self.repository is None or path.startswith(SOLUTION):
                return words
            address, branch = self.repository
            return f"[{words}]({address}/blob/{branch}/{path}{after})"

        def image(alt, path):
            return picture_html(self.assets, up, (self.root / path).read_bytes(), alt)

        return links.within(text, place, change, image)

    def notebook(self, place, text):
        """A notebook as the book has it: runs that play, exercises with their checks folded."""
        notebook = nbformat.reads(text, as_version=4)
        pages = playable.read_pages(self.root / playable.beside(place))
        heading, _, rest = notebook.cells[0].source.partition("\n")
        told = f"::::{{div}} {NOTE}\n{self.told(place)}\n::::"
        notebook.cells[0].source = f"{heading}\n\n{told}\n{rest}"
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = self.text(place, cell.source)
            elif cell.cell_type == "code":
                up, language = "../" * place.count("/"), "-".join(Path(place).parent.parts[1:])
                cell.outputs = book_outputs(cell, pages, self.assets, up, language)
                cell.metadata = _metadata(cell)
        return nbformat.writes(notebook)

    def told(self, place):
        """What stands below the title of a notebook: it is only read here, and where it runs."""
        folder = Path(place).parent.name
        address = links.colab(self.repository, place)
        if not address:
            return READING[folder]
        opened = IN_COLAB.get(folder, IN_COLAB[""]).format(address=address)
        return f"{READING[folder]}\n\n{opened}\n\n{INSTALL.format(*self.repository)}"

    def landing(self):
        """The first page: one program and its run, playing."""
        from book import first_program  # which imports torch

        page = first_program.page_of_run(first_program.simulated())
        text = (HERE / "index.md").read_text(encoding="utf-8")
        text = self.text("index.md", builder.with_hours(self.root, text))
        text = text.replace("<!-- chapters -->", self.chapters())
        text = text.replace("<!-- program -->", first_program.SOURCE)
        return text.replace("<!-- run -->", run_html(self.assets, "", LANDING, page))

    def chapters(self):
        """The list of lessons beside each page; its numbers have the letters of START.md."""
        paths = [path for path in builder.sources(self.root) if path.parent.name == "lessons"]
        return "\n".join(
            f"{number} {builder.title(path)} <notebooks/{path.stem}>"
            for path, number in builder.numbers(paths).items()
        )


def _metadata(cell):
    """What myst-nb reads of a cell: what of it is folded, and what the fold is called."""
    fold, name = FOLDED.get(course_of(cell, "role"), (None, None))
    if cell.metadata.get("jupyter", {}).get("source_hidden"):
        fold, name = "hide-cell", "this cell"
    elif fold is None and GUESS.search(cell.source) and cell.outputs:
        fold, name = "hide-output", "what happens"
    if fold is None:
        return {}
    prompts = {f"code_prompt_{verb.lower()}": f"{verb} {name}" for verb in ("Show", "Hide")}
    return {"tags": [fold], "mystnb": prompts}

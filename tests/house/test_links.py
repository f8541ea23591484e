"""Links lead to a file and a heading, lessons to the glossary; names of simlib in texts exist."""

import importlib
import re
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted([*ROOT.glob("[nes]*s/[0-9][0-9]_*.ipynb"), *ROOT.glob("*s/review.ipynb")])
NOTEBOOKS += sorted(ROOT.glob("notebooks/[a-z][a-z]/*.ipynb"))
LESSONS = [path for path in NOTEBOOKS if path.parent.name == "notebooks"]
GLOSSARY = ROOT / "notebooks" / "glossary.md"
PAGES = [ROOT / f"{name}.md" for name in ("README", "START", "CONTRIBUTING", "DESIGN")]
PAGES += [GLOSSARY, *sorted((ROOT / "docs").rglob("*.md"))]


def name(path):
    return path.relative_to(ROOT).as_posix()


def prose(path):
    """The markdown of a page or of a notebook's text cells."""
    if path.suffix != ".ipynb":
        return path.read_text(encoding="utf-8")
    cells = nbformat.read(path, as_version=4).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def without_code(text):
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def anchors(text):
    """Anchors that lead to a heading both in JupyterLab and on the usual code hosts.

    JupyterLab puts hyphens for spaces; code hosts also drop punctuation and capitals.
    """
    found = set(
        re.findall(r"^#{1,6} (.+?)\s*$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.M)
    )
    in_lab = {heading.replace(" ", "-") for heading in found}
    on_hosts = {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-").lower() for heading in found}
    return in_lab & on_hosts


def broken_links(path, text=None):
    """The links of a page or notebook that lead nowhere; addresses on the web are not visited."""
    text = prose(path) if text is None else text
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        if "://" in target or target.startswith(("mailto:", "attachment:")):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        if not there.exists():
            yield target
        elif anchor and anchor not in anchors(prose(there) if file else text):
            yield target


def unknown_names(text):
    """Dotted names of simlib in a text that simlib does not have."""
    for dotted in sorted(set(re.findall(r"(?<![-\w])simlib(?:\.[A-Za-z_]\w*)+", text))):
        if not exists(dotted):
            yield dotted


def exists(dotted):
    """Whether a dotted name leads to a module or to something in one."""
    package, *rest = dotted.split(".")
    thing = importlib.import_module(package)
    for part in rest:
        package += f".{part}"
        if hasattr(thing, part):
            thing = getattr(thing, part)
            continue
        try:
            thing = importlib.import_module(package)
        except ImportError:
            return False
    return True


def late_promises(text, there):
    """The lessons that a text calls "to come" although they are there, by number."""
    promised = re.findall(r"[Ll]essons?\s+(\d\d)[^.()]*\(to\s+come\)", text)
    return sorted(set(promised) & there)


def found_in(paths, problems):
    """``{name: problems}`` of the files that have any."""
    found = {name(path): list(problems(path)) for path in paths}
    return {file: lines for file, lines in found.items() if lines}


def test_links_lead_somewhere():
    assert found_in(NOTEBOOKS + PAGES, broken_links) == {}


def test_names_of_simlib_exist():
    assert found_in(NOTEBOOKS + PAGES, lambda path: unknown_names(prose(path))) == {}


def test_lessons_lead_to_the_glossary_and_readme_and_glossary_to_them():
    for path in LESSONS:
        assert "](glossary.md)" in nbformat.read(path, as_version=4).cells[0].source, path
        assert f"](notebooks/{path.name})" in prose(ROOT / "README.md")
        assert f"]({path.name})" in prose(GLOSSARY)


def test_nothing_is_to_come_that_is_there():
    there = {lesson.name[:2] for lesson in LESSONS}
    assert found_in(NOTEBOOKS + PAGES, lambda path: late_promises(prose(path), there)) == {}


# The rules themselves: a text that breaks one is told so.


def test_a_link_that_leads_nowhere_is_told(tmp_path):
    (tmp_path / "there.md").write_text("# words\n```\n# comment\n```\n## A Place")
    page = tmp_path / "page.md"
    page.write_text(
        "# here\n[a](there.md) [b](gone.md) [c](#here) [d](#nowhere) `[e](code.md)`\n"
        "[f](there.md#words) [g](there.md#comment) [h](there.md#a-place) [i](https://x.org#y)"
    )
    wrong = ["gone.md", "#nowhere", "there.md#comment", "there.md#a-place"]
    assert list(broken_links(page)) == wrong
    cells = [nbformat.v4.new_code_cell("# no heading"), nbformat.v4.new_markdown_cell("## words")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "a.ipynb")
    text = "[a](a.ipynb#words) [b](a.ipynb#no-heading)"
    assert list(broken_links(page, text)) == ["a.ipynb#no-heading"]


def test_a_name_that_simlib_does_not_have_is_told():
    text = "`simlib.run`, `simlib.checks.check`, simlib.Run.results, simlib.walk, `simlib.run.fast`"
    assert list(unknown_names(text)) == ["simlib.Run.results", "simlib.run.fast", "simlib.walk"]


def test_a_late_promise_is_told():
    text = "Lesson 05 (to come). In lesson 12 (to\ncome), and lesson 05 (to come) again; lesson 07."
    assert late_promises(text, {"05", "07"}) == ["05"]

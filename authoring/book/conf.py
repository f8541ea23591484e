"""Sphinx reads this: how the staged sources become the book."""

import os
import re
import shutil
import sys
import tomllib
from importlib.metadata import files
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE.parent)]

from book import links, progress, texts  # noqa: E402

project = "Rank by Rank"
author = "Rank by Rank authors"
copyright = author
release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

extensions = [
    "myst_nb",
    "sphinx_design",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
]
root_doc = "index"
# The first is that of the pages which autosummary writes.
source_suffix = {".rst": "restructuredtext", ".md": "myst-nb", ".ipynb": "myst-nb"}
templates_path = [str(HERE / "templates")]
suppress_warnings = ["myst.header", "mystnb.unknown_mime_type"]

nb_execution_mode = "off"
nb_merge_streams = True
nb_render_error_lexer = "none"
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 4
mathjax_path = "mathjax/tex-chtml.js"

default_role = "code"
autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_default_options = {"no-index-entry": True}  # the search would find each name twice
html_use_index = False
napoleon_google_docstring = False
napoleon_custom_sections = ["Cost", "Source"]
napoleon_use_ivar = True  # an attribute is no target: many classes have "ranks"

html_theme = "sphinx_book_theme"
html_title = project
html_static_path = [str(HERE / "static")]
html_css_files = ["book.css"]
html_js_files = ["book.js"]
html_extra_path = [os.environ["BOOK_EXTRA"]]
html_context = {"default_mode": "auto"}
html_show_sourcelink = False
html_copy_source = False
html_show_search_summary = False  # it would fetch the pages, which a folder refuses: see search.js
html_theme_options = {
    "show_toc_level": 2,
    "home_page_in_toc": True,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "show_navbar_depth": 1,
    "navbar_persistent": [],
    "collapse_navbar": True,  # else each page has all of the reference beside it
}
_repository = links.repository(ROOT)
if _repository:
    address, branch = _repository
    html_theme_options |= {
        "repository_url": address,
        "repository_branch": branch,
        "use_repository_button": True,
        "launch_buttons": {
            "binderhub_url": "https://mybinder.org",
            "colab_url": "https://colab.research.google.com",
            "notebook_interface": "jupyterlab",
        },
    }

MATHJAX = ("static/mathjax/tex-chtml.js", "static/mathjax/output/chtml/fonts/woff-v2/")
"""Of MathJax, what pages ask for."""


SECTION = re.compile(r"\*\*(Cost|Source)\*\* ?")
"""How our docstrings begin what an algorithm costs, and where it is from."""


def make_sections(app, what, name, obj, options, lines):
    """Give them headings, in place: below parameters they would be taken for one."""
    made = []
    for line in lines:
        found = SECTION.match(line)
        if found:
            made += ["", found[1], "-" * len(found[1])]
        made.append(line[found.end() :] if found else line)
    lines[:] = made


def finish(app, error):
    """Put MathJax into the book, so that its formulas need no network; take out what is no page."""
    if error:
        return
    for macros in Path(app.outdir, "_static").glob("*webpack-macros.html"):
        macros.unlink()  # templates of the themes
    for file in files("sphinx-mathjax-offline"):
        name = file.as_posix().removeprefix("sphinx-mathjax-offline/")
        if name.startswith(MATHJAX):
            target = Path(app.outdir, "_static", name.removeprefix("static/"))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file.locate(), target)


def setup(app):
    """What Sphinx calls."""
    progress.Progress(app)
    app.connect("autodoc-process-docstring", make_sections, priority=400)  # before napoleon
    app.connect("html-page-context", texts.read_page)
    app.connect("build-finished", texts.write_texts)
    app.connect("build-finished", finish)

"""What machines read of the book's pages: their descriptions, and their texts for the search."""

import json
import textwrap
from html import escape
from pathlib import Path

from docutils import nodes

from book import links
from book.stage import NOTE, ROOT

DESCRIPTION = 160
"""How many letters of a description search engines show."""
IMAGE = "docs/images/timeline.png"
NO_TEXT = (nodes.Text, nodes.Invisible, nodes.raw, nodes.section, nodes.title)
SECTIONS = {}
"""By page, ``[anchor, text]`` of each of its sections."""


def is_note(node):
    """Whether it is the note below a notebook's title, which is the same on all pages."""
    return NOTE in node.get("classes", ())


def blocks(node, code):
    """The texts of the pieces of code in a node, or of its other blocks; without its sections."""
    if isinstance(node, NO_TEXT) or is_note(node):
        return []
    if isinstance(node, nodes.TextElement):
        is_code = isinstance(node, nodes.literal_block)
        return [" ".join(node.astext().split())] if is_code == code else []
    return [text for child in node.children for text in blocks(child, code)]


def sections_of(doctree):
    """``[anchor, text]`` of each section of a page, in order; prose first, for excerpts."""
    return [
        [
            section["ids"][0],
            " ".join(
                text
                for code in (False, True)
                for child in section.children
                for text in blocks(child, code)
            ),
        ]
        for section in doctree.findall(nodes.section)
    ]


def description(doctree):
    """The first paragraph that is about the page, shortened; empty where there is none."""
    for paragraph in doctree.findall(nodes.paragraph):
        text = " ".join(paragraph.astext().split())
        if not is_note(paragraph.parent) and not isinstance(paragraph[0], nodes.emphasis):
            return textwrap.shorten(text, DESCRIPTION, placeholder=" ...")
    return ""


def read_page(app, pagename, templatename, context, doctree):
    """Describe a page in its head, and keep its texts."""
    if pagename == "search":
        app.add_js_file("texts.js")
        app.add_js_file("search.js", loading_method="defer")
    if doctree is None:
        return
    SECTIONS[pagename] = sections_of(doctree)
    told = description(doctree)
    title = app.env.titles[pagename].astext()
    tags = {"og:title": title, "og:site_name": app.config.project, "og:type": "website"}
    repository = links.repository(ROOT)
    if told:
        context["metatags"] += f'<meta name="description" content="{escape(told)}" />\n'
        tags["og:description"] = told
    if repository:  # a picture's address has to be whole
        tags["og:image"] = "{}/raw/{}/{}".format(*repository, IMAGE)
    for name, content in tags.items():
        context["metatags"] += f'<meta property="{name}" content="{escape(content)}" />\n'


def write_texts(app, error):
    """Write the script with all texts, which the page of the search loads."""
    if not error:
        text = json.dumps(SECTIONS, ensure_ascii=False, separators=(",", ":"))
        Path(app.outdir, "_static", "texts.js").write_text(f"const TEXTS = {text};\n", "utf-8")

"""The book as `make book` builds it: crawled, and read in a browser that has no network."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import build_book
import pytest

from simlib.core.draw.palette import contrast

PAGES = ("index", "notebooks/03_when_it_hangs", "notebooks/09_when_does_it_pay")
EXERCISE = "exercises/02_send_and_recv"
LAB = "notebooks/02_send_and_recv"
PARTS = ("src", "href", "data-src")
WIDTHS = {"wide": 1400, "tablet": 800, "phone": 400}


@pytest.fixture(scope="session")
def book(tmp_path_factory):
    """The folder of the built book."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPOSITORY", "https://github.com/owner/name@dev")
        return build_book.build(tmp_path_factory.mktemp("book")).parent


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = [], {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.anchors |= {attributes.get("id"), attributes.get("name")}
        self.links += [(tag, attributes[part]) for part in PARTS if attributes.get(part)]


@pytest.fixture(scope="session")
def pages(book):
    """The path of each page of the book -> its `Page`."""
    return {path.resolve(): Page(path) for path in book.rglob("*.html")}


def test_no_link_of_the_book_is_dead(book, pages):
    dead = []
    for path, page in pages.items():
        for _, link in page.links:
            address = urlsplit(link)
            if address.scheme or link.startswith("//"):
                continue
            target = (path.parent / unquote(address.path)).resolve() if address.path else path
            anchors = pages[target].anchors if target in pages else {address.fragment}
            if not target.is_file() or unquote(address.fragment) not in anchors:
                dead.append(f"{path.relative_to(book.resolve())}: {link}")
    assert len(pages) > 200 and dead == []


def test_nothing_that_a_page_loads_is_elsewhere(pages):
    loaded = {
        link
        for page in pages.values()
        for tag, link in page.links
        if tag in ("script", "img", "iframe", "link") and urlsplit(link).scheme not in ("", "data")
    }
    assert loaded == set()


@pytest.fixture
def read(chromium, book):
    """``read(name, width, theme)``: a page in a browser without a network, and what went wrong."""
    contexts, said, asked = [], [], []

    def open_page(name, width="wide", theme="light"):
        context = chromium.new_context(
            offline=True, viewport={"width": WIDTHS[width], "height": 900}, color_scheme=theme
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.on("console", lambda one: said.append(one.text) if one.type == "error" else None)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda one: asked.append(one.url))
        page.goto((book / f"{name}.html").as_uri())
        page.evaluate(
            "for (const one of document.querySelectorAll('.bd-content details')) one.open = true"
        )
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []
    assert {urlsplit(url).scheme for url in asked} <= {"file", "data", "blob"}


def open_all(page, paths):
    for path in paths:
        page.goto(path.as_uri(), wait_until="load")
    assert page.title()


def test_a_page_of_each_sort_opens_without_an_error(read, book):
    """Two of each folder: pages of one folder load the same scripts."""
    of_folder = {}
    for path in sorted(book.rglob("*.html")):
        of_folder.setdefault(path.parent, []).append(path)
    open_all(read("index"), [path for paths in of_folder.values() for path in paths[:2]])


@pytest.mark.slow
def test_every_page_opens_without_an_error(read, book):
    open_all(read("index"), sorted(book.rglob("*.html")))


@pytest.mark.parametrize("name", [*PAGES, EXERCISE, LAB])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_page_is_no_wider_than_its_window(read, name, width):
    page = read(name, width)
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTHS[width]


def test_the_run_of_the_first_page_plays(read):
    page = read("index")
    page.locator(".rbr-run iframe").scroll_into_view_if_needed()
    frame = page.frame_locator(".rbr-run iframe").first
    player = frame.locator(".rbr-player")
    player.wait_for()
    frame.locator(".rbr-stage").focus()
    page.keyboard.press("Home")
    assert float(player.get_attribute("data-time")) == 0
    page.keyboard.press("ArrowRight")
    assert float(player.get_attribute("data-time")) > 0


@pytest.mark.parametrize("width", ["wide", "tablet"])
def test_the_run_of_the_first_page_is_seen_without_scrolling(read, width):
    page = read("index", width)
    play = page.frame_locator(".rbr-run iframe").first.locator(".rbr-play")
    play.wait_for()
    box = play.bounding_box()
    assert box["y"] + box["height"] < 900


def test_the_first_page_leads_to_each_place_once(book):
    page = Path(book / "index.html").read_text(encoding="utf-8")
    links = re.findall(
        r'href="([^"#][^"]*)"', page[page.index("<article") : page.index("</article")]
    )
    assert len(links) > 4 and len(set(links)) == len(links)


@pytest.mark.parametrize("name", [*PAGES, EXERCISE, "docs/install", "reference/names/simlib.run"])
def test_a_page_is_described_in_its_head(book, name):
    head = Path(book / f"{name}.html").read_text(encoding="utf-8").partition("</head>")[0]
    (told,) = re.findall(r'<meta name="description" content="([^"]{20,160})"', head)
    assert f'<meta property="og:description" content="{told}"' in head
    assert 'content="https://github.com/owner/name/raw/dev/docs/images/timeline.png"' in head


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_links_of_headings_can_be_seen(read, theme):
    page = read(PAGES[1], theme=theme)
    of = "one => getComputedStyle(one)"
    ink = page.locator("h2 a.headerlink").first.evaluate(f"{of}.color")
    paper = page.locator("body").evaluate(f"{of}.backgroundColor")
    ink, paper = (
        "#" + "".join(f"{int(part):02x}" for part in re.findall(r"\d+", color)[:3])
        for color in (ink, paper)
    )
    assert contrast(ink, paper) >= 4.5


def test_runs_are_as_high_as_they_say_and_wear_the_theme(read):
    page = read("notebooks/03_when_it_hangs", theme="dark")
    frame = page.locator(".rbr-run iframe").first
    frame.scroll_into_view_if_needed()
    inner = page.frame_locator(".rbr-run iframe").first.locator("body")
    inner.wait_for()
    page.wait_for_function("document.querySelector('.rbr-run iframe').height != 190 + 46 * 2")
    high = inner.evaluate("() => document.documentElement.getBoundingClientRect().height")
    assert abs(int(frame.get_attribute("height")) - high) <= 1
    assert inner.evaluate("() => document.documentElement.dataset.theme") == "dark"
    page.evaluate("document.documentElement.dataset.theme = 'light'")
    page.frame_locator(".rbr-run iframe").first.locator("html[data-theme=light]").wait_for()


def test_a_lab_moves_without_a_kernel_one_slider_at_a_time(read):
    page = read(LAB)
    image, sliders = page.locator(".rbr-lab img"), page.locator(".rbr-lab input")
    first, start = image.get_attribute("src"), sliders.nth(0).input_value()
    sliders.nth(0).focus()
    page.keyboard.press("ArrowLeft")
    moved = image.get_attribute("src")
    assert moved != first and "latency" in image.get_attribute("alt")
    sliders.nth(1).focus()
    page.keyboard.press("ArrowLeft")
    assert image.get_attribute("src") not in (first, moved)
    assert sliders.nth(0).input_value() == start
    assert page.evaluate("document.querySelector('.rbr-lab img').naturalWidth") > 300


def test_in_the_dark_what_is_shown_stands_on_the_page(read):
    page = read(LAB, theme="dark")
    paper = "one => getComputedStyle(one.closest('.text_html')).backgroundColor"
    assert page.locator(".rbr-run").first.evaluate(paper) == "rgba(0, 0, 0, 0)"
    assert page.locator(".rbr-lab").first.evaluate(paper) == "rgba(0, 0, 0, 0)"
    frame = "one => getComputedStyle(one).padding"
    assert page.locator("img.rbr-picture.only-dark").first.evaluate(frame) == "0px"


@pytest.mark.parametrize("width", ["tablet", "phone"])
def test_the_chapters_can_be_reached_on_a_narrow_page(read, width):
    page = read(LAB, width)
    page.locator(".primary-toggle:visible").first.click()
    page.locator("dialog[open] >> text=When it hangs").first.wait_for()


def test_the_reference_has_signatures_and_parameters(book):
    text = (book / "reference/names/simlib.run.html").read_text(encoding="utf-8")
    assert "world_size" in text and "Parameters" in text and "autofunction" not in text
    ring = Path(book / "reference/names/simlib.collectives.all_reduce.ring.html").read_text()
    assert ">Cost<" in ring and ">Source<" in ring and "Patarasuk" in ring


def test_formulas_are_set(read):
    page = read("notebooks/06_synchronous_sgd")
    page.locator("mjx-container").first.wait_for()
    assert page.locator("mjx-merror").count() == 0


def test_words_are_found(read):
    page = read("index")
    page.goto(page.url.replace("index.html", "search.html?q=staleness"))
    page.locator("#search-results li").first.wait_for()
    assert "What staleness costs" in page.locator("#search-results").inner_text()


def test_results_of_the_search_show_where_the_words_are(read):
    page = read("index")
    page.goto(page.url.replace("index.html", "search.html?q=deadlock"))
    page.locator("#search-results li mark").first.wait_for()
    page.locator("text=Search finished").wait_for()
    titles = page.locator("#search-results li > a").all_inner_texts()
    assert titles[0] == "03 When it hangs" and titles.count("DeadlockError") == 1
    assert "simlib.DeadlockError" not in titles
    found = page.locator("#search-results li").first
    assert found.locator("mark").first.inner_text().lower() == "deadlock"
    page.goto(found.locator("a").evaluate("link => link.href"))
    assert "deadlock" in page.locator(":target").inner_text().lower()


def test_checks_of_an_exercise_are_folded(read):
    page = read(EXERCISE)
    assert page.locator("details", has=page.locator("text=check_of")).count() >= 3
    assert page.locator("details >> text=Show the check").count() >= 3


def test_a_lesson_can_be_opened_in_binder_and_colab(book):
    addresses = {link for _, link in Page(book / f"{LAB}.html").links}
    (binder,) = {link for link in addresses if "mybinder" in link}
    assert "/gh/owner/name/dev" in binder and "notebooks/02_send_and_recv.ipynb" in binder
    (colab,) = {link for link in addresses if "colab.research" in link}
    assert colab.endswith("/github/owner/name/blob/dev/notebooks/02_send_and_recv.ipynb")

"""The classroom in a real browser: a student's way to `simlib check`, and the pages of a report."""

import shutil

import nbformat
import pytest
from class_made import EXERCISES, SCRIPT, made_class
from lab_server import ROOT
from notebook_page import BROKEN

from simlib.classroom.grading.pages import write_pages
from simlib.cli import main

NAME = "02_send_and_recv.ipynb"
WRONG = """\
def running_total(rank, world_size, x):
    return x.clone()
"""
PHONE = {"width": 390, "height": 800}
TOO_WIDE = """() => [...document.querySelectorAll("body *")].filter(one => {
  const { left, right } = one.getBoundingClientRect();
  const is_cut = one.scrollWidth > one.clientWidth && getComputedStyle(one).overflowX != "visible";
  return left < 0 || right > innerWidth || is_cut;
}).map(one => one.outerHTML.slice(0, 80))"""
"""Elements that reach out of the window, or hold more than they show."""
WINDOWS = [(1200, "screen"), (970, "screen"), (720, "print"), (400, "screen")]


def solution(question):
    """The answer cell of a question in the solution notebook."""
    cells = nbformat.read(ROOT / "solutions" / NAME, as_version=4).cells
    return next(cell.source for cell in cells if cell.id == f"{question}-answer")


def test_the_verdict_turns_and_what_is_saved_is_right_for_simlib_check(notebook, course, capsys):
    for folder in ("exercises", ".pristine"):
        (course / "handed" / folder).mkdir(parents=True)
        shutil.copy(ROOT / "exercises" / NAME, course / "handed" / folder)
    page = notebook(f"handed/exercises/{NAME}")
    page.run(page.find("from simlib.checks import"))
    stub = page.find("def running_total(")
    right = "running_total: right, 2 of 2 points"
    for answer, verdict in (
        (None, "not written yet"),
        (WRONG, "running_total: wrong, 0 of 2 points"),
        (solution("running_total"), right),
    ):
        if answer:
            page.type_into(stub, answer)
        page.run(stub)
        page.run(stub + 1)
        assert verdict in page.text_of(stub + 1)
    assert page.errors() == []
    page.command("docmanager:save")
    assert main(["check", str(course / "handed" / "exercises" / NAME)]) == 1
    said = capsys.readouterr().out
    assert right in said
    for name in ("shift_right", "collect"):
        assert f"{name}: not written yet" in said
    assert "1 of 3 right" in said


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The pages of a made-up class, in a folder."""
    folder = tmp_path_factory.mktemp("report")
    write_pages(folder, made_class())
    # What a student writes may be one word wider than the page: in this class nobody is hostile.
    (folder / "kind").mkdir()
    write_pages(folder / "kind", made_class(hostile=False))
    return folder


@pytest.fixture
def browser_page(chromium):
    """A page of its own; the texts of what its console says, as ``said``."""
    page = chromium.new_page()
    page.said = []
    page.on("console", lambda message: page.said.append(message.text))
    page.on("pageerror", lambda error: page.said.append(str(error)))
    yield page
    page.close()


def test_the_class_page_leads_to_every_student(browser_page, report):
    browser_page.goto((report / "class.html").as_uri())
    browser_page.get_by_role("heading", name="Where the class stumbles").wait_for()
    questions = sum(len(one.questions) for one in EXERCISES.values())
    assert browser_page.get_by_role("img").count() == questions + 1  # a bar each, and the points
    browser_page.get_by_role("link", name="Student 03", exact=True).last.click()
    browser_page.get_by_role("heading", name="Student 03").wait_for()
    assert browser_page.get_by_role("heading", level=3).count() == questions
    assert browser_page.said == []


def test_nothing_of_a_students_text_is_run(browser_page, report):
    (hostile,) = (report / "feedback").glob("script*.html")
    bare = report / "bare.html"  # escaping has to do without the rule that no page may run anything
    text = hostile.read_text(encoding="utf-8")
    bare.write_text(text.replace("Content-Security-Policy", "Nothing"), encoding="utf-8")
    for path in (hostile, bare, report / "class.html"):
        browser_page.goto(path.as_uri())
        assert browser_page.title() != "caught"
        assert SCRIPT in browser_page.locator("body").inner_text()
        assert browser_page.evaluate("document.querySelectorAll('script, img').length") == 0
    bare.write_text(text.replace("Content-Security-Policy", "Nothing") + SCRIPT, encoding="utf-8")
    browser_page.goto(bare.as_uri())
    assert browser_page.title() == "caught"  # so this is how it would look


@pytest.mark.parametrize("width, media", WINDOWS)
def test_nothing_is_cut_off_and_no_word_is_broken(browser_page, report, screenshots, width, media):
    browser_page.set_viewport_size({"width": width, "height": 800})
    browser_page.emulate_media(media=media)
    (hostile,) = (report / "feedback").glob("script*.html")
    for name in ("class", "feedback/student_03", "feedback/student_27", f"feedback/{hostile.stem}"):
        browser_page.goto((report / f"{name}.html").as_uri())
        assert browser_page.evaluate(TOO_WIDE) == []
        if screenshots:
            file = f"{name.replace('/', '_')}_{width}_{media}.png"
            browser_page.screenshot(path=screenshots / file, full_page=True)
    for name in ("class", "feedback/student_03", "feedback/student_27"):
        browser_page.goto((report / "kind" / f"{name}.html").as_uri())
        assert browser_page.locator("main").evaluate(BROKEN) == []


@pytest.mark.parametrize("name", ["class", "feedback/student_03", "feedback/student_27"])
def test_pages_fit_a_phone_and_have_two_themes(browser_page, report, screenshots, name):
    browser_page.set_viewport_size(PHONE)
    grounds = set()
    for theme in ("light", "dark"):
        browser_page.emulate_media(color_scheme=theme)
        browser_page.goto((report / f"{name}.html").as_uri())
        assert browser_page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
        grounds.add(browser_page.evaluate("getComputedStyle(document.body).backgroundColor"))
        if screenshots:
            file = f"{name.replace('/', '_')}_{theme}.png"
            browser_page.screenshot(path=screenshots / file, full_page=True)
    assert len(grounds) == 2

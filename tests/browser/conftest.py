"""One JupyterLab and one browser for all tests of this folder.

``SCREENSHOTS=folder`` keeps full-length pictures of every lesson (`test_lessons.py`).
"""

import os
import shutil
from pathlib import Path

import pytest
from lab_server import copied_course, running_lab
from notebook_page import NotebookPage
from playwright.sync_api import sync_playwright

FLAGS = (
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-component-update",
    "--no-first-run",
)


@pytest.fixture(scope="session")
def chromium(needs_system):
    """A browser without a window."""
    needs_system("chromium", "chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def course(tmp_path_factory):
    """A copy of what learners open: tests may run, edit and save it."""
    return copied_course(tmp_path_factory.mktemp("course"))


@pytest.fixture(scope="session")
def lab(chromium, course):
    """A page of the browser in which the copy's JupyterLab shows its start page."""
    with running_lab(course) as address:
        page = chromium.new_page(viewport={"width": 1300, "height": 1000})
        page.set_default_timeout(30_000)
        page.goto(address)
        page.get_by_role("heading", name="Rank by Rank").wait_for()
        yield page
        page.close()


@pytest.fixture
def notebook(lab):
    """``notebook(path)`` opens a notebook of the copy; it and its kernel end with the test."""
    opened = []

    def open_notebook(path):
        opened.append(NotebookPage(lab, path))
        return opened[-1]

    yield open_notebook
    for each in opened:
        each.close()


@pytest.fixture
def screenshots():
    """The folder that ``SCREENSHOTS`` names, or None."""
    named = os.environ.get("SCREENSHOTS")
    if not named:
        return None
    folder = Path(named)
    folder.mkdir(parents=True, exist_ok=True)
    return folder

"""One JupyterLab and one browser for all tests of this folder.

``SCREENSHOTS=folder`` keeps full-length pictures of every lesson (`test_browser_lessons.py`).
"""

import os
from pathlib import Path

import pytest
from lab_server import copied_course, launched, running_lab, start_page
from notebook_page import NotebookPage
from playwright.sync_api import sync_playwright


@pytest.fixture(scope="session")
def chromium(needs_system):
    """A browser without a window."""
    needs_system("chromium", "chromium")
    with sync_playwright() as playwright:
        browser = launched(playwright)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def course(tmp_path_factory):
    """A copy of what learners open: tests may run, edit and save it."""
    return copied_course(tmp_path_factory.mktemp("course"))


@pytest.fixture(scope="session")
def lab(chromium, course):
    """A page of the browser in which the copy's JupyterLab shows its start page."""
    with running_lab(course, "--LabApp.expose_app_in_browser=True") as address:
        page = start_page(chromium, address)
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

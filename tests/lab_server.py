"""A JupyterLab as `make lab` starts it, on a copy of the course, and a browser to look at it."""

import os
import queue
import re
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import nbformat
import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from simlib.course.open_lab.own_copy import renew

ROOT = Path(__file__).resolve().parent.parent
FLAGS = (
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-component-update",
    "--no-first-run",
)
LIMIT_MS = 120_000  # for one thing on the page, on a busy machine
START_LIMIT_S = 120
STOP_LIMIT_S = 30


def copied_course(folder):
    """Copy what learners open into a folder."""
    renew(ROOT, folder)
    return folder


@contextmanager
def running_lab(folder, *words):
    """Start a course's JupyterLab on a free port; yields the address that it prints, with token."""
    environment = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")}
    process = subprocess.Popen(
        [sys.executable, ROOT / "scripts" / "lab.py", folder, "--", *words],
        cwd="/",
        env=environment | {"PORT": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield answering(printed_address(process))
    finally:
        process.terminate()
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def printed_address(process):
    """The address that `make lab` prints. All it prints is read, or it would stand still."""
    printed, found = [], queue.Queue()

    def read():
        for line in process.stdout:
            printed.append(line)
            if address := re.search(r"http://\S+token=\w+", line):
                found.put(address.group())
        found.put(None)

    threading.Thread(target=read, daemon=True).start()
    try:
        address = found.get(timeout=START_LIMIT_S)
    except queue.Empty:
        address = None
    assert address, "JupyterLab gave no address, it printed:\n" + "".join(printed)
    return address


def answering(address):
    """The address, once the server answers: it is printed just before the server listens."""
    patient = requests.Session()
    patient.mount("http://", HTTPAdapter(max_retries=Retry(connect=40, backoff_factor=0.1)))
    patient.get(address, timeout=60).raise_for_status()
    return address


def launched(playwright):
    """The system's chromium, without a window."""
    return playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)


def start_page(browser, address):
    """A page of the browser, once JupyterLab shows the course's start page in it."""
    page = browser.new_page(viewport={"width": 1300, "height": 1000})
    page.set_default_timeout(LIMIT_MS)
    page.goto(address)
    page.get_by_role("heading", name="Rank by Rank").wait_for()
    return page


def write_notebook(path, cells):
    """Write a notebook of code cells; without its metadata JupyterLab would ask for a kernel."""
    metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3 (ipykernel)"},
        "language_info": {"name": "python"},  # which colours the code before a kernel answers
    }
    code = [nbformat.v4.new_code_cell(cell) for cell in cells]
    nbformat.write(nbformat.v4.new_notebook(cells=code, metadata=metadata), path)

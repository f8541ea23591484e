"""`make lab`: what it refuses, and what its server shows. tests/browser runs lessons in it."""

import os
import re
import subprocess
import sys
import threading
from fnmatch import fnmatch
from pathlib import Path

import lab
import pytest
import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

ROOT = Path(__file__).resolve().parents[2]
LESSON = "notebooks/00_start_here.ipynb"
SHOWN = {"START.md", "notebooks", "exercises"}
NOT_SHOWN = {"README.md", "simlib", "solutions", "tests", "authoring"}
START_S = 120
"""A server that has not named its address by then is ended, and the test fails."""


@pytest.fixture
def server():
    """(address, token) of a server started as `make lab` starts it."""
    environment = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")}
    process = subprocess.Popen(
        [sys.executable, "scripts/lab.py"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    too_late = threading.Timer(START_S, process.terminate)
    too_late.start()
    try:
        for line in process.stdout:
            found = re.search(r"(http://\S+?)/lab\S*\?token=(\w+)", line)
            if found:
                too_late.cancel()
                yield found.groups()
                break
        else:
            pytest.fail(f"the server named no address within {START_S} s", pytrace=False)
    finally:
        too_late.cancel()
        process.terminate()
        process.communicate(timeout=30)


def listed(address, headers, folder=""):
    """What the list of files shows in a folder of the course."""
    found = requests.get(f"{address}/api/contents/{folder}", headers=headers, timeout=60)
    return {entry["name"] for entry in found.json()["content"]}


def test_make_lab_serves_the_course(server):
    address, token = server
    headers = {"Authorization": f"token {token}"}
    patient = requests.Session()  # the address is printed just before the server listens
    patient.mount("http://", HTTPAdapter(max_retries=Retry(connect=20, backoff_factor=0.1)))
    page = patient.get(f"{address}/lab/tree/START.md", headers=headers, timeout=60)
    assert page.status_code == 200
    assert SHOWN <= listed(address, headers) and not listed(address, headers) & NOT_SHOWN
    assert "checks" not in listed(address, headers, "exercises")
    for hidden in ("solutions/02_send_and_recv.ipynb", "docs/errors.md"):
        opened = requests.get(f"{address}/api/contents/{hidden}", headers=headers, timeout=60)
        assert opened.status_code == 200
    lesson = requests.get(f"{address}/api/contents/{LESSON}", headers=headers, timeout=60)
    assert lesson.json()["content"]["cells"]
    assert requests.get(f"{address}/api/contents", timeout=60).status_code == 403


@pytest.mark.parametrize(
    "port, expected", [("ninety", "is not a port"), ("70000", "is not a port")]
)
def test_a_port_that_is_none(monkeypatch, port, expected):
    monkeypatch.setenv("PORT", port)
    assert expected in lab.main([])


def test_a_port_that_is_taken(monkeypatch):
    with lab.socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setenv("PORT", str(port))
        assert (
            lab.main([])
            == f"Port {port} is taken by another program: choose another, PORT={port + 1}."
        )


def names_in(folder):
    """What the course has in a folder of its own, whatever else lies there."""
    command = ["git", "-C", ROOT / folder, "ls-files"]
    files = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    return {file.partition("/")[0] for file in files if not file.startswith(".")}


@pytest.mark.parametrize(
    "folder, shown", [("", SHOWN), ("notebooks", {"glossary.md", "de"}), ("exercises", set())]
)
def test_of_the_course_only_lessons_exercises_and_the_start_page_are_listed(folder, shown):
    names = names_in(folder)
    if not names:
        pytest.skip("what belongs to the course is known in a clone only")
    listed = {name for name in names if not any(fnmatch(name, one) for one in lab.NOT_SHOWN)}
    assert {name for name in listed if not name.endswith(".ipynb")} == shown


def test_lab_keeps_out_of_the_home_folder_and_opens_the_start_page():
    arguments = lab.lab_arguments("", display=False, as_root=True)
    assert "--LabApp.default_url=/lab/tree/START.md" in arguments
    assert "--ServerApp.open_browser=False" in arguments
    assert "--ServerApp.allow_root=True" in arguments
    folders = [value for name, value in lab.own_environment().items() if name.endswith("DIR")]
    assert all(Path(folder).is_relative_to(ROOT / ".jupyter") for folder in folders)
    assert (ROOT / "START.md").is_file()


def test_without_a_display_no_browser_is_tried(monkeypatch):
    monkeypatch.setattr(lab.sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert not lab.has_display()
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    assert lab.has_display()

"""`make lab`: what it refuses, and what its server shows. tests/browser runs lessons in it."""

import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import lab
import pytest
import requests
from lab_server import ROOT, running_lab

LESSON = "notebooks/00_start_here.ipynb"
SHOWN = {"START.md", "notebooks", "exercises"}
NOT_SHOWN = {"README.md", "simlib", "solutions", "tests", "authoring"}


@pytest.fixture
def server():
    """(address, token) of a server started as `make lab` starts it."""
    with running_lab(ROOT) as address:
        yield re.search(r"(http://\S+?)/lab\S*\?token=(\w+)", address).groups()


def listed(address, headers, folder=""):
    """What the list of files shows in a folder of the course."""
    found = requests.get(f"{address}/api/contents/{folder}", headers=headers, timeout=60)
    return {entry["name"] for entry in found.json()["content"]}


def test_make_lab_serves_the_course(server):
    address, token = server
    headers = {"Authorization": f"token {token}"}
    page = requests.get(f"{address}/lab/tree/START.md", headers=headers, timeout=60)
    assert page.status_code == 200
    assert SHOWN <= listed(address, headers) and not listed(address, headers) & NOT_SHOWN
    assert "checks" not in listed(address, headers, "exercises")
    for hidden in ("solutions/02_send_and_recv.ipynb", "docs/errors.md"):
        opened = requests.get(f"{address}/api/contents/{hidden}", headers=headers, timeout=60)
        assert opened.status_code == 200
    lesson = requests.get(f"{address}/api/contents/{LESSON}", headers=headers, timeout=60)
    assert lesson.json()["content"]["cells"]
    assert requests.get(f"{address}/api/contents", timeout=60).status_code == 403


def test_a_port_that_is_none_or_is_taken(monkeypatch):
    for port in ("ninety", "70000"):
        monkeypatch.setenv("PORT", port)
        assert "is not a port" in lab.main([])
    with lab.socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setenv("PORT", str(port))
        taken = f"Another program uses port {port}: choose another port, as in PORT={port + 1}."
        assert lab.main([]) == taken


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

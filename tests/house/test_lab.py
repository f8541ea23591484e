"""`make lab`: what it refuses, and what its server shows. tests/browser runs lessons in it."""

import os
import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import psutil
import pytest
import requests
from lab_server import ROOT, running_lab

from simlib.cli import main
from simlib.course import open_lab as lab
from simlib.course.open_lab import own_copy

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


def terminals():
    """The shells of terminals in a JupyterLab of this test."""
    lab_and_below = psutil.Process().children(recursive=True)
    return [one for one in lab_and_below if one.terminal() and one.pid == os.getsid(one.pid)]


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
    opened = requests.post(f"{address}/api/terminals", headers=headers, timeout=60)
    assert opened.status_code == 200
    (shell,) = terminals()
    assert shell.cwd() == str(ROOT) and "-l" not in shell.cmdline()
    assert shell.environ()["PATH"].startswith(str(Path(lab.sys.executable).parent))


def test_a_port_that_is_none_or_is_taken(monkeypatch, capsys):
    for port in ("ninety", "70000"):
        monkeypatch.setenv("PORT", port)
        assert main(["lab"]) == 2 and "is not a port" in capsys.readouterr().err
    with lab.socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["lab", "--port", str(port)]) == 2
    assert f"choose another port, as in --port {port + 1}" in capsys.readouterr().err


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
    arguments = lab.lab_arguments(ROOT, "", display=False, as_root=True)
    assert "--LabApp.default_url=/lab/tree/START.md" in arguments
    assert "--ServerApp.open_browser=False" in arguments
    assert "--ServerApp.allow_root=True" in arguments
    folders = [value for name, value in lab.own_environment(ROOT).items() if name.endswith("DIR")]
    assert all(Path(folder).is_relative_to(ROOT / ".jupyter") for folder in folders)
    assert (ROOT / "START.md").is_file()


def test_without_a_display_no_browser_is_tried(monkeypatch):
    monkeypatch.setattr(lab.sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert not lab.has_display()
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    assert lab.has_display()


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A small course, as a wheel contains it; the working directory is a folder beside it."""
    source = tmp_path / "wheel"
    for name in ("START.md", "notebooks/00_start_here.ipynb", "exercises/01_ranks.ipynb"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(f"{name}, first version")
    (source / "exercises" / "checks").mkdir()
    (source / "exercises" / "checks" / "01_ranks.py").write_text("")
    monkeypatch.setattr(lab, "GIVEN_COURSE", source)
    monkeypatch.setattr(lab, "serve", lambda folder, port, display, words: print(folder, *words))
    monkeypatch.delenv("PORT", raising=False)
    (tmp_path / "desk").mkdir()
    monkeypatch.chdir(tmp_path / "desk")
    return source


def texts(folder):
    """``{name: text}`` of all files of a learner's copy."""
    files = [one for one in folder.rglob("*") if one.is_file() and one.name != own_copy.RECORD]
    return {one.relative_to(folder).as_posix(): one.read_text() for one in files}


def given(course):
    """``{name: text}`` of all files of the course."""
    return {name: path.read_text() for name, path in own_copy.files_of(course).items()}


def test_the_course_is_copied_out_of_the_wheel_and_opened(course, capsys):
    assert main(["lab"]) == 0
    folder = Path("rank-by-rank").resolve()
    assert capsys.readouterr().out == f"The course is now in {folder}.\n{folder}\n"
    assert texts(folder) == given(course)
    assert main(["lab", "my course", "--", "--LabApp.x=1"]) == 0
    assert capsys.readouterr().out.endswith(f"{Path('my course').resolve()} --LabApp.x=1\n")
    assert texts(Path("my course")) == texts(folder)


def test_inside_a_copy_no_copy_is_made(course, monkeypatch, capsys):
    main(["lab"])
    monkeypatch.chdir("rank-by-rank")
    capsys.readouterr()
    assert main(["lab"]) == 0 and capsys.readouterr().out == f"{Path.cwd()}\n"


def test_a_newer_course_never_replaces_what_a_learner_changed(course, capsys):
    main(["lab"])
    mine, untouched = Path("rank-by-rank/exercises/01_ranks.ipynb"), Path("rank-by-rank/START.md")
    mine.write_text("my answer")
    Path("rank-by-rank/notebooks/00_start_here.ipynb").unlink()
    capsys.readouterr()
    assert main(["lab"]) == 0  # the same course: the file that is missing is copied again
    assert f"or missing in {mine.parents[1].resolve()}: 1." in capsys.readouterr().out
    for path in own_copy.files_of(course).values():
        path.write_text("second version")
    assert main(["lab"]) == 0
    new = f"new-in-{lab.VERSION}-01_ranks.ipynb"
    assert (
        f"You changed exercises/01_ranks.ipynb, so it stays as it is. The new file is next to it: "
        f"{new}\n" in capsys.readouterr().out
    )
    assert mine.read_text() == "my answer" and untouched.read_text() == "second version"
    assert mine.with_name(new).read_text() == "second version"
    before = texts(Path("rank-by-rank"))
    assert main(["lab"]) == 0 and len(capsys.readouterr().out.splitlines()) == 1
    mine.with_name(new).write_text("my other answer")
    (course / "exercises" / "01_ranks.ipynb").write_text("third version")
    main(["lab"])
    assert texts(Path("rank-by-rank")) == before | {
        f"exercises/{new}": "my other answer",
        f"exercises/new-in-{lab.VERSION}-01_ranks-2.ipynb": "third version",
    }


def test_a_copying_that_was_interrupted_goes_on(course, monkeypatch):
    replace, calls = own_copy.os.replace, []

    def stop_at_the_third(half, target):
        calls.append(target)
        if len(calls) == 3:
            raise KeyboardInterrupt
        replace(half, target)

    monkeypatch.setattr(own_copy.os, "replace", stop_at_the_third)
    assert main(["lab"]) == 130
    assert main(["lab"]) == 0
    written = {
        name: text for name, text in texts(Path("rank-by-rank")).items() if ".half" not in name
    }
    assert written == given(course)


def test_a_folder_with_other_files_is_refused(course, capsys):
    Path("letters").mkdir()
    Path("letters/START.md").write_text("Dear Ada")
    assert main(["lab", "letters"]) == 2
    assert "contains files, but no copy of the course" in capsys.readouterr().err
    assert texts(Path("letters")) == {"START.md": "Dear Ada"}
    assert main(["lab", "letters/START.md"]) == 2
    assert "letters/START.md: " in capsys.readouterr().err


def test_an_install_without_the_course_says_so(course, monkeypatch, capsys):
    monkeypatch.setattr(lab, "ROOT", course)
    (course / "START.md").unlink()
    assert main(["lab"]) == 2
    assert "simlib was installed here without the course" in capsys.readouterr().err
    assert list(Path().iterdir()) == []


LINK = re.compile(r"\]\((?!https?:)([^)#\s]+\.(?:ipynb|md|png|json))")


def test_the_course_of_a_wheel_is_all_that_git_has_and_no_link_leads_out_of_it():
    files = own_copy.files_of(ROOT)
    listing = ["git", "-C", ROOT, "ls-files", *own_copy.PARTS]
    tracked = subprocess.run(listing, capture_output=True, text=True).stdout.splitlines()
    assert set(tracked) <= set(files)
    read = [name for name in files if not name.startswith("docs") and name.endswith((".md", "nb"))]
    leads = {(name, link) for name in read for link in LINK.findall(files[name].read_text())}
    assert len(leads) > 100
    for name, link in leads:
        target = (ROOT / name).parent.joinpath(link).resolve()
        assert target.relative_to(ROOT).as_posix() in files, f"{name}: {link}"

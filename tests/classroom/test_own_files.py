"""What is copied into a sandbox of a rank's own: plain files, however the folder changes."""

import os
import subprocess
import sys

import pytest

from simlib.classroom.confinement import process_sandbox
from simlib.classroom.confinement.process_sandbox import OWN_SANDBOX
from simlib.classroom.grading.examiner import is_of_shell


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
def test_links_and_pipes_are_not_copied(tmp_path):
    (tmp_path / "secret").write_text("of somebody else")
    home = tmp_path / "home"
    (home / "deep").mkdir(parents=True)
    (home / "deep" / "mine.py").write_text("x = 1")
    (home / "link").symlink_to(tmp_path / "secret")
    (home / "away").symlink_to(tmp_path)
    os.mkfifo(home / "pipe")  # to open it would wait for who writes
    assert process_sandbox._files_below(home) == {"deep/mine.py": b"x = 1"}


def test_no_more_is_copied_than_there_is_room_for(tmp_path, monkeypatch):
    for number in range(5):
        (tmp_path / str(number)).write_bytes(bytes(100))
    monkeypatch.setitem(process_sandbox.ROOM, process_sandbox.HOME, 250)
    assert sum(map(len, process_sandbox._files_below(tmp_path).values())) == 250
    monkeypatch.setattr(process_sandbox, "MAX_FILES", 2)
    assert len(process_sandbox._files_below(tmp_path)) == 2


@pytest.mark.parametrize("name", ["examiner: <ipython-input-2-0>", "/etc/passwd", "", None, 3])
def test_a_shell_names_no_cells_but_its_own(name):
    assert is_of_shell("<ipython-input-2-0123>") and not is_of_shell(name)


SEES = """
import os, sys
from pathlib import Path
from simlib.classroom.confinement import process_sandbox
from simlib.classroom.confinement.process_sandbox import OWN_SANDBOX

place = Path(sys.argv[1])
process_sandbox.ROOM = {str(place): process_sandbox.MB}
process_sandbox.KEPT = ()
process_sandbox.PYTHONS = (str(place / "venv"),)
process_sandbox.enter()
print(sorted(path.name for path in place.rglob("*")), (place / "venv" / "x").read_text())
"""


def test_a_python_below_a_folder_of_its_own_is_still_there(isolated, tmp_path):
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "x").write_text("there")
    (tmp_path / "of_others").write_text("hidden")
    command = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc"]
    done = subprocess.run(
        [*command, sys.executable, "-c", SEES, str(tmp_path)],
        env=os.environ | {OWN_SANDBOX: "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "['venv', 'x'] there\n", done.stderr

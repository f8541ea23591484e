"""The wheel: it is enough alone, contains no hidden cells, and tells other packages `simlib`."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import try_wheel

import rank_by_rank
from simlib.core.environment import VERSION

ROOT = Path(__file__).resolve().parents[2]


def wheel_with(path, text):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("simlib/classroom/checks/given/02_send_and_recv.py", text)
    return path


@pytest.mark.parametrize("text", ["### BEGIN SOLUTION\nx\n", r'"### BEGIN SOLUTION\n",'])
def test_a_wheel_with_the_source_of_an_exercise_is_refused(tmp_path, text):
    try_wheel.no_solutions_in(wheel_with(tmp_path / "a.whl", "# %% 02.1 running_total\n"))
    with pytest.raises(try_wheel.Failed, match="02_send_and_recv.py in the wheel contains the so"):
        try_wheel.no_solutions_in(wheel_with(tmp_path / "b.whl", text))


@pytest.mark.slow
def test_the_wheel_alone_is_all_that_a_notebook_needs(tmp_path, capsys):
    this = "{}.{}".format(*sys.version_info)
    code = try_wheel.main([str(tmp_path / "wheel"), this])
    if code == try_wheel.UNTRIED:
        pytest.skip("pip could not install it: is there a network?")
    assert code == 0, capsys.readouterr().out


FOREIGN = """\
Metadata-Version: 2.1
Name: simlib
Version: 3.1
Author: {author}
"""


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """A folder at the end of the import path, to install another project into."""
    monkeypatch.syspath_prepend(ROOT)  # before an editable install of another clone
    monkeypatch.setattr("sys.path", [*sys.path, str(tmp_path)])

    def install(author, *files):
        information = tmp_path / "simlib-3.1.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(FOREIGN.format(author=author))
        (information / "RECORD").write_text("".join(f"{name},,\n" for name in files))

    return install


def test_another_project_called_simlib_in_this_environment_is_told(environment, tmp_path, capsys):
    environment("Somebody Else", "bin/simulate", "simlib/__init__.py")
    said = rank_by_rank.other_simlib()
    assert said.startswith(f"{tmp_path} contains simlib 3.1, which is another project")
    assert "-m pip uninstall -y simlib`, then `" in said


@pytest.mark.parametrize(
    "author, file",
    [("Rank by Rank authors", "simlib/__init__.py"), ("Somebody Else", "simulations/__init__.py")],
)
def test_this_course_under_its_old_name_and_a_package_of_another_name_are_no_harm(
    environment, author, file
):
    environment(author, file)
    assert rank_by_rank.other_simlib() is None


def called(tmp_path, *words):
    """What the command says in an environment whose first folder on the path is this."""
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    line = "import sys, rank_by_rank; sys.argv[0] = 'rank-by-rank'; sys.exit(rank_by_rank.main())"
    command = [sys.executable, "-c", line, *words]
    variables = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, env=variables, capture_output=True, text=True, cwd=tmp_path)


def test_the_command_of_a_wrong_simlib_says_so_without_importing_it(tmp_path):
    (tmp_path / "simlib").mkdir()
    (tmp_path / "simlib" / "__init__.py").write_text("raise SystemExit('molecules')")
    done = called(tmp_path, "--version")
    assert done.returncode == 2 and "molecules" not in done.stderr
    assert f"{tmp_path}/simlib/__init__.py belongs to another package called" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_command_is_simlib_s(tmp_path):
    done = called(tmp_path, "--version")
    assert (done.returncode, done.stdout) == (0, f"rank-by-rank {VERSION}\n")
    assert done.stderr == ""

"""The installer: what goes wrong is said in one sentence, what is there is left alone."""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import install
import pytest

ROOT = Path(__file__).resolve().parents[2]
FOR_LEARNERS = ".[course,grading,cluster]"
"""What `make install` asks pip for."""


def test_constraints_leave_out_the_project_and_what_belongs_to_one_platform():
    names = {
        "torch": "2.13.0+cpu",
        "rank-by-rank": "1",
        "pip": "9",
        "nvidia-nccl-cu12": "2",
        "triton": "3",
    }
    text = install.constraints_text([{"name": n, "version": v} for n, v in names.items()])
    assert text.splitlines()[1:] == ["torch==2.13.0"]


# A machine with something missing: a checkout in a folder with a space, a Python that lies.

FAKE_PYTHON = """\
#!/bin/sh
case "$*" in
*sys.exit*) {is_new_enough};;
*sys.version_info*) echo {version}; exit 0;;
*"-m venv"*) {venv};;
*install.py*) exec "{python}" -c '
import runpy, sys
sys.executable, sys.argv = sys.argv[1], sys.argv[2:]  # what install.py calls is this fake again
runpy.run_path(sys.argv[0], run_name="__main__")' "$0" "$@";;
esac
exit 9
"""

FAKE_VENV_PYTHON = """\
#!/bin/sh
case "$*" in
*"-m pip"*) {pip};;
esac
"""


def write_script(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return path


def make(folder, target="install", start=subprocess.run, **variables):
    """Run, or `start`, make in a checkout with the fake Python beside it."""
    environment = {**os.environ, "PYTHON": str(folder.parent / "python"), "CI": "", **variables}
    command = ["make", "--no-print-directory", "-C", folder, target]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return start(command, env=environment, **pipes)


@pytest.fixture
def machine(tmp_path):
    """``machine(venv_says, pip_says, version)``: a checkout; its Python fails like this."""
    folder = tmp_path / "a course"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "scripts", folder / "scripts")

    def with_python(venv_says=None, pip_says=None, version="3.11"):
        def fail(text):
            return f"printf '%s\\n' '{text}' >&2; exit 1"

        works = 'echo "$5" >> calls; echo Downloading torch; exit 0'
        pip = fail(pip_says) if pip_says else works
        venv_python = write_script(tmp_path / "venv_python", FAKE_VENV_PYTHON.format(pip=pip))
        venv = f'for venv; do :; done; mkdir -p "$venv/bin"; cp "{venv_python}" "$venv/bin/python"'
        write_script(
            tmp_path / "python",
            FAKE_PYTHON.format(
                is_new_enough="exit 1" if version == "3.9" else "exit 0",
                version=version,
                venv=fail(venv_says) if venv_says else venv + "; exit 0",
                python=sys.executable,
            ),
        )
        return folder

    return with_python


def asked_of_pip(folder):
    """What pip was to install, call by call."""
    return (folder / "calls").read_text().splitlines()


def sentence(done):
    """What a failed make said, without make's own words; no stack trace among it."""
    assert done.returncode != 0
    assert "Traceback" not in done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert len(lines) == 1, lines
    return lines[0]


def bare_path(tmp_path, *programs):
    """A PATH with make's own needs, and no Python but these scripts."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "make", "dirname", "env"):
        (folder / name).symlink_to(shutil.which(name))
    for name, text in programs:
        write_script(folder / name, text)
    return str(folder)


OLD_PYTHON = '#!/bin/sh\ncase "$2" in *print*) echo 3.8;; *) exit 1;; esac\n'


@pytest.mark.parametrize(
    "programs, expected",
    [([], "There is no Python here"), ([("python3", OLD_PYTHON)], "The newest Python here is 3.8")],
)
def test_no_python_that_is_new_enough(machine, tmp_path, programs, expected):
    said = sentence(make(machine(), PYTHON="", PATH=bare_path(tmp_path, *programs)))
    assert said.startswith(f"{expected}, and the course needs 3.11 or newer")
    said = sentence(make(machine(version="3.9")))
    assert "is Python 3.9, and the course needs 3.11 or newer" in said
    said = sentence(make(machine(), PYTHON="/no/such/python"))
    assert said == "There is no program /no/such/python: set PYTHON to a Python 3.11 or newer."


def test_a_new_python_is_found_by_its_name(machine, tmp_path):
    found = f'#!/bin/sh\nexec "{tmp_path}/python" "$@"\n'
    path = bare_path(tmp_path, ("python3.13", found), ("python3.11", "#!/bin/sh\nexit 1\n"))
    done = make(machine(), PYTHON="", PATH=f"{path}:/usr/bin:/bin")
    assert done.returncode == 0, done.stderr


NO_VENV = f"apt-get install python{sys.version_info.major}.{sys.version_info.minor}-venv"
FAILURES = [
    ("venv", "The virtual environment was not created successfully because ensurepip is not "
     "available.", NO_VENV),
    ("venv", "/usr/bin/python3: No module named venv", NO_VENV),
    ("venv", "Error: [Errno 28] No space left on device", "The disk is full"),
    ("pip", "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on "
     "device", "The disk is full"),
    ("pip", "WARNING: Retrying after connection broken by NewConnectionError\n"
     "ERROR: No matching distribution found for torch==2.13.0", "The network does not answer"),
    ("pip", "socket.gaierror: Temporary failure in name resolution", "The network does not answer"),
    ("pip", "ReadTimeoutError: Read timed out.", "The network does not answer"),
    ("pip", "SSL: CERTIFICATE_VERIFY_FAILED", "pip did not accept the network's certificate"),
    ("pip", "ERROR: No matching distribution found for torch==2.13.0",
     "There is no torch for this Python"),
    ("pip", "ERROR: something nobody has seen", "ERROR: something nobody has seen"),
]  # fmt: skip


@pytest.mark.parametrize("program, says, expected", FAILURES)
def test_what_a_program_says_becomes_one_sentence(machine, program, says, expected):
    assert expected in sentence(make(machine(**{f"{program}_says": says})))


def change_lists(folder):
    with open(folder / "constraints.txt", "a") as constraints:
        constraints.write("# changed\n")


def test_what_is_installed_again_and_what_is_not(machine):
    folder = machine()
    first, second = make(folder), make(folder)
    assert "Installed." in first.stdout and "Downloading torch\n" in first.stdout
    assert second.returncode == 0 and second.stdout.count("Install") == 0
    assert asked_of_pip(folder) == [FOR_LEARNERS]
    change_lists(folder)
    assert "installing what is new" in make(folder).stdout
    assert asked_of_pip(folder) == [FOR_LEARNERS, FOR_LEARNERS]
    (folder / ".venv" / "bin" / "python").unlink()
    again = make(folder)
    assert again.returncode == 0 and "Installed." in again.stdout
    moved = folder.rename(folder.with_name("moved here"))
    assert "installing what is new" in make(moved).stdout


@pytest.mark.parametrize(
    "author, uninstalled", [("Rank by Rank authors", ["simlib"]), ("Somebody else", [])]
)
def test_this_course_under_its_old_name_is_uninstalled_first(machine, author, uninstalled):
    folder = machine()
    make(folder)
    old = folder / ".venv" / "lib" / "python3.11" / "site-packages" / "simlib-0.1.0.dist-info"
    old.mkdir(parents=True)
    (old / "METADATA").write_text(f"Name: simlib\nAuthor: {author}\nLicense: MIT\n")
    change_lists(folder)
    assert make(folder).returncode == 0
    assert asked_of_pip(folder) == [FOR_LEARNERS, *uninstalled, FOR_LEARNERS]


@pytest.mark.parametrize(
    "extra, told",
    [("dev", "the tools for tests"), ("frameworks", "Lightning"), ("book", "Sphinx")],
)
def test_an_extra_is_added_once_and_anew_when_the_lists_change(machine, extra, told):
    folder = machine()
    assert f"Installing {told}" in make(folder, extra).stdout
    assert "Installing" not in make(folder, extra).stdout
    assert asked_of_pip(folder) == [FOR_LEARNERS, f".[{extra}]"]
    change_lists(folder)
    assert f"Installing {told}" in make(folder, extra).stdout
    assert asked_of_pip(folder) == [FOR_LEARNERS, f".[{extra}]"] * 2


def test_an_interrupted_install_is_repaired(machine):
    folder = machine(pip_says="Read timed out.")
    assert make(folder).returncode
    (folder / ".venv" / "half").write_text("")
    again = make(machine())
    assert again.returncode == 0 and "was not finished: starting again" in again.stdout


def second_clone(folder):
    """Another clone of the course, beside the first."""
    return Path(shutil.copytree(folder, folder.with_name("second"), symlinks=True))


def contents(folder):
    """Each file below a folder, with its text."""
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("target", ["install", "dev"])
def test_a_venv_that_is_a_link_is_refused_and_what_it_leads_to_stays(machine, target):
    first = machine()
    second = second_clone(first)
    make(first)
    (second / ".venv").symlink_to(first / ".venv")
    before = contents(first)
    said = sentence(make(second, target))
    assert f"is a link to {first / '.venv'}" in said and f"(rm {second / '.venv'})" in said
    assert contents(first) == before and not (second / "calls").exists()
    (second / ".venv").unlink()  # as it says
    assert "Installed." in make(second, target).stdout
    assert contents(first) == before


def give_editable(venv, folder):
    """Let a venv have what pip writes where it installs a folder so that it can be edited."""
    info = venv / "lib" / "python3.11" / "site-packages" / f"{folder.name}-0.1.dist-info"
    info.mkdir(parents=True)
    text = json.dumps({"url": folder.as_uri(), "dir_info": {"editable": True}})
    (info / "direct_url.json").write_text(text)


def test_a_venv_that_another_clone_has_installed_is_refused(machine):
    first = machine()
    make(first)
    second = second_clone(first)
    refused = f"belongs to another copy of the course, in {first}: remove it (rm -r "
    assert refused in sentence(make(second))
    (second / ".venv" / "installed").unlink()
    give_editable(second / ".venv", first)
    assert refused in sentence(make(second))
    assert asked_of_pip(second) == [FOR_LEARNERS]  # by the first, before it was copied
    shutil.rmtree(second / ".venv")  # as it says
    assert "Installed." in make(second).stdout


def test_a_venv_of_this_clone_and_with_a_learners_own_package_is_not_refused(machine, tmp_path):
    folder = machine()
    make(folder)
    give_editable(folder / ".venv", folder)
    (tmp_path / "a package").mkdir()
    give_editable(folder / ".venv", tmp_path / "a package")
    change_lists(folder)
    assert "installing what is new" in make(folder).stdout


def test_two_installs_at_once_follow_each_other(machine):
    """The second would take away the half-made .venv of the first."""
    folder = machine()
    make(folder)
    stamp = folder / ".venv" / "installed"
    text = stamp.read_text()
    stamp.unlink()  # as while the first is at work
    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with make(folder, start=subprocess.Popen) as second:
        assert "Another install" in second.stdout.readline()
        stamp.write_text(text)
        os.close(lock)
        out, _ = second.communicate(timeout=60)
    assert second.returncode == 0 and out == ""
    assert asked_of_pip(folder) == [FOR_LEARNERS]


def test_a_pip_that_takes_long_is_told_to_be_at_work(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(install, "STILL_AT_WORK_S", 0.1)
    install.pip_install(write_script(tmp_path / "python", "#!/bin/sh\nsleep 0.5\necho done\n"))
    told = capfd.readouterr().out.splitlines()
    assert told[0] == "Still at work after 0 min." and "done" in told


def test_an_extra_that_is_not_there_is_said(capsys):
    assert install.main(["--help"]) == 1
    assert (
        capsys.readouterr().err == "help is not an extra. The extras are dev, frameworks, book.\n"
    )


def test_each_extra_is_everybodys_or_can_be_asked_for_by_make():
    rules = (ROOT / "Makefile").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {*install.FOR_LEARNERS, *install.EXTRAS}
    # classroom is another name of grading, and completion is for one's own shell
    assert extras | {"classroom", "completion"} == set(project["optional-dependencies"])
    for extra in install.EXTRAS:
        rule = "book-tools" if extra == "book" else extra  # make book builds it
        assert f"\n{rule}: install " in rules and f"install.sh --{extra}\n" in rules


def test_make_alone_lists_every_command():
    rules = (ROOT / "Makefile").read_text()
    named = re.search(r"^\.PHONY: (.+)$", rules, re.MULTILINE).group(1).split()
    told = subprocess.run(["make", "-C", ROOT], capture_output=True, text=True, timeout=60).stdout
    assert re.findall(r"^  make (\S+) ", told, re.MULTILINE) == named

"""The lists of dependencies agree, and an install that goes wrong says so in one sentence."""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import install
import lab
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
CONDA_NAMES = {"torch": "pytorch", "playwright": "playwright-python"}


def declared():
    """All requirements of pyproject.toml, the extra's too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project["dependencies"] + project["optional-dependencies"]["dev"]


def pins():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def installed():
    """``{name: version}`` of what the declared requirements bring in, directly or not."""
    found, left = {}, [Requirement(text) for text in declared()]
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        extras = requirement.extras or {""}
        if (name, *extras) in found:
            continue
        found[name, *extras] = importlib.metadata.version(name).partition("+")[0]
        for text in importlib.metadata.requires(name) or []:
            further = Requirement(text)
            if not further.marker or any(further.marker.evaluate({"extra": e}) for e in extras):
                left.append(further)
    return {key[0]: version for key, version in found.items()}


def test_conda_and_pip_have_the_same_list():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    listed = [entry for entry in environment["dependencies"] if isinstance(entry, str)]
    for name, conda_name in CONDA_NAMES.items():
        listed = [re.sub(rf"^{conda_name}\b", name, entry) for entry in listed]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    python = "python" + project["requires-python"]
    assert sorted(listed) == sorted([python, "pip", *declared()])
    assert environment["dependencies"][-1] == {"pip": ["-e ."]}


def test_everything_installed_is_pinned_to_its_version():
    wanted, found = pins(), installed()
    assert found["torch"] == "2.13.0"
    assert {
        name: (version, wanted.get(name))
        for name, version in found.items()
        if wanted.get(name) != version and not install.PLATFORM_PACKAGES.match(name)
    } == {}


def test_mpiexec_beside_this_python_belongs_to_the_mpi_of_mpi4py():
    """With another MPI's mpiexec every process is rank 0 of 1, without an error."""
    mpiexec = Path(sys.executable).with_name("mpiexec")
    # One write each, or the lines of unbuffered processes mix.
    hello = (
        "from mpi4py import MPI; world = MPI.COMM_WORLD; "
        "print(f'{world.Get_rank()} {world.Get_size()}\\n', end='')"
    )
    command = [mpiexec, "-n", "3", sys.executable, "-c", hello]
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60
    )
    assert sorted(done.stdout.splitlines()) == ["0 3", "1 3", "2 3"], done.stderr


def test_no_file_names_a_registry_host():
    hosts = re.compile(r"https?://|index-url|find-links")
    for name in ("pyproject.toml", "constraints.txt", "environment.yml", "Makefile"):
        assert not hosts.search((ROOT / name).read_text()), name
    for path in (ROOT / "scripts").rglob("*.*"):
        if path.suffix in (".py", ".sh", ".json"):
            assert not hosts.search(path.read_text()), path


def test_pinned_packages_work_with_every_python_that_the_project_allows():
    # A package may want 3.11.5 where a distribution ships 3.11.2: then nothing can be installed.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (oldest,) = SpecifierSet(project["requires-python"])
    refusing = {}
    for name in pins():
        wanted = importlib.metadata.metadata(name)["Requires-Python"]
        if wanted and not SpecifierSet(wanted).contains(f"{oldest.version}.0"):
            refusing[name] = wanted
    assert not refusing


def test_constraints_leave_out_the_project_and_what_belongs_to_one_platform():
    names = (
        ("torch", "2.13.0+cpu"),
        ("simlib", "1"),
        ("pip", "9"),
        ("nvidia-nccl-cu12", "2"),
        ("triton", "3"),
    )
    text = install.constraints_text([{"name": n, "version": v} for n, v in names])
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


@pytest.fixture
def machine(tmp_path):
    """``machine(venv_says, pip_says, version)``: a checkout and a Python that fails like this.

    Returns a function that runs `make install` there.
    """
    folder = tmp_path / "a course"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "scripts", folder / "scripts")

    def make(venv_says=None, pip_says=None, version="3.11"):
        def fail(text):
            return f"printf '%s\\n' '{text}' >&2; exit 1"

        works = "echo ran >> calls; echo Downloading torch; exit 0"
        pip = fail(pip_says) if pip_says else works
        venv_python = write_script(tmp_path / "venv_python", FAKE_VENV_PYTHON.format(pip=pip))
        venv = f'for venv; do :; done; mkdir -p "$venv/bin"; cp "{venv_python}" "$venv/bin/python"'
        python = write_script(
            tmp_path / "python",
            FAKE_PYTHON.format(
                is_new_enough="exit 1" if version == "3.9" else "exit 0",
                version=version,
                venv=fail(venv_says) if venv_says else venv + "; exit 0",
                python=sys.executable,
            ),
        )

        def run(**variables):
            environment = {**os.environ, "PYTHON": str(python), "CI": "", **variables}
            done = subprocess.run(
                ["make", "-C", folder, "install"],
                capture_output=True,
                text=True,
                env=environment,
                timeout=60,
            )
            done.folder = folder
            return done

        return run

    return make


def sentence(done):
    """What a failed make said, without make's own words; no stack trace among it."""
    assert done.returncode != 0
    assert "Traceback" not in done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert len(lines) == 1, lines
    return lines[0]


def test_an_old_python(machine):
    said = sentence(machine(version="3.9")())
    assert "is Python 3.9, and the course needs 3.11 or newer" in said


def test_a_python_that_is_not_there(machine):
    said = sentence(machine()(PYTHON="/no/such/python"))
    assert said == "There is no program /no/such/python: set PYTHON to a Python 3.11 or newer."


def bare_path(tmp_path, *programs):
    """A PATH with make's own needs, and no Python but these scripts."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "make", "dirname", "env"):
        (folder / name).symlink_to(shutil.which(name))
    for name, text in programs:
        write_script(folder / name, text)
    return str(folder)


def test_no_python_at_all(machine, tmp_path):
    said = sentence(machine()(PYTHON="", PATH=bare_path(tmp_path)))
    assert said.startswith("There is no Python here, and the course needs 3.11 or newer")


def test_only_an_old_python(machine, tmp_path):
    old = '#!/bin/sh\ncase "$2" in *print*) echo 3.8;; *) exit 1;; esac\n'
    said = sentence(machine()(PYTHON="", PATH=bare_path(tmp_path, ("python3", old))))
    assert said.startswith("The newest Python here is 3.8, and the course needs 3.11 or newer")


def test_a_new_python_is_found_by_its_name(machine, tmp_path):
    run = machine()
    found = f'#!/bin/sh\nexec "{tmp_path}/python" "$@"\n'
    path = bare_path(tmp_path, ("python3.13", found)) + ":/usr/bin:/bin"
    write_script(Path(path.partition(":")[0]) / "python3.11", "#!/bin/sh\nexit 1\n")
    done = run(PYTHON="", PATH=path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "says",
    [
        "The virtual environment was not created successfully because ensurepip is not available.",
        "/usr/bin/python3: No module named venv",
    ],
)
def test_debian_without_python3_venv(machine, says):
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    said = sentence(machine(venv_says=says)())
    assert f"apt-get install python{version}-venv" in said


PIP_FAILURES = [
    ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
     "The disk is full"),
    ("WARNING: Retrying after connection broken by NewConnectionError\n"
     "ERROR: No matching distribution found for torch==2.13.0", "The network does not answer"),
    ("socket.gaierror: Temporary failure in name resolution", "The network does not answer"),
    ("ReadTimeoutError: Read timed out.", "The network does not answer"),
    ("SSL: CERTIFICATE_VERIFY_FAILED", "The network's certificate was not accepted"),
    ("ERROR: No matching distribution found for torch==2.13.0",
     "There is no torch for this Python"),
    ("ERROR: something nobody has seen", "ERROR: something nobody has seen"),
]  # fmt: skip


@pytest.mark.parametrize("says, expected", PIP_FAILURES)
def test_what_pip_says_becomes_one_sentence(machine, says, expected):
    assert expected in sentence(machine(pip_says=says)())


def test_a_disk_that_is_full_before_pip_begins(machine):
    assert "The disk is full" in sentence(
        machine(venv_says="Error: [Errno 28] No space left on device")()
    )


def test_the_second_time_nothing_is_installed(machine):
    run = machine()
    first = run()
    assert "Installed." in first.stdout
    second = run()
    assert second.returncode == 0 and second.stdout.count("Install") == 0
    assert (first.folder / "calls").read_text() == "ran\n"


def test_a_change_of_the_lists_installs_again(machine):
    run = machine()
    folder = run().folder
    with open(folder / "constraints.txt", "a") as constraints:
        constraints.write("# changed\n")
    assert "installing what is new" in run().stdout
    assert (folder / "calls").read_text() == "ran\n" * 2


def test_a_checkout_that_was_moved_installs_again(machine):
    done = machine()()
    moved = done.folder.with_name("moved here")
    done.folder.rename(moved)
    environment = {**os.environ, "PYTHON": str(moved.parent / "python")}
    again = subprocess.run(
        ["make", "-C", moved, "install"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
    )
    assert "installing what is new" in again.stdout


def test_an_interrupted_install_is_repaired(machine):
    failed = machine(pip_says="Read timed out.")()
    leftover = failed.folder / ".venv" / "half"
    leftover.write_text("")
    (failed.folder / ".venv" / "installed").unlink(missing_ok=True)
    again = machine()()
    assert again.returncode == 0 and "was not finished: starting again" in again.stdout


def test_a_venv_whose_python_is_gone_is_made_again(machine):
    run = machine()
    folder = run().folder
    (folder / ".venv" / "bin" / "python").unlink()
    again = run()
    assert again.returncode == 0 and "Installed." in again.stdout


def test_what_pip_tells_of_its_progress_is_seen(machine):
    assert "Downloading torch\n" in machine()().stdout


def test_a_pip_that_takes_long_is_told_to_be_at_work(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(install, "STILL_AT_WORK_S", 0.1)
    install.pip_install(write_script(tmp_path / "python", "#!/bin/sh\nsleep 0.5\necho done\n"))
    told = capfd.readouterr().out.splitlines()
    assert told[0] == "Still at work." and "done" in told


# make lab


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


# what conftest.py gives to all tests


@pytest.fixture
def alone(pytester, monkeypatch):
    """Run tests in a pytest of their own, with our conftest; the other plugins take seconds."""
    pytester.makeconftest((ROOT / "tests/conftest.py").read_text())
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return lambda *options: pytester.runpytest_subprocess(
        *options, "-p", "no:cacheprovider", "-p", "xdist"
    )


@pytest.mark.parametrize("ci, outcome", [("", "skipped=1"), ("true", "failed=1")])
def test_a_missing_system_package_is_a_skip_and_on_ci_a_failure(
    pytester, alone, monkeypatch, ci, outcome
):
    monkeypatch.setenv("CI", ci)
    pytester.makepyfile(
        """
        import conftest

        def test_it(needs_system, monkeypatch):
            monkeypatch.setattr(conftest, "can_install", lambda: False)
            needs_system("no-such-package", "no-such-command")
        """
    )
    result = alone("-rsf")
    name, count = outcome.split("=")
    result.assert_outcomes(**{name: int(count)})
    result.stdout.fnmatch_lines("*install the system package no-such-package*")


@pytest.mark.parametrize("ci, outcome", [("", "skipped=1"), ("true", "failed=1")])
def test_a_machine_that_forbids_namespaces(pytester, alone, monkeypatch, ci, outcome):
    """A skip for who has no more than a container; on CI nobody would notice that."""
    monkeypatch.setenv("CI", ci)
    for folder, text in (
        ("", ""),
        ("practice", ""),
        ("practice", "def why_not_cluster(slurm):\n    return 'it is not permitted here'\n"),
    ):
        path = (
            pytester.path / "simlib" / folder / (f"{folder}_cluster.py" if text else "__init__.py")
        )
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    pytester.makepyfile(
        """
        def test_it(needs_practice_cluster, monkeypatch):
            monkeypatch.setattr("sys.platform", "linux")
            monkeypatch.setattr("os.geteuid", lambda: 1000)
            needs_practice_cluster()
        """
    )
    result = alone("-rsf")
    name, count = outcome.split("=")
    result.assert_outcomes(**{name: int(count)})
    result.stdout.fnmatch_lines("*it is not permitted here*")


@pytest.mark.parametrize("has_policy", [False, True])
def test_how_a_system_package_is_installed(tmp_path, monkeypatch, has_policy):
    """Lists are fetched where there are none; nothing is asked; no daemon is started."""
    spec = importlib.util.spec_from_file_location("its_conftest", ROOT / "tests/conftest.py")
    conftest = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conftest)
    policy, calls = tmp_path / "policy-rc.d", []
    if has_policy:
        policy.write_text("of this machine")

    def run(words, env, **options):
        assert env["DEBIAN_FRONTEND"] == "noninteractive"
        assert os.access(policy, os.X_OK) or has_policy
        calls.append([word for word in words if word in ("update", "install", "munge")])
        return subprocess.CompletedProcess(words, 100 if len(calls) == 2 else 0)

    monkeypatch.setattr(conftest, "LISTS", tmp_path)
    monkeypatch.setattr(conftest, "POLICY", policy)
    monkeypatch.setattr(conftest.subprocess, "run", run)
    conftest.install("munge")
    assert calls == [["update"], ["install", "munge"], ["update"], ["install", "munge"]]
    assert policy.exists() == has_policy


def test_a_seed_draws_the_same_sample_twice_and_all_means_all(pytester, alone, monkeypatch):
    pytester.makeini("[pytest]\nmarkers =\n    long\n    sample\n")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.sample(5)
        @pytest.mark.parametrize("case", range(40))
        def test_case(case):
            pass

        @pytest.mark.long
        def test_long():
            pass
        """
    )

    def chosen(seed, everything="0"):
        monkeypatch.setenv("SEED", seed)
        monkeypatch.setenv("TEST_ALL", everything)
        result = alone("--collect-only", "-q")
        return [line for line in result.outlines if "::" in line]

    seven = chosen("7")
    assert len(seven) == 5
    assert seven == chosen("7") != chosen("8")
    assert len(chosen("7", everything="1")) == 41

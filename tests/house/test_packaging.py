"""The lists of dependencies agree with each other and with what is installed."""

import ast
import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import install
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from simlib.classroom.grading.exercise import CASES, write_checks

ROOT = Path(__file__).resolve().parents[2]
CONDA_NAMES = {"torch": "pytorch"}
FOR_TESTS_ONLY = {"ruff", "codespell", "import-linter", "mypy", "playwright", "hypothesis"}
OPTIONAL = {
    "simlib/classroom/grading": "grading",
    "simlib/testing": "grading",
    "simlib/cluster/mpi": "cluster",
    "simlib/cluster/mpi_group.py": "cluster",
}
"""Folders of simlib that may import more than all others: what an extra brings."""
RUN_BY_LEARNERS = ("simlib", "authoring/lessons", "authoring/exercises", "scripts/lab.py")


def declared(*extras):
    """The requirements of pyproject.toml, these extras' too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    of_extras = [text for extra in extras for text in project["optional-dependencies"][extra]]
    return project["dependencies"] + of_extras


def pins():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def installed(*extras):
    """``{name: version}`` of what these extras and the rest bring in, directly or not."""
    found, left = {}, [Requirement(text) for text in declared(*extras)]
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


WRITES = """
from pathlib import Path
from simlib.classroom.grading.exercise import write_checks
write_checks(Path())
"""


@pytest.mark.parametrize("words", [["setup.py", "--version"], ["-S", "-c", WRITES]])
def test_every_install_writes_what_checks_expect(tmp_path, words):
    """By setuptools, and by a Python without any package."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("simlib", "authoring/exercises"):
        shutil.copytree(ROOT / name, tmp_path / name)
    subprocess.run([sys.executable, *words], check=True, cwd=tmp_path)
    folder = tmp_path / CASES
    made = {path.name: path.read_text() for path in folder.iterdir()}
    assert made == {path.name: path.read_text() for path in (ROOT / CASES).iterdir()}
    (folder / "02_send_and_recv.py").unlink()
    (folder / "02_of_an_older_course.py").write_text("")
    assert write_checks(tmp_path) == ["02_send_and_recv.py"] and write_checks(tmp_path) == []
    assert {path.name: path.read_text() for path in folder.iterdir()} == made


def test_conda_and_pip_have_the_same_list():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    listed = [entry for entry in environment["dependencies"] if isinstance(entry, str)]
    for name, conda_name in CONDA_NAMES.items():
        listed = [re.sub(rf"^{conda_name}\b", name, entry) for entry in listed]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    python = "python" + project["requires-python"]
    wanted = {python, "pip", *declared(*install.FOR_LEARNERS)}
    assert sorted(listed) == sorted(wanted)
    assert environment["dependencies"][-1] == {"pip": ["-e ."]}


def test_everything_installed_is_pinned_to_its_version():
    wanted, found = pins(), installed(*install.FOR_LEARNERS, *install.EXTRAS)
    assert found["torch"] == "2.13.0"
    assert {
        name: (version, wanted.get(name))
        for name, version in found.items()
        if wanted.get(name) != version and not install.PLATFORM_PACKAGES.match(name)
    } == {}


def test_learners_install_no_tools_for_tests():
    assert FOR_TESTS_ONLY <= set(installed("dev"))
    assert FOR_TESTS_ONLY & set(installed(*install.FOR_LEARNERS)) == set()


def imported(files, at_once=False):
    """The names at the top that Python files import: anywhere, or when they are imported."""
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if at_once and getattr(node, "col_offset", 0):
                continue
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                yield node.module.partition(".")[0]


def test_what_learners_run_imports_only_what_they_install():
    places = [ROOT / place for place in RUN_BY_LEARNERS]
    files = [
        file for place in places for file in (place.rglob("*.py") if place.is_dir() else [place])
    ]
    # Only a shell for which somebody has installed argcomplete asks for it.
    names = set(imported(files)) - {"argcomplete"}
    assert missing(names, *install.FOR_LEARNERS, "frameworks") == {}


def test_the_extra_course_is_enough_for_all_lessons_and_exercises():
    files = [file for place in RUN_BY_LEARNERS[1:3] for file in (ROOT / place).rglob("*.py")]
    assert missing(set(imported(files)), "course", "frameworks") == {}
    assert set(declared("cluster")) <= set(declared("course"))  # lessons run mpiexec


def missing(names, *extras):
    """``{name: packages}`` of imported names that these extras and the rest do not bring in."""
    packages = importlib.metadata.packages_distributions()
    there = {canonicalize_name(name) for name in installed(*extras)}
    return {
        name: packages[name]
        for name in names & set(packages) - {"simlib", "rank_by_rank"}
        if not there & {canonicalize_name(one) for one in packages[name]}
    }


def test_what_a_notebook_imports_is_there_without_any_extra():
    by_extra = {}
    for file in (ROOT / "simlib").rglob("*.py"):
        extras = tuple(OPTIONAL[one] for one in OPTIONAL if ROOT / one in (file, *file.parents))
        by_extra.setdefault(extras, set()).update(imported([file], at_once=True))
    assert {extras: missing(by_extra[extras], *extras) for extras in by_extra} == {
        extras: {} for extras in by_extra
    }


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
        wanted = importlib.metadata.metadata(name).get("Requires-Python")
        if wanted and not SpecifierSet(wanted).contains(f"{oldest.version}.0"):
            refusing[name] = wanted
    assert not refusing


def test_the_version_is_the_same_wherever_it_is_written():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == version
    newest = re.search(r"^## (\S+?),? ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest[1] == version

"""What has changed since which commit, and whom that reaches by imports."""

import subprocess

import changes
import pytest
from changes import CHANGED, REACHED, UNTOUCHED, Changes, Reach, names_in


@pytest.fixture
def repository(tmp_path):
    """A repository of two commits; ``repository(*words)`` calls git in it."""

    def git(*words):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
        command = ["git", "-C", git.folder, *identity, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    git.folder = tmp_path / "original"
    git.folder.mkdir()
    git("init", "-q")
    for name in ("first", "second"):
        (git.folder / name).write_text(name)
        git("add", ".")
        git("commit", "-qm", name)
    return git


def files_of(git, base=""):
    return changes.changes(git.folder, base).files


def test_the_last_commit_and_what_is_not_committed(repository):
    (repository.folder / "new").write_text("")
    (repository.folder / "first").write_text("other")
    assert files_of(repository) == {"second", "new", "first"}


def test_a_file_that_moved_has_changed_at_both_places(repository):
    repository("mv", "first", "moved")
    repository("commit", "-qm", "moved")
    assert files_of(repository) == {"first", "moved"}


def test_commits_that_the_upstream_lacks(repository, tmp_path):
    repository("clone", "-q", ".", str(tmp_path / "clone"))
    repository.folder = tmp_path / "clone"
    assert files_of(repository) == {"second"}
    for name in ("third", "fourth"):
        (repository.folder / name).write_text("")
        repository("add", ".")
        repository("commit", "-qm", name)
    assert files_of(repository) == {"third", "fourth"}


def test_a_merge_is_compared_with_the_branch_it_went_into(repository):
    repository("checkout", "-qb", "side")
    for name in ("third", "fourth"):
        (repository.folder / name).write_text("")
        repository("add", ".")
        repository("commit", "-qm", name)
    repository("checkout", "-q", "main")
    repository("merge", "-q", "--no-ff", "-m", "merge", "side")
    assert files_of(repository) == {"third", "fourth"}


def test_a_base_that_is_named(repository):
    first = repository("rev-parse", "HEAD^")
    assert files_of(repository, first) == {"second"}
    assert files_of(repository, "HEAD") == set()


@pytest.mark.parametrize("base", ["none", "no-such-commit"])
def test_without_a_base_everything_counts_as_changed(repository, base):
    found = changes.changes(repository.folder, base)
    assert found.files is None and "everything counts as changed" in found.base


def test_where_history_is_missing_everything_counts_as_changed(repository, tmp_path):
    shallow = tmp_path / "shallow"
    repository("clone", "-q", "--depth=1", f"file://{repository.folder}", str(shallow))
    no_repository = tmp_path / "files"
    no_repository.mkdir()
    for folder in (shallow, no_repository):
        found = changes.changes(folder, "")
        assert found.files is None and "everything counts as changed" in found.base


def reach(*files):
    return Reach(Changes("", frozenset(files)))


def test_a_file_changes_its_room_and_reaches_who_imports_it():
    found = reach("simlib/clockwork/mailbox.py")
    assert found.of(["simlib/clockwork"])[0] == CHANGED
    near, why = found.of(["simlib/engines/virtual"])
    assert near == REACHED and why.startswith("simlib.clockwork.mailbox")
    assert found.of(["simlib/collectives", "scripts/lab.py"])[0] == UNTOUCHED
    assert found.of_imports({"simlib.simulate"})[0] == REACHED
    assert found.of_imports({"simlib.clusters"})[0] == UNTOUCHED


def test_a_room_is_no_beginning_of_a_name():
    assert reach("scripts/lab.py").of(["scripts/lab"])[0] == UNTOUCHED
    assert reach("scripts/lab/a.json").of(["scripts/lab"])[0] == CHANGED


@pytest.mark.parametrize(
    "file", ["simlib/draw/player/player.js", "simlib/draw/player/gone.py", "simlib/__init__.py"]
)
def test_what_is_no_module_stands_for_its_package(file):
    assert reach(file).of_imports({"simlib.draw.player"})[0] == REACHED


@pytest.mark.parametrize("found", [Changes("", None), Changes("", frozenset(["constraints.txt"]))])
def test_what_touches_everything(found):
    assert Reach(found).of(["simlib/practice"])[0] == CHANGED
    assert Reach(found).of_imports({"simlib.clusters"})[0] == CHANGED


def test_the_names_of_simlib_in_a_cell():
    source = (
        "import torch, simlib\nimport simlib.mpi\nfrom simlib import clusters, run as r\n"
        "from simlib.checks import check\nsimlib.simulate(main, 4)\nother.simlib.x\n"
    )
    assert names_in(source) == {
        "simlib.mpi",
        "simlib.clusters",
        "simlib.run",
        "simlib.checks",
        "simlib.simulate",
    }

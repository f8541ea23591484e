"""What a release refuses before and after it builds anything."""

import subprocess
import zipfile

import pytest
import release

from simlib.classroom.grading.commands import handout


@pytest.fixture
def checkout(tmp_path):
    """``checkout(pyproject, citation, heading)``: a folder that names these versions."""

    def make(pyproject="1.2.0", citation="1.2.0", heading="1.2.0, 2026-12-01"):
        (tmp_path / "pyproject.toml").write_text(f'[project]\nversion = "{pyproject}"\n')
        (tmp_path / "CITATION.cff").write_text(f"version: {citation}\n")
        (tmp_path / "CHANGELOG.md").write_text(f"# Changes\n\n## {heading}\n\n## 1.1.0, then\n")
        return tmp_path

    return make


@pytest.mark.parametrize(
    "heading, date", [("1.2.0, 2026-12-01", "2026-12-01"), ("1.2.0, not released yet", None)]
)
def test_a_version_has_a_date_once_it_is_released(checkout, heading, date):
    assert release.version_and_date(checkout(heading=heading)) == ("1.2.0", date)


@pytest.mark.parametrize(
    "said", [{"citation": "1.1.0"}, {"pyproject": "1.3.0"}, {"heading": "1.1.0, 2026-01-01"}]
)
def test_three_files_name_the_same_version(checkout, said):
    with pytest.raises(release.Refused, match="must name the same version"):
        release.version_and_date(checkout(**said))


def test_this_checkout_names_one_version():
    assert release.version_and_date()[0]


def test_what_no_commit_has_is_refused(checkout):
    folder = checkout()
    subprocess.run(["git", "init", "-q", folder], check=True)
    with pytest.raises(release.Refused, match="CHANGELOG.md is not committed"):
        release.refuse_changes(folder)
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", folder, "add", "."], check=True)
    subprocess.run(["git", "-C", folder, *who, "commit", "-qm", "all"], check=True)
    release.refuse_changes(folder)


def test_a_zip_without_a_file_that_belongs_there_is_refused(tmp_path):
    path = tmp_path / "book.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("handout/index.html", "")
    release.check_zip(path, ["index.html"])
    with pytest.raises(release.Refused, match=r"book.zip: start.html is missing"):
        release.check_zip(path, ["start.html"])


def test_a_handout_has_what_a_release_looks_for(tmp_path):
    path = tmp_path / "handout.zip"
    handout(release.ROOT, path)
    release.check_zip(path, release.HANDOUT)

"""What repo2docker makes an image of: binder/ refers to what there is, and furnishes JupyterLab."""

import json
import os
import runpy
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from simlib.course import open_lab as lab

ROOT = Path(__file__).resolve().parents[2]
BINDER = ROOT / "binder"


def test_its_requirements_are_the_course_in_its_own_versions():
    lines = (BINDER / "requirements.txt").read_text().splitlines()
    asked = [line for line in lines if not line.startswith("#")]
    assert asked == ["-c ../constraints.txt", "-e .[course,grading,cluster]"]
    assert (BINDER / "../constraints.txt").is_file()


def test_its_python_is_one_that_the_course_takes():
    name, version = (BINDER / "runtime.txt").read_text().strip().split("-")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert name == "python" and version in SpecifierSet(project["requires-python"])


@pytest.fixture
def prefix(tmp_path, monkeypatch):
    """The folder of an environment that postBuild has furnished."""
    monkeypatch.setattr("sys.path", list(sys.path))
    runpy.run_path(str(BINDER / "postBuild"))["furnish"](tmp_path)
    return tmp_path


def test_jupyterlab_is_as_make_lab_has_it(prefix):
    jupyter = prefix / "share/jupyter"
    for source, target in ((lab.SETTINGS, "lab/settings"), (lab.EXTENSIONS, "labextensions")):
        files = [one for one in source.rglob("*") if one.is_file()]
        assert files
        for file in files:
            copy = jupyter / target / file.relative_to(source)
            assert copy.read_bytes() == file.read_bytes()
    settings = json.loads(
        (prefix / "etc/jupyter/jupyter_server_config.d/rank-by-rank.json").read_text()
    )
    assert settings["ContentsManager"]["hide_globs"] == list(lab.NOT_SHOWN)


def test_its_kernel_is_the_hub_s(prefix):
    place = "kernels/python3/kernel.json"
    assert (prefix / "share/jupyter" / place).read_text() == (
        ROOT / "hub/jupyter" / place
    ).read_text()


def test_it_can_be_run():
    assert os.access(BINDER / "postBuild", os.X_OK)

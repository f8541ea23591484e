"""A class on a hub: its configuration, how a student's folder is filled, what is collected."""

import importlib
import json
import os
import runpy
import shutil
import sys
import threading
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config.loader import PyFileConfigLoader

from simlib.core.engines import warm_kernel
from simlib.core.engines.run_outputs import MAX_SIMULATED

ROOT = Path(__file__).resolve().parents[2]
HUB = ROOT / "hub"
VARIABLES = (
    "HUB_TRIAL",
    "HUB_HANDOUT",
    "HUB_PASSWORD",
    "HUB_TOKEN",
    "HUB_URL",
    "SIMLIB_IDLE_MINUTES",
)


@pytest.fixture
def load(monkeypatch):
    """``load(systemd=False, **variables)``: the configuration as JupyterHub would read it."""

    def load(systemd=False, **variables):
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        is_folder = os.path.isdir
        monkeypatch.setattr(
            "os.path.isdir",
            lambda path: systemd if path == "/run/systemd/system" else is_folder(path),
        )
        return PyFileConfigLoader("jupyterhub_config.py", path=str(HUB)).load_config()

    return load


def test_it_refers_to_what_exists(load):
    config = load()
    python, script, handout = config.Spawner.cmd
    assert python == sys.executable and Path(script).is_file()
    assert Path(handout) == ROOT / "handout"  # where simlib handout writes by itself
    lesson = config.Spawner.default_url.removeprefix("/lab/tree/")
    assert (ROOT / lesson).is_file()
    assert Path(config.Spawner.environment["JUPYTER_PATH"]).is_dir()


def test_its_kernel_loads_an_extension_that_there_is(load):
    (spec,) = Path(load().Spawner.environment["JUPYTER_PATH"]).glob("kernels/python3/kernel.json")
    words = json.loads(spec.read_text())["argv"]
    assert words[:3] == ["python", "-m", "ipykernel_launcher"] and "{connection_file}" in words
    (extension,) = (word.partition("=")[2] for word in words if "extra_extensions=" in word)
    assert callable(importlib.import_module(extension).load_ipython_extension)


def test_with_systemd_each_student_has_a_limit(load):
    config = load(systemd=True)
    assert config.JupyterHub.spawner_class == "systemd"
    assert config.SystemdSpawner.mem_limit and config.SystemdSpawner.cpu_limit
    # A simulated rank is a thread, and each thread counts.
    assert int(config.SystemdSpawner.unit_extra_properties["TasksMax"]) > MAX_SIMULATED + 1000


def test_without_systemd_accounts_log_in_and_nobody_is_limited(load):
    config = load()
    assert config.JupyterHub.spawner_class == "localprocess"
    assert config.JupyterHub.authenticator_class == "pam"
    assert config.PAMAuthenticator.allowed_groups == {"students", "teachers"}


def test_a_trial_needs_a_password(load, tmp_path):
    with pytest.raises(KeyError, match="HUB_PASSWORD"):
        load(HUB_TRIAL=str(tmp_path))
    config = load(HUB_TRIAL=str(tmp_path), HUB_PASSWORD="only here")
    assert config.JupyterHub.authenticator_class == "dummy"
    assert config.SimpleLocalProcessSpawner.home_dir_template == f"{tmp_path}/{{username}}"


def test_no_program_is_let_in_without_a_token(load):
    assert "services" not in load().JupyterHub
    (service,) = load(HUB_TOKEN="0123456789").JupyterHub.services
    assert service["api_token"] == "0123456789"


def test_the_minutes_of_rest_are_the_hub_s_to_choose(load):
    assert load().Spawner.environment["SIMLIB_IDLE_MINUTES"] == "10"
    chosen = load(SIMLIB_IDLE_MINUTES="3").Spawner.environment
    assert chosen["SIMLIB_IDLE_MINUTES"] == "3"


@pytest.mark.parametrize("systemd", [False, True])
def test_every_setting_is_one_that_jupyterhub_has(load, systemd):
    pytest.importorskip("jupyterhub", reason="JupyterHub is not installed: docs/hub.md")
    from jupyterhub.app import JupyterHub
    from jupyterhub.auth import DummyAuthenticator, PAMAuthenticator
    from jupyterhub.spawner import SimpleLocalProcessSpawner, Spawner

    classes = [JupyterHub, DummyAuthenticator, PAMAuthenticator]
    classes += [SimpleLocalProcessSpawner, Spawner]
    if systemd:
        spawners = pytest.importorskip("systemdspawner", reason="systemdspawner is not installed")
        classes.append(spawners.SystemdSpawner)
    known = {base.__name__: one for one in classes for base in one.__mro__}
    for settings in (load(systemd), load(HUB_TRIAL="/nowhere", HUB_PASSWORD="x", HUB_TOKEN="y")):
        for name, section in settings.items():
            assert not set(section) - set(known[name].class_trait_names()), name


def test_a_kernel_is_warmed_without_waiting_and_again_with_any_cell(monkeypatch):
    done, imported = [], threading.Event()
    monkeypatch.setattr(warm_kernel, "warm_up", lambda: done.append(True))
    monkeypatch.setattr("importlib.import_module", lambda name: name == "torch" and imported.set())
    shell = InteractiveShell()
    warm_kernel.load_ipython_extension(shell)
    assert len(done) == 1 and imported.wait(60)
    shell.run_cell("1 + 1")
    assert len(done) == 2


@pytest.fixture
def start_server():
    return runpy.run_path(str(HUB / "start_server.py"))


@pytest.fixture
def handout(tmp_path):
    folder = tmp_path / "handout"
    for name in ("notebooks/00.ipynb", "exercises/01.ipynb", "exercises/checks/01.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("new")
    (folder / ".pristine").mkdir()
    (folder / ".pristine" / "01.ipynb").write_text("new")
    (folder / "pyproject.toml").write_text("")
    return folder


def test_a_student_gets_what_is_missing_and_keeps_what_there_is(start_server, handout, tmp_path):
    work = tmp_path / "work"
    start_server["hand_out"](handout, work)
    assert (work / "notebooks/00.ipynb").read_text() == "new"
    assert not (work / "pyproject.toml").exists()
    for name in ("exercises/01.ipynb", "exercises/checks/01.py", ".pristine/01.ipynb"):
        (work / name).write_text("the student's")
    (work / "notebooks/00.ipynb").unlink()
    start_server["hand_out"](handout, work)
    assert (work / "notebooks/00.ipynb").read_text() == "new"
    assert (work / "exercises/01.ipynb").read_text() == "the student's"
    assert (work / "exercises/checks/01.py").read_text() == "new"
    assert (work / ".pristine/01.ipynb").read_text() == "new"


def test_a_server_without_a_handout_says_what_to_do(start_server, tmp_path):
    assert "simlib handout --out" in start_server["main"](str(tmp_path / "none"))


@pytest.fixture
def collect(handout):
    """``collect(homes, out, *students)``: what the command says by its exit code."""
    main = runpy.run_path(str(HUB / "collect.py"))["main"]

    def call(homes, out, *students):
        return main([f"--homes={homes}", f"--out={out}", f"--handout={handout}", *students])

    return call


@pytest.fixture
def homes(tmp_path):
    folder = tmp_path / "homes"
    for student in ("ada", "bob"):
        (folder / student / "rank-by-rank/exercises/checks").mkdir(parents=True)
    notebook = folder / "ada/rank-by-rank/exercises/04_collectives.ipynb"
    notebook.write_text("{}")
    os.utime(notebook, (1_000_000_000, 1_000_000_000))
    return folder


def collected(folder):
    return {str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file()}


def test_notebooks_are_collected_with_their_times(collect, homes, tmp_path, capsys):
    (homes / "carl").mkdir()
    out = tmp_path / "submissions"
    for _ in range(2):
        assert collect(homes, out) == 0
    assert collected(out) == {"ada/04_collectives.ipynb"}
    assert (out / "ada/04_collectives.ipynb").stat().st_mtime == 1_000_000_000
    said = capsys.readouterr().out
    assert "from 1 of 3" in said and "nothing of bob, carl" in said
    assert out.stat().st_mode & 0o77 == 0


def test_what_nobody_has_touched_is_not_collected(collect, homes, handout, tmp_path):
    exercises = homes / "ada/rank-by-rank/exercises"
    shutil.copy(handout / "exercises/01.ipynb", exercises / "01.ipynb")
    shutil.copy(handout / "exercises/01.ipynb", exercises / "02.ipynb")
    out = tmp_path / "submissions"
    collect(homes, out)
    assert collected(out) == {"ada/04_collectives.ipynb", "ada/02.ipynb"}


def test_only_those_who_are_named_are_collected(collect, homes, tmp_path):
    shutil.copytree(homes / "ada", homes / "eve")
    out = tmp_path / "submissions"
    collect(homes, out, "eve")
    assert collected(out) == {"eve/04_collectives.ipynb"}


def test_what_a_student_took_back_is_not_kept(collect, homes, tmp_path):
    out = tmp_path / "submissions"
    collect(homes, out)
    (homes / "ada/rank-by-rank/exercises/04_collectives.ipynb").unlink()
    collect(homes, out)
    assert collected(out) == set()


def test_what_is_refused_is_told_by_student_and_file(collect, homes, tmp_path, capsys):
    os.truncate(homes / "ada/rank-by-rank/exercises/04_collectives.ipynb", 41 << 20)
    assert collect(homes, tmp_path / "submissions") == 1
    said = capsys.readouterr().out
    assert "refused of ada: 04_collectives.ipynb (larger than 40 MB)" in said


def test_a_student_or_a_handout_that_is_not_there_is_refused(collect, homes, handout, tmp_path):
    with pytest.raises(SystemExit):
        collect(homes, tmp_path / "submissions", "adda")
    shutil.rmtree(handout / "exercises")
    with pytest.raises(SystemExit):
        collect(homes, tmp_path / "submissions")


def test_no_link_and_no_pipe_is_collected(collect, homes, tmp_path):
    theirs = homes / "bob/rank-by-rank/exercises"
    (theirs / "04_collectives.ipynb").symlink_to(
        homes / "ada/rank-by-rank/exercises/04_collectives.ipynb"
    )
    os.mkfifo(theirs / "05_building_all_reduce.ipynb")
    (homes / "eve").mkdir()
    (homes / "eve/rank-by-rank").symlink_to(homes / "ada/rank-by-rank")
    (homes / "mallory").symlink_to(homes / "ada")
    out = tmp_path / "submissions"
    assert collect(homes, out) == 1
    assert collected(out) == {"ada/04_collectives.ipynb"}

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
    (spec,) = Path(config.Spawner.environment["JUPYTER_PATH"]).glob("kernels/python3/kernel.json")
    words = json.loads(spec.read_text())["argv"]
    assert words[:3] == ["python", "-m", "ipykernel_launcher"] and "{connection_file}" in words
    (extension,) = (word.partition("=")[2] for word in words if "extra_extensions=" in word)
    assert callable(importlib.import_module(extension).load_ipython_extension)


def test_with_systemd_each_student_has_a_limit_and_without_accounts_log_in(load):
    config = load(systemd=True)
    assert config.JupyterHub.spawner_class == "systemd"
    assert config.SystemdSpawner.mem_limit and config.SystemdSpawner.cpu_limit
    # A simulated rank is a thread, and each thread counts.
    assert int(config.SystemdSpawner.unit_extra_properties["TasksMax"]) > MAX_SIMULATED + 1000
    config = load()
    assert config.JupyterHub.spawner_class == "localprocess"
    assert config.JupyterHub.authenticator_class == "pam"
    assert config.PAMAuthenticator.allowed_groups == {"students", "teachers"}


def test_a_trial_needs_a_password_a_program_a_token_and_minutes_can_be_chosen(load, tmp_path):
    with pytest.raises(KeyError, match="HUB_PASSWORD"):
        load(HUB_TRIAL=str(tmp_path))
    config = load(HUB_TRIAL=str(tmp_path), HUB_PASSWORD="only here")
    assert config.JupyterHub.authenticator_class == "dummy"
    assert config.SimpleLocalProcessSpawner.home_dir_template == f"{tmp_path}/{{username}}"
    assert "services" not in load().JupyterHub
    (service,) = load(HUB_TOKEN="0123456789").JupyterHub.services
    assert service["api_token"] == "0123456789"
    assert load().Spawner.environment["SIMLIB_IDLE_MINUTES"] == "10"
    chosen = load(SIMLIB_IDLE_MINUTES="3").Spawner.environment
    assert chosen["SIMLIB_IDLE_MINUTES"] == "3"


@pytest.mark.parametrize("systemd", [False, True])
def test_every_setting_is_one_that_jupyterhub_has(load, systemd):
    pytest.importorskip("jupyterhub", reason="JupyterHub is not installed: docs/hub.md")
    from jupyterhub.app import JupyterHub
    from jupyterhub.auth import DummyAuthenticator, PAMAuthenticator
    from jupyterhub.spawner import SimpleLocalProcessSpawner, Spawner

    classes = [JupyterHub, DummyAuthenticator, PAMAuthenticator, SimpleLocalProcessSpawner, Spawner]
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


# The folder of a student


@pytest.fixture
def handout(tmp_path):
    folder = tmp_path / "handout"
    names = "notebooks/00.ipynb", "exercises/01.ipynb", "exercises/checks/01.py"
    for name in (*names, ".pristine/01.ipynb", "pyproject.toml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("new")
    return folder


def test_a_student_gets_what_is_missing_and_keeps_what_there_is(handout, tmp_path, monkeypatch):
    start_server = runpy.run_path(str(HUB / "start_server.py"))
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
    assert "simlib handout --out" in start_server["main"](str(tmp_path / "none"))
    served = []
    monkeypatch.chdir(tmp_path)  # so that pytest comes back
    monkeypatch.setenv("JUPYTERHUB_ROOT_DIR", str(work))
    monkeypatch.setattr("os.execv", lambda _, words: served.append((os.getcwd(), words)))
    start_server["main"](str(handout), "--port=1")
    assert served == [(str(work), [sys.executable, "-m", "jupyterhub.singleuser", "--port=1"])]


@pytest.fixture
def collect(handout, tmp_path):
    """``collect(*students)``: the command's exit code, and what lies in `submissions` then."""
    main = runpy.run_path(str(HUB / "collect.py"))["main"]
    out = tmp_path / "submissions"

    def call(*students):
        code = main(
            [f"--homes={tmp_path}/homes", f"--out={out}", f"--handout={handout}", *students]
        )
        return code, {str(one.relative_to(out)) for one in out.rglob("*") if one.is_file()}

    return call


FILE = "rank-by-rank/exercises/04_collectives.ipynb"
ADAS = {"ada/04_collectives.ipynb"}


@pytest.fixture
def homes(tmp_path):
    """The homes of Ada, who has worked, and of Bob, who has not."""
    folder = tmp_path / "homes"
    for student in ("ada", "bob"):
        (folder / student / "rank-by-rank/exercises/checks").mkdir(parents=True)
    (folder / "ada" / FILE).write_text("{}")
    os.utime(folder / "ada" / FILE, (1_000_000_000, 1_000_000_000))
    return folder


def test_notebooks_are_collected_with_their_times_but_not_what_nobody_has_touched(
    collect, homes, handout, tmp_path, capsys
):
    (homes / "carl").mkdir()
    exercises = homes / "ada/rank-by-rank/exercises"
    shutil.copy(handout / "exercises/01.ipynb", exercises / "01.ipynb")
    shutil.copy(handout / "exercises/01.ipynb", exercises / "02.ipynb")
    for _ in range(2):
        assert collect() == (0, ADAS | {"ada/02.ipynb"})
    out = tmp_path / "submissions"
    assert (out / "ada/04_collectives.ipynb").stat().st_mtime == 1_000_000_000
    said = capsys.readouterr().out
    assert "from 1 of 3" in said and "nothing of bob, carl" in said
    assert out.stat().st_mode & 0o77 == 0


def test_those_who_are_named_are_collected_and_what_a_student_took_back_is_not_kept(collect, homes):
    shutil.copytree(homes / "ada", homes / "eve")
    assert collect("eve")[1] == {"eve/04_collectives.ipynb"}
    assert collect()[1] == ADAS | {"eve/04_collectives.ipynb"}
    for student in ("ada", "eve"):
        (homes / student / FILE).unlink()
    assert collect()[1] == set()


def test_what_is_refused_is_told_by_student_and_file(collect, homes, handout, capsys):
    os.truncate(homes / "ada" / FILE, 41 << 20)
    assert collect()[0] == 1
    said = capsys.readouterr().out
    assert "refused of ada: 04_collectives.ipynb (larger than 40 MB)" in said
    with pytest.raises(SystemExit):
        collect("adda")
    shutil.rmtree(handout / "exercises")
    with pytest.raises(SystemExit):
        collect()


def test_of_one_student_so_much_is_read_and_no_holes(collect, homes, capsys, monkeypatch):
    place = homes / "ada/rank-by-rank/exercises"
    for name in ("a", "b", "c"):
        (place / f"{name}.ipynb").write_bytes(b"x" * (15 << 20))
    (place / "d.ipynb").touch()
    os.truncate(place / "d.ipynb", 5 << 20)
    assert collect() == (1, ADAS | {"ada/a.ipynb", "ada/b.ipynb"})
    said = capsys.readouterr().out
    assert "c.ipynb (with those before it larger than 40 MB), d.ipynb (nearly all of it" in said
    for number in range(2000):
        (place / f"{number}.txt").touch()
    assert collect() == (1, set())
    said = capsys.readouterr().out
    assert "refused of ada: the folder of exercises (more than 2,000 files)" in said


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_nothing_is_collected_into_a_folder_that_others_decide_on(collect, homes, tmp_path, mode):
    (tmp_path / "away/ada").mkdir(parents=True)
    (tmp_path / "submissions").symlink_to("away")
    with pytest.raises(SystemExit):
        collect()
    assert (tmp_path / "away/ada").exists()
    (tmp_path / "submissions").unlink()
    (tmp_path / "submissions").mkdir()
    (tmp_path / "submissions").chmod(mode)
    with pytest.raises(SystemExit):
        collect()


def test_no_link_and_no_pipe_is_collected(collect, homes):
    theirs = homes / "bob/rank-by-rank/exercises"
    (theirs / "04_collectives.ipynb").symlink_to(homes / "ada" / FILE)
    os.mkfifo(theirs / "05_building_all_reduce.ipynb")
    (homes / "eve").mkdir()
    (homes / "eve/rank-by-rank").symlink_to(homes / "ada/rank-by-rank")
    (homes / "mallory").symlink_to(homes / "ada")
    assert collect() == (1, ADAS)

"""Grading by podman and by docker, where bubblewrap is missing or a call names one of them.

What needs an engine is skipped where it is not installed, or may not make a container here.
"""

import concurrent.futures
import contextvars
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import breakers
import intruders
import psutil
import pytest
import test_masked_paths
from ground import HONEST, LIMITS, SEED, right

from simlib.classroom.grading import container, sandbox, session
from simlib.classroom.grading.session import code_cell, run_notebook
from simlib.classroom.grading.whole_class import record
from simlib.cli import main

SMALL = replace(LIMITS, answer_s=8, memory_bytes=1500 << 20, processes=200)
RUNC = '[engine]\nruntime = "runc"\n'
"""podman's usual runtime, crun, takes no control groups of both versions at once."""
LEAVES_A_PROCESS = "import subprocess, time\nsubprocess.Popen(['sleep', '{}'])\ntime.sleep(1000)"


@pytest.fixture(params=container.ENGINES)
def engine(request, monkeypatch, tmp_path_factory):
    """Grading is by this engine meanwhile."""
    name = request.param
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    sandbox.refusal_of_a_trial.cache_clear()
    with sandbox.choosing(name):
        if name == "podman" and shutil.which("runc") and sandbox.refusal_of_a_trial(name):
            file = tmp_path_factory.mktemp("podman") / "containers.conf"
            file.write_text(RUNC)
            monkeypatch.setenv("CONTAINERS_CONF", str(file))
            sandbox.refusal_of_a_trial.cache_clear()
        said = sandbox.refusal_of_a_trial(name)
        if said:
            pytest.skip(f"{name} makes no container here: {said}")
        yield name
    sandbox.refusal_of_a_trial.cache_clear()
    assert not container.names_of_containers(name, f"{sandbox.FOLDERS}{os.getpid()}-")


_expected = {}


@pytest.fixture
def expected(engine, ground):
    """What the solution of the ground's exercise gives; recorded once by each engine."""
    if engine not in _expected:
        _expected[engine] = record(ground.exercise, SEED, LIMITS)
    return _expected[engine]


def seconds_of_a_sleep():
    """A number by which a process that sleeps so long is found."""
    return f"98764.{os.getpid()}{time.monotonic_ns()}"


def sleepers(seconds):
    """The processes of the machine that sleep so long."""
    running = psutil.process_iter(["cmdline"])
    return [one for one in running if one.info["cmdline"] == ["sleep", seconds]]


def wait_for(condition, future):
    """Wait until something holds; fail where what should bring it about has ended before."""
    while not condition():
        assert not future.done(), future.result()
        time.sleep(0.05)


# With a real engine


def test_who_looks_for_a_way_out_finds_none_and_a_fork_bomb_costs_nobody_else(engine, grade_cases):
    cases = dict(intruders.ALL)
    # podman and docker put folders of their own into the root; they are looked at below.
    found = cases["other_peoples_files"]
    own = found.source.replace("ours = 'bin", "ours = 'run sys .dockerenv bin")
    assert own != found.source
    cases["other_peoples_files"] = replace(found, source=own)
    result = grade_cases(cases | {"innocent": right(HONEST)})
    assert result.runs == 1
    forks = breakers.KERNELS["forks_in_the_cell"]
    grade_cases({"before": right(HONEST), "forks": forks, "after": right(HONEST)}, SMALL)


def test_memory_of_a_container_is_watched(engine):
    limits = replace(SMALL, memory_bytes=700 << 20, notebook_s=60)
    cell = code_cell("hog", "kept = bytearray(b'x') * (780 << 20)\nimport time\ntime.sleep(1000)")
    assert "took more than 700 MB" in run_notebook([cell], limits).ended


SEEN = """
import os, time
for top in ("/run", "/sys", "/home", "/tmp", "/etc"):
    print(top, sorted(os.listdir(top)) if os.path.exists(top) else [])
print("environment", sorted(os.environ))
print("seccomp", [line for line in open("/proc/1/status") if line.startswith("Seccomp:")])
print("networks", os.listdir("/proc/self/net") and open("/proc/self/net/dev").read().count(":"))
made = 0
try:
    while made < 1000:
        if os.fork() == 0:
            time.sleep(1000)
        made += 1
except OSError:
    print("processes", made, flush=True)
os._exit(0)
"""


def test_a_container_shows_python_and_the_system_and_gives_as_many_processes_as_permitted(
    engine, tmp_path
):
    (tmp_path / "run").mkdir()
    with sandbox.own_user() as uid:
        program = [sys.executable, "-c", SEEN]
        words = sandbox.sandboxed(program, tmp_path / "run", uid, sandbox.Limits(processes=200))
        done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert set(re.findall(r"'(.*?)'", lines["/run"])) <= {".containerenv", "secrets"}
    assert lines["/sys"] == "['fs']" and lines["/home"] == "['student']"
    assert "passwd" not in lines["/etc"]
    inside = set(sandbox.environment_of_sandbox())
    assert set(re.findall(r"'(.*?)'", lines["environment"])) <= inside | {"LC_CTYPE"}
    assert "Seccomp:\\t2" in lines["seccomp"]
    assert lines["networks"] == "1"
    assert 100 < int(lines["processes"]) < 200


def test_checkout_and_class_in_a_system_folder_are_covered_but_not_its_python(
    engine, tmp_path, monkeypatch
):
    test_masked_paths.test_in_a_system_folder_checkout_and_class_are_covered_but_not_its_python(
        tmp_path, monkeypatch, None
    )


@pytest.mark.parametrize("ends", ["time", "teacher"])
def test_when_time_is_over_or_the_teacher_stops_all_in_the_container_ends(engine, ends):
    number, stop, context = seconds_of_a_sleep(), threading.Event(), contextvars.copy_context()
    context.run(session.STOP.set, stop)
    cells = [code_cell("sleeps", LEAVES_A_PROCESS.format(number))]
    limits = replace(SMALL, notebook_s=10) if ends == "time" else SMALL
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(context.run, run_notebook, cells, limits)
        wait_for(lambda: sleepers(number), future)
        if ends == "time":
            assert "longer than 10 s" in future.result().ended
        else:
            stop.set()
            with pytest.raises(KeyboardInterrupt):
                future.result()
    assert not sleepers(number)


def test_the_container_of_a_killed_grader_is_ended_by_the_next(engine):
    dead = subprocess.Popen(["true"])
    dead.wait()
    folder = Path(tempfile.mkdtemp(prefix=f"{sandbox.FOLDERS}{dead.pid}-"))
    folder.chmod(0o711)
    (folder / "run").mkdir()
    number = seconds_of_a_sleep()
    with sandbox.own_user() as uid, concurrent.futures.ThreadPoolExecutor(1) as pool:
        words = sandbox.sandboxed(["sleep", number], folder / "run", uid, sandbox.Limits())
        future = pool.submit(subprocess.run, words, capture_output=True)
        wait_for(lambda: sleepers(number), future)
        session.clear_after_the_dead()
        assert not sleepers(number) and not folder.exists()
        assert folder.name not in container.names_of_containers(engine, sandbox.FOLDERS)
        future.result()


# Without one


def only(monkeypatch, *programs):
    """Pretend that of what isolates these programs only are installed."""
    which = shutil.which
    known = {*sandbox.PROGRAMS.values(), "setpriv"}
    monkeypatch.setattr(
        shutil,
        "which",
        lambda name: (
            f"/usr/bin/{name}" if name in programs else None if name in known else which(name)
        ),
    )


@pytest.mark.parametrize(
    ("programs", "kind"),
    [
        (("bwrap", "podman", "docker"), "bubblewrap"),
        (("podman", "docker"), "podman"),
        (("docker",), "docker"),
        ((), None),
    ],
)
def test_bubblewrap_comes_before_podman_and_podman_before_docker(monkeypatch, programs, kind):
    only(monkeypatch, *programs)
    assert sandbox.kind() == kind
    with sandbox.choosing("docker"):
        assert sandbox.kind() == "docker"


INSTALLED = {"bwrap", "podman", "docker", "setpriv"}


@pytest.mark.parametrize(
    ("uid", "missing", "words", "sentence"),
    [
        (
            1000,
            INSTALLED,
            "",
            "none of bubblewrap .the command bwrap., podman and docker is.*--no-sandbox",
        ),
        (
            1000,
            INSTALLED,
            "--sandbox podman",
            "podman (the command podman) is not installed: apt install podman",
        ),
        (1000, INSTALLED, "--sandbox docker", "is not installed: apt install docker.io"),
        (0, (), "--no-sandbox", "root may grade only in the sandbox"),
        (0, {"setpriv"}, "", "setpriv is missing. simlib needs setpriv to take root's rights"),
    ],
)
def test_where_nobody_can_be_isolated_grading_says_why(
    monkeypatch, tmp_path, capsys, uid, missing, words, sentence
):
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    only(monkeypatch, *INSTALLED - {*missing})
    (tmp_path / "class").mkdir()
    out = tmp_path / "out"
    assert main(["grade", str(tmp_path / "class"), "--out", str(out), *words.split()]) == 2
    said = capsys.readouterr().err
    assert re.search(sentence.replace("(", r"\(").replace(")", r"\)"), said)
    assert said.count("\n") == 1
    assert not out.exists()


def test_who_is_not_root_may_grade_without_a_sandbox(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    only(monkeypatch)
    sandbox.check_can_isolate(no_sandbox=True)


@pytest.mark.parametrize("engine_name", container.ENGINES)
@pytest.mark.parametrize("uid", [0, 1000], ids=["root", "user"])
def test_the_command_of_a_container(monkeypatch, tmp_path, engine_name, uid):
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    monkeypatch.setattr(container, "image_of_links", lambda links: "image")
    (tmp_path / "run").mkdir()
    with sandbox.choosing(engine_name):
        words = sandbox.sandboxed(["program"], tmp_path / "run", 64_600, sandbox.Limits())
    at = words.index("run")
    assert words[0] == "env" and words[at - 1] == engine_name and words[-1] == "program"
    assert {
        "--rm", "--network=none", "--read-only", "--cap-drop=all", "--log-driver=none",
        "--security-opt=no-new-privileges", "--memory=5368709120", "--memory-swap=5368709120",
        "--pids-limit=500", "--cpu-shares=1024", f"--name={tmp_path.name}", "/usr:/usr:ro",
    } <= {word.removeprefix("--volume=") for word in words}  # fmt: skip
    assert f"--volume={sandbox.SIMLIB}:/course/simlib:ro" in words
    assert "--tmpfs=/tmp:rw,exec,nosuid,nodev,size=67108864,mode=1777" in words
    can_be_written_to = [one for one in words if one.startswith("--volume") and one[-3:] != ":ro"]
    assert can_be_written_to == [f"--volume={tmp_path}/run:{tmp_path}/run:rw"]
    user = "--user=64600:64600" if uid == 0 else f"--user=1000:{os.getegid()}"
    assert ("--userns=keep-id" if (engine_name, uid) == ("podman", 1000) else user) in words
    assert ("image" in words) == (engine_name == "docker")
    assert ("--rootfs" in words) == (engine_name == "podman")

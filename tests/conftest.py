"""What all tests share: one seed, the long tests, system packages, `pytester`.

``SEED=n`` repeats a draw; ``TEST_ALL=1`` runs everything (`make test-all`); ``CI=true`` turns a
part that is skipped for want of a system package, or of what the system permits, into a failure.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck
from xdist.scheduler import LoadScopeScheduling

# A busy machine, or a seed that draws much that does not apply, is no failure.
hypothesis.settings.register_profile(
    "course",
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
hypothesis.settings.load_profile("course")

pytest_plugins = ["pytester"]

SEED = int(os.environ.get("SEED") or random.SystemRandom().randrange(10**6))
TEST_ALL = os.environ.get("TEST_ALL") == "1"
DECIDED = os.environ.get("DECIDED")
"""The file in which `make test` says what has changed; without it, nothing is left out for that."""


STOPPING = {signal.SIGINT: signal.default_int_handler} | dict.fromkeys(
    (signal.SIGHUP, signal.SIGQUIT), signal.SIG_DFL
)


def pytest_configure(config):
    # Who is started in the background, or by nohup, ignores these; so would what tests start.
    for number, handler in STOPPING.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    # Where the tests are split over processes, all of them draw the same samples.
    os.environ["SEED"] = str(SEED)
    splits = bool(config.getoption("numprocesses", None)) and not hasattr(config, "workerinput")
    if not splits:  # a pytest that a test starts has nothing to do with what has changed
        os.environ.pop("DECIDED", None)


class Scheduling(LoadScopeScheduling):
    """Each test goes where there is room; tests that share something dear stay together.

    That is a notebook's kernel, JupyterLab and a browser, or the hosts of a practice cluster.
    pytest-xdist's own way, the mark ``xdist_group``, does nothing under pytest 9.2.
    """

    def _split_scope(self, nodeid):
        path = nodeid.partition("::")[0]
        if "tests/browser/" in path:
            return "browser"
        return path if path.endswith(("_hosts.py", ".ipynb")) else nodeid


def pytest_xdist_make_scheduler(config, log):
    if config.option.dist == "load":
        return Scheduling(config, log)


def pytest_report_header(config):
    return f"seed {SEED} (SEED={SEED} draws the same samples again)"


def pytest_collection_modifyitems(config, items):
    if TEST_ALL:
        return
    left_out = {item for item in items if item.get_closest_marker("long")} | not_drawn(items)
    if DECIDED:
        left_out |= not_selected(config, [item for item in items if item not in left_out])
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def not_drawn(items):
    """The cases of tests marked ``sample(k)`` that this run's seed leaves out."""
    cases = defaultdict(list)
    for item in items:
        marker = item.get_closest_marker("sample")
        if marker:
            cases[item.nodeid.partition("[")[0], marker.args[0]].append(item)
    drawn = random.Random(SEED)
    left_out = set()
    for (_, count), group in cases.items():
        left_out |= set(group) - set(drawn.sample(group, min(count, len(group))))
    return left_out


def not_selected(config, items):
    """The dear tests that `make test` leaves out, by what has changed: see scripts/selection.py."""
    import selection

    by_case = {selection.Case(item.nodeid, stratum_of(item)): item for item in items}
    kept, lines = selection.drawn(list(by_case), selection.read(DECIDED), SEED)
    if os.environ.get("PYTEST_XDIST_WORKER", "gw0") == "gw0":
        Path(f"{DECIDED}.txt").write_text("\n".join(lines), encoding="utf-8")
    return {by_case[case] for case in by_case.keys() - set(kept)}


def stratum_of(item):
    """What the mark ``stratum`` says: of each stratum at least one case is drawn."""
    marker = item.get_closest_marker("stratum")
    return marker.args[0] if marker else ""


@pytest.fixture
def seed():
    """The seed of this run, for tests that draw their own cases."""
    return SEED


def can_install():
    """Whether system packages can be installed here: as root, with apt."""
    return hasattr(os, "geteuid") and os.geteuid() == 0 and bool(shutil.which("apt-get"))


LISTS = Path("/var/lib/apt/lists")
POLICY = Path("/usr/sbin/policy-rc.d")


def install(package):
    """apt-get install, with nothing asked and no daemon of it started on this machine."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    is_ours = not POLICY.exists()
    if is_ours:  # a package's scripts ask it whether they may start a service; 101: they may not
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
    apt = ["apt-get", "-y", "-o", "DPkg::Lock::Timeout=300"]
    words = [*apt, "install", package]
    try:
        if not any(LISTS.glob("*_Packages*")):
            subprocess.run([*apt, "update"], capture_output=True, env=environment)
        done = subprocess.run(words, capture_output=True, env=environment)
        if done.returncode:  # the lists may be old
            subprocess.run([*apt, "update"], capture_output=True, env=environment)
            subprocess.run(words, capture_output=True, env=environment)
    finally:
        if is_ours:
            POLICY.unlink()


def cannot(sentence):
    """Skip the test with a sentence; on a CI machine it fails, or nobody would ever notice."""
    if os.environ.get("CI") == "true":
        pytest.fail(sentence, pytrace=False)
    pytest.skip(sentence)


@pytest.fixture(scope="session")
def needs_system():
    """``needs_system(package, command)``: the test needs this command of that system package.

    A missing one is installed where that is possible; otherwise the test is skipped with a
    sentence, or fails where ``CI=true``.
    """

    def need(package, command):
        if shutil.which(command):
            return
        if can_install():
            install(package)
            if shutil.which(command):
                return
        cannot(f"this test needs {command}: install the system package {package}")

    return need


@pytest.fixture(scope="session")
def isolated(needs_system):
    """Student code can be shut in; skip where there is no bubblewrap."""
    from simlib.grading import sandbox

    needs_system("bubblewrap", "bwrap")
    needs_system("util-linux", "setpriv")
    if sandbox.why_not():
        pytest.skip(sandbox.why_not())


@pytest.fixture(scope="session")
def needs_practice_cluster(needs_system):
    """``needs_practice_cluster(slurm=True)``: the test needs hosts of namespaces, here with Slurm.

    What they take is installed where that is possible. Where there can be none, say for want of
    root or because a container forbids namespaces, the test is skipped, or fails where ``CI=true``:
    that jobs run on real hosts is what these tests are for.
    """

    def need(slurm=False):
        from simlib.practice import practice_cluster

        if sys.platform == "linux" and os.geteuid() == 0:
            needs_system("iproute2", "ip")
            needs_system("openssh-server", "/usr/sbin/sshd")
            if slurm:
                needs_system("slurm-wlm", "/usr/sbin/slurmctld")
                needs_system("munge", "/usr/sbin/munged")
        refuse = practice_cluster.why_not_cluster(slurm=slurm)
        if refuse:
            (cannot if sys.platform == "linux" else pytest.skip)(refuse)

    return need


@pytest.fixture
def stand_in(monkeypatch):
    """Grading without running anything: full points; the list of what was graded."""
    from simlib.grading import sandbox, whole_class
    from simlib.grading.grade import NotebookResult, without_points
    from simlib.grading.notebook_file import Unreadable, parse
    from simlib.grading.score import QuestionResult

    calls = []

    def grade(data, one, expected, seed, limits, isolate):
        try:
            parse(data)
        except Unreadable as error:
            return without_points(one, "unreadable", str(error))
        if b"break the grader" in data:
            raise RuntimeError("broken")
        calls.append(data)
        questions = [
            QuestionResult(q.name, q.title, q.points, q.points, "right", "<script>=1\x1b[31m")
            for q in one.questions.values()
        ]
        return NotebookResult(one.name, "graded", "", questions)

    monkeypatch.setattr(whole_class, "grade", grade)
    monkeypatch.setattr(whole_class.ClassGrader, "expected", lambda self, one: None)
    monkeypatch.setattr(sandbox, "check_can_isolate", lambda no_sandbox: None)
    monkeypatch.setattr(sandbox, "filter_for", lambda kind: b"")  # or a warning is printed
    return calls

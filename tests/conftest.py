"""What all tests share: one seed, markers for what is slow or needs hosts, system packages.

``SEED=n`` repeats the numbers of an earlier run. ``CI=true`` turns a test that is skipped because a
system package is missing, or because the system forbids something, into a failure.
"""

import os
import random
import shutil
import signal
import sys
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck

from simlib.classroom.grading.exercise import write_checks
from simlib.core.engines.workers.server import PRELOADED

# Ranks import the file of tests whose function they call; what it imports would take each a second.
PRELOADED += ["pytest", "hypothesis", "jupytext", "matplotlib.pyplot", "torch.distributed.optim"]

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

ROOT = Path(__file__).resolve().parent.parent

STOPPING = {signal.SIGINT: signal.default_int_handler} | dict.fromkeys(
    (signal.SIGHUP, signal.SIGQUIT), signal.SIG_DFL
)


def pytest_configure(config):
    # Who is started in the background, or by nohup, ignores these; so would what tests start.
    for number, handler in STOPPING.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    # Where the tests are split over processes, all of them have the same seed.
    os.environ["SEED"] = str(SEED)
    if not hasattr(config, "workerinput"):
        write_checks(ROOT)  # a clone has them since its install, and they may be older than sources


def pytest_report_header(config):
    return f"seed {SEED} (SEED={SEED} repeats it)"


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.name.endswith("_hosts.py"):
            item.add_marker("hosts")


@pytest.fixture
def seed():
    """The seed of this run, for tests that draw their own cases."""
    return SEED


def cannot(sentence):
    """Skip the test with a sentence; on a CI machine it fails, or nobody would ever notice."""
    if os.environ.get("CI") == "true":
        pytest.fail(sentence, pytrace=False)
    pytest.skip(sentence)


@pytest.fixture(scope="session")
def needs_system():
    """``needs_system(package, command)``: the test needs this command of that system package.

    Where it is missing, the test is skipped with a sentence, or fails where ``CI=true``.
    """

    def need(package, command):
        if not shutil.which(command):
            cannot(f"this test needs {command}: install the system package {package}")

    return need


@pytest.fixture(scope="session")
def isolated(needs_system):
    """Student code can be shut in; skip where there is no bubblewrap."""
    from simlib.classroom.grading import sandbox

    needs_system("bubblewrap", "bwrap")
    needs_system("util-linux", "setpriv")
    if sandbox.why_not():
        pytest.skip(sandbox.why_not())


@pytest.fixture(scope="session")
def needs_practice_cluster(needs_system):
    """``needs_practice_cluster(slurm=True)``: the test needs hosts of namespaces, here with Slurm.

    Where there can be none, for example without root or in a container that forbids namespaces,
    the test is skipped, or fails where ``CI=true``.
    """

    def need(slurm=False):
        from simlib.cluster.practice import practice_cluster

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
    from simlib.classroom.grading import sandbox, whole_class
    from simlib.classroom.grading.grade import NotebookResult, without_points
    from simlib.classroom.grading.notebook_file import Unreadable, parse
    from simlib.classroom.grading.score import QuestionResult

    calls = []

    def grade(data, one, expected, seed, limits, isolate, *more):
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

"""What all tests share: one seed, the long tests, system packages, `pytester`.

``SEED=n`` repeats a draw; ``TEST_ALL=1`` runs everything (`make test-all`); ``CI=true`` turns a
part that is skipped for want of a system package into a failure.
"""

import os
import random
import shutil
import subprocess
import sys
from collections import defaultdict

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


def pytest_configure(config):
    # Where the tests are split over processes, all of them draw the same samples.
    os.environ["SEED"] = str(SEED)


class Scheduling(LoadScopeScheduling):
    """Each test goes where there is room; tests that share something dear stay together.

    That is JupyterLab and a browser, or the hosts of a practice cluster. pytest-xdist's own way,
    the mark ``xdist_group``, does nothing under pytest 9.2.
    """

    def _split_scope(self, nodeid):
        path = nodeid.partition("::")[0]
        if "tests/browser/" in path:
            return "browser"
        return path if path.endswith("_hosts.py") else nodeid


def pytest_xdist_make_scheduler(config, log):
    if config.option.dist == "load":
        return Scheduling(config, log)


def pytest_report_header(config):
    return f"seed {SEED} (SEED={SEED} draws the same samples again)"


def pytest_collection_modifyitems(config, items):
    if TEST_ALL:
        return
    left_out = {item for item in items if item.get_closest_marker("long")} | not_drawn(items)
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


@pytest.fixture
def seed():
    """The seed of this run, for tests that draw their own cases."""
    return SEED


def can_install():
    """Whether system packages can be installed here: as root, with apt."""
    return hasattr(os, "geteuid") and os.geteuid() == 0 and bool(shutil.which("apt-get"))


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
            subprocess.run(["apt-get", "install", "-y", package], capture_output=True)
            if shutil.which(command):
                return
        sentence = f"this test needs {command}: install the system package {package}"
        if os.environ.get("CI") == "true":
            pytest.fail(sentence, pytrace=False)
        pytest.skip(sentence)

    return need


@pytest.fixture(scope="session")
def needs_practice_cluster(needs_system):
    """``needs_practice_cluster(slurm=True)``: the test needs hosts of namespaces, here with Slurm.

    What they take is installed where that is possible; the test is skipped where there can be none.
    """

    def need(slurm=False):
        from simlib.practice import cluster

        if sys.platform == "linux" and os.geteuid() == 0:
            needs_system("iproute2", "ip")
            needs_system("openssh-server", "/usr/sbin/sshd")
            if slurm:
                needs_system("slurm-wlm", "/usr/sbin/slurmctld")
                needs_system("munge", "/usr/sbin/munged")
        refuse = cluster.why_not_cluster(slurm=slurm)
        if refuse:
            pytest.skip(refuse)

    return need

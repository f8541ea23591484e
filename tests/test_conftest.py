"""What conftest.py gives to all tests: system packages, skips that CI refuses, samples."""

import importlib.metadata
import importlib.util
import os
import subprocess
from pathlib import Path

import pytest
import selection

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def alone(pytester, monkeypatch):
    """Run tests in a pytest of their own, with our conftest; the other plugins take seconds."""
    pytester.makeconftest((ROOT / "tests/conftest.py").read_text())
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return lambda *options: pytester.runpytest_subprocess(
        *options, "-p", "no:cacheprovider", "-p", "xdist"
    )


@pytest.mark.parametrize("ci, outcome", [("", "skipped=1"), ("true", "failed=1")])
def test_a_missing_system_package_is_a_skip_and_on_ci_a_failure(
    pytester, alone, monkeypatch, ci, outcome
):
    monkeypatch.setenv("CI", ci)
    pytester.makepyfile(
        """
        import conftest

        def test_it(needs_system, monkeypatch):
            monkeypatch.setattr(conftest, "can_install", lambda: False)
            needs_system("no-such-package", "no-such-command")
        """
    )
    result = alone("-rsf")
    name, count = outcome.split("=")
    result.assert_outcomes(**{name: int(count)})
    result.stdout.fnmatch_lines("*install the system package no-such-package*")


@pytest.mark.parametrize("ci, outcome", [("", "skipped=1"), ("true", "failed=1")])
def test_a_machine_that_forbids_namespaces(pytester, alone, monkeypatch, ci, outcome):
    """A skip for who has no more than a container; on CI nobody would notice that."""
    monkeypatch.setenv("CI", ci)
    for folder, text in (
        ("", ""),
        ("practice", ""),
        ("practice", "def why_not_cluster(slurm):\n    return 'it is not permitted here'\n"),
    ):
        path = (
            pytester.path / "simlib" / folder / (f"{folder}_cluster.py" if text else "__init__.py")
        )
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    pytester.makepyfile(
        """
        def test_it(needs_practice_cluster, monkeypatch):
            monkeypatch.setattr("sys.platform", "linux")
            monkeypatch.setattr("os.geteuid", lambda: 1000)
            needs_practice_cluster()
        """
    )
    result = alone("-rsf")
    name, count = outcome.split("=")
    result.assert_outcomes(**{name: int(count)})
    result.stdout.fnmatch_lines("*it is not permitted here*")


@pytest.mark.parametrize("has_policy", [False, True])
def test_how_a_system_package_is_installed(tmp_path, monkeypatch, has_policy):
    """Lists are fetched where there are none; nothing is asked; no daemon is started."""
    spec = importlib.util.spec_from_file_location("its_conftest", ROOT / "tests/conftest.py")
    conftest = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conftest)
    policy, calls = tmp_path / "policy-rc.d", []
    if has_policy:
        policy.write_text("of this machine")

    def run(words, env, **options):
        assert env["DEBIAN_FRONTEND"] == "noninteractive"
        assert os.access(policy, os.X_OK) or has_policy
        calls.append([word for word in words if word in ("update", "install", "munge")])
        return subprocess.CompletedProcess(words, 100 if len(calls) == 2 else 0)

    monkeypatch.setattr(conftest, "LISTS", tmp_path)
    monkeypatch.setattr(conftest, "POLICY", policy)
    monkeypatch.setattr(conftest.subprocess, "run", run)
    conftest.install("munge")
    assert calls == [["update"], ["install", "munge"], ["update"], ["install", "munge"]]
    assert policy.exists() == has_policy


def test_a_seed_draws_the_same_sample_twice_and_all_means_all(pytester, alone, monkeypatch):
    pytester.makeini("[pytest]\nmarkers =\n    long\n    sample\n")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.sample(5)
        @pytest.mark.parametrize("case", range(40))
        def test_case(case):
            pass

        @pytest.mark.long
        def test_long():
            pass
        """
    )

    def chosen(seed, everything="0"):
        monkeypatch.setenv("SEED", seed)
        monkeypatch.setenv("TEST_ALL", everything)
        result = alone("--collect-only", "-q")
        return [line for line in result.outlines if "::" in line]

    seven = chosen("7")
    assert len(seven) == 5
    assert seven == chosen("7") != chosen("8")
    assert len(chosen("7", everything="1")) == 41


def test_dear_tests_are_left_out_where_nothing_changed(pytester, alone, monkeypatch):
    scripts = ROOT / "scripts"
    markers = "markers =\n    long\n    stratum(name)\n"
    pytester.makeini(f"[pytest]\npythonpath = '{scripts}'\n{markers}")
    hosts = """
import os

def test_a():
    pass

def test_b():
    assert "DECIDED" not in os.environ
"""
    other = "def test_c():\n    pass\n"
    (pytester.path / "tests").mkdir()
    for name, text in (("test_some_hosts", hosts), ("test_run", other)):
        (pytester.path / "tests" / f"{name}.py").write_text(text)
    decided = pytester.path / "decided"

    def chosen(near):
        selection.write({group.name: (near, "it is so") for group in selection.GROUPS}, decided)
        result = alone("-v", "tests")
        return len([line for line in result.outlines if "PASSED" in line])

    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # the second of two writes nothing
    monkeypatch.setenv("TEST_ALL", "0")
    assert chosen("untouched") == 3  # nobody says that anything is decided
    monkeypatch.setenv("DECIDED", str(decided))
    assert chosen("changed") == 3
    assert chosen("untouched") == 2
    assert Path(f"{decided}.txt").read_text() == "hosts and Slurm: 1 of 2 tests, as it is so"
    monkeypatch.setenv("TEST_ALL", "1")
    assert chosen("untouched") == 3

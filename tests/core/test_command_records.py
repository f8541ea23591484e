"""``simlib play`` and ``simlib compare``: commands about saved runs."""

import re
import webbrowser
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from terminals import Terminal

import simlib
from simlib import ExitCode
from simlib.cli import main


def step(rank, world_size, times=1):
    for _ in range(times):
        dist.all_reduce(torch.ones(2))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """``{"a": file, "b": file}`` of two runs; b has one collective more."""
    folder = tmp_path_factory.mktemp("runs")
    runs = {"a": simlib.simulate(step, 2), "b": simlib.simulate(step, 2, (2,))}
    return {name: str(run.save(folder / f"{name}.json")) for name, run in runs.items()}


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_saved_run_plays_in_the_browser_of_a_terminal(saved, is_terminal, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    assert main(["play", saved["a"]]) == ExitCode.OK
    page = Path(capsys.readouterr().out.removeprefix("the page is ").strip())
    assert page.name == "a.html" and "step on 2 simulated ranks" in page.read_text()
    assert opened == ([page.as_uri()] if is_terminal else [])


def test_a_page_is_written_where_it_is_wanted(saved, tmp_path, capsys, monkeypatch):
    page, screen = tmp_path / f"{'page' * 9}.html", Terminal(monkeypatch, columns=40)
    assert main(["play", saved["a"], "--html", str(page)]) == ExitCode.OK
    screen.hang_up()
    shown = re.split(r"[\r\n]", screen.getvalue())
    assert any(line.endswith(", reading a.json") for line in shown)
    assert any(", writing pagepage" in line for line in shown) and max(map(len, shown)) < 40
    assert capsys.readouterr().out == f"the page is {page}\n" and page.exists()


def test_saved_runs_are_compared(saved, tmp_path, capsys):
    page = tmp_path / "both.html"
    words = ["compare", saved["a"], saved["b"], "--html", str(page)]
    assert main(words) == ExitCode.WRONG_PROGRAM
    first, row = capsys.readouterr().out.splitlines()[:2]
    assert first.split() == ["a", "b"] and row.split()[-2:] == ["1", "2"]
    assert page.exists()
    assert main(["compare", saved["a"], saved["a"]]) == ExitCode.OK


def test_equal_runs_of_one_name_are_told_apart_by_their_folders(saved, tmp_path, capsys):
    other = tmp_path / "a.json"
    other.write_bytes(Path(saved["a"]).read_bytes())
    assert main(["compare", saved["a"], str(other)]) == ExitCode.OK
    assert str(other) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["play", "nowhere.json"], "nowhere.json"),
        (["play", __file__], "test_command_records.py"),
        (["compare", "nowhere.json", "b.json"], "nowhere.json"),
    ],
)
def test_files_that_are_no_runs(words, message, capsys):
    assert main(words) == ExitCode.USAGE
    assert message in capsys.readouterr().err


def test_a_run_is_compared_with_another_one(saved, capsys):
    assert main(["compare", saved["a"]]) == ExitCode.USAGE
    assert "needs two runs or more" in capsys.readouterr().err

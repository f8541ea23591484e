"""What a rank has of its own: each line of the table in docs/simulate.md, by each launcher."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import simlib
from simlib.core.engines.processes.real_run import run_script
from tests.own_state import lines

FILE = Path(lines.__file__)
DOCS = Path(__file__).parents[2] / "docs" / "simulate.md"
LAUNCHERS = ("torchrun", "simlib run", "run", "simulate", "submit")


def by_torchrun(folder):
    """Three processes, as torch itself starts them: the truth."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    subprocess.run([*start, str(FILE), str(folder)], check=True, timeout=300)
    return _read(folder)


def by_script(folder):
    """The same script as ``simlib run`` starts it."""
    run_script(str(FILE), 3, [str(folder)])
    return _read(folder)


def _read(folder):
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(3)]


@pytest.fixture(scope="module")
def found(tmp_path_factory, needs_system):
    """``found(launcher)``: what the three ranks have found."""
    known = {}
    ways = {
        "torchrun": by_torchrun,
        "simlib run": by_script,
        "run": lambda folder: simlib.run(lines.main, 3).results,
        "simulate": lambda folder: simlib.simulate(lines.main, 3).results,
        "submit": lambda folder: simlib.submit(lines.main, 3, folder=folder).result(300).results,
    }

    def ask(launcher):
        if launcher == "submit":
            needs_system("mpich", "mpiexec")
        if launcher not in known:
            known[launcher] = ways[launcher](tmp_path_factory.mktemp("found"))
        return known[launcher]

    return ask


def is_own(name, answers):
    """Whether these answers are of ranks each of which has its own."""
    if name == "random numbers":
        return all(len(set(column)) == 3 for column in zip(*answers, strict=True))
    if name in lines.DIFFER:
        return len({json.dumps(answer) for answer in answers}) > 1
    return answers == [lines.WANTED[name](rank) for rank in range(3)]


def table():
    """The rows of the page: name -> what each launcher gives."""
    text = DOCS.read_text().partition("## What a rank has of its own")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \|(.+)\|$", text, re.M)
    cells = {name.strip(): [cell.strip() for cell in row.split("|")] for name, row in rows[1:]}
    return {
        name: dict(zip(LAUNCHERS, row, strict=True))
        for name, row in cells.items()
        if row[0] in ("own", "shared")
    }


def test_the_page_has_a_row_for_each_line():
    assert list(table()) == list(lines.LINES)


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("name", lines.LINES)
def test_a_rank_has_of_its_own_what_the_page_says(found, launcher, name):
    answers = [rank[name] for rank in found(launcher)]
    assert is_own(name, answers) == (table()[name][launcher] == "own"), answers

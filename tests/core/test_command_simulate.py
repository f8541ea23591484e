"""``simlib simulate``: the options for devices and faults, and what the command says of times."""

import json
import re
from pathlib import Path

import pytest
from terminals import Terminal

from simlib import ExitCode
from simlib.cli import main
from simlib.cli.scripts import NO_DEVICE
from simlib.core import model
from simlib.core.engines.session import TerminalDisplay

STEP = """
import torch, torch.distributed as dist
dist.init_process_group()
x = torch.ones(256, 256)
x = x @ x
dist.all_reduce(x)
"""


@pytest.fixture
def simulated(tmp_path, capfd):
    """``simulated("--memory")``: the exit code and the output of the command on two ranks."""

    def run(*words, text=STEP, command="simulate"):
        path = tmp_path / "step.py"
        path.write_text(text)
        code = main([command, "-n", "2", *words, str(path)])
        return code, capfd.readouterr().out

    return run


def times(document, name="computing_s"):
    return [rank[name] for rank in json.loads(document)["ranks"]]


def test_the_command_says_why_computing_took_no_time(simulated):
    _, said = simulated()
    assert said.count(NO_DEVICE) == 1
    for words in (["--compute", "free"], ["--device", "laptop_cpu"], ["--network", "h100_nodes"]):
        assert NO_DEVICE not in simulated(*words)[1]
    computes = "import simlib\nsimlib.compute(seconds=1)\n"
    assert NO_DEVICE not in simulated(text=computes)[1]


@pytest.mark.parametrize(
    ("command", "shown"),
    [("simulate", "virtual time .* ops"), ("run", "[012] ranks? runs?, last op or output . s ago")],
)
def test_a_long_run_shows_how_far_it_is_in_a_terminal(command, shown, simulated, monkeypatch):
    monkeypatch.setattr(TerminalDisplay, "LONG_S", 0.0)
    screen = Terminal(monkeypatch)
    _, said = simulated("--quiet", text=STEP + "print('hello')", command=command)
    screen.hang_up()
    assert re.search(rf"\r00:\d\d, importing torch.*\r00:\d\d, {shown}", screen.getvalue(), re.S)
    assert screen.getvalue().endswith(" \r")
    assert sorted(said.splitlines()) == ["[0] hello", "[1] hello"]


def test_the_clock_is_drawn_anew_only_for_lines(monkeypatch):
    screen, display = Terminal(monkeypatch), TerminalDisplay()
    display.waiting("it starts")
    display.lines(0, [])
    shown = screen.getvalue()
    display.close(())
    screen.hang_up()
    assert "it starts" in shown and " \r" not in shown


def test_computing_takes_time_on_a_device(simulated):
    own, slow = times(simulated("--json", "--device", "laptop_cpu", "--slow", "1=3")[1])
    assert own > 0 and slow == pytest.approx(3 * own)
    card = Path(model.__file__).with_name("h100.json")
    found = [times(simulated("--json", "--device", name)[1]) for name in ("h100", str(card))]
    assert found[0] == found[1] and min(found[0]) > 0


def test_measured_times_are_shown_though_they_do_not_repeat(simulated):
    _, said = simulated("--compute", "measured")
    assert "computed" in said and NO_DEVICE not in said


def test_ranks_and_nodes_are_killed(simulated):
    wait = "import simlib\nsimlib.compute(seconds=1)\n"
    for words in (["--kill", "1=0.5"], ["--ranks-per-node", "1", "--kill", "node1=0.5"]):
        code, said = simulated("--json", *words, text=wait + STEP)
        assert code == ExitCode.RANK_FAILED
        assert times(said, "died_s") == [None, 0.5]


def test_the_memory_of_each_rank(simulated):
    _, said = simulated("--memory")
    assert "memory at the peak" in said
    _, said = simulated("--memory", "--json")
    assert min(times(said, "memory_bytes")) >= 2 * 4 * 256**2
    assert times(simulated("--json")[1], "memory_bytes") == [None, None]


def test_a_seed_also_tries_another_order(simulated):
    text = """
import torch, torch.distributed as dist
dist.init_process_group()
for name in sorted("abcdefghijkl", key=hash):  # two hash seeds give one order once in 12!
    dist.all_reduce(torch.ones(ord(name)))
"""
    (finding,) = json.loads(simulated("--json", "--seed", "1", text=text)[1])["findings"]
    assert finding["kind"] == "race" and "hash seed" in finding["message"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--device", "pigeon"], "pigeon is not a file, and not one of a100, b200"),
        (["--slow", "3=2"], "3 is not a rank"),
        (["--kill", "node7=1"], "'node7' is not a node"),
        (["--slow", "fast"], "fast must have the form 0=1.5"),
    ],
)
def test_wrong_values(words, message, tmp_path, capfd):
    try:
        code = main(["simulate", "-n", "2", *words, __file__])
    except SystemExit as end:
        code = end.code
    assert code == ExitCode.USAGE and message in capfd.readouterr().err

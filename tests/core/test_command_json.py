"""``--json``: one document on stdout that `output.schema.json` describes, and nothing else."""

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from jsonschema import Draft202012Validator

import simlib.cli
from simlib.cli import main
from simlib.cluster import doctor
from simlib.cluster.doctor import Line, Report

RECORDED = Path(__file__).resolve().parents[2] / "notebooks" / "recorded"
SCHEMA = json.loads(Path(simlib.cli.__file__).with_name("output.schema.json").read_text())
HEAD = ["simlib", "command", "exit_code", "exit", "kind", "message"]
BEGIN = "import torch, torch.distributed as dist\ndist.init_process_group()\nprint('here')\n"


@pytest.fixture
def told(capfd):
    """``told("jobs", ...)``: the document of a command that is otherwise silent on stdout."""

    def ask(*words):
        code = main([str(word) for word in words])
        document = json.loads(capfd.readouterr().out)
        Draft202012Validator(SCHEMA).validate(document)
        assert list(document)[:6] == HEAD
        assert (document["command"], document["exit_code"]) == (words[0], code)
        assert document["exit"] == simlib.ExitCode(code).name
        return document

    return ask


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "script.py"
        path.write_text(text)
        return path

    return write


def test_the_schema_is_a_schema():
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("command", ["run", "simulate"])
def test_a_script_that_ends_well(command, script, told):
    last = (
        "dist.all_reduce(torch.ones(2))\nif dist.get_rank() == 0:\n    dist.isend(torch.ones(3), 1)"
    )
    found = told(command, "-n", 2, "--json", script(BEGIN + last))
    assert (found["kind"], found["message"], found["world_size"]) == ("ok", "", 2)
    assert [rank["output"] for rank in found["ranks"]] == ["here\n", "here\n"]
    counts = [
        [rank[key] for key in ("messages", "bytes", "collectives")] for rank in found["ranks"]
    ]
    assert counts == [[1, 12, 1], [0, 0, 1]]
    (finding,) = found["findings"]
    assert finding["kind"] == "unfinished" and finding["lines"][0]["line"] == 6
    for rank in found["ranks"]:
        parts = [rank[f"{name}_s"] for name in ("computing", "waiting", "transferring")]
        assert sum(parts) == pytest.approx(rank["time_s"]) and rank["line"] is None


def test_a_script_in_which_ranks_wait(script, told):
    found = told("simulate", "-n", 2, "--json", script(f"{BEGIN}dist.recv(torch.ones(1), src=0)"))
    assert (found["exit"], found["kind"]) == ("WRONG_PROGRAM", "invalid")
    last = "dist.recv(torch.ones(1), src=1 - dist.get_rank())"
    found = told("simulate", "-n", 2, "--json", script(BEGIN + last))
    assert (found["exit"], found["kind"]) == ("WRONG_PROGRAM", "deadlock")
    assert found["message"].startswith("ranks 0 and 1 wait for each other")
    assert [(wait["rank"], wait["for"]) for wait in found["waits"]] == [(0, [1]), (1, [0])]
    assert sorted(found["cycle"]) == [0, 1] and found["time_s"] is None
    lines = [rank["line"] for rank in found["ranks"]]
    assert [(line["call"], line["line"], line["text"]) for line in lines] == [
        ("recv(src=1)", 4, last), ("recv(src=0)", 4, last)
    ]  # fmt: skip


def test_a_script_whose_rank_fails(script, told):
    text = "import os, sys\nif os.environ['RANK'] == '1':\n    sys.exit(7)\n"
    found = told("simulate", "-n", 2, "--json", script(text))
    assert (found["exit"], found["kind"]) == ("RANK_FAILED", "rank_died")
    assert [rank["exit_code"] for rank in found["ranks"]] == [None, 7]
    found = told("simulate", "-n", 1, "--json", script("raise ValueError('lost')"))
    (rank,) = found["ranks"]
    assert (rank["exception"]["type"], rank["exception"]["message"]) == ("ValueError", "lost")
    found = told("run", "-n", 1, "--json", script("import os\nos._exit(9)"))
    assert (found["kind"], found["ranks"][0]["exit_code"]) == ("rank_died", 9)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "-n", "0", __file__], "world_size=0 is not possible"),
        (["simulate", "-n", "2", "nowhere.py"], "there is no file nowhere.py"),
        (["diagnose", "nowhere"], "there is no file or folder"),
        (["doctor", "--hosts", "a,a"], "each only once"),
    ],
)
def test_a_wrong_call(words, message, told):
    found = told(*words, "--json") if words[0] in ("diagnose", "doctor") else told(
        words[0], "--json", *words[1:]
    )  # fmt: skip
    assert (found["exit"], found["kind"], list(found)) == ("USAGE", "usage", HEAD)
    assert message in found["message"]


def both_receive(rank, world_size):
    dist.recv(torch.ones(1), src=1 - rank)


def test_the_dumps_of_a_job(tmp_path, told):
    with pytest.raises(simlib.DeadlockError) as caught:
        simlib.simulate(both_receive, 2)
    caught.value.run.to_recorder(tmp_path)
    found = told("diagnose", tmp_path, "--json")
    assert (found["exit"], found["kind"]) == ("WRONG_PROGRAM", "deadlock")
    assert [(line["rank"], line["file"]) for line in found["lines"]] == [
        (0, __file__), (1, __file__)
    ]  # fmt: skip


def test_jobs_and_the_result_of_one(told):
    found = told("jobs", "--folder", RECORDED, "--json")["jobs"]
    statuses = {job["name"]: job["status"] for job in found}
    assert statuses["around-1"] == "done" and statuses["both_receive-1"] == "failed"
    found = told("result", RECORDED / "both_receive-1", "--json")
    assert (found["exit"], found["kind"]) == ("WRONG_PROGRAM", "deadlock")


def test_the_report_of_the_doctor(told, monkeypatch):
    lines = (Line("ssh", "a", "ok", "it answers"), Line("torch", "b", "wrong", "it is missing"))
    report = Report(("a", "b"), lines, (("a", "b", 1e-4, 1e9),))
    monkeypatch.setattr(doctor, "doctor", lambda *_, **options: report)
    found = told("doctor", "--hosts", "a,b", "--json")
    assert (found["exit"], found["kind"]) == ("WRONG_PROGRAM", "wrong")
    assert found["message"] == "1 thing is wrong" and found["checks"][1]["host"] == "b"
    assert found["pairs"] == [{"hosts": ["a", "b"], "latency_s": 1e-4, "bandwidth_Bps": 1e9}]

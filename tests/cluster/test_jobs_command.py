"""``simlib submit``, ``jobs``, ``follow``, ``result`` and ``cancel``, and scripts as jobs."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from jobs import processes_of, wait_until
from terminals import Terminal

import simlib
from simlib import ExitCode
from simlib.cli import _parser, main
from simlib.cluster.batch import SYSTEMS, job, submission
from simlib.cluster.batch.batch_system import Flag
from simlib.cluster.batch.logs import JobMonitor
from simlib.cluster.commands import BACKENDS, _place
from simlib.core.engines.session import TerminalDisplay
from simlib.core.record.transports import backends

TRAIN = """\
import os
told = {name: os.environ[name] for name in os.environ["WANTED"].split()}
import argparse, json, socket, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from helper import SCALE

def main(options):
    dist.init_process_group("gloo", init_method="env://")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    loss = model(torch.full((3, 4), SCALE * local_rank)).pow(2).mean()
    loss.backward()
    launched = dist.is_torchelastic_launched()
    print(json.dumps([__name__, sys.argv[1:], options.lr, launched, told]))
    dist.destroy_process_group()

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float)
    main(parser.parse_args())
    sys.exit(0)
"""
"""A script for torchrun, which keeps what it found in its environment before its other imports."""
NAMES = (
    "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE MASTER_ADDR "
    "MASTER_PORT TORCHELASTIC_RESTART_COUNT TORCHELASTIC_RUN_ID"
)


@pytest.fixture
def script(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "helper.py").write_text("SCALE = 2.0\n")
    path = folder / "train.py"
    path.write_text(TRAIN)
    monkeypatch.setenv("WANTED", NAMES)
    monkeypatch.chdir(tmp_path)
    return path


def written(tmp_path, text, name="script.py"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_script_for_torchrun_is_submitted_followed_and_told(script, capfd, tmp_path):
    """From the command line, from the first word to the last."""
    assert main(["submit", "-n", "2", str(script), "--lr", "0.5"]) == 0
    said = capfd.readouterr().out
    assert said == (
        "train-1 is submitted; pass simlib-jobs/train-1 to simlib follow, result or cancel\n"
    )
    assert main(["follow", "train-1"]) == 0
    lines = sorted(capfd.readouterr().out.splitlines())
    assert [line[:4] for line in lines] == ["[0] ", "[1] "]
    told = [json.loads(line[4:]) for line in lines]
    for rank, (name, words, rate, is_launched, found) in enumerate(told):
        assert (name, words, rate, is_launched) == ("__main__", ["--lr", "0.5"], 0.5, True)
        assert found == {
            **told[0][4], "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1",
            "TORCHELASTIC_RESTART_COUNT": "0",
        }  # fmt: skip
        assert 0 < int(found["MASTER_PORT"]) < 1 << 16
    assert main(["result", "--trace", "trace.json", "simlib-jobs/train-1"]) == 0
    table = capfd.readouterr().out
    assert "train.py on 2 real ranks" in table and "train.py, line 14" in table
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert main(["jobs"]) == 0
    assert capfd.readouterr().out == "train-1  done  2 ranks  this machine\n"
    assert main(["cancel", "train-1"]) == 0
    assert capfd.readouterr().out == "train-1 is done\n"


def test_a_script_that_fails_begins_anew_and_is_told_by_its_line(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    text = (
        "import os, sys, torch, torch.distributed as dist\n"
        "if os.environ['RANK'] == '2':\n    os._exit(9)\n"
        "dist.init_process_group()\ndist.barrier()\n"
        "print('attempt', os.environ['TORCHELASTIC_RESTART_COUNT'], flush=True)\n"
        "sys.exit(int(os.environ['RANK']) * 3)\n"
    )
    written(tmp_path, text, "my run.py")
    restarts = ["--restarts", "1", "--min-ranks", "1"]
    assert main(["submit", "-n", "3", *restarts, "--follow", "my run.py"]) == 3
    said = capfd.readouterr()
    assert said.out.startswith("my_run-1 is submitted")
    assert "[0] attempt 1\n" in said.out
    assert "rank 1 called sys.exit(3) (my run.py, line 7)" in said.err
    assert main(["result", "--trace", "trace.json", "my_run-1"]) == 3
    again = capfd.readouterr()
    assert "rank 1 called sys.exit(3) (my run.py, line 7)" in again.err and not again.out
    assert (tmp_path / "trace.json").exists()


def test_a_terminal_shows_how_a_job_starts_and_runs(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job, "LOOK_S", 0.01)
    monkeypatch.setattr(TerminalDisplay, "LONG_S", 0.0)
    screen = Terminal(monkeypatch)

    def write(text):
        Terminal.write(screen, text)
        if "script-1 runs" in text:
            (tmp_path / "seen").touch()

    monkeypatch.setattr(screen, "write", write)
    text = "import os\nwhile not os.path.exists('seen'):\n    pass\nprint('hello')"
    path = written(tmp_path, text)
    assert main(["submit", "-n", "2", "--timeout", "20", "--follow", str(path)]) == 0
    screen.hang_up()
    assert re.search(r"00:\d\d, script-1 (is about to start|starts: [01] of 2)", screen.getvalue())
    assert "\n" not in screen.getvalue() and capfd.readouterr().out.count("] hello\n") == 2


def test_a_script_that_waits_for_ever_is_told_by_its_line(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    text = "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
    written(tmp_path, f"{text}if dist.get_rank() == 0:\n    dist.recv(torch.zeros(1), src=1)\n")
    assert main(["submit", "-n", "2", "--follow", "script.py"]) == 1
    said = capfd.readouterr().err
    assert "rank 0 waits for rank 1, which has finished" in said and "script.py, line 4" in said


def interrupted(*_):
    raise KeyboardInterrupt


def test_a_script_is_cancelled(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, "print('here', flush=True)\nimport time\ntime.sleep(1000)\n")
    assert main(["submit", "-n", "1", str(path)]) == 0
    job = simlib.Job("simlib-jobs/script-1")
    wait_until(lambda: job.status == "active")
    with monkeypatch.context() as stopped:
        stopped.setattr(JobMonitor, "take_in", interrupted)
        assert main(["follow", "script-1"]) == ExitCode.INTERRUPTED
    told = "script-1 still runs; job.cancel() or `simlib cancel simlib-jobs/script-1`"
    assert told in capfd.readouterr().out
    assert main(["cancel", "simlib-jobs/script-1"]) == 0
    assert "script-1 is cancelled" in capfd.readouterr().out
    assert main(["result", "script-1"]) == 5
    assert "script-1 was cancelled" in capfd.readouterr().err
    wait_until(lambda: not processes_of(job))


def test_what_a_script_and_a_function_do_not_take(tmp_path):
    path = written(tmp_path, "")
    for what, options, words in (
        (tmp_path / "nowhere.py", {}, "there is no file .*nowhere.py"),
        (path, {"args": (1,)}, r"the script script.py takes its arguments .* pass argv="),
        (path, {"argv": "--lr 1"}, r"must be a list of words: argv=\['--lr', '1'\]"),
        (lambda rank, size: 0, {"argv": []}, "argv=.* is for a script"),
    ):
        with pytest.raises(simlib.InvalidCallError, match=words):
            simlib.submit(what, 1, folder=tmp_path / "jobs", **options)
    assert not (tmp_path / "jobs").exists()


WITHOUT_TORCH = """
import json, sys
from simlib.cli import main
for words in json.loads(sys.argv[1]):
    print(main(words), flush=True, file=sys.stderr)
print([name for name in ("torch", "psutil") if name in sys.modules])
"""


def test_wrong_calls_are_refused_without_torch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "", "train.py")
    for name in ("nap-1", "doze-1", "doze-2"):
        tmp_path.joinpath("known", name).mkdir(parents=True)
    calls = (
        ("submit -n 2 nowhere.py", 2, "simlib: there is no file nowhere.py"),
        ("submit -n 0 train.py", 2, "simlib: -n 0 must be a whole number of 1 or more"),
        ("submit -n 2 --partition p train.py", 2, "--partition is for a queue: add --slurm"),
        ("submit -n 2 --backend mpi train.py", 2, "--backend mpi must be gloo, nccl or mpi4py"),
        ("submit -n 2 --stage train.py", 2, "--stage copies the job to hosts: add --hosts, --ho"),
        ("submit -n 2 --stage --pbs train.py", 2, "--stage copies the job to hosts"),
        ("submit -n 2 --ssh-python p train.py", 2, "--ssh-python is for a cluster that only ssh"),
        ("submit -n 2 --sync . train.py", 2, "--sync is for a cluster that only ssh reaches: add"),
        ("submit -n 2 --pbs --mpi pmix train.py", 2, "--mpi pmix is srun's, but PBS has no such"),
        ("submit -n 2 --env A train.py", 2, "--env A has no value: --env A=..."),
        ("follow train-7", 2, "simlib: there is no job train-7 in simlib-jobs"),
        ("follow nap --folder known", 2, "there is no job nap in known: try nap-1"),
        ("cancel doze --folder known", 2, "no job doze in known: try doze-1 or doze-2"),
        ("result train-7 --trace no/x.json", 2, "simlib: there is no folder for no/x.json"),
        ("cancel train-7 --folder elsewhere", 2, "there is no job train-7 in elsewhere"),
        ("jobs", 0, ""),
    )
    words = json.dumps([words.split() for words, _, _ in calls])
    command = [sys.executable, "-c", WITHOUT_TORCH, words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    lines = iter(done.stderr.splitlines())
    for words, code, said in calls:
        assert not said or said in next(lines), words
        assert next(lines) == str(code), words


@pytest.mark.parametrize("content", [b"", b"{}", b"5", b"\x80"])
def test_a_job_with_a_damaged_file_is_named(content, tmp_path, capsys):
    (tmp_path / "half-1").mkdir()
    (tmp_path / "half-1" / "job.json").write_bytes(content)
    assert main(["jobs", "--folder", str(tmp_path)]) == 0
    assert "half-1/job.json is damaged" in capsys.readouterr().err
    assert main(["follow", "--folder", str(tmp_path), "half-1"]) == 2


def place_of(words):
    return _place(_parser().parse_args(["submit", *words, "train.py"]))


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ("-n 4", simlib.Mpiexec()),
        ("-n 3 --hosts a,b", simlib.Mpiexec(hosts=["a", "b"], ranks_per_node=2)),
        ("-n 4 --hosts a --ranks-per-node 8", simlib.Mpiexec(hosts=["a"], ranks_per_node=8)),
        ("-n 4 --slurm", simlib.Slurm(nodes=1, ranks_per_node=4)),
        ("-n 4 --slurm --nodes 2", simlib.Slurm(nodes=2, ranks_per_node=2)),
        (
            "-n 4 --slurm --ranks-per-node 1 --partition p --account a --extra=-x --extra=-y",
            simlib.Slurm(nodes=4, partition="p", account="a", extra=["-x", "-y"]),
        ),
        (
            "-n 1 --slurm --launcher mpiexec --login ssh",
            simlib.Slurm(nodes=1, launcher="mpiexec", login="ssh"),
        ),
        (
            "-n 2 --slurm --mpi pmix --cpus-per-rank 4 --gpus-per-rank 1 --memory 2G",
            simlib.Slurm(1, 2, mpi="pmix", cpus_per_rank=4, gpus_per_rank=1, memory="2G"),
        ),
        ("-n 2 --slurm --stage", simlib.Slurm(nodes=1, ranks_per_node=2, stage=True)),
        ("-n 2 --hosts a,b --stage", simlib.Mpiexec(hosts=["a", "b"], stage=True)),
        ("-n 1 --ssh me@login", simlib.Ssh("me@login")),
        (
            "-n 2 --ssh login --ssh-python ~/p --sync a.py --sync b --slurm --nodes 2",
            simlib.Ssh("login", simlib.Slurm(nodes=2), python="~/p", sync=["a.py", "b"]),
        ),
        ("-n 2 --pbs --memory 2G", simlib.Pbs(nodes=1, ranks_per_node=2, memory="2G")),
        (
            "-n 1 --setup A=1 --setup B=2 --env C=3=4 --container podman --working-dir /x",
            simlib.Mpiexec(
                setup=["A=1", "B=2"], env={"C": "3=4"}, container="podman", working_dir="/x"
            ),
        ),
    ],
)
def test_where_the_options_say_that_it_runs(words, place):
    assert place_of(words.split()) == place


def test_a_hostfile_is_where_it_runs(tmp_path):
    hosts = str(written(tmp_path, "a\nb\n", "hosts"))
    found = place_of(["-n", "2", "--hostfile", hosts, "--time-limit", "9"])
    assert found == simlib.Mpiexec(hostfile=hosts, time_limit=9)


def test_the_backend_is_passed_on(script, monkeypatch, capfd):
    told = {}
    monkeypatch.setattr(submission, "submit", lambda *_, **options: told.update(options) or job)
    job = SimpleNamespace(name="train-1", path="simlib-jobs/train-1")
    assert main(["submit", "-n", "2", "--backend", "mpi4py", str(script)]) == 0
    assert told["backend"] == "mpi4py"
    assert tuple(backends.BACKENDS) == BACKENDS


@dataclass(frozen=True)
class Lsf(simlib.Pbs):
    """Stands for a batch system that somebody has added."""

    scheduler = type("LsfScheduler", (simlib.Pbs.scheduler,), {"name": "lsf", "called": "LSF"})
    flags = (*simlib.Pbs.flags, Flag("app", "PROFILE", "of LSF", owner="LSF's"))
    app: str | None = None


def test_a_batch_system_is_one_entry(script, monkeypatch, capsys):
    """The command line has its flag, and the options that it names."""
    monkeypatch.setitem(SYSTEMS, "lsf", Lsf)
    found = place_of(["-n", "4", "--lsf", "--app", "a"])
    assert found == Lsf(nodes=1, ranks_per_node=4, app="a")
    for words, said in (
        (["--pbs", "--app", "a"], "--app a is LSF's, but PBS has no such option"),
        (["--lsf", "--mpi", "pmix"], "--mpi pmix is srun's, but LSF has no such option"),
        (["--app", "a"], "--app is for a queue: add --slurm or --pbs or --lsf"),
    ):
        assert main(["submit", "-n", "2", *words, str(script)]) == 2
        assert said in capsys.readouterr().err
    with pytest.raises(simlib.InvalidCallError, match=r"simlib.Pbs\(...\), simlib.Lsf\(...\) or"):
        simlib.submit(script, 2, to="lsf")

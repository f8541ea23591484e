"""``python -m simlib run`` and ``simulate``: scripts on real and on simulated ranks."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest

from simlib import ExitCode
from simlib.cli import _parser, main
from simlib.core.environment import VERSION
from simlib.core.model import errors
from simlib.core.model.outcome import exit_code_of

SCRIPT = """
import argparse, os, sys
import torch, torch.distributed as dist
from helper import SCALE

def run(rank, size, value):
    x = torch.tensor([value * SCALE]) if rank == 0 else torch.zeros(1)
    if rank == 0:
        dist.send(x, dst=1)
    elif rank == 1:
        dist.recv(x, src=0)
        print("received", x.item())

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--value", type=float)
    options = parser.parse_args()
    dist.init_process_group("gloo", rank=int(os.environ["RANK"]),
                            world_size=int(os.environ["WORLD_SIZE"]))
    run(dist.get_rank(), dist.get_world_size(), options.value)
    dist.destroy_process_group()
    sys.exit(0)
"""


@pytest.mark.parametrize(
    ("command", "printed", "error"),
    [
        (["check", "01_nowhere.ipynb"], r"2 \[]\n", "01_nowhere.ipynb: the file cannot be opened"),
        (["practice", "status"], r"(?s).* \[]\n", ""),
    ],
)
def test_commands_do_without_what_takes_long_to_import(command, printed, error, tmp_path):
    program = (
        f"import sys\nfrom simlib.cli import main\nprint(main({command}), "
        "sorted({'torch', 'numpy', 'matplotlib', 'IPython', 'nbformat'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path
    )
    assert re.fullmatch(printed, done.stdout) and error in done.stderr, done.stderr


INTERRUPTED = """
import signal, sys

class CtrlC:
    def find_spec(name, path=None, target=None):
        if name == "{module}":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, CtrlC)
"""


@pytest.mark.parametrize("module", ["simlib._names", "simlib.cluster", "torch"])
def test_ctrl_c_while_the_command_imports_is_one_line(module, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED.format(module=module))
    done = in_a_process(tmp_path)
    assert (done.returncode, done.stderr) == (130, "simlib: stopped by hand\n")


def test_the_server_does_not_hear_ctrl_c_while_it_imports(tmp_path):
    module = "simlib.core.engines.workers.preload"  # which only the server imports
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED.format(module=module))
    done = in_a_process(tmp_path)
    assert done.returncode == 0 and "KeyboardInterrupt" not in done.stderr, done.stderr


SERVER_MEETS_COMMAND = """
import os, signal, sys

here = os.path.dirname(__file__)

class Meet:
    def find_spec(name, path=None, target=None):
        if name == "simlib.core.engines.workers.preload":  # which only the server imports
            with open(f"{here}/pipe", "w") as pipe:
                pipe.write(str(os.getpid()))
            signal.pause()
        if name == "torch":
            with open(f"{here}/pipe") as pipe, open(f"{here}/pid", "w") as file:
                file.write(pipe.read())

sys.meta_path.insert(0, Meet)
"""


def test_the_server_ends_with_a_call_that_is_refused_after_the_imports(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(SERVER_MEETS_COMMAND)
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, "-m", "simlib", "run", "-n", "1", "--backend", "none", __file__]
    path = {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=os.environ | path, stderr=subprocess.DEVNULL)
    server = int((tmp_path / "pid").read_text())
    try:
        assert done.returncode == ExitCode.USAGE and not psutil.pid_exists(server)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)


def in_a_process(folder):
    """What the command makes of a small script, where Python finds the modules of a folder."""
    script = folder / "nothing.py"
    script.write_text("print('done')")
    return subprocess.run(
        [sys.executable, "-m", "simlib", "run", "-n", "2", script],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(folder)},
    )


def test_names_of_simlib_are_there_though_they_are_imported_late():
    program = """
import sys, simlib
assert "torch" not in sys.modules
assert set(simlib.__all__) <= set(dir(simlib)) and not hasattr(simlib, "nothing_of_the_kind")
space = {}
exec("from simlib import *", space)
assert set(simlib.__all__) <= set(space)
"""
    for first in (
        "",
        "import simlib.facade",
        "from simlib import clusters, run",
        "import simlib.checks",
    ):
        late = program if not first else first + program.replace('assert "torch" not', "#")
        subprocess.run([sys.executable, "-c", late], check=True)


@pytest.fixture
def script(tmp_path):
    (tmp_path / "helper.py").write_text("SCALE = 2.0\n")
    path = tmp_path / "ptdist.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return path


def simlib(*args, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "simlib", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
    )


def test_a_script_runs_unchanged_with_its_arguments(script, tmp_path):
    trace = tmp_path / "trace.json"
    done = simlib("run", "-n", 3, "--trace", trace, script, "--value", "4")
    assert done.returncode == 0, done.stderr
    assert "[1] received 8.0" in done.stdout
    assert "ptdist.py, line 9" in done.stdout
    assert json.loads(trace.read_text())["traceEvents"]


SAYS = "import os, sys\nprint(*(os.environ[n] for n in sys.argv[1:]), flush=True)\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run --standalone --nnodes 1 --nproc-per-node 2 -m pkg.says LOCAL_RANK", ["0", "1"]),
        ("run --nnodes=1:1 --nproc_per_node=2 --max_restarts 1 pkg/says.py RANK", ["0", "1"]),
        (
            "simulate --nnodes 2 --nproc-per-node 1 pkg/says.py LOCAL_RANK GROUP_RANK",
            ["0 0", "0 1"],
        ),
    ],
)
def test_a_call_is_understood_as_by_torchrun(words, said, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "says.py").write_text(SAYS)
    command, *rest = words.split()
    assert main([command, "--quiet", *rest]) == 0
    found = sorted(capfd.readouterr().out.splitlines())
    assert found == [f"[{rank}] {text}" for rank, text in enumerate(said)]


@pytest.mark.parametrize(
    ("text", "gpus", "ranks"),
    [("3", 8, 3), ("cpu", 8, 5), ("gpu", 8, 8), ("auto", 8, 8), ("auto", 0, 5)],
)
def test_ranks_are_counted_as_torchrun_counts_them(text, gpus, ranks, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    assert _parser().parse_args(["run", "--nproc-per-node", text, "x.py"]).n == ranks


@pytest.mark.parametrize("command", ["run", "simulate"])
def test_a_module_runs_by_its_name_with_relative_imports(tmp_path, command):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "other.py").write_text("VALUE = 3")
    (tmp_path / "pkg" / "train.py").write_text("from .other import VALUE\nprint(VALUE, __name__)")
    words = [command, "-n", "2", "--quiet", "--seed", "new", "-m", "pkg.train"]
    done = simlib(*words, cwd=tmp_path)
    assert sorted(done.stdout.splitlines()) == ["[0] 3 __main__", "[1] 3 __main__"]
    assert re.search(r"--seed \d+ repeats the random numbers", done.stderr)


def test_a_script_is_simulated_on_the_network_that_is_named(script):
    done = simlib("simulate", "-n", 3, "--network", "ethernet_1g", script, "--value", "4")
    assert done.returncode == 0, done.stderr
    assert "[1] received 8.0" in done.stdout
    assert "ptdist.py on 3 simulated ranks: 1 message, 4 bytes" in done.stdout
    # 50 us, and 4 bytes at 125 MB/s.
    assert done.stdout.splitlines()[-1] == "virtual time: 50.032 us"


@pytest.mark.parametrize("command", ["run", "simulate"])
def test_a_script_that_loses_a_rank_goes_on_with_the_others(tmp_path, command):
    path = tmp_path / "loses.py"
    path.write_text(
        "import os\nimport torch.distributed as dist\n"
        "count = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "if os.environ['RANK'] == '1' and count == '0':\n    os._exit(9)\n"
        "dist.init_process_group()\ndist.barrier()\n"
        "print('attempt', count, 'of', dist.get_world_size())\n"
    )
    done = simlib(command, "-n", 3, "--restarts", 1, "--min-ranks", 2, path)
    assert done.returncode == 0, done.stderr
    assert "[1] attempt 1 of 2" in done.stdout
    assert simlib(command, "-n", 3, path).returncode != 0


WAITS = "import torch, torch.distributed as dist\ndist.init_process_group()\n"
ENDS = [
    ("", ExitCode.OK, ""),
    (
        f"{WAITS}dist.recv(torch.ones(1), src=1 - dist.get_rank())",
        ExitCode.WRONG_PROGRAM,
        "ranks 0 and 1 wait for each other",
    ),
    (f"{WAITS}dist.send(torch.ones(1), dst=7)", ExitCode.WRONG_PROGRAM, "7"),
    (
        "import os\nif os.environ['RANK'] == '1':\n    raise ValueError('lost')",
        ExitCode.RANK_FAILED,
        "rank 1 raised ValueError: lost (script.py, line 3)",
    ),
    (
        "import sys\nsys.exit(4)",
        ExitCode.RANK_FAILED,
        "ranks 0 and 1 called sys.exit(4) (script.py, line 2)",
    ),
    ("while True:\n    pass", ExitCode.TIMEOUT, "script.py, line"),
]


@pytest.mark.parametrize(("text", "code", "told"), ENDS)
def test_the_exit_code_says_how_a_script_ended(text, code, told, tmp_path, capfd):
    path = tmp_path / "script.py"
    path.write_text(text)
    assert main(["simulate", "-n", "2", "--timeout", "1", str(path)]) == code
    said = capfd.readouterr().err
    assert told in said and "runpy" not in said


def test_a_finding_is_a_failure_only_if_asked(tmp_path, capfd):
    path = tmp_path / "script.py"
    path.write_text(f"{WAITS}if dist.get_rank() == 0:\n    dist.isend(torch.ones(1), dst=1)")
    words = ["-n", "2", "--quiet", str(path)]
    assert main(["simulate", *words]) == ExitCode.OK
    assert main(["simulate", "--strict", *words]) == ExitCode.WRONG_PROGRAM
    assert capfd.readouterr().err.count("was never received") == 2


def test_the_exit_code_of_real_ranks_and_the_line_that_is_told(tmp_path, capfd):
    path = tmp_path / "script.py"
    path.write_text("import sys\nsys.exit(4)\n")
    assert main(["run", "-n", "2", str(path)]) == ExitCode.RANK_FAILED
    assert capfd.readouterr().err.endswith("line 2)\n    sys.exit(4)\n")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.RaceError(""), ExitCode.WRONG_PROGRAM),
        (errors.MismatchError(""), ExitCode.WRONG_PROGRAM),
        (errors.InvalidCallError("", run="a run"), ExitCode.WRONG_PROGRAM),
        (errors.InvalidCallError(""), ExitCode.USAGE),
        (errors.RankDiedError(""), ExitCode.RANK_FAILED),
        (errors.OutOfMemoryError(""), ExitCode.RANK_FAILED),
        (errors.DeadlockError("", graph="a graph"), ExitCode.WRONG_PROGRAM),
        (errors.DeadlockError(""), ExitCode.TIMEOUT),
        (errors.StuckError(""), ExitCode.TIMEOUT),
        (errors.JobTimeLimitError(""), ExitCode.TIMEOUT),
        (errors.JobError(""), ExitCode.NOT_RUN),
        (errors.SimlibError("the processes could not be started"), ExitCode.NOT_RUN),
        (errors.RunInterrupted(""), ExitCode.INTERRUPTED),
    ],
)
def test_each_kind_of_error_has_its_exit_code(error, code):
    assert exit_code_of(error) is code


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("run", "-n", 2, "no_such.py"), "there is no file no_such.py"),
        (("run", "-n", 2, "-m", "simlib.no_such"), "there is no module simlib.no_such here"),
        (("run", "-n", 2, "-m", "x.py"), "-m needs a module's name: write -m x, or leave -m out"),
        (("run", "-n", "two", "x.py"), "two must be a number of ranks, or cpu, gpu or auto"),
        (("run", "-n", 0, __file__), "whole number from 1 to 64"),
        (("run",), "required: -n/--nproc-per-node/--nproc_per_node, script\n"),
        (("submit",), "required: -n, script\n"),
        (("run", "-n", 2, "--nnodes", 2, __file__), "run starts ranks on this machine only"),
        (("run", "-n", 2, "--nnodes", "1:4", __file__), "1:4 must be a whole number"),
        (("fly",), "invalid choice"),
        (
            ("submit", "-n", 2, "--fly", "x.py"),
            "simlib submit: error: unrecognized arguments: --fly",
        ),
        (("run", "-n", 2, "--every", 5, __file__), "--every 5 needs --watch"),
        (("simulate", "-n", 3, "--network", "pigeons", __file__), "'pigeons' (choose from"),
        (("simulate", "-n", 3, "--network", "pigeons", __file__), "ethernet_1g"),
    ],
)
def test_wrong_calls(args, words, capsys):
    try:
        code = main(list(map(str, args)))
    except SystemExit as end:
        code = end.code
    assert code == 2 and words in capsys.readouterr().err


def test_the_version(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0 and capsys.readouterr().out == f"simlib {VERSION}\n"


@pytest.mark.parametrize("words", [["--help"], ["run"], ["jobs"], ["play", "nowhere.json"]])
def test_nothing_is_coloured_with_no_color_or_where_it_is_piped(words, tmp_path):
    command = [sys.executable, "-m", "simlib", *words]
    wishes = {"TERM": "xterm-256color"}
    piped = subprocess.run(command, cwd=tmp_path, capture_output=True, env=os.environ | wishes)
    assert b"\x1b" not in piped.stdout + piped.stderr
    ours, terminal = pty.openpty()
    with open(ours, "rb", buffering=0) as screen:
        with open(terminal, "wb", buffering=0) as end:
            wishes["NO_COLOR"] = "1"
            subprocess.run(command, cwd=tmp_path, stdout=end, stderr=end, env=os.environ | wishes)
        said = screen.read(4000)
    assert said and b"\x1b" not in said


def test_a_verdict_is_not_coloured_on_a_terminal(tmp_path, monkeypatch, capsys):
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    path = tmp_path / "script.py"
    path.write_text(f"{WAITS}dist.recv(torch.ones(1), src=1 - dist.get_rank())")
    assert main(["simulate", "-n", "2", str(path)]) == ExitCode.WRONG_PROGRAM
    said = capsys.readouterr()
    assert "wait for each other" in said.err and "\x1b" not in said.out + said.err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("simlib sim", ["simulate"]),
        ("simlib simulate --netw", ["--network"]),
        ("simlib simulate -n 2 --network ethernet_10", ["ethernet_10g", "ethernet_100g"]),
        ("simlib simulate --compute m", ["measured"]),
        ("simlib run -n 2 tr", ["train.py"]),
        ("simlib result train", ["train-1", "train-2"]),
    ],
)
def test_a_shell_completes_the_command(line, words, tmp_path):
    pytest.importorskip("argcomplete")
    (tmp_path / "train.py").touch()
    for name in ("train-1", "train-2"):
        (tmp_path / "simlib-jobs" / name).mkdir(parents=True)
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_SHELL": "bash",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": "completions",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    command = [sys.executable, "-X", "importtime", "-m", "simlib"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, env=os.environ | asked)
    found = (tmp_path / "completions").read_text().split("\n")
    assert sorted(word.strip() for word in found) == sorted(words)
    assert b" torch\n" not in done.stderr

"""What ranks need before they begin: the lines of a shell, variables, cores, a container."""

import json
import os
import re
import resource
import signal
import subprocess
import sys

import pytest
import torch
from jobs import WAIT_S, failure, processes_of, wait_until

import simlib
from simlib.cluster.batch.failures import refusal_in
from simlib.cluster.batch.folder import JobFolder
from simlib.cluster.batch.mpiexec import Resources

HOST = os.uname().nodename


def submitted(function, ranks, tmp_path, **needs):
    to = simlib.Mpiexec(time_limit=WAIT_S, **needs)
    return simlib.submit(function, ranks, to=to, folder=tmp_path / "jobs")


def test_a_job_finds_what_it_needs(tmp_path):
    """Lines see the variables, and what one has set the next one has, and the ranks."""

    def main(rank, world_size):
        names = "FIRST", "SECOND", "IN_CONTAINER"
        return [*(os.environ.get(name) for name in names), os.getcwd(), torch.get_num_threads()]

    place = tmp_path / "place"
    place.mkdir()
    text = "it's $HOME; `no`"
    job = submitted(
        main, 2, tmp_path, env={"FIRST": text}, working_dir=place, cpus_per_rank=3,
        setup=["export SECOND=\"$FIRST\"'!'", "SECOND=$SECOND$SECOND; cd /tmp"],
        container=["env", "IN_CONTAINER=yes"],
    )  # fmt: skip
    assert job.result(WAIT_S).results == [[text, f"{text}!" * 2, "yes", str(place), 3]] * 2


SEEN = f"torch sees {torch.cuda.device_count()} GPUs on {HOST}, but 2 ranks there need 1000"
LINE = f"could not be carried out: {HOST} could not carry out the line"


@pytest.mark.parametrize(
    ("needs", "said"),
    [
        (
            {"setup": ["A=1", "module_of_course load gcc", "echo not reached"]},
            f"{LINE} 'module_of_course load gcc' of setup .exit code 127.*: command not found",
        ),
        (
            {"container": "no-such-apptainer exec x.sif"},
            "has no command no-such-apptainer, which container= names",
        ),
        ({"working_dir": "/no/such/folder"}, "does not see the folder /no/such/folder"),
        ({"gpus_per_rank": 500}, SEEN),
    ],
    ids=["line", "container", "folder", "GPUs"],
)
def test_what_a_host_does_not_have_is_told(tmp_path, needs, said):
    job = submitted(lambda rank, size: 0, 2, tmp_path, **needs)
    error = failure(job)
    assert isinstance(error, simlib.JobError)
    assert re.search(said, str(error)), error
    wait_until(lambda: not processes_of(job))


CONDA = """\
#!/bin/sh
if [ "$*" = shell.bash\\ hook ]; then
    echo 'conda() { export ACTIVE="$2"; }'
else
    echo "CondaError: Run 'conda init' before 'conda activate'" >&2
    exit 1
fi
"""


def test_conda_activates_though_it_was_only_put_on_the_path(tmp_path):
    """As `module load` does it; the program alone refuses to activate, in a script."""
    program = tmp_path / "bin" / "conda"
    program.parent.mkdir()
    program.write_text(CONDA)
    program.chmod(0o755)
    done = run_by_hand(
        tmp_path,
        Resources(setup=[f"export PATH={program.parent}:$PATH", "conda activate course"]),
        "import os; print(os.environ['ACTIVE'])",
    )
    assert (done.stdout, done.stderr) == ("course\n", "")


def test_values_of_variables_are_in_no_command_line(tmp_path):
    """Everybody on a host may read those. Without needs there is no shell."""
    needs = Resources(env={"TOKEN": "secret"})
    assert needs.program() == ["sh"]
    done = run_by_hand(tmp_path, needs, "import os; print(os.environ['TOKEN'])")
    assert done.stdout == "secret\n"
    assert Resources(cpus_per_rank=2, working_dir="~/x").program() == [sys.executable]
    assert Resources().write_start(JobFolder(tmp_path / "main-1")).name == "start.py"


def written(tmp_path, needs, files):
    """Make a job's folder, with further files; returns the file to start."""
    path = tmp_path / "main-1"
    path.mkdir(0o700)
    script = needs.write_start(JobFolder(path))
    for name, content in files.items():
        (path / name).write_text(content)
    return script


def started_by_hand(tmp_path, needs, program, **files):
    """What a launcher would start, with another program in the place of ``start.py``."""
    script = written(tmp_path, needs, {"start.py": program, **files})
    return subprocess.Popen(
        [*needs.program(), script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def run_by_hand(*what, **files):
    """The same, run to its end."""
    process = started_by_hand(*what, **files)
    out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def refused_in(tmp_path):
    """Why there can be no rank; None where nobody has said so. No draft of it is left."""
    assert not list((tmp_path / "main-1").glob(".refused*"))
    return JobFolder(tmp_path / "main-1").text("refused") or None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_line_that_somebody_ends_from_outside_gives_no_reason(tmp_path, number):
    """As a launcher does when another host has failed: that one's reason counts."""
    # A shell of its own ends at once; the first one may be between two commands.
    needs = Resources(setup=[f"sh -c 'touch {tmp_path}/begun; exec sleep 1000'"])
    process = started_by_hand(tmp_path, needs, "")
    wait_until((tmp_path / "begun").exists)
    os.killpg(process.pid, number)
    process.communicate()
    assert process.returncode == 1
    assert refused_in(tmp_path) is None and not (tmp_path / "main-1" / "end").exists()


@pytest.mark.parametrize(
    ("line", "files", "reason"),
    [
        (
            "echo 'no module gcc' >&2; false", {},
            f"{HOST} could not carry out the line 'echo 'no module gcc' >&2; false' of setup "
            "(exit code 1): no module gcc",
        ),
        (
            "exit 3", {},
            f"{HOST} could not carry out the line 'exit 3' of setup (exit code 3): the line "
            "printed nothing",
        ),
        ("false", {"refused": "node1 was first"}, "node1 was first"),
        ("false", {"end": ""}, None),  # the job ends anyhow
    ],
)  # fmt: skip
def test_a_line_that_fails_is_told_with_its_words_and_the_first_reason_stays(
    tmp_path, line, files, reason
):
    assert run_by_hand(tmp_path, Resources(setup=[line]), "", **files).returncode == 1
    assert refused_in(tmp_path) == reason
    assert (tmp_path / "main-1" / "end").exists()


@pytest.mark.parametrize("first", [{}, {"refused": "node1 was first"}])
def test_start_py_keeps_the_first_reason(tmp_path, first):
    about = {"versions": {"Python": "2.7.0"}}
    start = written(tmp_path, Resources(), {"job.json": json.dumps(about), **first})
    assert subprocess.run([sys.executable, start]).returncode == 1
    reason = refused_in(tmp_path)
    assert reason == first["refused"] if first else "has Python 2.7.0" in reason


@pytest.mark.parametrize(
    ("setup", "words"),
    [((), "has Python 2.7.0"), (["false"], "out the line 'false' of setup")],
)
def test_what_the_folder_does_not_take_is_told_to_the_launcher(tmp_path, setup, words):
    needs, about = Resources(setup=setup), {"versions": {"Python": "2.7.0"}}
    start = written(tmp_path, needs, {"job.json": json.dumps(about)})
    done = subprocess.run(
        [*needs.program(), start], capture_output=True, text=True, restore_signals=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    )  # fmt: skip
    assert done.returncode == 1
    told = refusal_in(done.stderr)
    assert told.startswith(HOST) and words in told


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        ({"setup": "module load gcc"}, r"must be a list of lines: setup=\['module load gcc'\]"),
        ({"setup": [""]}, "setup has '', which is not a line of shell code"),
        ({"env": ["A=1"]}, r"env=\['A=1'\] must be a dict"),
        ({"env": {"A B": "1"}}, "env has the name 'A B'"),
        ({"env": {"A": 1}}, r"env\['A'\]=1 must be a str: '1'"),
        ({"cpus_per_rank": 0}, "cpus_per_rank is 0: give a whole number of at least 1"),
        ({"gpus_per_rank": "1"}, "gpus_per_rank is '1': give a whole number of at least 1"),
        ({"container": "apptainer exec 'x"}, r"container=.* must be a command.*No closing quot"),
        ({"login": 3}, "login=3 must be a command: one string, as in a shell, or a list of"),
        ({"extra": 3}, r"extra=3 must be an option, or a list of options: extra=\['--exclusive"),
        ({"extra": ["--nice", 3]}, r"extra=\['--nice', 3\] must be an option, or a list of"),
        ({"memory": "4 gigs"}, "memory='4 gigs' must be a whole number followed by K, M"),
    ],
)
def test_needs_that_can_never_be_right(needs, words):
    with pytest.raises(simlib.InvalidCallError, match=words):
        simlib.Slurm(nodes=1, **needs)


def test_what_mpiexec_cannot_take():
    with pytest.raises(simlib.InvalidCallError, match="launcher=.* must be a command: one str"):
        simlib.Mpiexec(launcher="mpiexec 'x")
    with pytest.raises(simlib.InvalidCallError, match="mpiexec cannot limit memory"):
        simlib.Mpiexec(memory="4G")

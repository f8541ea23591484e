"""What Slurm's commands are asked, and what is made of their answers; a program stands for them."""

import json
import shlex
import sys

import pytest
from jobs import start

import simlib
from simlib.cluster.batch import state
from simlib.cluster.batch.batch_system import QueueError
from simlib.cluster.batch.folder import JobFolder
from simlib.cluster.batch.mpiexec import LAUNCH
from simlib.cluster.batch.slurm import SlurmScheduler
from simlib.cluster.batch.state import JobInQueue

FAKE = """\
import json, pathlib, sys
folder = pathlib.Path(__file__).parent
with open(folder / "asked", "a") as file:
    print(json.dumps(sys.argv[1:]), file=file)
answer = json.loads((folder / "answers").read_text())[sys.argv[1]]
print(answer, end="", file=sys.stderr if answer.startswith("!") else sys.stdout)
sys.exit(answer.startswith("!"))
"""


class Slurm:
    """Stands for a login host: answers as it is told, and keeps what it was asked."""

    def __init__(self, folder):
        self._folder = folder
        (folder / "login.py").write_text(FAKE)
        self.login = [sys.executable, str(folder / "login.py")]
        self.answers()

    def answers(self, sbatch="7\n", squeue="PD:Priority\n", scancel=""):
        answers = {"sbatch": sbatch, "squeue": squeue, "scancel": scancel}
        (self._folder / "answers").write_text(json.dumps(answers))

    def asked(self, command):
        lines = (self._folder / "asked").read_text().splitlines()
        return [words[1:] for words in map(json.loads, lines) if words[0] == command]


@pytest.fixture
def slurm(tmp_path):
    return Slurm(tmp_path)


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "main-1"
    path.mkdir()
    return JobFolder(path)


@pytest.fixture
def queued(slurm, folder, monkeypatch):
    """A job that Slurm has, asked anew at every look."""
    monkeypatch.setattr(state, "POLL_S", -1)
    start(simlib.Slurm(nodes=2, login=slurm.login), folder)
    return JobInQueue(folder)


def test_what_sbatch_is_asked(slurm, folder):
    """Memory and GPUs are a node's: each rank sees all GPUs, and takes number LOCAL_RANK."""
    to = simlib.Slurm(
        nodes=2, ranks_per_node=3, partition="short", account="course", time_limit=61,
        extra=("--exclusive",), login=shlex.join(slurm.login),
        cpus_per_rank=4, gpus_per_rank=1, memory="3G",
    )  # fmt: skip
    start(to, folder)
    (words,) = slurm.asked("sbatch")
    assert {
        "--job-name=main-1", f"--chdir={folder.path}", "--nodes=2", "--ntasks=6",
        "--ntasks-per-node=3", "--partition=short", "--account=course",
        "--time=3",  # two whole minutes, and one more than our own limit
    } < set(words)  # fmt: skip
    needs = ["--cpus-per-task=4", "--gpus-per-node=3", "--mem=9G"]
    assert words[-5:] == [*needs, "--exclusive", str(folder.file("batch.sh"))]
    assert (
        folder.text("batch.sh").splitlines()[-1].endswith(f"-I {shlex.quote(LAUNCH)} {folder.path}")
    )
    native = {"scheduler": "slurm", "id": "7", "login": slurm.login}
    assert folder.read_json("native.json") == native


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("sbatch: error: invalid partition specified: gpu", "there is no such partition"),
        ("sbatch: error: it is monday", "the queue gives this reason"),
        ("sbatch: error: Invalid generic resource (gres) specification", "no node has the"),
        ("sbatch: error: Batch job failed: Invalid feature specification", "no node has the"),
        ("sbatch: unrecognized option '--frobnicate'\nTry ...", "sbatch has no such option"),
        ("sbatch: invalid option -- 'Z'\nTry ...", "sbatch has no such option"),
        ("sbatch: option '--exc=1' is ambiguous; possibilities: ...", "sbatch has no such option"),
        (
            "sbatch: error: Invalid --time specification",
            "an option has a value that Slurm does not",
        ),
        (
            'sbatch: error: "a" is not a valid node count',
            "an option has a value that Slurm does not allow",
        ),
        ("sbatch: error: Invalid node name specified", "there is no such node"),
        (
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller "
            "(connect failure)",
            "Slurm's controller does not answer",
        ),
        ("sbatch: error: resolve_ctls_from_dns_srv: ...", "is not in a Slurm cluster"),
        ("ssh: connect to host login port 22: Connection refused", "but runs no ssh server"),
    ],
)
def test_what_sbatch_refuses(slurm, folder, said, words):
    """Our sentence, and its own first line below."""
    slurm.answers(sbatch=f"!{said}")
    with pytest.raises(simlib.JobError) as caught:
        start(simlib.Slurm(nodes=1, login=slurm.login), folder)
    sentence, line = str(caught.value).splitlines()
    assert sentence.startswith("the queue has refused the job: ") and words in sentence
    assert line == f"    !{said.splitlines()[0]}"


def test_one_option_may_be_given_as_a_text():
    for extra in ("--exclusive", ("--exclusive",), ["--exclusive"]):
        assert simlib.Slurm(nodes=1, extra=extra).extra == ("--exclusive",)


def test_a_job_whose_number_there_is_no_room_to_keep_is_taken_back(slurm, folder, monkeypatch):
    def no_room(self, value, name):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(JobFolder, "write_json", no_room)
    with pytest.raises(OSError, match="No space left"):
        start(simlib.Slurm(nodes=1, login=slurm.login), folder)
    assert slurm.asked("scancel") == [["--quiet", "7"]]


def test_a_command_that_does_not_answer(slurm):
    program = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(QueueError, match="squeue has not answered for 0.1 s"):
        SlurmScheduler(program).run("squeue", timeout=0.1)


NO_SBATCH = "this machine has no sbatch: submit from a host of the cluster that has Slurm"


def test_without_slurm_here_or_on_the_login_host(slurm, folder, monkeypatch, tmp_path):
    for said in ("bash: line 1: sbatch: command not found", "sbatch: not found"):
        slurm.answers(sbatch=f"!{said}")
        with pytest.raises(simlib.JobError, match=NO_SBATCH):
            start(simlib.Slurm(nodes=1, login=slurm.login), folder)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(simlib.JobError, match=NO_SBATCH):
        start(simlib.Slurm(nodes=1), folder)


@pytest.mark.parametrize(
    ("said", "state", "reason"),
    [
        ("PD:Priority", "queued", "other jobs come before this job"),
        ("PD:None", "queued", ""),
        (
            "PD:ReqNodeNotAvail, UnavailableNodes:node2",
            "queued",
            "the queue says 'ReqNodeNotAvail, UnavailableNodes:node2'. The job may wait forever",
        ),
        ("R:None", "active", ""),
        ("CG:None", "active", ""),
        ("CD:None", "done", ""),
        ("TO:TimeLimit", "failed", "'TimeLimit'"),
        ("CA:None", "cancelled", ""),
        ("", "done", ""),
        ("!slurm_load_jobs error: Invalid job id specified", "done", ""),
    ],
)
def test_what_squeue_says(slurm, queued, said, state, reason):
    slurm.answers(squeue=said)
    assert queued.state() == state
    assert reason in queued.reason() if reason else queued.reason() == ""


def test_a_queue_that_gives_no_answer(slurm, queued):
    """Its controller may start anew: a job is not given up at once, and not for ever."""
    assert queued.state() == "queued"
    slurm.answers(squeue="!Unable to contact slurm controller")
    states = [queued.state() for _ in range(state.FAILURES)]
    assert states == ["queued"] * (state.FAILURES - 1) + ["failed"]
    assert "Unable to contact slurm controller" in queued.words()
    slurm.answers(squeue="R:None")
    assert queued.state() == "active"


def test_how_often_squeue_is_asked(slurm, queued, monkeypatch):
    """Once a second, and about a job that is over no more."""
    monkeypatch.setattr(state, "POLL_S", 1000)
    assert [queued.state() for _ in range(3)] == ["queued"] * 3
    assert queued.reason() and len(slurm.asked("squeue")) == 1
    monkeypatch.setattr(state, "POLL_S", -1)
    again = JobInQueue(queued._folder)
    for said in ("CA:None", ""):
        slurm.answers(squeue=said)
        assert again.state() == "cancelled"
    again.cancel()
    assert len(slurm.asked("squeue")) == 2


def test_cancel(slurm, queued):
    queued.cancel()
    assert slurm.asked("scancel") == [["--quiet", "7"]]
    slurm.answers(scancel="!Access/permission denied")
    with pytest.raises(simlib.JobError, match="has not cancelled main-1: .*\n.*permission denied"):
        queued.cancel()


def test_a_job_that_no_queue_has_or_one_that_nobody_knows(folder):
    queued = JobInQueue(folder)
    queued.cancel()
    assert (queued.state(), queued.words(), queued.reason()) == (None, "", "")
    folder.write_json({"scheduler": "lsf", "id": "7", "login": []}, "native.json")
    with pytest.raises(simlib.InvalidCallError, match="is a job of the scheduler 'lsf', which"):
        JobInQueue(folder)

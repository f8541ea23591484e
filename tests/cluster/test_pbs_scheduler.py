"""PBS by a stand-in for its commands, which behaves as OpenPBS's manuals say."""

import sys
import time

import pytest
from jobs import WAIT_S, failure, processes_of, start, wait_until

import simlib
from simlib.cluster.batch import state
from simlib.cluster.batch.batch_system import QueueError
from simlib.cluster.batch.folder import JobFolder
from simlib.cluster.batch.pbs import PbsScheduler

STAND_IN = '''
import json, os, pathlib, re, subprocess, sys, time
place = pathlib.Path(__file__).parent
command, *words = sys.argv[1:]

def fail(text, code):
    sys.exit((print(text, file=sys.stderr), code)[1])

def job(number):
    path = place / number
    if not path.exists():
        fail(f"{command}: Unknown Job Id {number}", 153)
    return json.loads(path.read_text())

def keep(number, known):
    (place / number).write_text(json.dumps(known))

def is_over(known):
    """Its process writes its exit code down when it ends."""
    ended = pathlib.Path(known.get("pid_file", "/nowhere") + ".code")
    if ended.exists() and known["job_state"] == "R":
        known |= {"job_state": "F", "Exit_status": ended.read_text().strip()}
        known["substate"] = "92" if known["Exit_status"] == "0" else "93"
    return known["job_state"] == "F"

if command == "qsub":
    *options, script = words
    (place / "asked").write_text(json.dumps(options))
    if "-q" in options and options[options.index("-q") + 1] != "workq":
        fail("qsub: Unknown queue", 170)
    number = "123.server"
    known = {"Job_Name": options[options.index("-N") + 1], "job_state": "Q", "substate": "10"}
    known["comment"] = "Not Running: Insufficient amount of resource: ncpus (R: 64 A: 2 T: 2)"
    known["script"], known["err"] = script, options[options.index("-e") + 1]
    keep(number, known)
    print(number)
elif command == "begin":  # no command of PBS: its scheduler does it
    known = job(*words)
    known |= {"job_state": "R", "substate": "42", "comment": "Job run at Wed Nov 25 at 10:00"}
    known["pid_file"] = str(place / "process")
    nodes = place / "nodes"
    nodes.write_text((os.uname().nodename + "\\\\n") * 2)
    environ = {**os.environ, "PBS_JOBID": words[0], "PBS_NODEFILE": str(nodes)}
    shell = f'sh {known["script"]}; echo $? > {known["pid_file"]}.code'
    with open(known["err"], "w") as err:
        process = subprocess.Popen(
            ["sh", "-c", shell], stderr=err, stdout=err, env=environ, start_new_session=True
        )
    pathlib.Path(known["pid_file"]).write_text(str(process.pid))
    keep(words[0], known)
elif command == "qstat":
    assert words[:2] == ["-x", "-f"], words
    known = job(words[2])
    is_over(known)
    print(f"Job Id: {words[2]}")
    for name in ("Job_Name", "job_state", "substate", "comment", "Exit_status"):
        if name in known:
            line = f"    {name} = {known[name]}"
            print("\\\\n\\\\t".join(line[at:at + 40] for at in range(0, len(line), 40)))
    print()
elif command == "qdel":
    known = job(*words)
    if is_over(known):
        fail(f"qdel: Job has finished {words[0]}", 35)
    if known["job_state"] == "R":
        import signal
        with open(known["pid_file"]) as file:
            os.killpg(int(file.read()), signal.SIGTERM)
    keep(words[0], known | {"job_state": "F", "substate": "91", "Exit_status": "271"})
'''


class Pbs:
    """Stands for a login host of a cluster with PBS; a job begins when `begin` is called."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        path = folder / "pbs.py"
        path.write_text(STAND_IN.replace("\\\\", "\\"))
        self.login = [sys.executable, str(path)]

    def begin(self):
        PbsScheduler(self.login).run("begin", "123.server")


@pytest.fixture
def pbs(tmp_path, monkeypatch):
    monkeypatch.setattr(state, "POLL_S", -1)
    return Pbs(tmp_path / "pbs")


def submitted(pbs, tmp_path, function, **options):
    to = simlib.Pbs(nodes=1, ranks_per_node=2, time_limit=WAIT_S, login=pbs.login, **options)
    return simlib.submit(function, 2, to=to, folder=tmp_path / "jobs")


def test_a_job_waits_runs_and_is_over(pbs, tmp_path):
    job = submitted(pbs, tmp_path, lambda rank, size: rank * 10, env={"A": "1"}, setup=["B=$A"])
    assert job.status == "queued"
    with pytest.raises(TimeoutError, match="Insufficient amount of resource: ncpus .R: 64 A: 2"):
        job.result(0)
    pbs.begin()
    assert job.result(WAIT_S).results == [0, 10]
    assert simlib.Job(job.path).status == "done"
    job.cancel()  # what is over stays as it is
    assert job.status == "done"
    assert PbsScheduler(pbs.login).ask("123.server").state == "done"


@pytest.mark.parametrize("runs", [False, True])
def test_a_job_is_cancelled_in_the_queue_and_while_it_runs(pbs, tmp_path, runs):
    job = submitted(pbs, tmp_path, lambda rank, size: time.sleep(1000))
    if runs:
        pbs.begin()
        wait_until(lambda: (job.path / "rank-1.json").exists())
    job.cancel()
    assert job.status == simlib.Job(job.path).status == "cancelled"
    assert "was cancelled" in str(failure(job))
    wait_until(lambda: not processes_of(job))


def test_what_qsub_is_asked(pbs, tmp_path):
    folder = JobFolder(tmp_path / "a_function_with_a_long_name-1")
    folder.path.mkdir()
    to = simlib.Pbs(
        nodes=2, ranks_per_node=3, partition="workq", account="course", time_limit=3601,
        extra=["-M", "me@x"], cpus_per_rank=2, gpus_per_rank=1, memory="2G", login=pbs.login,
    )  # fmt: skip
    start(to, folder)
    asked = (pbs.folder / "asked").read_text()
    for words in (
        '"-N", "a_function_with"',
        '"-l", "select=2:ncpus=6:mpiprocs=3:ngpus=3:mem=6gb", "-l", "place=scatter"',
        '"-l", "walltime=01:02:00"',
        '"-q", "workq", "-A", "course", "-M", "me@x"',
        f'"-e", "{folder.file("batch.err")}"',
    ):
        assert words in asked
    native = {"scheduler": "pbs", "id": "123.server", "login": pbs.login}
    assert folder.read_json("native.json") == native


def test_what_is_refused(pbs, tmp_path, monkeypatch):
    """By qsub, by a machine that has none, and by ourselves."""
    with pytest.raises(simlib.JobError, match="PBS has no such queue: qstat -q lists"):
        submitted(pbs, tmp_path, print, partition="gpu")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(simlib.JobError) as caught:
        start(simlib.Pbs(nodes=1), JobFolder(tmp_path))
    first, said = str(caught.value).splitlines()
    assert first == (
        "this machine has no qsub: submit from a host of the cluster that has PBS, or name such a "
        'host: login="ssh HOST"'
    )
    assert said.strip() == "[Errno 2] No such file or directory: 'qsub'"
    with pytest.raises(simlib.InvalidCallError, match="launcher='srun' must be 'mpiexec'"):
        simlib.Pbs(nodes=1, launcher="srun")


class Answers(PbsScheduler):
    """Its commands answer what they are told to."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def run(self, *words, **options):
        if isinstance(self.answer, str):
            return self.answer
        raise self.answer


@pytest.mark.parametrize(
    ("letter", "more", "state"),
    [
        ("Q", "comment = Can Never Run: no node", "queued"),
        ("H", "", "queued"),
        ("W", "", "queued"),
        ("R", "comment = Job run at 10:00", "active"),
        ("E", "", "active"),
        ("S", "", "active"),
        ("F", "Exit_status = 0", "done"),
        ("F", "Exit_status = 1", "failed"),
        ("F", "Exit_status = 271\n    substate = 91", "cancelled"),
    ],
)
def test_what_qstat_says(letter, more, state):
    scheduler = Answers(f"Job Id: 1.s\n    job_state = {letter}\n    {more}\n")
    standing = scheduler.ask("1.s")
    assert standing.state == state
    never = "Never" in more
    assert ("the job will never start" in scheduler.in_words(standing.reason)) == never


def test_a_job_that_pbs_has_forgotten():
    for words in ("qstat: Unknown Job Id 1.s", "qstat: 1.s Job has finished, use -x or -H"):
        assert Answers(QueueError(words)).ask("1.s").state == "done"
        Answers(QueueError(words)).cancel("1.s")
    with pytest.raises(QueueError, match="cannot connect to server"):
        Answers(QueueError("qstat: cannot connect to server pbs (errno=15010)")).ask("1.s")

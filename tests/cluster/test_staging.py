"""Jobs on hosts that share no folder, without hosts: both sides are on this machine."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from jobs import WAIT_S, wait_until
from test_job_logs import post

import simlib
from simlib.cluster.batch import launcher_process, logs, staging
from simlib.cluster.batch.staging import Files
from simlib.core.record.oplog import COMMITTED, HEADER

LOG = [HEADER, COMMITTED]


class Carried:
    """A file that is written in one folder, and its copy in another."""

    def __init__(self, folder, name="rank-0.log"):
        here, there = folder / "here", folder / "there"
        here.mkdir()
        there.mkdir()
        self._files, self._copy = Files(here, LOG), Files(there, LOG)
        self._told = None
        self.path, self.copy = here / name, there / name

    def look(self, **options):
        """Carry what has changed; returns how much of it was not at the begin."""
        messages, self._told = self._files.changes(self.path.name, self._told, **options)
        for message, content in messages:
            self._copy.apply(message, content)
        return sum(len(content) for message, content in messages if message["at"])

    def ops(self):
        log = logs.LogFile(self.copy, 0)
        log.refresh(anew=True)
        return log.ops(0, {})


@pytest.fixture
def carried(tmp_path):
    """A log."""
    carried = Carried(tmp_path)
    carried.writer = logs.writer(logs.create(carried.path))
    return carried


def test_only_what_is_new_of_an_output_is_sent(tmp_path):
    carried = Carried(tmp_path, "rank-0.out")
    carried.path.write_text("one\n")
    assert carried.look() == 0
    with open(carried.path, "a") as file:
        file.write("two\n")
    assert carried.look() == 4
    assert carried.copy.read_text() == "one\ntwo\n"


def test_an_op_that_was_sent_under_way_ends_in_the_copy(carried):
    start, other = post(carried.writer), post(carried.writer)
    carried.writer.wait_begin(start)
    carried.look()
    assert [(op.done, op.wait_s is None) for op in carried.ops()] == [(False, False), (False, True)]
    carried.writer.wait_end(start)
    carried.look()
    assert [op.done for op in carried.ops()] == [True, False]
    assert carried.look() == 0
    carried.writer.ended(other)  # nobody waited for it, so the header does not tell
    assert carried.look() == 0
    carried.look(is_last=True)
    assert [op.done for op in carried.ops()] == [True, True]
    assert carried.look(is_last=True) == 0


def test_only_blocks_that_have_changed_are_sent_again(carried):
    starts = [post(carried.writer) for _ in range(3 * staging.BLOCK // 64)]
    carried.look()
    carried.writer.wait_end(starts[0])
    assert carried.look() == staging.BLOCK


def test_the_header_comes_after_all_that_it_tells_of(carried, monkeypatch):
    monkeypatch.setattr(staging, "PIECE", staging.BLOCK)
    for _ in range(staging.BLOCK // 64 + 100):
        post(carried.writer)
    assert carried.look() == staging.BLOCK
    assert carried.ops() == []
    carried.look()
    assert len(carried.ops()) == staging.BLOCK // 64 + 100


SPOKE = """
import sys
sys.path[:0] = [sys.argv[1]]
import staging

class Pipe(staging.Pipe):  # on this machine the copy has to be at another path
    def receive(self):
        message, content = super().receive()
        return {**message, **({"folder": sys.argv[2]} if "folder" in message else {})}, content

staging.Spoke(Pipe(0, 1)).serve()
"""
BATCH = str(Path(staging.__file__).parent)


def spoke_of(folder):
    """What starts a host as a process of this machine, with its copy at this path."""
    return [sys.executable, "-I", "-c", SPOKE, BATCH, str(folder)]


def start_spoke(folder):
    return subprocess.Popen(
        spoke_of(folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )


@pytest.fixture
def copies(tmp_path):
    return tmp_path / "copies"


@pytest.fixture
def make_hub(tmp_path, copies, monkeypatch):
    """Makes a hub of hosts that are processes; each has left before a test ends."""
    made = []

    def make(*hosts, name="job-1"):
        folder = tmp_path / f"of-{len(made)}" / name
        folder.mkdir(parents=True)
        (folder / "job.json").write_text("{}")
        start = lambda words, python: start_spoke(copies / words[-1] / name)  # noqa: E731
        monkeypatch.setattr(staging, "_start", start)
        made.append(staging.Hub(str(folder), {"hosts": hosts, "python": "", "log": LOG}))
        made[-1].folder = folder
        return made[-1]

    yield make
    for hub in made:
        hub.leave()


def test_what_a_host_writes_comes_back_and_the_copy_goes(make_hub, copies):
    old = copies / "node1" / "job-1"  # of a job that is no more: it makes way
    old.mkdir(parents=True)
    (old / ".staged").touch()
    (old / "end").touch()
    hub = make_hub("node1", "node2")
    assert hub.stage()
    assert not (old / "end").exists()
    script = "until test -e $0; do sleep 0.01; done"
    hub.carry_while(subprocess.Popen(["sh", "-c", script, old / "job.json"]))
    (copies / "node2/job-1/rank-1.out").write_text("done")
    hub.carry_the_last()
    assert (hub.folder / "rank-1.out").read_text() == "done"
    hub.leave()
    assert list(copies.glob("*/*")) == []


def test_where_one_host_is_refused_the_others_keep_nothing(make_hub, copies):
    (copies / "node2" / "job-1").mkdir(parents=True)  # whose it is, is not known
    hub = make_hub("node1", "node2", "node3")
    assert not hub.stage()
    assert "cannot copy the job's folder to node2" in (hub.folder / "refused").read_text()
    hub.leave()
    assert [str(path.relative_to(copies)) for path in copies.glob("*/*")] == ["node2/job-1"]


def test_the_copy_of_a_running_job_is_nobody_elses(make_hub, copies):
    first, second = make_hub("node1"), make_hub("node1")
    assert first.stage()
    assert not second.stage()
    words = (second.folder / "refused").read_text()
    assert "already exists, and belongs to a job that still runs" in words
    assert "name another folder with folder=" in words
    assert (copies / "node1/job-1/.staged").exists()


def test_a_spoke_that_sees_the_folder_needs_no_copy(tmp_path):
    (tmp_path / ".staged-1").touch()
    ours, theirs = os.pipe(), os.pipe()
    staging.Pipe(ours[0], ours[1]).send({"folder": str(tmp_path), "mark": ".staged-1"})
    staging.Spoke(staging.Pipe(ours[0], theirs[1])).serve()
    assert staging.Pipe(theirs[0], theirs[1]).receive()[0]["is"] == "shared"
    for number in (*ours, *theirs):
        os.close(number)


RANK = """
import os, time
folder = os.path.dirname(__file__)
print("begun", flush=True)
while not os.path.exists(os.path.join(folder, "end")):
    time.sleep(0.01)
time.sleep(0.3)  # it takes its time
assert os.path.exists(folder)
"""


def test_where_the_hub_is_gone_ranks_end_before_their_copy_does(copies):
    folder = copies / "job-1"
    spoke = start_spoke(folder)
    pipe = staging.Pipe(spoke.stdout.fileno(), spoke.stdin.fileno())
    pipe.send({"folder": "", "mark": ".staged-1", "log": LOG})
    assert pipe.receive()[0] == {"is": "there", "nbytes": 0}
    program = folder / "start.py"
    program.write_text(RANK)
    rank = subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE)
    assert rank.stdout.readline() == b"begun\n"
    spoke.stdin.close()
    assert rank.wait(WAIT_S) == 0
    assert spoke.wait(WAIT_S) == 0
    assert not folder.exists()


def test_the_first_reason_is_kept(tmp_path):
    for name in staging.FIRST_COUNTS:
        for words in (b"first", b"second"):
            Files(str(tmp_path), LOG).apply({"name": name}, words)
        assert (tmp_path / name).read_bytes() == b"first"
    assert not list(tmp_path.glob(".*"))


def test_a_host_that_goes_on_telling_is_waited_for(make_hub, monkeypatch):
    """In the time of a test, which none of these messages takes."""
    hub = make_hub()
    reads, writes = os.pipe()
    hub._spokes["node1"] = staging.Pipe(reads, os.open(os.devnull, os.O_WRONLY))
    moments = iter(range(0, 1000, 15))
    clock = SimpleNamespace(monotonic=lambda: next(moments), sleep=time.sleep)
    monkeypatch.setattr(staging, "time", clock)
    there, answers = staging.Pipe(0, writes), iter([{"name": "a"}, {"name": "b"}, {"is": "last"}])
    listen = hub._listen

    def listen_once(wait_s):
        there.send(next(answers))
        return listen(wait_s)

    monkeypatch.setattr(hub, "_listen", listen_once)
    hub.carry_the_last()
    monkeypatch.undo()
    assert list(answers) == []


def test_a_host_that_does_not_leave_fails_no_job(make_hub, monkeypatch):
    monkeypatch.setattr(staging, "LAST_S", 0.1)
    hub = make_hub()
    deaf = subprocess.Popen(["sleep", "1000"], stdin=subprocess.PIPE)
    hub._started["node1"] = deaf
    hub.leave()
    assert deaf.returncode == -signal.SIGKILL


MAIN = """
import json, subprocess, sys
sys.path[:0] = [sys.argv[1]]
import staging
spoke = json.loads(sys.argv[2])
staging.LAST_S = 1
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
staging._start = lambda words, python: subprocess.Popen([*spoke[words[-1]]], **pipes)
sys.exit(staging.main(json.loads(sys.argv[3]), sys.argv[4:]))
"""


@pytest.mark.parametrize("more", [{"node2": ["sleep", "1000"]}, {}], ids=["no answer", "running"])
def test_who_ends_it_early_leaves_no_copy(tmp_path, copies, more):
    """While another host has not answered yet, and while the command runs."""
    folder, copy = tmp_path / "job-1", copies / "job-1"
    folder.mkdir()
    (folder / "job.json").write_text("{}")
    spokes = {"node1": spoke_of(copy), **more}
    plan = {"hosts": list(spokes), "python": "", "log": LOG}
    script = f"touch {folder}/begun; exec sleep 1000"
    words = [json.dumps(spokes), json.dumps(plan), "sh", "-c", script, str(folder / "start.py")]
    hub = subprocess.Popen([sys.executable, "-I", "-c", MAIN, BATCH, *words])
    wait_until((copy / "job.json" if more else folder / "begun").exists)
    hub.terminate()
    assert hub.wait(WAIT_S) == 1
    wait_until(lambda: not list(copies.iterdir()))


def test_its_launcher_has_time_for_the_last_files(tmp_path, monkeypatch):
    monkeypatch.setattr(simlib.Mpiexec, "start", lambda *_: None)
    limits = []
    for stage in (True, False):
        to = simlib.Mpiexec(hosts=["node1", "node2"], stage=stage)
        job = simlib.submit(lambda rank, world_size: rank, 2, to=to, folder=tmp_path)
        plan = json.loads((job.path / "launch.json").read_text())
        limits.append((plan["obey_s"], plan.get("linger_s", launcher_process.LINGER_S)))
    assert all(longer > usual + staging.LAST_S - 1 for longer, usual in zip(*limits, strict=True))

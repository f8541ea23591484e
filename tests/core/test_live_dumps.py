"""`simlib diagnose --job`: real ranks of torchrun on Gloo, and stand-ins for ranks of NCCL."""

import contextlib
import os
import socket
import subprocess
import sys
import threading

import pytest

from simlib import cli
from simlib.core.formats import job_processes, live_dumps
from simlib.core.formats.job_processes import LiveJob, find_job
from simlib.core.formats.live_dumps import DebugServers, Pipes
from simlib.core.results.job_diagnosis import diagnose_job

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

HANGS = """
import json, os, threading
import torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace_json
from torch.distributed.debug import start_debug_server

def say_once_it_is_recorded():
    while len(json.loads(_dump_fr_trace_json()).get("entries", ())) < 4:
        threading.Event().wait(0.01)
    os.write(1, b"waits\\n")

dist.init_process_group("gloo")
start_debug_server(port=0)
for step in range(4):
    if step == 3 and dist.get_rank() == 2:
        os.write(1, b"away\\n"); threading.Event().wait()
    if step == 3:
        threading.Thread(target=say_once_it_is_recorded).start()
    dist.all_reduce(torch.ones(1000))
"""

STAND_IN = """
import json, os, sys

rank, does = os.environ["RANK"], sys.argv[1]
pipe = os.environ.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "unused_") + rank + ".pipe"
os.mkfifo(pipe)
made, over = 2 if rank == "2" else 3, 1
read = 0 if does == "is deaf" else os.open(pipe, os.O_RDWR)
print(flush=True)
while os.read(read, 128):
    if does == "keeps silent":
        continue
    entries = [
        {"record_id": k, "pg_id": 0, "process_group": ["0", "default_pg"], "is_p2p": False,
         "collective_seq_id": k + 1, "p2p_seq_id": 0, "profiling_name": "nccl:all_reduce",
         "time_created_ns": 10**18 + k, "input_sizes": [[8]], "input_dtypes": ["Float"],
         "output_sizes": [[8]], "retired": k <= over,
         "state": "completed" if k <= over else "started"}
        for k in range(made)
    ]
    config = {"0": {"desc": "default_pg", "name": "0", "ranks": "[0, 1, 2, 3]"}}
    with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + rank, "w") as file:
        json.dump({"version": "2.10", "pg_config": config, "entries": entries}, file)
    made += does == "goes on"
    over += does == "is ahead"
"""
"""A rank that reads a pipe and writes dumps, as torch's thread of NCCL does."""


@contextlib.contextmanager
def standing_in(folder, does, **environ):
    """Four ranks of a job without torch, whose store nobody keeps; gives their processes."""
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank in range(4):
            said = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 4, "MASTER_PORT": 1}
            said |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": folder}
            said |= {"TORCH_FR_DUMP_TEMP_FILE": "own_"} | environ
            one = subprocess.Popen(
                [sys.executable, "-I", "-c", STAND_IN, does.get(rank, "")],
                env={name: str(value) for name, value in said.items()},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=folder,
            )
            stack.enter_context(one)
            stack.callback(one.kill)
            ranks.append(one)
        for one in ranks:
            one.stdout.readline()
        yield ranks


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def test_of_a_real_job_that_hangs_the_rank_is_told_and_the_job_goes_on(tmp_path):
    (tmp_path / "hangs.py").write_text(HANGS)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3"]
    job = subprocess.Popen([*command, tmp_path / "hangs.py"], stdout=subprocess.PIPE)
    with job:
        try:
            said = sorted(job.stdout.readline() for _ in range(3))
            assert said == [b"away\n", b"waits\n", b"waits\n"]
            found = diagnose_job(job.pid, apart_s=0)
            assert (found.kind, found.ranks) == ("deadlock", (2,)), str(found)
            assert "rank 0 waits for rank 2: all_reduce (hangs.py, line 19)" in str(found)
            assert "now rank 2 is at hangs.py, line 16; ranks 0 and 1 are at" in str(found)
            parents = [one.parent for one in find_job(job.pid).ranks.values()]
            assert job.poll() is None and parents == [job.pid] * 3  # all live, and none is a child
        finally:
            job.terminate()


def test_ranks_of_nccl_are_asked_through_their_pipes(tmp_path):
    does = {3: "is deaf"}
    with standing_in(tmp_path, does, TORCH_NCCL_DEBUG_INFO_PIPE_FILE="pipe_") as ranks:
        found = diagnose_job(ranks[1].pid, "dumps", apart_s=0)
    assert (found.kind, found.ranks) == ("deadlock", (2,)), str(found)
    assert sorted(os.listdir("dumps")) == ["rank_0.json", "rank_1.json", "rank_2.json"]


def test_an_older_dump_is_no_answer(tmp_path):
    (tmp_path / "own_3").write_text('{"pg_config": {}, "entries": []}')
    does = {3: "keeps silent"}
    with standing_in(tmp_path, does, TORCH_NCCL_DEBUG_INFO_PIPE_FILE="pipe_") as ranks:
        assert 3 not in Pipes.of(find_job(ranks[3].pid)).look(timeout_s=0.1)


WENT_ON = "made calls while simlib waited 0 s"


def test_a_job_goes_on_whose_ranks_make_or_end_calls_between_two_looks(tmp_path):
    pipe = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": tmp_path / "pipe_"}
    does = {**dict.fromkeys(range(4), "goes on"), 1: "is ahead"}
    with standing_in(tmp_path, does, **pipe) as ranks:
        found = diagnose_job(ranks[0].pid, apart_s=0)
    assert (found.kind, found.ranks) == ("healthy", ()), str(found)
    assert found.message == f"The job still runs: ranks 0 to 3 {WENT_ON}"


def test_a_rank_that_keeps_silent_is_no_rank_that_goes_on(tmp_path):
    does = {0: "goes on", 1: "goes on", 2: "goes on", 3: "is deaf"}
    with standing_in(tmp_path, does, TORCH_NCCL_DEBUG_INFO_PIPE_FILE="pipe_") as ranks:
        found = diagnose_job(ranks[0].pid, apart_s=0)
    assert found.kind == "deadlock" and f"ranks 0, 1 and 2 {WENT_ON}" in found.notes
    assert f"rank 3 of this host did not answer (processes {ranks[3].pid})" in str(found)


@pytest.fixture
def refused(monkeypatch, capsys):
    """A function: what `simlib diagnose --job` says where only these processes are."""

    def refused(*processes, words=()):
        monkeypatch.setattr(job_processes, "_own_pids", lambda: [one.pid for one in processes])
        assert cli.main(["diagnose", "--job", *words]) == 2
        sentence = capsys.readouterr().err
        assert sentence.count("\n") == 1 and os.listdir() == []
        return sentence

    return refused


def test_what_cannot_be_asked_is_refused_in_a_sentence(tmp_path, refused):
    assert "no process of this user has RANK, LOCAL_RANK, WORLD_SIZE" in refused()
    assert "is neither a torchrun whose ranks are alive nor a rank" in refused(words=["1"])
    assert "there is no process 4194305" in refused(words=["4194305"])
    other = tmp_path / "other"
    other.mkdir()
    with standing_in(tmp_path, {}) as one, standing_in(other, {}) as two:
        assert "several jobs run on this host: job" in refused(*one, *two)
        asked = refused(*one)
    assert "start it again with `torch.distributed.debug.start_debug_server()`" in asked
    assert "TORCH_NCCL_DEBUG_INFO_PIPE_FILE=" in asked


@contextlib.contextmanager
def serving(first, then, pause_s):
    """A port that answers everybody by ``first``, then ``then`` for ever; gives its address."""
    ended = threading.Event()

    def answer(line):
        with line, contextlib.suppress(OSError):
            line.recv(4096)
            line.sendall(first)
            while then is not None and not ended.wait(pause_s):
                line.sendall(then)

    def serve():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=[listener.accept()[0]], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        try:
            yield listener.getsockname()
        finally:
            ended.set()
            listener.shutdown(socket.SHUT_RDWR)


OK = b"HTTP/1.1 200 OK\r\n"
DUMP = b'{"pg_config": {}, "entries": []}'
ANSWERS = {
    "a whole dump": (OK + b"\r\n" + DUMP, None, 0),
    "silence": (b"", b"", 0.01),
    "100 without end": (b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0),
    "a dripped header": (OK + b"X: ", b"a", 0.01),
    "a dripped size": (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"0", 0.01),
    "too many bytes": (OK + b"\r\n" + b" " * 1000 + DUMP, None, 0),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_bounded(monkeypatch, name):
    monkeypatch.setattr(live_dumps, "ANSWER_S", 10.0 if ANSWERS[name][1] is None else 0.1)
    monkeypatch.setattr(live_dumps, "MOST_BYTES", 1000)
    with serving(*ANSWERS[name]) as address:
        assert bool(DebugServers({0: address}).look()) == (name == "a whole dump")


@pytest.mark.parametrize("host", ["a b", "a" * 64, "\0"])
def test_a_bad_address_gives_no_answer(host):
    assert DebugServers({0: (host, 80)}).look() == {}


def test_a_store_that_keeps_silent_is_left(monkeypatch):
    monkeypatch.setattr(live_dumps, "STORE_S", 0.05)
    with serving(b"", b"", 0.01) as address:
        assert DebugServers.of(LiveJob(address, 4)) is None


def test_of_processes_with_one_rank_the_child_of_torchrun_is_taken(tmp_path, monkeypatch):
    said = {"LOCAL_RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "here", "MASTER_PORT": 7}
    processes = {  # number: rank, parent, when it started
        20: (0, 10, 50),
        21: (1, 10, 51),
        15: (0, 1, 30),  # a helper of a rank that torchrun has started again since
        22: (0, 20, 60),  # a loader of data
        23: (1, 1, 70),
    }
    for pid, (rank, parent, started) in processes.items():
        (tmp_path / str(pid)).mkdir()
        environ = "\0".join(f"{name}={value}" for name, value in {"RANK": rank, **said}.items())
        (tmp_path / str(pid) / "environ").write_text(environ)
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a b) c) S {parent} {'0 ' * 17}{started}")
    monkeypatch.setattr(job_processes, "PROC", tmp_path)
    monkeypatch.setattr(job_processes, "_own_pids", lambda: sorted(processes))
    assert {rank: one.pid for rank, one in find_job().ranks.items()} == {0: 20, 1: 21}


def test_the_folder_comes_before_the_job(capsys):
    with pytest.raises(SystemExit):
        cli.main(["diagnose", "--job", "dumps"])
    assert "write the folder before --job: simlib diagnose dumps --job" in capsys.readouterr().err

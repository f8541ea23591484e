"""`simlib.diagnose` finds in dumps what `run` and `simulate` find in the job itself."""

import json
import os
import pickle
import subprocess
import sys

import programs
import pytest
import torch
import torch.distributed as dist
from verdicts import each, simulated

import simlib
from simlib.core.draw import lanes, run_pictures
from simlib.core.formats import nccl_log

RULES_NOT_HELD = ("root", "reduce op", "splits")
"""What calls disagree on that dumps do not hold."""
NOT_HELD = {
    **dict.fromkeys(
        ("tag_of_another_message", "tags_received_in_another_order", "any_source_of_another_tag"),
        "dumps hold no tags",
    ),
    **dict.fromkeys(
        (
            "new_group_by_all_but_one",
            "local_new_group_without_a_member",
            "new_group_awaited_by_a_recv",
            "device_mesh_on_half_of_the_ranks",
        ),
        "the making of a group is not in a dump",
    ),
    "batch_of_other_dtypes": "the second call of a batch counts as one that has not begun",
    "any_source_brings_another_size": "an open receive of any source fits every message",
}
HANGS = {
    name: program
    for name, program in programs.WRONG.items()
    if program.kind in ("deadlock", "mismatch") and name not in NOT_HELD
}

HEALTHY = {name: one for name, one in programs.RIGHT.items() if name != "receiver_in_a_thread"}


@pytest.mark.parametrize("program", each(HANGS, quick=6))
def test_dumps_tell_what_the_run_tells(program, tmp_path):
    with pytest.raises(simlib.SimlibError) as caught:
        simulated(program)
    folder = caught.value.run.to_recorder(tmp_path)
    if getattr(caught.value, "rule", None) == "ranks":
        return  # the making of a group is not in a dump
    found = simlib.diagnose(folder)
    if getattr(caught.value, "rule", None) in RULES_NOT_HELD:
        assert found.kind in ("stuck", "healthy") and "do not contain roots" in str(found)
        return
    assert found.kind == program.kind, str(found)
    lines = {rank: site.lineno for rank, site in found.sites.items()}
    assert all(lines.get(rank) in expected for rank, expected in program.blamed.items())


@pytest.mark.parametrize("program", each(HEALTHY, quick=6))
def test_healthy_dumps_get_no_verdict(program, tmp_path):
    run = simulated(program)
    if any(run.trace.by_rank()):
        found = simlib.diagnose(run.to_recorder(tmp_path))
        assert found.kind == "healthy" and found.ranks == (), str(found)


def train(rank, world_size):
    first = rank // 8 * 8
    near = dist.new_group(range(first, first + 8), use_local_synchronization=True)
    far = dist.new_group(range(rank % 8, world_size, 8), use_local_synchronization=True)
    for step in range(4):
        dist.all_reduce(torch.ones(4), group=near)
        if (rank, step) == (37, 2):
            return
        dist.all_reduce(torch.ones(9), group=far)
    dist.barrier()


@pytest.fixture(scope="module")
def run_of_64():
    with pytest.raises(simlib.DeadlockError) as caught:
        simlib.simulate(train, 64)
    return caught.value.run


@pytest.mark.parametrize("last", [None, 3])
def test_of_64_ranks_the_one_is_told_for_which_all_others_wait(run_of_64, tmp_path, last):
    found = simlib.diagnose(run_of_64.to_recorder(tmp_path, last=last))
    assert (found.kind, found.ranks) == ("deadlock", (37,))
    assert "wait for rank 37, which made no further call after all_reduce" in found.message
    assert len(str(found).splitlines()) < 12 and max(map(len, found.message.splitlines())) < 250
    trace = found.run.trace
    assert (
        trace.last_seen_s[37] < trace.last_seen_s[36] <= trace.end_s < lanes.last_moment(found.run)
    )
    (tmp_path / "nccl_trace_rank_37").unlink()
    found = simlib.diagnose(tmp_path)
    assert found.ranks == (37,) and "which left no dump" in found.message
    nodes = run_pictures._nodes(found.graph)
    assert (37,) in nodes and (5, 13, 21, 29, 45, 53, 61) in nodes


def test_what_a_rank_without_a_dump_called_is_not_known(tmp_path):
    write(tmp_path, [[entry(0), entry(1, "nccl:broadcast")], [entry(0), entry(1)], []])
    (tmp_path / "trace_2").unlink()
    found = simlib.diagnose(tmp_path)
    silent = "the calls of rank 2 are unknown: there is no dump"
    assert found.kind == "mismatch" and silent in str(found)
    assert "no record of 2" in found.run.table() and "  without" not in found.run.table()
    page = found.to_html(tmp_path / "page.html").read_text()
    assert silent in page and "do not contain roots" in page


def entry(number, name="nccl:all_reduce", done=True, group=("0", "default_pg"), size=8, **more):
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": group,
        "collective_seq_id": number + 1,
        "p2p_seq_id": 0,
        "is_p2p": ":send" in name or ":recv" in name,
        "profiling_name": name,
        "time_created_ns": 10**18 + number * 10**9,
        "input_sizes": [[size]],
        "input_dtypes": ["Float"],
        "output_sizes": [[size]],
        "state": "completed" if done else "started",
        "retired": done,
    } | more


def write(folder, entries, name="trace_{}", size=None):
    ranks = str(list(range(size or len(entries))))
    config = {"0": {"desc": "default_pg", "name": "0", "ranks": ranks}}
    for rank, own in enumerate(entries):
        dump = {"version": "2.10", "pg_config": config, "entries": own}
        (folder / name.format(rank)).write_text(json.dumps(dump))
    return folder


def test_a_batch_of_sends_has_the_state_of_the_entry_that_ends_it(tmp_path):
    def batch(first, second, done):
        both = [entry(0, f"nccl:{name}", done=False, p2p_seq_id=1) for name in (first, second)]
        return [*both, entry(2, "nccl:coalesced", done, collective_seq_id=1, p2p_seq_id=1)]

    write(tmp_path, [batch("send 0->1", "recv 0<-1", True), batch("send 1->0", "recv 1<-0", True)])
    assert simlib.diagnose(tmp_path).kind == "healthy"
    write(tmp_path, [batch("send 0->1", "recv 0<-1", False), []])
    assert simlib.diagnose(tmp_path).ranks == (1,)


def test_what_is_read_and_written_and_read_again_is_the_same(tmp_path):
    """Of a ring that has lost calls, and of calls that NCCL does as one."""
    two = [entry(k, collective_seq_id=41) for k in (40, 41)]
    own = [*two, entry(42, "nccl:coalesced", collective_seq_id=41), entry(43, collective_seq_id=42)]
    write(tmp_path, [own, [*own, entry(44, done=False, collective_seq_id=43)]])
    read = simlib.diagnose(tmp_path)
    again = simlib.diagnose(read.run.to_recorder(tmp_path / "again"))
    told = [
        [(op.rank, op.seq, op.kind, op.number, op.shapes, op.post_s, op.end_s) for op in run.trace]
        for run in (read.run, again.run)
    ]
    assert [one[3] for one in told[0] if one[0] == 1] == [40, 41, 42, 43]
    assert told[0] == told[1] and (read.kind, read.ranks) == (again.kind, again.ranks)


def test_a_call_that_all_have_made_and_that_does_not_end_is_told_apart(tmp_path):
    found = simlib.diagnose(write(tmp_path, [[entry(0), entry(1, done=False)]] * 4))
    assert found.kind == "stuck" and "Check the network" in found.message
    late = [entry(0), entry(1, done=False, state="scheduled")]
    write(tmp_path, [[entry(0), entry(1, done=False)]] * 3 + [late])
    assert simlib.diagnose(tmp_path).ranks == (3,)


def test_a_rank_waits_in_the_first_of_its_open_calls(tmp_path):
    ahead = [entry(0, done=False), entry(1, done=False, size=16)]
    assert simlib.diagnose(write(tmp_path, [ahead, ahead[:1]])).kind == "stuck"


def test_calls_that_other_rings_have_lost_are_not_compared(tmp_path):
    calls = [entry(number) for number in range(4)]
    found = simlib.diagnose(write(tmp_path, [calls, calls[2:]]))
    assert found.kind == "healthy" and "2 calls at the beginning were not compared" in str(found)


def test_a_call_of_backward_is_named_by_its_place_and_its_size(tmp_path):
    frame = {"name": "forward", "filename": "/home/me/model.py", "line": 12}
    gather = {"profiling_name": "nccl:_all_gather_base", "frames": [frame]}
    step = [(0.0, 4, gather), (0.5, 8, {}), (0.6, 16, {})]
    entries = [
        entry(3 * k + at, size=size, time_created_ns=10**18 + int((k + s) * 1e9), **more)
        for k in range(4)
        for at, (s, size, more) in enumerate(step)
    ]
    waits = [*entries[:-2], entries[-2] | {"state": "scheduled", "retired": False}]
    found = simlib.diagnose(write(tmp_path, [waits, entries[:-2]]))
    words = "call 1 of the 2 calls in each backward, with as many elements as the call at model.py"
    assert words in found.message


def test_a_rank_that_came_as_late_before_is_slow_and_not_lost(tmp_path):
    early = [entry(k, time_created_ns=10**18 + k * 10**9) for k in range(4)]
    late = [entry(k, time_created_ns=10**18 + k * 10**9 + 10**8) for k in range(3)]
    early[-1] |= {"state": "scheduled", "retired": False}
    folder = write(tmp_path, [early, late])
    for path, after_ns in ((folder / "trace_0", 3.2e9), (folder / "trace_1", 3.2e9)):
        os.utime(path, ns=(10**18 + int(after_ns),) * 2)
    assert simlib.diagnose(folder).kind == "slow"
    os.utime(folder / "trace_1", ns=(10**18 + 600 * 10**9,) * 2)
    assert simlib.diagnose(folder).kind == "deadlock"


def test_the_rank_of_a_dump_is_read_from_its_groups_where_these_say_it(tmp_path):
    for rank, name in enumerate("dcba"):
        pairs = [sorted((rank, rank ^ 1)), sorted((rank, rank ^ 2))]
        config = {
            str(k): {"desc": "", "name": str(k), "ranks": str(r)} for k, r in enumerate(pairs, 1)
        }
        config["0"] = {"desc": "default_pg", "name": "0", "ranks": "[0, 1, 2, 3]"}
        entries = [entry(0, done=False)] if rank != 3 else []
        dump = {"version": "2.10", "pg_config": config, "entries": entries}
        (tmp_path / f"host-{name}.pkl").write_bytes(pickle.dumps(dump))
    assert simlib.diagnose(tmp_path).ranks == (3,)


class Calls:
    def __reduce__(self):
        return print, ("a dump was called",)


SENTENCES = {
    "nothing": (lambda folder: None, "no flight-recorder dump could be read"),
    "cut short": (
        lambda folder: (folder / "trace_0").write_bytes(pickle.dumps({"entries": []})[:-4]),
        "is incomplete or not a dump",
    ),
    "hostile": (
        lambda folder: (folder / "trace_0").write_bytes(pickle.dumps({"entries": [Calls()]})),
        "is not plain data",
    ),
    "10 GB": (
        lambda folder: (
            (folder / "trace_0").write_bytes(b"\x80"),
            os.truncate(folder / "trace_0", 10**10),
        ),
        "trace_0 has 10.0 GB, but a dump has at most 0.5 GB",
    ),
    "two jobs": (
        lambda folder: (write(folder, [[]] * 2), write(folder, [[]] * 3, "other_{}")),
        "these dumps are from several jobs",
    ),
    "one rank twice": (
        lambda folder: (write(folder, [[entry(0)]]), write(folder, [[entry(0)]], "b_{}")),
        "are both from rank 0",
    ),
    "a negative size": (lambda folder: write(folder, [[entry(0, size=-1)]]), "a negative size"),
    "no calls": (lambda folder: write(folder, [[], []]), "none of these dumps contains a call"),
    "sub-groups of Gloo": (
        lambda folder: write(folder, [[entry(0, "gloo:all_reduce", group=("1", "undefined"))]] * 2),
        "calls on group 1 but does not list the group's members",
    ),
}


@pytest.mark.parametrize("case", SENTENCES)
def test_what_cannot_be_judged_is_refused_in_a_sentence(case, tmp_path, capfd):
    make, words = SENTENCES[case]
    make(tmp_path)
    with pytest.raises(ValueError, match=words) as caught:
        simlib.diagnose(tmp_path)
    assert "\n" not in str(caught.value) and "a dump was called" not in capfd.readouterr().out


def test_a_log_of_nccl_beside_the_dumps_tells_roots(tmp_path, monkeypatch):
    write(tmp_path, [[entry(0, "nccl:broadcast", done=False)]] * 2)
    (tmp_path / "nccl.log").write_text("host:1:1 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n")
    monkeypatch.setattr(
        nccl_log.NcclLog,
        "call",
        lambda self, rank, ranks, k: nccl_log.NcclCall("broadcast", 8, "float32", None, rank),
    )
    assert "rank 1 names src=1, but rank 0 names src=0" in str(simlib.diagnose(tmp_path))


def test_the_command_prints_the_verdict_and_leaves_with_1(tmp_path):
    write(tmp_path, [[entry(0), entry(1, done=False)], [entry(0)]])
    command, page = [sys.executable, "-m", "simlib", "diagnose", tmp_path], tmp_path / "page.html"
    done = subprocess.run([*command, "--json", "--html", page], capture_output=True)
    told = json.loads(done.stdout)
    assert (done.returncode, told["kind"], told["ranks"]) == (1, "deadlock", [1])
    assert "rank 0 waits for rank 1" in page.read_text()
    done = subprocess.run([*command[:-1], tmp_path / "nowhere"], capture_output=True, text=True)
    assert done.returncode == 2 and "there is no file or folder" in done.stderr

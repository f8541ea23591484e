"""The text form of a run: what it tells, and that timing does not change it."""

from __future__ import annotations

import random
from dataclasses import replace

from synthetic import RunMaker, all_reduces, ring

from simlib.core.draw.text import run_table, short_repr
from simlib.core.model.trace import Group


def test_the_whole_table():
    maker = RunMaker(2)
    maker.send(0, 1, 30, 30, 62, numel=2, line=5)
    maker.recv(1, 0, 10, 10, 60, numel=2, line=7)
    maker.collective("all_reduce", {0: (70, 70, 90), 1: (75, 75, 91)}, line=9)
    maker.results = [1.5, "done"]
    assert run_table(maker.run()).splitlines() == [
        "main on 2 real ranks: 1 message, 8 bytes; 1 collective",
        "",
        "rank  result  sent         received     collectives",
        "   0  1.5     1 (8 bytes)  -                      1",
        "   1  'done'  -            1 (8 bytes)            1",
        "",
        "0 -> 1  send(dst=1)  8 bytes  float32[2]  main, line 5",
        "",
        "all  all_reduce(SUM)  4 bytes  float32[1]  main, line 9",
    ]


def same_program(seed):
    """Sends, two groups' collectives: the same calls at other times, posted in another order."""
    rng = random.Random(seed)
    maker = RunMaker(4)
    names = ["group 1", "group 2"]
    rng.shuffle(names)  # groups are named as they appear, which is a matter of timing
    for name, ranks in zip(names, ((0, 2), (1, 3)), strict=True):
        for number, (kind, peer) in enumerate((("all_reduce", None), ("broadcast", ranks[0]))):
            for rank in ranks:
                t = rng.uniform(0, 40) + 50 * number
                more = {"group": Group(name, ranks), "line": rank + 1, "peer": peer}
                maker.collective(kind, {rank: (t, t, 100)}, **more)
    for src in rng.sample(range(4), 4):
        t = rng.uniform(0, 90)
        maker.send(src, (src + 1) % 4, t, t, 100, line=20 + src)
        maker.recv((src + 1) % 4, src, t, t, 100, line=30)
    for op in maker.ops:  # the sends come last in each rank's own order
        op.seq += 10 * (op.kind == "send") + 20 * (op.kind == "recv")
    return maker.run()


def test_timing_does_not_change_it():
    tables = {run_table(same_program(seed)) for seed in range(20)}
    assert len(tables) == 1, tables


def test_what_went_wrong_is_told():
    maker = RunMaker(3)
    maker.send(0, 1, 10, 10, 20)
    maker.recv(1, 2, 10, 10, None)
    maker.send(2, 0, 10, 10, None)
    maker.recv(0, 2, 30, 30, None)
    maker.op(0, "all_reduce", (40, 40, None), reduce_op="SUM")
    maker.op(2, "barrier", (40, 40, None))
    table = run_table(maker.run(dropped=3, findings=["a message\nwas never received"]))
    for line in (
        "0 -> 1  send(dst=1)  4 bytes  float32[1]  main, line 1  not received",
        "2 -> 0  send(dst=0)  4 bytes  float32[1]  main, line 1  not finished",
        "1 <- 2  recv(src=2)  4 bytes  float32[1]  main, line 1  nothing received",
        "without 1, calls differ, not finished",
        "finding: a message was never received",
        "simlib did not record 3 further ops",
    ):
        assert line in table


def test_long_runs_are_cut_and_say_so():
    lines = run_table(ring(30, 2)).splitlines()
    assert lines[0] == "main on 30 real ranks: 60 messages, 240 bytes; 0 collectives"
    assert "... and 10 more ranks" in lines
    assert lines[-1] == "... and 40 more messages"
    assert sum("->" in line for line in lines) == 20
    run = all_reduces(2, 50)
    for op in run.trace:
        op.site = replace(op.site, lineno=op.seq + 1)  # equal rows would be one
    assert run_table(run).endswith("... and 30 more collectives")


def test_three_or_more_equal_rows_in_succession_are_one():
    maker = RunMaker(2)
    for at, line in enumerate([5, 5, 5, 6, 6, 5, 5, 5, 5]):
        maker.send(0, 1, at, at, at + 1, line=line)
        if at < 5:
            maker.recv(1, 0, at, at, at + 1)
    rows = run_table(maker.run()).split("\n\n")[-1].splitlines()
    assert [row.partition("main, ")[2] for row in rows] == [
        "line 5  3 times",
        "line 6",
        "line 6",
        "line 5  not received, 4 times",
    ]
    assert run_table(all_reduces(2, 50)).endswith("line 3  50 times")


def test_results_are_one_short_line_without_addresses():
    assert short_repr(object()) == "<object object>"
    assert short_repr(None) == "None"
    assert len(short_repr("x" * 10**6)) <= 36
    assert "\n" not in short_repr(type("M", (), {"__repr__": lambda self: "a\n  b"})())

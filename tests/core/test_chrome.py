"""The Chrome trace, read back: slices nest, arrows are pairs bound to slices, times are right."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest
from synthetic import RunMaker, all_reduces, ring

from simlib.core.model.errors import InvalidCallError
from simlib.core.results.chrome import write_chrome_trace

NO_CALLS = ("main", "waiting", "transferring")


def asynchronous():
    """Overlapping isends and irecvs, waited for in another order than posted."""
    maker = RunMaker(4)
    for rank in range(4):
        for tag in (1, 2):
            maker.send(
                rank, (rank + 1) % 4, 10 + tag, 70 - 9 * tag, 75 - 9 * tag, tag=tag, async_op=True
            )
            maker.recv(rank, (rank - 1) % 4, 14 + tag, 80 + tag, 80.5 + tag, tag=tag, async_op=True)
    return maker.run()


def instant():
    """Ops that take no time at all, as in a simulation without latency."""
    maker = RunMaker(2)
    for _ in range(5):
        maker.send(0, 1, 50, 50, 50)
        maker.recv(1, 0, 50, 50, 50)
    return maker.run()


def unfinished():
    maker = RunMaker(3)
    maker.send(0, 1, 10, 10, None)
    maker.recv(1, 0, 20, 20, None)
    maker.collective("barrier", {2: (30, 30, None)})
    maker.spans = [(0, None), (0, None), (0, None)]
    return maker.run()


def overlapping():
    """Waits of one rank that overlap, as two of its threads may have them."""
    maker = RunMaker(2)
    maker.collective("all_reduce", {0: (5, 10, 50), 1: (5, 10, 50)}, async_op=True)
    maker.collective("all_reduce", {0: (8, 20, 60), 1: (8, 20, 60)}, async_op=True)
    return maker.run()


RUNS = {
    "overlapping": overlapping,
    "ring": lambda: ring(4, 3),
    "collectives": lambda: all_reduces(5, 4),
    "asynchronous": asynchronous,
    "instant": instant,
    "unfinished": unfinished,
    "empty": lambda: RunMaker(2).run(),
}


def read_back(run, tmp_path):
    path = write_chrome_trace(run, tmp_path / "run.json")
    return json.loads(path.read_text(encoding="utf-8"))["traceEvents"]


def ns(event):
    begin = round(event["ts"] * 1000)
    return begin, begin + round(event.get("dur", 0) * 1000)


def by_thread(events):
    threads = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(event)
    return threads


@pytest.mark.parametrize("name", RUNS)
def test_slices_nest_calls_follow_each_other_and_arrows_are_pairs(name, tmp_path):
    events = read_back(RUNS[name](), tmp_path)
    threads = by_thread(events)
    for (pid, tid), slices in threads.items():
        outer = []
        for event in sorted(slices, key=lambda e: (ns(e)[0], -ns(e)[1])):
            begin, end = ns(event)
            assert begin < end
            while outer and outer[-1] <= begin:
                outer.pop()
            assert not outer or end <= outer[-1]
            outer.append(end)
        calls = sorted(ns(event) for event in slices if event["name"] not in NO_CALLS)
        assert all(a[1] <= b[0] for a, b in zip(calls, calls[1:], strict=False))
        if pid == tid:  # the slices of a rank lie in its function
            span = next(ns(event) for event in slices if event["name"] == "main")
            assert all(span[0] <= ns(e)[0] and ns(e)[1] <= span[1] for e in slices)
    ends = defaultdict(dict)
    for event in events:
        if event["ph"] in "sf":
            assert event["ph"] not in ends[event["id"]]
            ends[event["id"]][event["ph"]] = event
            at = ns(event)[0]
            slices = threads[event["pid"], event["tid"]]
            assert any(ns(e)[0] <= at < ns(e)[1] for e in slices if e["name"] not in NO_CALLS)
    for pair in ends.values():
        assert set(pair) == {"s", "f"}
        assert pair["f"]["bp"] == "e"
        assert ns(pair["s"])[0] <= ns(pair["f"])[0]


def test_one_arrow_per_message_and_per_waiting_member(tmp_path):
    def arrows(run):
        return [e["name"] for e in read_back(run, tmp_path) if e["ph"] == "s"]

    assert arrows(ring(4, 3)) == ["message"] * 12
    assert arrows(all_reduces(5, 4)) == ["all_reduce"] * 16
    assert arrows(unfinished()) == []


def test_a_message_leads_from_rank_to_rank(tmp_path):
    maker = RunMaker(3)
    maker.send(2, 0, 30, 30, 62, tag=7, numel=3, line=5)
    maker.recv(0, 2, 10, 12, 60, tag=7, numel=3, line=7)
    events = read_back(maker.run(), tmp_path)
    start, finish = (next(e for e in events if e["ph"] == ph) for ph in "sf")
    assert (start["pid"], start["ts"]) == (3, 30.0)
    assert (finish["pid"], finish["ts"]) == (1, 59.999)
    recv, *parts = (e for e in events if e["ph"] == "X" and e["pid"] == 1 and e["name"] != "main")
    assert (recv["name"], recv["ts"], recv["dur"]) == ("recv(src=2, tag=7)", 10.0, 50.0)
    assert [(part["name"], part["ts"], part["dur"]) for part in parts] == [
        ("waiting", 12.0, 18.0),
        ("transferring", 30.0, 30.0),
    ]
    assert recv["args"]["bytes"] == 12 and recv["args"]["peer"] == 2
    assert recv["args"]["tag"] == 7 and recv["args"]["shapes"] == [[3]]
    assert recv["args"]["dtype"] == "float32" and recv["args"]["line"] == "main, line 7"


def test_ranks_are_named_and_sorted(tmp_path):
    events = read_back(ring(12), tmp_path)
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    order = {e["pid"]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"}
    assert [names[pid] for pid in sorted(order, key=order.get)] == [f"rank {r}" for r in range(12)]
    assert 0 not in names
    threads = {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"}
    assert threads <= {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}


def test_a_trace_is_saved_where_asked_and_a_picture_is_no_trace(tmp_path):
    path = ring(2).save(str(tmp_path / "a.json"))
    assert path == tmp_path / "a.json" and path.exists()
    with pytest.raises(InvalidCallError, match=r"timeline\(\)\.savefig"):
        ring(2).save(tmp_path / "run.png")
    assert [*tmp_path.iterdir()] == [path]

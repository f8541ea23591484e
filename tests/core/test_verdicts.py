"""Verdicts as learners read them: sentences, hints, the wait-for graph, findings, `strict`."""

import multiprocessing
import os
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import simlib
from simlib.core.diagnose.failures import frames_in
from simlib.core.engines.processes.worlds import SharedRendezvous, World
from simlib.core.record import store_keys
from simlib.core.record.oplog import (
    SLOTS,
    FingerprintTable,
    create_shared_memory,
    size_of_table,
    word_for,
)


def verdict(function, world_size, error, **options):
    with pytest.raises(error) as caught:
        simlib.run(function, world_size, timeout_s=20, **options)
    return caught.value


def both_receive(rank, n):
    dist.recv(torch.ones(1), src=1 - rank)


def test_two_ranks_that_wait_for_each_other():
    error = verdict(both_receive, 2, simlib.DeadlockError)
    line = both_receive.__code__.co_firstlineno + 1
    text = "dist.recv(torch.ones(1), src=1 - rank)"
    assert str(error) == (
        "ranks 0 and 1 wait for each other\n"
        f"  rank 0 waits for rank 1: recv(src=1) (test_verdicts.py, line {line})   {text}\n"
        f"  rank 1 waits for rank 0: recv(src=0) (test_verdicts.py, line {line})   {text}\n"
        "Hint: both receive first: let one of them send first"
    )
    assert error.kind == "deadlock"
    assert {rank: site.lineno for rank, site in error.sites.items()} == {0: line, 1: line}
    assert error.graph.cycle in ((0, 1), (1, 0))
    assert repr(error.graph) == "\n".join(str(error).splitlines()[1:3])
    assert error.graph._repr_png_().startswith(b"\x89PNG")


def test_a_message_from_beside_a_circle_is_not_blamed():
    """Rank 0's message to rank 2 is no near miss: it only waits for those who wait in a circle."""

    def all_but_one_receive_first(rank, n):
        sides = [(rank - 1) % n, (rank + 1) % n]
        for partner in sides[:: -1 if rank == 0 else 1]:
            if rank == 0:
                dist.send(torch.ones(1), dst=partner)
            dist.recv(torch.ones(1), src=partner)
            if rank > 0:
                dist.send(torch.ones(1), dst=partner)

    error = verdict(all_but_one_receive_first, 3, simlib.DeadlockError)
    assert error.graph.cycle in ((1, 2), (2, 1))
    assert str(error).endswith("Hint: both receive first: let one of them send first")


def sends_around(rank, n):
    dist.send(torch.ones(1), dst=(rank + 1) % n)


def misses(rank, n):
    dist.all_reduce(torch.ones(1)) if rank != 2 else None


def other_tag(rank, n):
    dist.recv(torch.ones(1), 0, tag=5) if rank else dist.send(torch.ones(1), 1, tag=4)


def waits_for_anybody(rank, n):
    dist.recv(torch.ones(1)) if rank == 0 else None


def groups_in_other_orders(rank, n):
    one, two = dist.new_group([0, 1]), dist.new_group([0, 1])
    for group in (one, two) if rank else (two, one):
        dist.barrier(group)


def receives_from_the_wrong_side(rank, n):
    right = (rank + 1) % n
    sent, got = dist.isend(torch.ones(1), right), dist.irecv(torch.ones(1), right)
    sent.wait(), got.wait()


def sends_with_a_wrong_receive_open(rank, n):
    got = dist.irecv(torch.ones(1), (rank + 1) % n)
    dist.send(torch.ones(1), (rank + 1) % n)
    got.wait()


def waits_for_its_isend_first(rank, n):
    dist.isend(torch.ones(1), (rank + 1) % n).wait()
    dist.recv(torch.ones(1), (rank - 1) % n)


RING = "3 ranks wait in a ring: 0 for 1, 1 for 2, 2 for 0"
WRONG_SOURCE = "Is the source of this recv right?"


@pytest.mark.parametrize(
    ("function", "world_size", "headline", "hint"),
    [
        (sends_around, 3, RING, "or use isend"),
        (
            receives_from_the_wrong_side,
            3,
            RING,
            "rank 0's isend to rank 1 meets no recv, because rank 1 receives from rank 2",
        ),
        (receives_from_the_wrong_side, 3, RING, WRONG_SOURCE),
        (sends_with_a_wrong_receive_open, 3, RING, WRONG_SOURCE),
        (waits_for_its_isend_first, 3, RING, "call recv before you wait for the isend"),
        (misses, 4, "ranks 0, 1 and 3 wait for rank 2, which has finished", "inside an `if`"),
        (other_tag, 2, "ranks 0 and 1 wait for each other", "use the same tag"),
        (waits_for_anybody, 3, "rank 0 waits for ranks 1 and 2, which have finished", "more recvs"),
        (groups_in_other_orders, 2, "ranks 0 and 1 wait for each other", "in different orders"),
    ],
)
def test_headlines_and_hints(function, world_size, headline, hint):
    lines = str(verdict(function, world_size, simlib.DeadlockError)).splitlines()
    assert lines[0] == headline
    assert lines[-1].startswith("Hint: ") and hint in lines[-1]


def everybody(x):
    dist.all_reduce(x)


def twice(x):
    everybody(x)
    everybody(x)


def of_other_sizes_in_a_helper(rank, n):
    (twice if rank else everybody)(torch.ones(2 + rank))


def once_more_in_a_helper(rank, n):
    for _ in range(1 + rank):
        everybody(torch.ones(2))


@pytest.mark.parametrize("engine", [simlib.run, simlib.simulate])
def test_the_callers_of_a_helper_are_named(engine):
    def place(function, line):
        return f"test_verdicts.py, line {function.__code__.co_firstlineno + line}"

    helper, outer = place(everybody, 1), place(of_other_sizes_in_a_helper, 1)
    with pytest.raises(simlib.MismatchError) as caught:
        engine(of_other_sizes_in_a_helper, 2)
    assert f"({helper}, called from {outer})" in str(caught.value)
    assert f"({helper}, called from {place(twice, 1)}, from {outer})" in str(caught.value)
    with pytest.raises(simlib.DeadlockError) as caught:
        engine(once_more_in_a_helper, 2)
    assert f"({helper}, called from {place(once_more_in_a_helper, 2)})" in str(caught.value)


def parts(rank, n, and_disagrees):
    x = torch.ones(1)
    dist.all_reduce(x)
    if rank:
        dist.all_reduce(x)
    dist.all_reduce(x)
    if and_disagrees:
        dist.all_reduce(torch.ones(2))


def comes_together_again(rank, n, _):
    x = torch.ones(1)
    if rank:
        dist.broadcast(x, 0)
    else:
        dist.broadcast(x, 0)
    dist.barrier()
    if rank:
        dist.all_reduce(x)
    else:
        dist.all_reduce(torch.ones(2))


@pytest.mark.parametrize(
    "function, and_disagrees, lines",
    [(parts, True, {0: 5, 1: 4}), (parts, False, {0: 5, 1: 4}), (comes_together_again, None, {})],
)
def test_where_ranks_parted_is_told(function, and_disagrees, lines):
    words = str(verdict(function, 2, simlib.SimlibError, args=(and_disagrees,)))
    headline, *rows = words.partition("Since call ")[2].splitlines() or [""]
    assert headline == "2 of this group its ranks were at different lines:" * bool(lines)
    for row, (rank, line) in zip(rows, lines.items(), strict=False):
        assert row.startswith(f"  rank {rank}: all_reduce(SUM) of 1 element of float32")
        assert f"line {function.__code__.co_firstlineno + line})" in row


def leaves_a_call_of_its_pair_out(rank, n):
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    for step in range(3):
        dist.all_reduce(torch.ones(1), group=pairs[rank // 2])
        if (rank, step) != (1, 1):
            dist.all_reduce(torch.ones(1), group=pairs[rank // 2])
    dist.all_reduce(torch.ones(1))


def test_a_call_left_out_in_one_of_two_groups_is_not_two_orders():
    words = str(verdict(leaves_a_call_of_its_pair_out, 4, simlib.DeadlockError))
    assert "ranks 0 and 1 wait for each other" in words
    assert "Since call 4 of this group its ranks were at different lines:" in words
    assert "Hint: a rank left out a call of this group" in words


def default_store():
    return dist.distributed_c10d._get_default_store()


def waits_for_a_key(rank, n):
    default_store().set("hello", "you")
    assert default_store().get("hello") == b"you"
    if rank:
        default_store().get("go")


def waits_for_who_waits_for_a_key(rank, n):
    if rank:
        default_store().get("go")
        dist.send(torch.ones(1), 0)
    else:
        dist.recv(torch.ones(1), 1)


def waits_for_a_key_of_its_own_store(rank, n):
    store = dist.TCPStore("localhost", 0, 1, True)
    if rank:
        store.get("go")
    dist.barrier()


def all_wait_for_a_key(rank, n):
    default_store().wait(["go"])


@pytest.mark.parametrize("engine", [simlib.run, simlib.simulate])
@pytest.mark.parametrize(
    "function, call",
    [
        (waits_for_a_key, "get"),
        (waits_for_who_waits_for_a_key, "get"),
        (waits_for_a_key_of_its_own_store, "get"),
        (all_wait_for_a_key, "wait"),
    ],
)
def test_the_key_of_a_store_that_nobody_sets_is_named_without_a_timeout(engine, function, call):
    with pytest.raises(simlib.StuckError) as caught:
        engine(function, 2, timeout_s=None)
    words = str(caught.value)
    who = "ranks 0 and 1 wait" if call == "wait" else "rank 1 waits"
    assert words.startswith(f"{who} for the key 'go' of the store, but no rank has set it\n")
    assert f"rank 1: waiting in store.{call}('go') (test_verdicts.py, line " in words


def sets_late(rank, n):
    if rank:
        for k in range(20):
            assert default_store().get(f"{k}") == b"1"
    else:
        for k in range(20):
            time.sleep(0.02)
            default_store().set(f"{k}", "1")


def set_in_a_while():
    time.sleep(1)
    default_store().set("go", "1")


def a_thread_sets_it(rank, n):
    if rank:
        default_store().get("go")
    else:
        threading.Thread(target=set_in_a_while).start()
    dist.barrier()


def a_process_sets_it(rank, n):
    if rank:
        default_store().get("go")
    elif not os.fork():
        set_in_a_while()
        os._exit(0)
    dist.barrier()


def it_gives_up(rank, n):
    with pytest.raises(RuntimeError):
        default_store().wait(["go"], timedelta(seconds=1))


def it_gives_up_in_seconds(rank, n):
    with pytest.raises(RuntimeError):
        default_store().wait(["go"], 0.5)


def it_gives_up_after_long(rank, n):
    if rank == 0:
        threading.Event().wait(2)  # a rank that computes, and might set it
        return
    store_keys.NO_LIMIT = timedelta(seconds=0.5)  # as if the limit below were long
    try:
        with pytest.raises(RuntimeError, match="Wait timeout"):
            default_store().wait(["go"], timedelta(seconds=0.6))
    finally:
        store_keys.NO_LIMIT = timedelta(minutes=5)


def a_thread_that_is_left_sets_it(rank, n):
    if rank == 0:
        threading.Timer(2, default_store().set, ("go", "1")).start()
    else:
        default_store().get("go")


WAITS = (sets_late, a_thread_sets_it, a_process_sets_it, a_thread_that_is_left_sets_it)


@pytest.mark.parametrize(
    "function", [*WAITS, it_gives_up, it_gives_up_in_seconds, it_gives_up_after_long]
)
def test_a_key_that_comes_late_is_waited_for(function):
    assert simlib.run(function, 2, strict=True).results == [None] * 2


def test_an_op_of_another_thread_says_so():
    def in_threads(rank, n):
        if rank == 0:
            dist.all_reduce(torch.ones(2))
        else:
            other = threading.Thread(target=dist.all_reduce, args=(torch.ones(3),))
            other.start()
            other.join()

    def left_alone(rank, n):
        if rank:
            other = threading.Thread(target=everybody, args=(torch.ones(1),))
            other.start()
            other.join()

    first, *_, last = str(verdict(in_threads, 2, simlib.MismatchError)).splitlines()
    assert "rank 1 brings 3 elements" in first and "in another thread)" in last
    with pytest.raises(simlib.StuckError) as caught:
        simlib.run(left_alone, 2, timeout_s=1)
    line = everybody.__code__.co_firstlineno + 1
    words = f"and waiting in all_reduce(SUM) (test_verdicts.py, line {line}, in another thread)"
    assert words in str(caught.value)


def test_a_rank_that_ddp_lets_wait_does_not_compute():
    """Its thread waits in C++, at the end of backward, for an all_reduce of rank 1."""

    def main(rank, n):
        model = DistributedDataParallel(torch.nn.Linear(2, 1))
        loss = model(torch.ones(1, 2)).sum()
        while rank:
            pass
        loss.backward()

    with pytest.raises(simlib.StuckError, match="But rank 1 is computing, and not wait") as caught:
        simlib.run(main, 2, timeout_s=3)
    assert "rank 0: waiting in all_reduce(SUM) (test_verdicts.py, line " in str(caught.value)


def test_a_mismatch_names_both_sides():
    def main(rank, n):
        dist.all_reduce(torch.ones(5 if rank == 2 else 4))

    error = verdict(main, 4, simlib.MismatchError)
    headline, usual, other = str(error).splitlines()
    assert headline == (
        "rank 2 brings 5 elements, but ranks 0, 1 and 3 bring 4 elements: "
        "every rank must bring as many elements as the others expect"
    )
    assert usual.startswith("  ranks 0, 1 and 3: all_reduce(SUM) of 4 elements of float32 (")
    assert other.startswith("  rank 2: all_reduce(SUM) of 5 elements of float32 (")
    assert error.rule == "shape" and error.kind == "mismatch"


def test_a_mismatch_is_told_before_a_byte_moves_and_without_check_nothing_is():
    def main(rank, n):
        x = torch.full((4,), rank + 1, dtype=torch.int32 if rank == 1 else torch.float32)
        dist.all_reduce(x)
        print("reduced", x)

    def disagree(rank, n):
        dist.all_reduce(torch.ones(2), op=dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)

    error = verdict(main, 2, simlib.MismatchError)
    assert error.rule == "dtype"
    assert "reduced" not in "".join(error.run.output)
    assert simlib.run(disagree, 2, check=False).findings == []
    verdict(disagree, 2, simlib.MismatchError)


def race(rank, n):
    x, y = torch.ones(4), torch.empty(4)
    request = dist.isend(x, 1 - rank)
    x += 1
    dist.recv(y, 1 - rank)
    request.wait()


def test_a_race_is_a_finding_and_an_error_where_strict():
    for _ in range(2):  # in a new world and in one used again
        run = simlib.run(race, 2)
        assert [finding.kind for finding in run.findings] == ["race"]
    assert run.findings[0].message.startswith("ranks 0 and 1: isend (test_verdicts.py, line ")
    assert "was not complete when the rank wrote to the buffer (test_ver" in str(run.findings[0])
    assert run.findings[0].sites[0].lineno == race.__code__.co_firstlineno + 2
    error = verdict(race, 2, simlib.RaceError, strict=True)
    assert error.kind == "race" and error.run.results == [None, None]


def wait_all(*requests):
    for request in requests:
        request.wait()


def overlapping_parts(rank, n):
    x = torch.ones(8)
    wait_all(dist.isend(x[:6], 1 - rank), dist.irecv(x[2:], 1 - rank))


def of_one_rank(rank, n):
    x, y = torch.ones(8), torch.ones(8)
    if rank == 0:
        wait_all(dist.isend(x, 1), dist.irecv(x, 1))
    else:
        wait_all(dist.irecv(y, 0), dist.isend(x, 0))


def receives_into_what_is_being_sent(rank, n):
    x = torch.ones(4)
    request = dist.isend(x, 1 - rank)
    dist.recv(x, 1 - rank)
    request.wait()


@pytest.mark.parametrize(
    ("function", "who", "whose"),
    [
        (overlapping_parts, "ranks 0 and 1: irecv (", "uses memory that isend ("),
        (of_one_rank, "rank 0: irecv(src=1)", "uses memory that isend(dst=1)"),
        (receives_into_what_is_being_sent, "ranks 0 and 1: recv (", "uses memory that isend ("),
    ],
)
def test_two_requests_on_the_same_memory(function, who, whose):
    (both,) = simlib.run(function, 2).findings
    assert who in both.message and whose in both.message and "times" not in both.message


def test_one_race_is_told_once_with_its_number():
    def main(rank, n):
        x = torch.ones(8)
        for _ in range(20):
            requests = [dist.isend(x, 1 - rank), dist.irecv(x, 1 - rank), dist.irecv(x, 1 - rank)]
            wait_all(*requests, dist.isend(x, 1 - rank))

    found = [finding.message for finding in simlib.run(main, 2).findings]
    # Each of the last three with each one before it, but for two sends, which only read.
    assert len(found) == 3, found
    assert all(text.startswith("ranks 0 and 1: i") for text in found)
    numbers = sorted(text.rpartition(" (")[2] for text in found)
    assert numbers == ["40 times)", "80 times)", "80 times)"]


ASYNC = {
    "all_reduce": lambda x, y, parts, n: dist.all_reduce(x, async_op=True),
    "broadcast": lambda x, y, parts, n: dist.broadcast(x, 0, async_op=True),
    "reduce": lambda x, y, parts, n: dist.reduce(x, 0, async_op=True),
    "all_gather": lambda x, y, parts, n: dist.all_gather(parts, x, async_op=True),
    "all_gather_single": lambda x, y, parts, n: dist.all_gather_single(y, x, async_op=True),
    "gather": lambda x, y, parts, n: dist.gather(
        x, parts if dist.get_rank() == 0 else None, 0, async_op=True
    ),
    "scatter": lambda x, y, parts, n: dist.scatter(
        x, parts if dist.get_rank() == 0 else None, 0, async_op=True
    ),
    "reduce_scatter": lambda x, y, parts, n: dist.reduce_scatter(x, parts, async_op=True),
    "reduce_scatter_single": lambda x, y, parts, n: dist.reduce_scatter_single(x, y, async_op=True),
    "all_to_all": lambda x, y, parts, n: dist.all_to_all(
        [torch.zeros(8) for _ in parts], parts, async_op=True
    ),
    "all_to_all_single": lambda x, y, parts, n: dist.all_to_all_single(
        torch.zeros(8 * n), y, async_op=True
    ),
    "barrier": lambda x, y, parts, n: dist.barrier(async_op=True),
}


@pytest.mark.parametrize("name", ASYNC)
def test_a_result_that_comes_before_its_wait_is_no_race(name):
    call = ASYNC[name]

    def main(rank, n):
        for _ in range(5):
            x, y, parts = torch.ones(8), torch.ones(8 * n), [torch.ones(8) for _ in range(n)]
            work = call(x, y, parts, n)
            # Gloo's own request: when it is complete, its threads are through.
            while "reduce_scatter" not in name and not work._work.is_completed():
                time.sleep(0)
            work.wait()  # which copies the result of a reduce_scatter itself

    assert simlib.run(main, 2).findings == []


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_mean_that_gloo_divides_by_torch_is_no_race(ranks):
    def main(rank, n):
        mean = {"op": dist.ReduceOp.AVG, "async_op": True}
        x, whole = torch.ones(8), torch.ones(8 * n)
        dist.all_reduce(x, **mean).wait()
        dist.reduce(x, 0, **mean).wait()
        dist.reduce_scatter(x, [x.clone() for _ in range(n)], **mean).wait()
        dist.reduce_scatter_single(x, whole, **mean).wait()
        work = dist.all_reduce(whole, **mean)
        whole += 1  # which is one
        work.wait()

    (race,) = simlib.run(main, ranks).findings
    assert race.kind == "race" and set(race.sites) == set(range(ranks))
    assert {site.line_text for site in race.sites.values()} == {
        "work = dist.all_reduce(whole, **mean)"
    }


def of_a_chunk(w, rank):
    return torch.nn.Parameter(w.chunk(2)[rank]).detach()  # no view, but of w's memory and version


def of_a_slice(w, rank):
    return w[3 * rank : 3 * rank + 3]


@pytest.mark.parametrize("engine", [simlib.run, simlib.simulate])
@pytest.mark.parametrize("part", [of_a_chunk, of_a_slice])
def test_a_result_that_holds_what_was_brought_is_left_alone_too(part, engine):
    def main(rank, n):
        w = torch.ones(6)
        work = dist.all_gather_single(w, part(w, rank), async_op=True)
        w += 1
        work.wait()

    (race,) = engine(main, 2).findings
    assert race.kind == "race" and set(race.sites) == {0, 1}


def parts_of_one_tensor(rank, n):
    w = torch.zeros(3 * n)
    parts = [torch.nn.Parameter(part).detach() for part in w.chunk(n)]
    dist.all_gather(parts, torch.ones(3), async_op=True).wait()


def a_part_of_what_it_gets(rank, n):
    w = torch.ones(6)
    for _ in range(2):
        dist.all_gather_single(w, of_a_chunk(w, rank), async_op=True).wait()


def another_part_of_the_tensor(rank, n):
    x = torch.arange(8.0)
    first, second = x.chunk(2)
    request = dist.isend(first, 1 - rank)
    second += 1
    dist.recv(second, 1 - rank)
    request.wait()
    first += 1


def only_read_by_several(rank, n):
    x, parts = torch.ones(4), [torch.zeros(4) for _ in range(n)]
    more = [[torch.zeros(4) for _ in range(n)] for _ in range(2)]
    wait_all(
        dist.all_gather(more[0], x, async_op=True),
        dist.reduce_scatter(torch.zeros(2), list(x.split(2)), async_op=True),
        dist.all_to_all(parts, [x] * n, async_op=True),
        dist.gather(x, more[1] if rank == 0 else None, async_op=True),
    )


@pytest.mark.parametrize("engine", [simlib.run, simlib.simulate])
def test_what_is_only_read_or_lies_apart_is_no_race(engine):
    apart = parts_of_one_tensor, a_part_of_what_it_gets, another_part_of_the_tensor
    for function in (*apart, only_read_by_several):
        assert engine(function, 2).findings == [], function


@pytest.mark.parametrize("engine", [simlib.run, simlib.simulate])
def test_a_request_whose_future_is_complete_is_over(engine):
    def twice(future):
        (value,) = future.value()
        dist.all_reduce(value)
        return value

    def main(rank, world_size):
        x, y = torch.zeros(3), torch.ones(3)
        for number in range(100):  # a thread of the transport tells of each, sooner or later
            future = dist.all_reduce(x, async_op=True).get_future()
            while number % 2 and not future.done():
                pass
            future.wait()
            x.add_(1)
            dist.all_reduce(x)
            x.zero_()
        dist.all_reduce(y, async_op=True).get_future().then(twice).wait()
        return y[0].item()

    run = engine(main, 2, strict=True)
    assert run.results == [4.0] * 2 and not run.findings


@pytest.mark.parametrize("engine", [simlib.run, simlib.simulate])
def test_callbacks_of_a_future_are_called_whoever_sees_the_end(engine):
    def main(rank, world_size):
        told, waits = threading.Event(), dist.all_reduce(torch.ones(3), async_op=True)
        future = waits.get_future()
        future.add_done_callback(lambda _: 1 / 0)  # torch prints it, and goes on
        future.add_done_callback(lambda _: told.set())
        waits.wait()
        return told.wait(60)

    assert engine(main, 2).results == [True] * 2


def test_what_leaves_no_trace_on_real_ranks_shows_in_a_simulation():
    def two_phases_from_any_source(rank, n):
        x, heard = torch.zeros(1), []
        for phase in range(2):
            if rank:
                dist.send(torch.tensor([float(phase)]), 0)
            else:
                for _ in range(1, n):
                    dist.recv(x)
                    heard.append(x.item())
        return heard

    assert simlib.run(two_phases_from_any_source, 3).findings == []
    found = [simlib.simulate(two_phases_from_any_source, 3, seed=seed).findings for seed in (0, 1)]
    assert any("in another possible order" in race.message for races in found for race in races)


def test_what_is_left_over_is_found_and_a_message_whose_request_was_dropped_arrives():
    def main(rank, n):
        x = torch.zeros(1)
        if rank == 0:
            dist.isend(torch.ones(1), 1)
            dist.isend(torch.ones(1), 1, tag=1)
        else:
            dist.recv(x, 0, tag=1)
        dist.all_reduce(torch.ones(1), async_op=True)
        return x.item()

    run = simlib.run(main, 2)
    assert run.results[1] == 1.0
    lost, dropped, reduction = [str(finding) for finding in run.findings]
    assert lost.startswith("unfinished: rank 0: isend(dst=1) (test_verdicts.py, line ")
    assert lost.endswith("was never received")
    assert "isend(dst=1, tag=1)" in dropped and "has no wait()" in dropped
    assert reduction.startswith("unfinished: ranks 0 and 1: all_reduce (")
    assert verdict(main, 2, simlib.UnfinishedError, strict=True).kind == "unfinished"


def test_a_thread_that_may_still_send_keeps_a_rank_from_being_blocked():
    def main(rank, n):
        x = torch.zeros(1)
        if rank:
            dist.recv(x, 0)
            dist.send(torch.ones(1), 0)
        else:
            later = threading.Timer(0.5, lambda: dist.send(torch.ones(1), 1))
            later.start()
            dist.recv(x, 1)
            later.join()
        return x.item()

    assert simlib.run(main, 2).results == [1.0, 1.0]


def test_the_meeting_table_compares_with_those_who_came_and_forgets():
    fd = create_shared_memory("test", size_of_table(2))
    one, two = (FingerprintTable(fd, 2, rank) for rank in range(2))
    meeting, word, other = word_for("world"), word_for("sum"), word_for("max")
    assert one.agrees(meeting, 1, word) and two.agrees(meeting, 1, word)
    assert not two.agrees(meeting, 1, other)
    assert two.agrees(meeting, 2, other)
    world = World.__new__(World)  # all that it needs of a world to begin a run
    world._ties, world.runs = SharedRendezvous.__new__(SharedRendezvous), 0
    world._ties._fingerprints = one._memory
    world.begin_run()
    assert two.agrees(meeting, 1, other)
    # Another meeting is not taken for a disagreement.
    assert one.agrees(10, 1, word) and two.agrees(10 + SLOTS, 1, other) and one.agrees(10, 1, other)
    for table in (one, two):
        table.close()
    os.close(fd)


ROUNDS = 50


def _come(fd, rank, words, barrier, answers):
    table = FingerprintTable(fd, 2, rank)
    told = []
    for start in range(0, ROUNDS * SLOTS, SLOTS):
        barrier.wait()
        told += [table.agrees(12345, start + number, words[rank]) for number in range(SLOTS)]
    answers.put(told)


def come_together(words):
    """Two processes come to the same meetings at the same moments; what each was told."""
    context = multiprocessing.get_context("fork")
    fd = create_shared_memory("test", size_of_table(2))
    barrier, answers = context.Barrier(2), context.Queue()
    args = words, barrier, answers
    ranks = [context.Process(target=_come, args=(fd, rank, *args)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    told = [answers.get() for _ in ranks]
    for rank in ranks:
        rank.join()
    os.close(fd)
    return told


def test_of_ranks_that_disagree_one_is_always_held_back_and_else_nobody():
    assert all(map(all, come_together((7, 7))))
    one, other = come_together((7, 8))
    assert not any(a and b for a, b in zip(one, other, strict=True))


def test_of_very_many_ranks_the_first_are_told():
    def main(rank, n):
        dist.recv(torch.zeros(1), (rank - 1) % n)

    with pytest.raises(simlib.DeadlockError) as caught:
        simlib.simulate(main, 100)
    lines = str(caught.value).splitlines()
    assert len(lines) < 20
    assert "100 ranks wait in a ring: 0 for 99" in lines[0] and "..., " in lines[0]
    assert "... and 90 more ranks" in str(caught.value)
    assert len(caught.value.sites) == 100


def test_a_stack_that_is_half_written_has_no_frames_yet():
    frames = (simlib.__file__, 2, "wait"), (__file__, 138, "everybody"), (__file__, 152, "main")
    lines = [f'  File "{file}", line {line} in {function}\n' for file, line, function in frames]
    native = "Stack (most recent call first):\n" + "".join(lines[:2])
    assert len(frames_in(native.encode())) == 1
    assert frames_in(native.encode(), whole=True) == []
    native += lines[2] + f'  File "{simlib.__file__}", line 3 in call\n'
    assert len(frames_in(native.encode(), whole=True)) == 2

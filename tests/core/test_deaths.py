"""What survivors see when a rank dies: on simulated ranks, on real ones, on plain Gloo."""

import datetime
import multiprocessing
import os
import random
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist
from jobs import by_job

import simlib

R, DEAD, DIES_S, LIMIT_S = 4, 2, 0.5, 3.0
LIMIT = datetime.timedelta(seconds=LIMIT_S)
AMPLE = datetime.timedelta(seconds=60)


def x(n=4):
    return torch.ones(n)


def word_of(error):
    words = str(error)
    if "Connection closed" in words or "reset by peer" in words or "Broken pipe" in words:
        return "closed"
    return "timeout" if "imed out" in words else words


class Attempts:
    """What came of one op after the other, and in how many seconds."""

    def __init__(self):
        self.seen = []

    def __call__(self, op):
        began = time.time()
        try:
            op()
            word = "ok"
        except RuntimeError as error:
            word = word_of(error)
        self.seen.append((word, time.time() - began))


def recv_posted_before(rank, attempt):
    if rank == 0:
        attempt(lambda: dist.recv(x(), src=DEAD))
        attempt(lambda: dist.recv(x(), src=DEAD))


def send_posted_before(rank, attempt):
    if rank < 2:
        attempt(lambda: dist.send(x(4 + rank * 10**6), dst=DEAD))


def messages_afterwards(rank, attempt):
    time.sleep(1)
    if rank == 0:
        attempt(lambda: dist.recv(x(), src=DEAD))
        attempt(lambda: dist.send(x(), dst=DEAD))
        attempt(lambda: dist.send(x(), dst=1))
    if rank == 1:
        attempt(lambda: dist.irecv(x(), src=DEAD).wait())
        attempt(lambda: dist.recv(x(), src=0))


def any_source(rank, attempt):
    if rank == 0:
        for _ in range(3):
            attempt(lambda: dist.recv(x()))
    elif rank != DEAD:
        time.sleep(0.4 * rank)
        attempt(lambda: dist.send(x(), dst=0))


def offered_before_its_death(rank, attempt):
    if rank == DEAD:
        dist.isend(x(), dst=0)
    time.sleep(1)
    if rank == 0:
        for src in (None, None, 1, 3, DEAD):
            attempt(lambda src=src: dist.recv(x(), src=src))
    elif rank != DEAD:
        time.sleep(0.5)
        attempt(lambda: dist.send(x(), dst=0))


def sent_before_its_death(rank, attempt):
    if rank == DEAD:
        dist.isend(x(), dst=0).wait()
    time.sleep(1)
    if rank == 0:
        attempt(lambda: dist.recv(x(), src=DEAD))


def all_reduce_before(rank, attempt):
    attempt(lambda: dist.all_reduce(x()))


def all_reduce_afterwards(rank, attempt):
    time.sleep(1)
    attempt(lambda: dist.all_reduce(x()))


def broadcast_of_the_dead(rank, attempt):
    attempt(lambda: dist.broadcast(x(), src=DEAD))


def broadcast_of_a_living_one(rank, attempt):
    attempt(lambda: dist.broadcast(x(), src=0))


def gather_to_a_living_one(rank, attempt):
    parts = [x() for _ in range(R)] if rank == 0 else None
    attempt(lambda: dist.gather(x(), parts, dst=0))


def all_gather_before(rank, attempt):
    attempt(lambda: dist.all_gather([x() for _ in range(R)], x()))


def all_to_all_afterwards(rank, attempt):
    time.sleep(1)
    attempt(lambda: dist.all_to_all_single(x(R), x(R)))


def groups_without_the_dead(rank, attempt):
    pair = dist.new_group([0, 1])
    if rank == DEAD:
        return
    time.sleep(1)
    if rank < 2:
        attempt(lambda: dist.all_reduce(x(), group=pair))
        attempt(lambda: dist.all_reduce(x(), group=pair))


def a_group_of_survivors(rank, attempt):
    time.sleep(1)
    survivors = dist.new_group([0, 1, 3], use_local_synchronization=True)
    attempt(lambda: dist.all_reduce(x(), group=survivors))


HAS_A_PART = (offered_before_its_death, sent_before_its_death, groups_without_the_dead)
"""Programs in which the rank that dies does something before; in the others it only waits."""


def take_part(rank, program, attempt):
    if rank != DEAD or program in HAS_A_PART:
        program(rank, attempt)
    if rank == DEAD:
        time.sleep(30)


# What plain Gloo does, by rank; None is the dead rank. The words for each op, in order.
C, T, OK = "closed", "timeout", "ok"
SEEN = {
    recv_posted_before: ([C, C], [], None, []),
    send_posted_before: ([C], [C], None, []),
    messages_afterwards: ([C, C, OK], [C, OK], None, []),
    any_source: ([OK, OK, T], [OK], None, [OK]),
    offered_before_its_death: ([C, C, OK, OK, C], [OK], None, [OK]),
    sent_before_its_death: ([C], [], None, []),
    all_reduce_before: ([T], [C], None, [C]),
    all_reduce_afterwards: ([T], [C], None, [C]),
    broadcast_of_the_dead: ([C], [T], None, [C]),
    broadcast_of_a_living_one: ([C], [OK], None, [OK]),
    gather_to_a_living_one: ([C], [OK], None, [OK]),
    all_gather_before: ([T], [C], None, [C]),
    all_to_all_afterwards: ([C], [C], None, [C]),
    groups_without_the_dead: ([OK, OK], [OK, OK], None, []),
    a_group_of_survivors: ([OK], [OK], None, [OK]),
}
by_program = pytest.mark.parametrize("program", SEEN, ids=lambda program: program.__name__)
in_every_engine = pytest.mark.parametrize(
    "engine", [simlib.run, simlib.simulate, pytest.param(by_job, marks=pytest.mark.slow)]
)


def limit_of(program):
    """The group's time limit: short where somebody is to run into it."""
    return LIMIT if any(T in words for words in SEEN[program] if words) else AMPLE


def main(rank, world_size, program):
    dist.init_process_group("gloo", timeout=limit_of(program))
    attempt = Attempts()
    take_part(rank, program, attempt)
    return attempt.seen


def words(results):
    return tuple(seen and [word for word, _ in seen] if seen != [] else [] for seen in results)


def check_delays(results, slack_s):
    """A connection is closed when the rank dies; what a living rank holds up takes the limit."""
    for seen in filter(None, results):
        for word, seconds in seen:
            if word == "closed":
                assert seconds <= DIES_S + slack_s
            if word == "timeout":
                assert LIMIT_S - 0.01 <= seconds <= LIMIT_S + slack_s


def simulated(program):
    return simlib.simulate(
        main, R, (program,), kill={DEAD: DIES_S}, on_death="continue", algorithms="gloo"
    )


@by_program
def test_simulated_survivors_see_what_those_of_gloo_see(program):
    run = simulated(program)
    assert words(run.results) == SEEN[program]
    check_delays(run.results, 0.01)
    assert run.findings == []
    assert run.deaths == {DEAD: DIES_S}


@pytest.mark.slow
@pytest.mark.parametrize("engine", [simlib.run, by_job])
@by_program
def test_real_survivors_see_what_those_of_gloo_see(program, engine):
    run = engine(main, R, (program,), kill={DEAD: DIES_S}, on_death="continue")
    assert words(run.results) == SEEN[program]
    check_delays(run.results, 2.0)
    assert run.findings == []
    assert DIES_S <= run.deaths[DEAD] < DIES_S + 2


def test_a_few_real_survivors():
    for program in (recv_posted_before, any_source, groups_without_the_dead):
        run = simlib.run(main, R, (program,), kill={DEAD: DIES_S}, on_death="continue")
        assert words(run.results) == SEEN[program]


def plain_rank(rank, program, path, answers, done):
    torch.set_num_threads(1)
    rendezvous = f"file://{path}"
    limit = limit_of(program)
    dist.init_process_group("gloo", rendezvous, timeout=limit, rank=rank, world_size=R)
    dist.barrier()
    if rank == DEAD:
        threading.Timer(DIES_S, os.kill, (os.getpid(), signal.SIGKILL)).start()
    attempt = Attempts()
    take_part(rank, program, attempt)
    answers.put((rank, attempt.seen))
    answers.close()
    answers.join_thread()
    done.wait(60)  # whoever leaves closes its connections, too
    os._exit(0)


@pytest.mark.slow
@by_program
def test_the_table_is_what_plain_gloo_does(program, tmp_path):
    context = multiprocessing.get_context("spawn")
    answers, done = context.Queue(), context.Event()
    parts = [(rank, program, tmp_path / "store", answers, done) for rank in range(R)]
    ranks = [context.Process(target=plain_rank, args=part) for part in parts]
    try:
        for process in ranks:
            process.start()
        seen = dict(answers.get(timeout=60) for _ in range(R - 1))
        done.set()
        for process in ranks:
            process.join(30)
        assert ranks[DEAD].exitcode == -signal.SIGKILL
    finally:
        for process in ranks:
            process.kill()
    results = [seen.get(rank) for rank in range(R)]
    assert words(results) == SEEN[program]
    check_delays(results, 2.0)


# Anything, with deaths at any moment


def one_op(kind, rank, members, group, count, peers, seconds):
    src, dst = peers
    if kind == "sleep" and rank == src:
        time.sleep(seconds)
    if kind in ("message", "any") and rank == src:
        dist.isend(x(count), dst=dst).wait()
    if kind in ("message", "any") and rank == dst:
        dist.recv(x(count), src=src if kind == "message" else None)
    if rank not in members:
        return
    parts = [x(count) for _ in members] if rank == members[0] else None
    if kind == "all_reduce":
        dist.all_reduce(x(count), group=group, async_op=True).wait()
    if kind == "broadcast":
        dist.broadcast(x(count), src=members[-1], group=group)
    if kind == "reduce":
        dist.reduce(x(count), dst=members[-1], group=group)
    if kind == "gather":
        dist.gather(x(count), parts, dst=members[0], group=group)
    if kind == "scatter":
        dist.scatter(x(count), parts, src=members[0], group=group)
    if kind == "all_gather":
        dist.all_gather([x(count) for _ in members], x(count), group=group)
    if kind == "barrier":
        dist.barrier(group=group)
    if kind == "all_to_all":
        whole = count * len(members)
        dist.all_to_all_single(x(whole), x(whole), group=group)


KINDS = (
    "sleep", "message", "any", "all_reduce", "broadcast", "reduce", "gather", "scatter",
    "all_gather", "barrier", "all_to_all",
)  # fmt: skip


def anything(rank, world_size, seed):
    dist.init_process_group("gloo", timeout=LIMIT)
    half = list(range(world_size // 2 + 1))
    group = dist.new_group(half)
    draw = random.Random(seed)
    attempt = Attempts()
    for _ in range(12):
        kind, count, seconds = draw.choice(KINDS), draw.choice((1, 1000, 10**6)), draw.random() / 4
        peers = draw.sample(range(world_size), 2)
        where, members = draw.choice(((None, range(world_size)), (group, half)))
        attempt(lambda: one_op(kind, rank, list(members), where, count, peers, seconds))  # noqa: B023
    return [word for word, _ in attempt.seen]


@pytest.mark.parametrize("case", range(12))
def test_whoever_dies_when_survivors_see_one_of_three_things(case):
    """Or nothing more happens, which names the dead; and every repeat is the same."""
    seed = int(os.environ["SEED"]) * 100 + case
    draw = random.Random(seed)
    n = draw.randint(2, 7)
    options = {
        "kill": {rank: draw.random() * draw.choice((0.02, 0.4)) for rank in range(n // 2)},
        "algorithms": draw.choice(("mpich", "nccl", "gloo")),
        "sends": draw.choice(("rendezvous", "eager")),
        "on_death": "continue",
    }

    def outcome():
        try:
            run = simlib.simulate(anything, n, (seed,), **options)
        except simlib.RankDiedError as error:
            return str(error)
        # An eager message stays where the receive that was to take it got an error instead.
        is_told = {"unfinished"} if options["sends"] == "eager" else set()
        assert {finding.kind for finding in run.findings} <= is_told
        assert {word for seen in run.results for word in seen or ()} <= {"ok", "closed", "timeout"}
        return run.results, run.time_s

    assert outcome() == outcome()


# What a run with deaths is afterwards


def one_waits_for_ever(rank, world_size):
    """Without a limit, rank 0 would wait for rank 1, which has gone on after its error."""
    if rank == DEAD:
        time.sleep(30)
    time.sleep(1)
    if rank == 0:
        dist.recv(x(), src=1)
    else:
        try:
            dist.recv(x(), src=DEAD)
        except RuntimeError:
            time.sleep(0.1)


@in_every_engine
def test_a_wait_for_a_survivor_that_never_answers_is_told(engine):
    with pytest.raises(simlib.SimlibError) as caught:
        engine(one_waits_for_ever, R, kill={DEAD: DIES_S}, on_death="continue")
    assert "rank 0 waits for rank 1" in str(caught.value)
    assert caught.value.run.results == [None] * R
    assert set(caught.value.run.deaths) == {DEAD}


def serve_too_long(rank, world_size, servers):
    """The servers take one message more than there are clients that live to send theirs."""
    value = torch.zeros(1)
    if rank < servers:
        while True:
            dist.recv(value)
    if rank == world_size - 1:
        time.sleep(60)
    dist.send(value, rank % servers)


@in_every_engine
@pytest.mark.parametrize(
    ("servers", "words"),
    [
        (1, "rank 0 waits for ranks 1, 2 and 3, which have finished or have died"),
        (2, "ranks 0 and 1 wait for a message that nobody is left to send"),
    ],
)
def test_servers_left_over_after_a_death_are_told_of_the_dead(engine, servers, words):
    with pytest.raises(simlib.RankDiedError) as caught:
        engine(serve_too_long, 4, (servers,), kill={3: 0.3}, on_death="continue")
    told = str(caught.value)
    assert told.startswith(f"rank 3 died, as asked for by kill: {words}\n")
    assert "each other" not in told and "  rank 3 has died" in told
    assert caught.value.run.deaths.keys() == {3}


@in_every_engine
@pytest.mark.parametrize(("ranks", "on_death"), [(1, "end"), (2, "continue")])
def test_where_all_ranks_die_no_others_are_told_of(engine, ranks, on_death):
    def main(rank, world_size):
        time.sleep(60)

    with pytest.raises(simlib.RankDiedError) as caught:
        engine(main, ranks, kill=dict.fromkeys(range(ranks), 0.3), on_death=on_death)
    parts = [f"the process of rank {rank} was ended by signal 9 (SIGKILL)" for rank in range(ranks)]
    assert str(caught.value) == "; ".join(parts)
    assert caught.value.run.deaths.keys() == set(range(ranks))


@in_every_engine
def test_a_deadlock_of_survivors_alone_is_no_want_of_the_dead(engine):
    def main(rank, world_size):
        if rank == 2:
            time.sleep(60)
        time.sleep(1)
        dist.recv(x(), src=1 - rank)

    with pytest.raises(simlib.DeadlockError) as caught:
        engine(main, 3, kill={2: 0.3}, on_death="continue")
    words = "ranks 0 and 1 wait for each other, and not for rank 2, which has died"
    assert str(caught.value).startswith(words + "\n  rank 0 waits for rank 1: recv(src=1)")


@in_every_engine
@pytest.mark.parametrize("on_death", ["end", "continue"])
def test_who_waits_for_ever_waits_for_no_death(engine, on_death):
    def main(rank, world_size):
        if rank < 2:
            dist.recv(x(), src=1 - rank)

    with pytest.raises(simlib.DeadlockError, match="ranks 0 and 1 wait for each other"):
        engine(main, 3, kill={1: 50.0}, on_death=on_death)


@pytest.mark.parametrize("rest", [time.sleep, lambda s: simlib.compute(seconds=s)])
def test_who_dies_while_it_computes_does_nothing_of_what_follows(rest, tmp_path):
    def main(rank, world_size):
        rest(2)
        (tmp_path / str(rank)).touch()
        dist.barrier()

    with pytest.raises(simlib.RankDiedError):
        simlib.simulate(main, 2, kill={0: 1.0})
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


@in_every_engine
def test_by_default_a_death_ends_the_run_and_names_the_dead(engine):
    def waits(rank, world_size):
        dist.all_reduce(x()) if rank != DEAD else time.sleep(30)

    with pytest.raises(simlib.RankDiedError, match="rank 2") as caught:
        engine(waits, 3, kill={DEAD: 0.2})
    run = caught.value.run
    assert "ranks 0 and 1 wait for each other" not in str(caught.value)
    assert run.deaths[DEAD] == pytest.approx(0.2, abs=1.0)
    assert run.time_s > 0


@in_every_engine
def test_an_error_that_nobody_catches_names_the_dead(engine):
    def careless(rank, world_size):
        dist.recv(x(), src=1) if rank == 0 else time.sleep(30)

    with pytest.raises(simlib.RankError, match="Connection closed by peer"):
        engine(careless, 2, kill={1: 0.2}, on_death="continue")


def test_a_rank_that_leaves_by_itself_is_dead_too():
    def main(rank, world_size):
        if rank == 1:
            os._exit(3)
        try:
            dist.recv(x(), src=1)
        except RuntimeError as error:
            return str(error).partition(".")[0]

    run = simlib.simulate(main, 2, on_death="continue")
    assert run.results == ["Connection closed by peer: rank 1 has died", None]
    assert run.deaths == {1: 0.0}


@pytest.mark.parametrize("on_death", ["end", "continue"])
@pytest.mark.parametrize("engine", [simlib.run, simlib.simulate])
def test_who_leaves_by_itself_was_not_asked_to_by_kill(engine, on_death):
    def main(rank, world_size):
        if rank == 1:
            os._exit(3)
        dist.recv(x(), src=None if world_size == 2 else 0)

    with pytest.raises(simlib.RankDiedError) as caught:
        engine(main, 2, kill=simlib.scale.Failures(1e6, seed=1), on_death=on_death)
    assert "as asked for" not in str(caught.value)


def test_a_node_dies_with_its_ranks():
    def main(rank, world_size):
        time.sleep(1)
        return rank

    cluster = simlib.Cluster(2, 2, inter=simlib.Link(1e-5, 1e9), intra=simlib.Link(1e-6, 1e10))
    options = {"cluster": cluster, "on_death": "continue"}
    run = simlib.simulate(main, 4, kill={"node1": 0.25, 2: 0.5}, **options)
    assert run.results == [0, 1, None, None]
    assert run.deaths == {2: 0.25, 3: 0.25}
    with pytest.raises(simlib.InvalidCallError, match='"node0" to "node1"'):
        simlib.simulate(main, 4, kill={"node7": 1.0}, **options)


def test_a_host_that_vanishes_is_missed_after_the_detection_time():
    def main(rank, world_size):
        group = dist.new_group([0, 1])
        time.sleep(1.0)  # the host of ranks 2 and 3 vanishes meanwhile
        attempt = Attempts()
        attempt(lambda: dist.all_reduce(x(), group=group))
        attempt(lambda: dist.recv(x(), src=rank + 2))
        attempt(lambda: dist.send(x(), dst=rank + 2))
        return [(word, round(took_s, 3)) for word, took_s in attempt.seen]

    cluster = simlib.Cluster(2, 2, inter=simlib.Link(1e-5, 1e9), intra=simlib.Link(1e-6, 1e10))
    run = simlib.simulate(
        main, 4, cluster=cluster, kill={"node1": 0.5}, on_death="continue", detection_s=30.0
    )
    assert run.results[:2] == [[("ok", 0.0), ("closed", 29.5), ("closed", 0.0)]] * 2
    assert run.deaths == {2: 0.5, 3: 0.5}
    with pytest.raises(simlib.InvalidCallError, match="detection_s=-1 must be seconds"):
        simlib.simulate(main, 4, detection_s=-1, on_death="continue")
    with pytest.raises(simlib.InvalidCallError, match='see a death: say on_death="continue"'):
        simlib.simulate(main, 4, detection_s=1.0)


def cut_off(rank, world_size, op):
    """Everything is posted before the death of rank 2 at 0.5 s, and would have ended after it."""
    attempt, large = Attempts(), torch.ones(10**6)
    pair = dist.new_group([0, 2])
    if op == "all_reduce" and rank != 1:
        attempt(lambda: dist.all_reduce(large, group=pair))
    elif op == "send" and rank == 2:
        dist.send(large, dst=0)
    elif op == "send" and rank == 0:
        attempt(lambda: dist.recv(large, src=2))
    elif op == "isend" and rank == 2:
        request = dist.isend(large, dst=0)
        time.sleep(60)
        request.wait()
    elif op == "isend" and rank == 0:
        time.sleep(5)
        attempt(lambda: dist.recv(large, src=2))
    return attempt.seen


@pytest.mark.parametrize("detection_s", [0.0, 30.0])
@pytest.mark.parametrize("op", ["all_reduce", "send", "isend"])
def test_who_has_died_sends_nothing_until_it_is_seen(op, detection_s):
    slow = simlib.Cluster(3, 1, inter=simlib.Link(0.01, 4e6))  # a message takes a second
    options = {"cluster": slow, "kill": {2: 0.5}, "on_death": "continue"}
    run = simlib.simulate(cut_off, 3, (op,), detection_s=detection_s, **options)
    took = {word: round(s, 3) for seen in run.results if seen for word, s in seen}
    began_s = 5.0 if op == "isend" else 0.0
    assert took == {"closed": pytest.approx(max(0.0, 0.5 + detection_s - began_s), abs=0.6)}


def test_who_dies_in_a_collective_of_many_takes_no_group_along():
    """Groups of 4 among 16: three lose a member, the others' results are whole."""

    def main(rank, world_size):
        groups = [dist.new_group(range(4 * g, 4 * g + 4)) for g in range(4)]
        value = torch.tensor([float(rank)])
        for _ in range(20):
            time.sleep(0.01)
            try:
                dist.all_reduce(value, group=groups[rank // 4])
                value /= 4
            except RuntimeError:
                return "lost"
        return value.item()

    dying = {1: 0.055, 6: 0.1, 15: 0.15}
    with pytest.raises(simlib.RankDiedError, match="ranks 1, 6 and 15 died") as caught:
        simlib.simulate(main, 16, kill=dying, on_death="continue")
    run = caught.value.run
    assert [result for result in run.results[8:12]] == [9.5] * 4
    assert all(run.results[rank] is None for rank in (1, 6, 15))


def test_the_picture_ends_the_lane_of_the_dead_and_no_other():
    run = simulated(all_reduce_before)
    crosses = [line for line in run.timeline().axes[0].lines if line.get_marker() == "X"]
    assert [line.get_xdata().tolist() for line in crosses] == [[DIES_S]]


def test_deaths_and_failed_ops_are_saved(tmp_path):
    run = simulated(recv_posted_before)
    run.save(tmp_path / "run.json")
    again = simlib.load(tmp_path / "run.json")
    assert again.deaths == run.deaths
    assert [op.failed_s for op in again.trace] == [op.failed_s for op in run.trace]
    assert [op.failed_s for op in run.trace if op.rank == 0] == [DIES_S, DIES_S]


@in_every_engine
def test_on_death_takes_two_words(engine):
    with pytest.raises(simlib.InvalidCallError, match="on_death='stay' is none of"):
        engine(main, 2, on_death="stay")


def test_the_world_after_a_death_is_a_new_one():
    simlib.run(main, R, (recv_posted_before,), kill={DEAD: 0.1}, on_death="continue")
    assert simlib.run(lambda rank, world_size: rank, R).results == [0, 1, 2, 3]

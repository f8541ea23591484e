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
from collective_calls import call
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


def send(dst, n=4):
    return lambda: dist.send(x(n), dst=dst)


def recv(src=None):
    return lambda: dist.recv(x(), src=src)


def all_reduce(group=None):
    return lambda: dist.all_reduce(x(), group=group)


def groups_without_the_dead(rank, attempt):
    pair = dist.new_group([0, 1])
    if rank == DEAD:
        return
    time.sleep(1)
    if rank < 2:
        attempt(all_reduce(pair))
        attempt(all_reduce(pair))


def a_group_of_survivors(rank, attempt):
    time.sleep(1)
    attempt(all_reduce(dist.new_group([0, 1, 3], use_local_synchronization=True)))


def parts_at_0():
    return [x() for _ in range(R)] if dist.get_rank() == 0 else None


def by_survivors(*actions):
    return dict.fromkeys((0, 1, 3), actions)


# What each rank does, a number being a rest of so many seconds, and what plain Gloo does: the words
# for each op, in order; None is the dead rank. Where it does nothing of its own, it waits to die.
C, T, OK = "closed", "timeout", "ok"
PROGRAMS = {
    "recv posted before": ({0: [recv(DEAD)] * 2}, ([C, C], [], None, [])),
    "send posted before": ({0: [send(DEAD)], 1: [send(DEAD, 10**6)]}, ([C], [C], None, [])),
    "messages afterwards": (
        {0: [1, recv(DEAD), send(DEAD), send(1)],
         1: [1, lambda: dist.irecv(x(), src=DEAD).wait(), recv(0)]},
        ([C, C, OK], [C, OK], None, []),
    ),
    "any source": (
        {0: [recv()] * 3, 1: [0.4, send(0)], 3: [1.2, send(0)]},
        ([OK, OK, T], [OK], None, [OK]),
    ),
    "offered before its death": (
        {0: [1, recv(), recv(), recv(1), recv(3), recv(DEAD)], 1: [1.5, send(0)],
         DEAD: [lambda: dist.isend(x(), dst=0)], 3: [1.5, send(0)]},
        ([C, C, OK, OK, C], [OK], None, [OK]),
    ),
    "sent before its death": (
        {0: [1, recv(DEAD)], DEAD: [lambda: dist.isend(x(), dst=0).wait()]},
        ([C], [], None, []),
    ),
    "all_reduce before": (by_survivors(all_reduce()), ([T], [C], None, [C])),
    "all_reduce afterwards": (by_survivors(1, all_reduce()), ([T], [C], None, [C])),
    "broadcast of the dead": (
        by_survivors(lambda: dist.broadcast(x(), src=DEAD)), ([C], [T], None, [C])
    ),
    "broadcast of a living one": (
        by_survivors(lambda: dist.broadcast(x(), src=0)), ([C], [OK], None, [OK])
    ),
    "gather to a living one": (
        by_survivors(lambda: dist.gather(x(), parts_at_0(), dst=0)), ([C], [OK], None, [OK])
    ),
    "all_gather before": (
        by_survivors(lambda: dist.all_gather([x() for _ in range(R)], x())), ([T], [C], None, [C])
    ),
    "all_to_all afterwards": (
        by_survivors(1, lambda: dist.all_to_all_single(x(R), x(R))), ([C], [C], None, [C])
    ),
    "groups without the dead": (groups_without_the_dead, ([OK, OK], [OK, OK], None, [])),
    "a group of survivors": (a_group_of_survivors, ([OK], [OK], None, [OK])),
}  # fmt: skip


def take_part(rank, name, attempt):
    program, _ = PROGRAMS[name]
    if isinstance(program, dict):
        for action in program.get(rank, ()):
            attempt(action) if callable(action) else time.sleep(action)
    elif rank != DEAD or program is groups_without_the_dead:
        program(rank, attempt)
    if rank == DEAD:
        time.sleep(30)


by_program = pytest.mark.parametrize("program", PROGRAMS)
in_every_engine = pytest.mark.parametrize(
    "engine", [simlib.run, simlib.simulate, pytest.param(by_job, marks=pytest.mark.slow)]
)


def limit_of(program):
    """The group's time limit: short where somebody is to run into it."""
    return LIMIT if any(T in words for words in PROGRAMS[program][1] if words) else AMPLE


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
    assert words(run.results) == PROGRAMS[program][1]
    check_delays(run.results, 0.01)
    assert run.findings == []
    assert run.deaths == {DEAD: DIES_S}


@pytest.mark.slow
@pytest.mark.parametrize("engine", [simlib.run, by_job])
@by_program
def test_real_survivors_see_what_those_of_gloo_see(program, engine):
    run = engine(main, R, (program,), kill={DEAD: DIES_S}, on_death="continue")
    assert words(run.results) == PROGRAMS[program][1]
    check_delays(run.results, 2.0)
    assert run.findings == []
    assert DIES_S <= run.deaths[DEAD] < DIES_S + 2


def test_a_few_real_survivors():
    for program in ("recv posted before", "any source", "groups without the dead"):
        run = simlib.run(main, R, (program,), kill={DEAD: DIES_S}, on_death="continue")
        assert words(run.results) == PROGRAMS[program][1]


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
    assert words(results) == PROGRAMS[program][1]
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
    if kind == "all_reduce" and rank in members:
        dist.all_reduce(x(count), group=group, async_op=True).wait()
    elif kind in KINDS_OF_ALL and rank in members:
        root = members[0 if kind in ("gather", "scatter") else -1]
        call(kind, len(members), count, root, group)


KINDS_OF_ALL = (
    "all_reduce", "broadcast", "reduce", "gather", "scatter", "all_gather", "barrier", "all_to_all",
)  # fmt: skip
KINDS = ("sleep", "message", "any", *KINDS_OF_ALL)


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


def serve_too_long(servers):
    """The servers take one message more than there are clients that live to send theirs."""

    def main(rank, world_size):
        value = torch.zeros(1)
        if rank < servers:
            while True:
                dist.recv(value)
        if rank == world_size - 1:
            time.sleep(60)
        dist.send(value, rank % servers)

    return main


def two_wait(rank, world_size):
    time.sleep(60 if rank == 2 else 1)
    dist.recv(x(), src=1 - rank)


def the_last_rests_others(call):
    return lambda rank, n: time.sleep(60) if rank == n - 1 else call(n - 1)


LEFT = "rank 3 died because kill= asked for it: "
# What the ranks do, how many, who dies when; the error, how it begins, and what else it says.
TOLD = {
    "a survivor that never answers": (
        one_waits_for_ever, R, {DEAD: DIES_S}, simlib.SimlibError, "", "rank 0 waits for rank 1",
    ),
    "a server left over": (
        serve_too_long(1), 4, {3: 0.3}, simlib.RankDiedError,
        LEFT + "rank 0 waits for ranks 1 and 2, which have finished, and for rank 3, which has",
        "  rank 3 has died",
    ),
    "servers left over": (
        serve_too_long(2), 4, {3: 0.3}, simlib.RankDiedError,
        LEFT + "ranks 0 and 1 wait for a message that no rank can send any more\n",
        "  rank 3 has died",
    ),
    "a deadlock of survivors alone": (
        two_wait, 3, {2: 0.3}, simlib.DeadlockError,
        "ranks 0 and 1 wait for each other; the death of rank 2 is not the cause\n",
        "is not the cause\n  rank 0 waits for rank 1: recv(src=1)",
    ),
    "an error that nobody catches": (
        the_last_rests_others(lambda last: dist.recv(x(), src=last)), 2, {1: 0.2},
        simlib.RankError, "", "Connection closed by peer",
    ),
}  # fmt: skip


@in_every_engine
@pytest.mark.parametrize("case", TOLD)
def test_a_run_that_fails_after_a_death_tells_of_the_dead(engine, case):
    main, ranks, kill, error, begins, holds = TOLD[case]
    with pytest.raises(error) as caught:
        engine(main, ranks, kill=kill, on_death="continue")
    told, run = str(caught.value), caught.value.run
    assert told.startswith(begins) and holds in told
    assert ("each other" in told) == ("deadlock" in case)
    assert run.results == [None] * ranks and run.deaths.keys() == kill.keys()


@in_every_engine
@pytest.mark.parametrize("on_death", ["end", "continue"])
def test_who_waits_for_ever_waits_for_no_death(engine, on_death):
    def main(rank, world_size):
        if rank < 2:
            dist.recv(x(), src=1 - rank)

    with pytest.raises(simlib.DeadlockError, match="ranks 0 and 1 wait for each other"):
        engine(main, 3, kill={1: 50.0}, on_death=on_death)


@in_every_engine
def test_by_default_a_death_ends_the_run_and_names_the_dead(engine):
    main = the_last_rests_others(lambda last: dist.all_reduce(x()))
    with pytest.raises(simlib.RankDiedError, match="rank 2") as caught:
        engine(main, 3, kill={DEAD: 0.2})
    run = caught.value.run
    assert "ranks 0 and 1 wait for each other" not in str(caught.value)
    assert run.deaths[DEAD] == pytest.approx(0.2, abs=1.0)
    assert run.time_s > 0


@in_every_engine
@pytest.mark.parametrize(("ranks", "on_death"), [(1, "end"), (2, "continue")])
def test_where_all_ranks_die_no_others_are_told_of(engine, ranks, on_death):
    with pytest.raises(simlib.RankDiedError) as caught:
        engine(
            lambda *_: time.sleep(60), ranks, kill=dict.fromkeys(range(ranks), 0.3),
            on_death=on_death,
        )  # fmt: skip
    parts = [f"the process of rank {rank} was ended by signal 9 (SIGKILL)" for rank in range(ranks)]
    assert str(caught.value) == "; ".join(parts)
    assert caught.value.run.deaths.keys() == set(range(ranks))


@pytest.mark.parametrize("rest", [time.sleep, lambda s: simlib.compute(seconds=s)])
def test_who_dies_while_it_computes_does_nothing_of_what_follows(rest, tmp_path):
    def main(rank, world_size):
        rest(2)
        (tmp_path / str(rank)).touch()
        dist.barrier()

    with pytest.raises(simlib.RankDiedError):
        simlib.simulate(main, 2, kill={0: 1.0})
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


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


TWO_NODES = simlib.Cluster(2, 2, inter=simlib.Link(1e-5, 1e9), intra=simlib.Link(1e-6, 1e10))


def test_a_node_dies_with_its_ranks():
    def main(rank, world_size):
        time.sleep(1)
        return rank

    options = {"cluster": TWO_NODES, "on_death": "continue"}
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
        attempt(all_reduce(group))
        attempt(recv(rank + 2))
        attempt(send(rank + 2))
        return [(word, round(took_s, 3)) for word, took_s in attempt.seen]

    options = {"cluster": TWO_NODES, "kill": {"node1": 0.5}}
    run = simlib.simulate(main, 4, **options, on_death="continue", detection_s=30.0)
    assert run.results[:2] == [[("ok", 0.0), ("closed", 29.5), ("closed", 0.0)]] * 2
    assert run.deaths == {2: 0.5, 3: 0.5}
    with pytest.raises(simlib.InvalidCallError, match="detection_s=-1 must be seconds"):
        simlib.simulate(main, 4, detection_s=-1, on_death="continue")
    with pytest.raises(simlib.InvalidCallError, match='no rank survives: add on_death="continue"'):
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


def test_deaths_and_failed_ops_are_drawn_and_saved(tmp_path):
    run = simulated("recv posted before")
    crosses = [line for line in run.timeline().axes[0].lines if line.get_marker() == "X"]
    assert [line.get_xdata().tolist() for line in crosses] == [[1000 * DIES_S]]  # ms
    run.save(tmp_path / "run.json")
    again = simlib.load(tmp_path / "run.json")
    assert again.deaths == run.deaths
    assert [op.failed_s for op in again.trace] == [op.failed_s for op in run.trace]
    assert [op.failed_s for op in run.trace if op.rank == 0] == [DIES_S, DIES_S]


@in_every_engine
def test_on_death_takes_two_words(engine):
    with pytest.raises(simlib.InvalidCallError, match="on_death='stay' is not one of"):
        engine(main, 2, on_death="stay")


def test_the_world_after_a_death_is_a_new_one():
    simlib.run(main, R, ("recv posted before",), kill={DEAD: 0.1}, on_death="continue")
    assert simlib.run(lambda rank, world_size: rank, R).results == [0, 1, 2, 3]

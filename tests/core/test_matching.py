"""The matcher against an exhaustive search of interleavings, and each of its rules by itself."""

from __future__ import annotations

import os
from dataclasses import replace

import hypothesis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import RIGHT, Fate, Oracle
from schedules import (
    Call,
    Wait,
    Walk,
    is_flagged,
    make_op,
    right_programs,
    world,
    wrong_programs,
)

from simlib.core.diagnose import matching
from simlib.core.diagnose.matching import Matcher, disagreement
from simlib.core.model.trace import Group

SEED = int(os.environ["SEED"])
SOME, MANY = 300, 6_000
choices = st.randoms(use_true_random=False)
eager_limits = st.sampled_from([-1, -1, 4])


def samples(count, seed=SEED):
    """Settings for ``count`` programs drawn by this run's seed."""

    def decorate(test):
        return hypothesis.seed(seed)(settings(max_examples=count)(test))

    return decorate


def some_and_many(*drawn):
    """A short and a long run of one property of what is drawn."""

    def decorate(check):
        def test(how_many):
            samples(how_many)(given(*drawn)(check))()

        test.__doc__ = check.__doc__
        counts = [SOME, pytest.param(MANY, marks=pytest.mark.slow)]
        return pytest.mark.parametrize("how_many", counts)(test)

    return decorate


# ---- writing programs by hand


def send(dst, size=1, **more):
    """A blocking send to a rank of the world, as a `Call` whose name and group `ranks` fills in."""
    return Call(-1, "send", None, dst, 0, (size,), **more)


def recv(src=None, size=1, **more):
    """A blocking recv; of any source where none is given."""
    return Call(-1, "recv", None, src, 0, (size,), **more)


def collective(kind, group=None, **more):
    """A blocking collective, of the world where no group is given."""
    return Call(-1, kind, group, **more)


def later(call):
    """The same call, which gives a request instead of blocking."""
    return replace(call, blocking=False)


def ranks(*lists):
    """A program from a list of calls per rank; an int waits for the call at that place."""
    everyone = world(len(lists))
    return tuple(
        tuple(
            Wait(action)
            if isinstance(action, int)
            else replace(action, name=place, group=action.group or everyone)
            for place, action in enumerate(actions)
        )
        for actions in lists
    )


def posted(program, order=None, **options):
    """A matcher that was given all calls of a program, rank by rank; the ops by (rank, place)."""
    matcher, ops = Matcher(len(program), **options), {}
    for rank in order or range(len(program)):
        calls = [action for action in program[rank] if action.is_call]
        for seq, call in enumerate(calls):
            ops[rank, call.name] = make_op(rank, seq, call)
            matcher.post(ops[rank, call.name])
    return matcher, ops


def walk(program, **options):
    """A `Walk` of a program, first move first; and its fate."""
    path = Walk(program, lambda n: 0, **options)
    return path, path.run()


BARRIER = collective("barrier", sizes=(), dtype="")

# ---- the oracle itself: answers known by hand


def fate(stuck=(), left=(), absent=(), disagree=(), unwaited=()):
    """A `Fate` from lists."""
    sets = [frozenset(calls) for calls in (stuck, left, absent)]
    return Fate(*sets, frozenset(map(frozenset, disagree)), frozenset(unwaited))


KNOWN = {
    "nothing": (ranks([], []), {RIGHT}),
    "a message": (ranks([send(1)], [recv(0)]), {RIGHT}),
    "both send first": (
        ranks([send(1), recv(1)], [send(0), recv(0)]),
        {fate(stuck=[(0, 0), (1, 0)], left=[(0, 0), (1, 0)])},
    ),
    "both isend first": (
        ranks([later(send(1)), recv(1), 0], [later(send(0)), recv(0), 0]),
        {RIGHT},
    ),
    "nobody receives": (ranks([send(1)], []), {fate(stuck=[(0, 0)], left=[(0, 0)])}),
    "nobody waits": (ranks([later(send(1))], [recv(0)]), {fate(unwaited=[(0, 0)])}),
    "isend, left over": (ranks([later(send(1))], []), {fate(left=[(0, 0)], unwaited=[(0, 0)])}),
    "sizes cross over": (
        ranks([send(1, 2), send(1, 3)], [later(recv(0, 2)), later(recv(0, 3)), 1, 0]),
        {RIGHT},
    ),
    "sizes in the wrong order": (
        ranks([send(1, 2), send(1, 3)], [recv(0, 3), recv(0, 2)]),
        {fate(disagree=[[(0, 0), (1, 0)], [(0, 1), (1, 1)]])},
    ),
    "a barrier without one rank": (
        ranks([BARRIER], [BARRIER], []),
        {fate(stuck=[(0, 0), (1, 0)], absent=[(0, 0), (1, 0)])},
    ),
    "whoever comes first": (ranks([recv(), recv()], [send(0)], [send(0)]), {RIGHT}),
    # Rank 0 may take rank 1's message first; then nobody sends what its second recv names.
    "right only if 2 comes first": (
        ranks([recv(), recv(1)], [send(0)], [send(0)]),
        {RIGHT, fate(stuck=[(0, 1), (2, 0)], left=[(0, 1), (2, 0)])},
    ),
    "one of two is received": (
        ranks([recv()], [send(0)], [send(0)]),
        {fate(stuck=[(1, 0)], left=[(1, 0)]), fate(stuck=[(2, 0)], left=[(2, 0)])},
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_the_oracle_knows(name):
    program, fates = KNOWN[name]
    assert Oracle(program).fates() == fates


def test_the_oracle_knows_eager_sends():
    program = ranks([send(1), recv(1)], [send(0), recv(0)])
    assert Oracle(program, eager_limit_bytes=4).fates() == {RIGHT}
    assert Oracle(program, eager_limit_bytes=3).fates() != {RIGHT}


# ---- random programs


def walked(program, random, late, eager):
    """All ends that a program can have, and one walk through it with its end."""
    hypothesis.note(program)
    path = Walk(program, random.randrange, late, eager)
    return Oracle(program, eager).fates(), path, path.run()


@some_and_many(right_programs(), choices, st.booleans(), eager_limits)
def test_right_programs_are_never_flagged(program, random, late, eager):
    """Right by construction; the oracle agrees, and nothing is ever said against them."""
    fates, path, end = walked(program, random, late, eager)
    assert fates == {RIGHT} and end == RIGHT
    assert not is_flagged(path)


@some_and_many(wrong_programs(any_source=False), choices, st.booleans(), eager_limits)
def test_wrong_programs_are_flagged(program, random, late, eager):
    """Without recvs of any source all runs end alike: flagged where they fail, else not."""
    fates, path, end = walked(program, random, late, eager)
    assert fates == {end}
    check_verdict(path, end)


@some_and_many(wrong_programs(any_source=True), choices, st.booleans(), eager_limits)
def test_programs_with_any_source_are_flagged_as_their_run_goes(program, random, late, eager):
    """Where the choice decides, the run that was seen is judged, and no other."""
    fates, path, end = walked(program, random, late, eager)
    assert end in fates
    check_verdict(path, end)
    if fates == {RIGHT}:
        assert not is_flagged(path)
    if RIGHT not in fates and path.exact:
        assert is_flagged(path) or end.unwaited


def check_verdict(path, end):
    """The matcher says something exactly where something is wrong, and says what.

    (Requests nobody waited for are not its business.)
    """
    is_wrong = end._replace(unwaited=frozenset()) != RIGHT
    if not path.exact:
        assert end != RIGHT or not is_flagged(path)
        return
    assert is_flagged(path) == is_wrong
    name = {(op.rank, op.seq): call for call, op in path.ops.items()}
    left = {name[op.rank, op.seq] for op in path.matcher.unfinished()}
    assert left == end.left
    disagree = {
        frozenset(name[op.rank, op.seq] for op in found.ops.values())
        for found in path.matcher.mismatches
    }
    assert disagree == end.disagree
    assert bool(path.matcher.absent()) == bool(end.absent)


def test_the_changes_reach_every_way_to_fail():
    wanted, reached = {*Fate._fields, "right", "right by luck"}, set()

    def look(program):
        fates = Oracle(program).fates()
        reached.update(part for end in fates for part in Fate._fields if getattr(end, part))
        if RIGHT in fates:
            reached.add("right" if len(fates) == 1 else "right by luck")

    for more in range(10):  # 400 reach the rarest, luck, with most seeds only
        samples(400, SEED + more)(given(wrong_programs())(look))()
        if reached == wanted:
            break
    assert reached == wanted


# ---- each rule

REDUCE = collective("all_reduce", reduce_op="SUM")
TO_ALL = collective("all_to_all", sizes=(2,), splits=((1, 1), (1, 1)))
MISMATCHES = {
    "collective": (REDUCE, BARRIER),
    "root": (collective("broadcast", peer=0), collective("broadcast", peer=1)),
    "reduce op": (REDUCE, replace(REDUCE, reduce_op="MAX")),
    "dtype": (REDUCE, replace(REDUCE, dtype="int32")),
    "shape": (REDUCE, replace(REDUCE, sizes=(5,))),
    "splits": (TO_ALL, replace(TO_ALL, splits=((2, 0), (1, 1)))),
    "ranks": (
        collective("new_group", sizes=(), dtype="", splits=(0,)),
        collective("new_group", sizes=(), dtype="", splits=(0, 1)),
    ),
}


@pytest.mark.parametrize("rule", MISMATCHES)
def test_collectives_that_disagree(rule):
    one, other = MISMATCHES[rule]
    for order in ((0, 1), (1, 0)):
        matcher, ops = posted(ranks([one], [other]), order)
        [found] = matcher.mismatches
        assert (found.rule, found.ops) == (rule, {0: ops[0, 0], 1: ops[1, 0]})
    assert not posted(ranks([one], [one]))[0].mismatches


def test_other_shapes_of_as_many_elements_agree():
    matcher = Matcher(2)
    for rank, shapes in enumerate([((2, 3),), ((6,),)]):
        op = make_op(rank, 0, replace(REDUCE, group=world(2), sizes=(6,)))
        op.shapes = shapes
        matcher.post(op)
    assert not matcher.mismatches


@pytest.mark.parametrize("roots_parts, agrees", [((2, 2, 2), True), ((2, 3, 2), False)])
def test_scatter_compares_the_roots_parts(roots_parts, agrees):
    root = collective("scatter", peer=0, sizes=roots_parts)
    other = collective("scatter", peer=0, sizes=(2,))
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        matcher, _ = posted(ranks([root], [other], [other]), order)
        assert [found.rule for found in matcher.mismatches] == ([] if agrees else ["shape"])


def test_a_mismatch_is_told_before_all_have_come_and_only_once():
    for lists, members in (
        (([REDUCE], [BARRIER], [BARRIER], []), {0, 1, 2}),
        (([REDUCE], [BARRIER], [], []), {0, 1}),
    ):
        [found] = posted(ranks(*lists))[0].mismatches
        assert set(found.ops) == members


@pytest.mark.parametrize(
    "changes, rule", [({"dtype": "int32"}, "dtype"), ({"sizes": (2,)}, "shape")]
)
def test_messages_that_disagree(changes, rule):
    for order in ((0, 1), (1, 0)):
        matcher, ops = posted(ranks([send(1)], [replace(recv(0), **changes)]), order)
        [found] = matcher.mismatches
        assert (found.rule, found.ops) == (rule, {0: ops[0, 0], 1: ops[1, 0]})


def test_messages_of_a_tag_keep_their_order_and_tags_do_not_mix():
    other = replace(send(1, 2), tag=7), replace(recv(0, 2), tag=7)
    matcher, _ = posted(ranks([send(1), other[0]], [other[1], recv(0)]))
    assert not matcher.mismatches and not matcher.unfinished()
    matcher, _ = posted(ranks([send(1), send(1, 2)], [recv(0, 2), recv(0)]))
    assert [found.rule for found in matcher.mismatches] == ["shape", "shape"]


def test_groups_do_not_mix_though_their_ranks_are_the_same_and_new_group_is_counted_apart():
    a, b = Group("group 1", (0, 1)), Group("group 2", (0, 1))
    one, two = replace(REDUCE, group=a), replace(BARRIER, group=b)
    matcher, ops = posted(ranks([one, two], [two, one]))
    assert not matcher.mismatches and not matcher.absent()
    assert matcher.blocked({0: ops[0, 0], 1: ops[1, 0]}, ()) is None
    sends = replace(send(1), group=a), replace(recv(0), group=b)
    assert len(posted(ranks([sends[0]], [sends[1]]))[0].unfinished()) == 2
    new_group = MISMATCHES["ranks"][1]
    matcher, _ = posted(ranks([REDUCE, new_group], [new_group, REDUCE]))
    assert not matcher.mismatches and not matcher.absent()


# ---- who waits for whom


@pytest.mark.parametrize("size", [2, 3, 4, 7])
@pytest.mark.parametrize("kind", ["send", "recv"])
def test_a_ring_of_ranks_that_all_do_the_same(size, kind):
    make = send if kind == "send" else recv
    matcher, ops = posted(ranks(*([make((rank + 1) % size)] for rank in range(size))))
    waiting = {rank: ops[rank, 0] for rank in range(size)}
    blocked = matcher.blocked(waiting, ())
    assert blocked.cycle in [tuple((a + b) % size for b in range(size)) for a in range(size)]
    assert {rank: wait.needs for rank, wait in blocked.waits.items()} == {
        rank: ((rank + 1) % size,) for rank in range(size)
    }
    assert blocked.gone == ()
    for rank in range(size):
        assert matcher.blocked({r: op for r, op in waiting.items() if r != rank}, ()) is None


def test_the_shortest_ring_is_told():
    # 0 and 1 wait for each other; 2, 3 and 4 in a ring of three that also needs 0.
    program = ranks([recv(1)], [recv(0)], [recv(3)], [recv(4)], [collective("barrier", sizes=())])
    matcher, ops = posted(program)
    blocked = matcher.blocked({rank: ops[rank, 0] for rank in range(5)}, ())
    assert set(blocked.cycle) == {0, 1}
    assert set(blocked.waits) == {0, 1, 2, 3, 4}
    assert blocked.waits[4].needs == (0, 1, 2, 3)


def test_only_those_that_cannot_go_on_are_blocked():
    matcher, ops = posted(ranks([recv(1)], [recv(0)], [recv(3)], []))
    blocked = matcher.blocked({0: ops[0, 0], 1: ops[1, 0], 2: ops[2, 0]}, ())
    assert set(blocked.waits) == {0, 1}
    matcher, ops = posted(ranks([recv(1)], [recv(2)], []))
    waiting = {0: ops[0, 0], 1: ops[1, 0]}
    assert matcher.blocked(waiting, ()) is None  # a rank that runs may free them
    blocked = matcher.blocked(waiting, {2})
    assert (set(blocked.waits), blocked.cycle, blocked.gone) == ({0, 1}, (), (2,))


def test_a_collective_waits_for_those_who_have_not_come():
    matcher, ops = posted(ranks([BARRIER], [BARRIER], []))
    waiting = {0: ops[0, 0], 1: ops[1, 0]}
    assert not matcher.is_satisfied(ops[0, 0])
    assert matcher.blocked(waiting, ()) is None
    blocked = matcher.blocked(waiting, {2})
    assert blocked.waits[0].needs == blocked.waits[1].needs == (2,)
    assert blocked.gone == (2,)
    assert [missing for _, missing in matcher.absent()] == [(2,)]


def test_any_source_is_blocked_only_where_everybody_is():
    matcher, ops = posted(ranks([recv()], [recv(0)], []))
    waiting = {0: ops[0, 0], 1: ops[1, 0]}
    assert matcher.blocked(waiting, ()) is None
    blocked = matcher.blocked(waiting, {2})
    assert blocked.waits[0].any_of and blocked.waits[0].needs == (1, 2)
    assert set(blocked.cycle) == {0, 1}


def test_any_source_takes_a_message_and_leaves_the_next():
    matcher, ops = posted(ranks([recv()], [send(0), send(0)], []))
    assert matcher.is_satisfied(ops[0, 0]) and matcher.is_satisfied(ops[1, 0])
    ops[0, 0].peer = 1
    matcher.resolve(ops[0, 0])
    assert matcher.is_satisfied(ops[0, 0])
    assert matcher.is_satisfied(ops[1, 0]) and not matcher.is_satisfied(ops[1, 1])
    assert matcher.unfinished() == [ops[1, 1]]


def test_requests_of_any_source_waited_for_out_of_order():
    first, second = recv(size=2), recv(size=3)
    matcher, ops = posted(ranks([later(first), later(second)], [send(0, 2), send(0, 3)]))
    for place in (1, 0):
        ops[0, place].peer = 1
        matcher.resolve(ops[0, place])
    assert not matcher.mismatches and not matcher.unfinished()


def test_one_recv_of_any_source_lets_one_sender_go_on():
    matcher, ops = posted(ranks([later(recv()), BARRIER], [send(0), BARRIER], [send(0)]))
    ops[1, 0].end_s = 1.0
    waiting = {0: ops[0, 1], 1: ops[1, 1], 2: ops[2, 0]}
    assert matcher.blocked(waiting, (), lambda op: op.done) is not None


@pytest.mark.parametrize("limit, is_blocked", [(-1, True), (4, False)])
@pytest.mark.parametrize("small_from", [1, 2])
def test_an_eager_send_that_is_done_may_not_have_been_received(small_from, limit, is_blocked):
    """Rank 1's large message may still take the recv; a rendezvous that is done has taken it."""
    large, small = later(send(0, 2)), send(0, 1)
    lists = {1: [large], 2: []}
    lists[small_from].append(small)
    program = ranks([later(recv(size=2)), BARRIER], *lists.values())
    matcher, ops = posted(program, eager_limit_bytes=limit)
    ops[small_from, len(lists[small_from]) - 1].end_s = 1.0
    waiting = {0: ops[0, 1], 1: ops[1, 0]}
    blocked = matcher.blocked(waiting, {2}, lambda op: op.done)
    assert (1 in blocked.waits) == (is_blocked and small_from == 2)


def test_a_send_behind_an_earlier_one_of_its_rank_waits_for_the_next_recv():
    matcher, ops = posted(ranks([later(recv())], [later(send(0)), later(send(0))], []))
    assert matcher.is_satisfied(ops[1, 0]) and not matcher.is_satisfied(ops[1, 1])


def test_a_named_recv_after_one_of_any_source_or_before_an_open_one_is_compared():
    for program in (
        ranks([recv(), recv(1)], [send(0), send(0, dtype="int32")]),
        ranks([later(recv(1, dtype="int32")), recv(), 0], [send(0)]),
    ):
        path, end = walk(program)
        assert end.disagree and path.matcher.mismatches


def test_a_named_recv_beside_an_open_one_of_any_source_is_not_accused():
    program = ranks([later(recv()), later(recv(1, 3)), 0, 1], [later(send(0)), send(0, 3), 0], [])
    for late in (False, True):
        path, end = walk(program, late=late)
        assert end != RIGHT or not is_flagged(path)


def test_groups_in_opposite_orders_wait_and_requests_do_not():
    a, b = Group("group 1", (0, 1)), Group("group 2", (0, 1, 2))
    one, two = replace(BARRIER, group=a), replace(BARRIER, group=b)
    path, end = walk(ranks([one, two], [two, one], [two]))
    assert {rank for rank, _ in end.stuck} == {0, 1, 2}
    assert set(path._blocked().cycle) == {0, 1}
    two = replace(BARRIER, group=Group("group 2", (1, 2)))
    path, end = walk(ranks([one], [later(two), one, 0], [two]))
    assert end == RIGHT and not is_flagged(path)


@pytest.mark.parametrize("limit, goes_on", [(-1, False), (3, False), (4, True)])
def test_small_sends_complete_where_they_are_eager(limit, goes_on):
    matcher, ops = posted(ranks([send(1)], []), eager_limit_bytes=limit)
    assert matcher.is_satisfied(ops[0, 0]) == goes_on
    assert (matcher.blocked({0: ops[0, 0]}, {1}) is None) == goes_on
    assert matcher.unfinished() == [ops[0, 0]]


def test_what_is_left_over():
    matcher, ops = posted(
        ranks([later(send(1)), later(send(1))], [later(recv(0)), later(recv(2))], [])
    )
    assert matcher.unfinished() == [ops[0, 1], ops[1, 1]]


def new_group(members):
    return collective("new_group", sizes=(), dtype="", splits=tuple(sorted(members)))


@samples(SOME)
@given(st.lists(st.sets(st.integers(0, 5), min_size=1), min_size=2, max_size=6))
def test_new_groups_are_refused_as_if_each_were_compared_with_all(lists):
    calls = [new_group(members) for members in lists]
    matcher, by_place = posted(ranks(*([call] for call in calls)))
    ops = list(by_place.values())
    collide = [disagreement(one, other) for i, one in enumerate(ops) for other in ops[:i]]
    assert bool(matcher.mismatches) == any(collide)


def test_a_mesh_of_groups_is_compared_in_linear_time(monkeypatch):
    compared = []

    def counted(*ops):
        compared.append(ops)
        return disagreement(*ops)

    monkeypatch.setattr(matching, "disagreement", counted)
    rows = [range(first, first + 8) for first in range(0, 64, 8)]
    matcher, _ = posted(ranks(*([new_group(row) for row in rows] for _ in range(64))))
    assert not matcher.mismatches
    assert len(compared) < 2 * 64 * len(rows)


def held_by(matcher):
    """How many things the matcher holds, of whatever sort."""
    boxes = matcher._mailboxes.values()
    sides = [side for box in boxes for side in (box.sends, box.recvs, box.received, box.taken)]
    return (
        len(matcher._number)
        + len(matcher._new_groups)
        + sum(len(ops) for side in sides for ops in side.values())
        + sum(len(meetings) for meetings in matcher._meetings.values())
    )


def test_what_has_met_is_forgotten():
    matcher, everyone, seqs = Matcher(3), world(3), [0, 0, 0]

    def post(rank, call, peer=None, source=None):
        op = make_op(rank, seqs[rank], replace(call, group=everyone))
        seqs[rank] += 1
        matcher.post(op)
        if source is not None:
            matcher.resolve(replace(op, peer=source))

    most = 0
    for step in range(50):
        post(2, later(send(0)))  # one is always under way
        if step:
            post(0, recv(2))
        post(1, send(0))
        post(0, recv(), source=1)
        for rank in range(3):
            post(rank, collective("all_reduce"))
        most = max(most, held_by(matcher))
    assert most <= 4 and not matcher.mismatches and not matcher.absent()
    assert [(op.rank, op.kind) for op in matcher.unfinished()] == [(2, "send")]


def test_mailboxes_of_old_tags_are_forgotten(monkeypatch):
    monkeypatch.setattr(matching, "MAX_QUIET", 8)
    matcher, everyone = Matcher(2), world(2)
    for step in range(100):
        matcher.post(make_op(0, step, replace(send(1), group=everyone, tag=step)))
        if step != 50:
            matcher.post(make_op(1, step, replace(recv(0), group=everyone, tag=step)))
    assert len(matcher._mailboxes) <= 20
    assert [op.tag for op in matcher.unfinished()] == [50]

"""The verdicts of `simlib.checks`: three voices, and every way an answer can be wrong."""

import re
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from synthetic import RunMaker

import simlib
from simlib import checks
from simlib.classroom.checks import check
from simlib.classroom.checks.checking import fingerprint
from simlib.classroom.checks.compare import (
    OneOf,
    describe,
    difference,
    first_unseen,
    known_mistake,
    likely_cause,
)
from simlib.classroom.checks.complaints import rank_line


def inputs(rank, world_size):
    return (torch.arange(2.0) + 10 * rank,)


def verdict_on(answer, *rules, expected=lambda xs: [2 * x for x in xs], **options):
    return check("double", answer, inputs, expected, *rules, points=2, **options)


def double(rank, world_size, x):
    return 2 * x


# Three voices


def test_right_answer_earns_its_points_and_tells_what_was_counted():
    verdict = verdict_on(double, checks.messages(lambda xs: len(xs)))
    assert (verdict.status, verdict.earned, verdict.world_size) == ("right", 2, 5)
    assert repr(verdict) == (
        "double: right, 2 of 2 points.\n"
        "Every rank has the expected value at world sizes 1, 2, 3, 4, 5.\n"
        "  at world size 5: 0 messages sent (at most 5)"
    )


def test_every_world_is_tried_with_each_of_several_inputs():
    def drawn(seed):
        return lambda rank, world_size: (torch.full((2,), seed + 10.0 * rank),)

    def from_a_table(rank, world_size, x):
        return torch.full((2,), 2 + 20.0 * rank)

    def checked(answer, *seeds):
        draws = [drawn(seed) for seed in seeds]
        return check("double", answer, draws, lambda xs: [2 * x for x in xs], worlds=[1, 3])

    assert checked(from_a_table, 1).status == "right"
    verdict = checked(from_a_table, 1, 2)
    assert (verdict.status, verdict.world_size) == ("wrong", 1)
    assert verdict.lines == ["rank 0: got tensor([2., 2.]), expected tensor([4., 4.])"]
    right = checked(double, 1, 2)
    assert right.status == "right"
    assert right.reason == "Every rank has the expected value at world sizes 1, 3."


def test_stub_is_not_written_yet():
    def stub(rank, world_size, x):
        raise NotImplementedError()

    def half(rank, world_size, x):
        if rank == 1:
            raise NotImplementedError()
        if world_size > 1:
            dist.barrier()
        return 2 * x

    verdict = verdict_on(stub)
    assert (verdict.status, verdict.earned) == ("not written", 0)
    assert repr(verdict) == (
        "double: not written yet. Rank 0 in a world of 1 still reaches NotImplementedError.\n"
        "Write your answer in the cell above, run it, then run this cell again."
    )
    verdict = verdict_on(half)
    assert verdict.status == "not written"
    assert verdict.reason == "Rank 1 in a world of 2 still reaches NotImplementedError."


def test_broken_program_as_it_came_is_not_written_yet():
    def broken(rank, world_size, x):
        return x

    verdict = verdict_on(broken, as_given=fingerprint(broken))
    assert (verdict.status, verdict.earned) == ("not written", 0)
    assert repr(verdict).startswith(
        "double: not written yet. This is still the broken program. "
        "Smallest world that fails: 1 rank.\nRank 0 has the wrong value."
    )
    assert verdict_on(broken, as_given="12345678").status == "wrong"
    assert verdict_on(double, as_given=fingerprint(double), worlds=[1]).status == "right"


def test_wrong_answer_names_smallest_world_and_every_rank():
    def wrong_from_three_on(rank, world_size, x):
        return 2 * x + (rank == 2)

    verdict = verdict_on(wrong_from_three_on)
    assert (verdict.status, verdict.earned, verdict.world_size) == ("wrong", 0, 3)
    assert repr(verdict) == (
        "double: wrong, 0 of 2 points. Smallest world that fails: 3 ranks.\n"
        "Rank 2 has the wrong value. This is not a usual mistake: compare each rank's value with "
        "the expected one.\n"
        "  rank 0: right, tensor([0., 2.])\n"
        "  rank 1: right, tensor([20., 22.])\n"
        "  rank 2: got tensor([41., 43.]), expected tensor([40., 42.])"
    )
    assert verdict.run.world_size == 3
    assert verdict.run.results[2].tolist() == [41, 43]  # what the answer returned, nothing else


def test_a_run_with_messages_is_offered_for_a_look():
    def wrong_after_talking(rank, world_size, x):
        dist.all_reduce(y := x.clone())
        return y

    offer = "To see who sent what to whom, run `verdict.run` in a new cell."
    assert repr(verdict_on(wrong_after_talking)).endswith("\n" + offer)


# Answers that do not end well


def waits(rank, world_size, x):
    if world_size > 1:
        dist.recv(x, src=1 - rank)
    return 2 * x


def turns(rank, world_size, x):
    while True:
        x += 1


def holds(lock):
    def holds_a_lock(rank, world_size, x):
        with lock:
            return 2 * x

    return holds_a_lock


def adds_seven(rank, world_size, x):
    dist.barrier()
    return 2 * x + 7


def sends_into_the_void(rank, world_size, x):
    if rank == 0 and world_size > 1:
        dist.isend(x, dst=1)
    return 2 * x


def doubles_in_place(rank, world_size, x):
    x *= 2
    return x.clone()


def sends_what_it_changes(rank, world_size, x):
    mine, other = x.clone(), torch.zeros_like(x)
    request = dist.isend(mine, dst=1 - rank)
    mine += 1
    dist.recv(other, src=1 - rank)
    request.wait()
    return 0 * x


def leaves_an_op_open(rank, world_size, x):
    dist.all_reduce(x.clone(), async_op=True)
    return 2 * x


def receives_into_x(rank, world_size, x):
    doubled = 2 * x
    if world_size > 1:
        request = dist.isend(x.clone(), dst=(rank + 1) % world_size)
        dist.recv(x, src=(rank - 1) % world_size)
        request.wait()
    return doubled


WRONG = {
    "raises": (
        lambda rank, n, x: x[7],
        {},
        ["world of 1: Rank 0 raised IndexError: index 7 is out of bounds"],
    ),
    "hangs": (
        waits,
        {"worlds": [1, 2]},
        [
            "world of 2: The ranks never finish: ranks 0 and 1 wait for each other.\n",
            r"\n.*recv\(src=1\).*\n.*recv\(src=0\)",
        ],
    ),
    "brings another size": (
        lambda rank, n, x: dist.all_reduce(torch.zeros(1 + rank)),
        {"expected": lambda xs: [None] * len(xs)},
        [
            "world of 2: .*as many elements as the others expect",
            r"\n.*1 element of float32.*\n.*2 elements of float32",
        ],
    ),
    "never ends": (turns, {"worlds": [1], "timeout_s": 1}, ["computes without end"]),
    "dies": (lambda rank, n, x: __import__("os")._exit(3), {}, ["rank 0.*3"]),
    "gives what cannot travel": (lambda rank, n, x: (i for i in range(3)), {}, ["generator"]),
    "cannot travel itself": (holds(threading.Lock()), {}, ["lock"]),
    "returns nothing": (
        lambda rank, n, x: None,
        {},
        ["world of 1: Rank 0 returns None: does the function always reach a `return`[?]\n"],
    ),
    "is no function": (7, {}, ["not callable"]),
    "takes too few": (
        lambda rank, n: None,
        {},
        ["TypeError", r"simlib calls it as <lambda>\(rank, world_size, x\), with 3 arguments"],
    ),
    "calls with too few": (
        lambda rank, n, x: double(rank),
        {},
        [r"world of 1: Rank 0 raised TypeError: double\(\) missing"],
    ),
    "is wrong after messages": (adds_seven, {"worlds": [2]}, ["Print what rank"]),
    "is wrong after none": (adds_seven, {"worlds": [1]}, ["A world of 1 has no messages"]),
    "stacks a pair": (
        lambda rank, n, x: torch.stack([x, x + 50]),
        {"expected": lambda xs: [(x, x + 50) for x in xs], "worlds": [1]},
        ["a Tensor, but a tuple is expected"],
    ),
    "sends what nobody receives": (
        sends_into_the_void,
        {"worlds": [2]},
        ["Rank 0 sends a message to rank 1 that nobody receives"],
    ),
    "sends what it changes": (
        sends_what_it_changes,
        {"worlds": [2]},
        [r"world of 2: simlib found a problem \(race\): "],  # whatever the values are
    ),
    "leaves an op open": (
        leaves_an_op_open,
        {"worlds": [2]},
        [r"world of 2: simlib found a problem \(unfinished\): "],
    ),
    "sends nothing (None)": (
        lambda rank, n, x: dist.all_reduce(None),
        {"worlds": [2]},
        [r"A rank sent None, or received into None. Is the None a .grad\?"],
    ),
    "changes its input": (
        doubles_in_place,
        {},
        ["values are right, but the input has changed. Rank 0 changed the tensor it was given"],
    ),
    "changes its input and is wrong": (
        lambda rank, n, x: x.add_(1),
        {},
        ["has the wrong value. Rank 0 changed the tensor it was given: work on a copy"],
    ),
    "receives into its input": (receives_into_x, {}, ["Receive into another tensor"]),
    "returns what it should change": (
        double,
        {"in_place": True},
        ["The returned value is right, but the tensor x itself must change: write into it."],
    ),
    "is of another dtype": (
        lambda rank, n, x: 2 * x.double(),
        {},
        ["has dtype float64, but float32 is expected.\n", "of float64, expected float32$"],
    ),
    "makes a known mistake": (
        lambda rank, n, x: 3 * x,
        {"mistakes": {"Thrice!": lambda xs: [3 * x for x in xs]}},
        ["Rank 0 has the wrong value. Thrice!\n"],
    ),
    "is wrong without messages": (
        lambda rank, n, x: 2 * x + 7,
        {"worlds": [2]},
        ["This is not a usual mistake: compare each rank's value"],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told(name):
    answer, options, words = WRONG[name]
    verdict = verdict_on(answer, **options)
    assert verdict.status == "wrong"
    said = "\n".join([f"world of {verdict.world_size}: {verdict.reason}", *verdict.lines])
    for pattern in words:
        assert re.search(pattern, said), said


def test_ranks_that_do_not_communicate_where_they_must_are_told():
    def reason(answer):
        sums = lambda xs: [sum(xs)] * len(xs)  # noqa: E731
        return verdict_on(answer, checks.only("send"), expected=sums).reason

    assert "No rank" not in reason(lambda rank, n, x: 3 * x)  # one rank has nobody to ask
    assert "No rank communicates" in reason(lambda rank, n, x: x + 7 * (n > 1))


def test_a_changed_list_of_numbers_is_called_a_list():
    def pops(rank, world_size, numbers):
        return [numbers.pop(0)]

    lists = lambda rank, world_size: ([[1], [2]],)  # noqa: E731
    verdict = check("pops", pops, lists, lambda given: [[one[0]] for one in given], points=1)
    assert "changed the list it was given: work on a copy (deepcopy)" in verdict.reason


def test_new_tensors_put_into_a_list_do_not_count_as_a_change_in_place():
    def exchanges(rank, world_size, tensors):
        tensors[0] = 2 * tensors[0]

    def returns(rank, world_size, tensors):
        return [2 * tensors[0]]

    def writes(rank, world_size, tensors):
        tensors[0] *= 2

    def verdict(answer):
        lists = lambda rank, world_size: ([torch.ones(2)],)  # noqa: E731
        twos = lambda by_rank: [[torch.full((2,), 2.0)]] * len(by_rank)  # noqa: E731
        return check("double", answer, lists, twos, worlds=[2], in_place=True)

    assert "The list contains new tensors" in verdict(exchanges).reason
    assert "tensors of the list themselves must change" in verdict(returns).reason
    assert verdict(writes).status == "right"


def test_same_answer_gives_the_same_text():
    def waits_for_ever(rank, world_size, x):
        dist.recv(x, src=(rank + 1) % world_size)

    texts = {repr(verdict_on(waits_for_ever, worlds=[2])) for _ in range(2)}
    assert len(texts) == 1


# Values


@pytest.mark.parametrize(
    "got, want, words",
    [
        (1, None, "has 1, but nothing (None) is expected"),
        (None, torch.ones(2), "returns None: does the function always reach a `return`?"),
        ([0.0, 2.0], torch.ones(2), "has a list, but a tensor is expected"),
        (torch.zeros(3), torch.ones(2), "has a tensor of shape (3,), but (2,) is expected"),
        (torch.tensor([0, 2]), torch.ones(2), "has dtype int64, but float32 is expected"),
        (
            torch.tensor([0.0, float("nan")]),
            torch.ones(2),
            "has nan (not a number). 0 / 0 gives nan, and every sum with nan is nan",
        ),
        (torch.tensor([0.0, 2.1]), torch.tensor([0.0, 2.0]), "has the wrong value"),
        (None, None, None),
        (0.3, 0.1 + 0.2, None),
        (torch.tensor(0.3), 0.3, "has a Tensor, but a number is expected: convert it with .item()"),
        (torch.ones(2), 0.3, "has a Tensor, but a number is expected"),
        (
            np.int64(3),
            3,
            "has a numpy int64, but a Python number is expected: convert it with .item()",
        ),
        (True, 1, "has a bool, but a number is expected"),
        (1_000_001, 1_000_000, "has the wrong value"),
        (1_000_001.0, 1_000_000, None),
        (float("nan"), 1.0, "has the wrong value"),
        (float("nan"), float("nan"), None),
        (1.0, float("nan"), "has the wrong value"),
        ([0.5, float("nan")], [0.5, float("nan")], None),
        (float("inf"), float("inf"), None),
        (-float("inf"), float("inf"), "has the wrong value"),
        (1.0, float("inf"), "has the wrong value"),
        (float("inf"), 1.0, "has the wrong value"),
        (10**400, 1.0, "has the wrong value"),
        (10**400, float("nan"), "has the wrong value"),
        (torch.tensor([1.0 + 1e-7]), torch.tensor([1.0]), None),
        (torch.tensor([float("nan")]), torch.tensor([float("nan")]), None),
        (torch.tensor([1.0]), torch.tensor([float("nan")]), "has the wrong value"),
        (
            [torch.ones(1)],
            [torch.ones(1), torch.ones(1)],
            "has a list of length 1, but length 2 is expected",
        ),
        ([1, 2], [1, 3], "at index 1 has the wrong value"),
        ([1, None], [1, 3], "has None at index 1: nothing was put there"),
        ([1, (2, 3)], [1, (2, 4)], "at index [1][1] has the wrong value"),
        ([1, (2, [0, 3])], [1, (2, [0, 4])], "at index [1][1][1] has the wrong value"),
        (torch.ones(1), [1], "has a Tensor, but a list is expected"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, None),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, "at 'b' has the wrong value"),
        ({"a": 1}, {"a": 1, "b": 3}, "has {'a': 1}, but a dict with a, b is expected"),
        ({"a": 1}, {}, "has {'a': 1}, but an empty dict is expected"),
        ("adam", "adam", None),
        ("adam", "sgd", "has 'adam', but 'sgd' is expected"),
        (2.0, 1.98, "has the wrong value"),
    ],
)
def test_difference(got, want, words):
    assert difference(got, want) == words


@pytest.mark.parametrize(
    "got, want, is_near",
    [
        (2.0, 1.98, True),
        (1e-7, 0.0, True),
        (100, 101, False),  # whole numbers, tensors and small numbers are exact
        (torch.ones(1) * 1.01, torch.ones(1), False),
        (0.0011, 0.001, False),
    ],
)
def test_difference_within_a_tolerance(got, want, is_near):
    assert difference(got, want, 0.02) == (None if is_near else "has the wrong value")


def test_a_difference_that_the_shown_elements_hide_is_named():
    want = torch.arange(9.0)
    got = want.clone()
    got[7] = 0.5
    assert describe(got) == describe(want)
    assert first_unseen(got, want) == "; element 7 differs: 0.5, not 7"
    rows = first_unseen(got.view(3, 3), want.view(3, 3))
    assert rows == "; element (2, 1) differs: 0.5, not 7"
    assert first_unseen(want, want) == first_unseen(want + 1, want) == ""
    assert first_unseen([got], [want]) == ""


def test_describe_is_short():
    assert describe(torch.arange(9)) == "tensor([0, 1, 2, 3, 4, 5, ...])"
    assert describe(torch.tensor([-1.0, 0.5])) == "tensor([-1., 0.5])"
    assert describe(torch.tensor(3.0)) == "tensor(3.)"
    assert describe(torch.ones(1, 2)) == "tensor([1., 1.]) of shape (1, 2)"
    assert describe(torch.ones(1, dtype=torch.float64)) == "tensor([1.], dtype=float64)"
    assert describe([torch.zeros(1), None]) == "[tensor([0.]), None]"
    assert describe({"weight": torch.zeros(1), 2: 0.5}) == "{'weight': tensor([0.]), 2: 0.5}"
    assert describe((0, 1, 2)) == "(0, 1, 2)"
    assert len(describe("x" * 1000)) == 60


@pytest.mark.parametrize(
    "got, want, words",
    [
        ([1, 2], [3, 3], "This is still the rank's own input"),
        ([7, 8], [8, 7], "Rank 0 has the value that rank 1 should have"),
        ([5, 6, 7], [5, 5, 5], "Only rank 0 is right"),
        ([torch.tensor([2, 1])], [torch.tensor([1, 2])], "the right numbers in a wrong order"),
        ([(2, 1)], [(1, 2)], "the function returns them in the other order"),
        ([5, 6, 7], [5, 1, 2], None),
    ],
)
def test_likely_cause(got, want, words):
    found = likely_cause(got, want, [(1, 2, 3)[: len(got)]])
    assert words in found if words else found is None


def test_values_that_were_never_passed_are_alike_by_chance():
    got, want, given = [1, 3, 3], [1, 2, 3], [(7, 7, 7)]
    assert "direction and the order" in likely_cause(got, want, given)
    assert likely_cause(got, want, given, is_passed=False) is None


def test_a_known_mistake_may_give_one_of_several_values():
    swapped = "Swapped, or doubled."
    mistakes = {
        "Nine!": lambda xs: [9] * len(xs),
        swapped: lambda xs: OneOf([xs[::-1], [2 * x for x in xs]]),
    }
    told = {(9, 9): "Nine!", (9, 8): None, (2, 1): swapped, (2, 4): swapped, (1, 1): None}
    for got, words in told.items():
        assert known_mistake(list(got), [(1, 2)], mistakes) == words


# Time on a modelled network

SLOW = simlib.Cluster(nodes=2, ranks_per_node=4, inter=simlib.Link(1e-3, 1e6))


def tell_all(rank, world_size, x):
    """Rank 0 tells the others, one after the other."""
    for other in range(1, world_size):
        if rank == 0:
            dist.send(x, dst=other)
        elif rank == other:
            dist.recv(x, src=0)


def told_in(bound_s, answer=tell_all, **options):
    timed = [checks.Timed(SLOW, inputs, lambda xs: bound_s, "Help each other.")]
    first = {"expected": lambda xs: [xs[0]] * len(xs), "in_place": True, "worlds": [1, 3]}
    return verdict_on(answer, checks.messages(lambda xs: 7), timed=timed, **first, **options)


def test_virtual_time_at_its_bound_is_enough():
    # Three ranks share the root's node, which costs nothing; four messages cross the network.
    verdict = told_in(4 * (1e-3 + 8 / 1e6))
    assert repr(verdict) == (
        "double: right, 2 of 2 points.\n"
        "Every rank has the expected value at world sizes 1, 3.\n"
        "  at world size 3: 2 messages sent (at most 7)\n"
        "  at world size 8: 4.03 ms on the modelled network (at most 4.03 ms)"
    )


def test_too_much_virtual_time_is_told_with_the_bound():
    verdict = told_in(4e-3)
    assert (verdict.status, verdict.world_size) == ("wrong", 8)
    assert verdict.run.engine == "simulated"
    assert verdict.reason == (
        "In this world of 8 the values are right, but on the modelled network the last rank is "
        "done after 4.03 ms where 4 ms are enough. Help each other."
    )


def test_values_and_rules_hold_on_the_modelled_network_too():
    def tells_five(rank, world_size, x):
        tell_all(rank, min(world_size, 5), x)

    def tells_twice(rank, world_size, x):
        for _ in range(1 + (world_size > 3)):
            tell_all(rank, world_size, x)

    assert "Rank 5 has the wrong value" in told_in(1.0, tells_five).reason
    assert "send 14 messages where 7 are enough" in told_in(1.0, tells_twice).reason


def test_answer_that_is_wrong_on_real_ranks_is_not_simulated():
    verdict = told_in(1.0, double)
    assert (verdict.world_size, verdict.run.engine) == (3, "real")


def test_measure_tells_the_virtual_time_of_a_simulation():
    start = checks.Timed(SLOW, inputs, None).start(timeout_s=20)
    measured = checks.measure(tell_all, inputs, worlds=[5], in_place=True, start=start)
    assert measured.endswith("\n5: virtual time 0.001008000 s")


# Memory on a modelled device

ROOMY = simlib.Cluster(nodes=2, ranks_per_node=1, inter=simlib.Link(1e-3, 1e6))


def make_a_copy(rank, world_size, x):
    return x.clone()


def make_two_copies(rank, world_size, x):
    spare = [x.clone() for _ in range(1 + (rank == 1))]
    return spare[0]


def fits_in(bound_bytes, answer, hint="Keep one."):
    memory = [checks.Fits(ROOMY, inputs, lambda xs: bound_bytes, hint)]
    return verdict_on(answer, expected=lambda xs: list(xs), worlds=[1, 3], memory=memory)


def test_memory_at_its_bound_is_enough():
    assert repr(fits_in(8, make_a_copy)) == (
        "double: right, 2 of 2 points.\n"
        "Every rank has the expected value at world sizes 1, 3.\n"
        "  at world size 2: the rank with the most memory holds 8 bytes (at most 8)"
    )


def test_too_much_memory_is_told_with_rank_ledger_and_bound():
    verdict = fits_in(8, make_two_copies)
    assert (verdict.status, verdict.world_size, verdict.run.engine) == ("wrong", 2, "simulated")
    assert verdict.reason == (
        "In this world of 2 the values are right, but rank 1 holds 16 bytes at its peak "
        "(activations and temporaries 16) where 8 are enough for any rank. Keep one."
    )


def test_a_hint_about_memory_may_look_at_the_ledger():
    verdict = fits_in(8, make_two_copies, lambda ledger: f"Not {ledger.peak_bytes // 8} copies.")
    assert verdict.reason.endswith("where 8 are enough for any rank. Not 2 copies.")


@pytest.mark.parametrize(
    "flops, processes, words",
    [
        ([10, 20], [0, 0], None),
        ([10, 19], [0, 0], "rank 1 computes 19 floating-point operations with torch, and every"),
        (
            [10, 20],
            [0, 1],
            "rank 1 starts another process. Time and memory of that process are not counted",
        ),
        (None, None, None),  # where the cluster has no device, nobody counts
    ],
)
@pytest.mark.parametrize("bound", [checks.Timed, checks.Fits])
def test_work_that_no_clock_and_no_ledger_sees_is_refused(bound, flops, processes, words):
    run = RunMaker(2).run()
    run.flops, run.processes, run.memory = flops, processes, [SimpleNamespace(peak_bytes=8)] * 2
    least = lambda xs: [10 * x for x in xs]  # noqa: E731
    rule = bound(ROOMY, inputs, lambda xs: 1000, at_least_flops=least).rule
    said = rule.broken(run, [(1, 2)])
    assert said is None if words is None else words in said


# Rules, on hand-made traces


def chain_of_three(*more):
    """Rank 0 sends to 1, 1 to 2; and further messages: ``(from, to, begin, end)``."""
    made = RunMaker(3)
    for src, dst, begin, end in [(0, 1, 0, 10), (1, 2, 11, 20), *more]:
        made.send(src, dst, begin, begin, end)
        made.recv(dst, src, begin and begin - 1, begin and begin - 1, end)
    return made


def one_to_two():
    made = RunMaker(3)
    for dst in (1, 2):
        made.send(0, dst, 0, 0, 10, async_op=True)
        made.recv(dst, 0, 0, 0, 10)
    return made


def both_ways():
    made = RunMaker(2)
    for rank in (0, 1):
        made.send(rank, 1 - rank, 0, 12, 20, async_op=True)
        made.recv(rank, 1 - rank, 1, 1, 11)
    return made


def two_to_one():
    made = RunMaker(3)
    for rank, post in ((2, 0), (1, 5)):
        made.send(rank, 0, post, post, post + 1)
        made.recv(0, rank, post, post, post + 1)
    return made


CHAIN = chain_of_three()
BUSY = chain_of_three((0, 2, 21, 30), (1, 2, 31, 40))
ONE_BACK = checks.sends_to(lambda rank, n: {rank - 1}, "Look.", "Turn round.")


@pytest.mark.parametrize(
    "made, rule, words",
    [
        (CHAIN, checks.messages(lambda xs: 2), None),
        (
            CHAIN,
            checks.messages(lambda xs: 1, "Send fewer."),
            r"send 2 messages where 1 is enough \(by rank: 1, 1, 0\). Send fewer.$",
        ),
        (CHAIN, checks.nbytes(lambda xs: 8), None),
        (CHAIN, checks.nbytes(lambda xs: 7), "send 8 bytes where 7"),
        (CHAIN, checks.rounds(lambda xs: 2), None),
        (
            CHAIN,
            checks.rounds(lambda xs: 1),
            "take 2 rounds where 1 is enough; the busiest rank sends 1 message.$",
        ),
        (one_to_two(), checks.rounds(lambda xs: 1), "take 2 rounds where 1"),
        (both_ways(), checks.rounds(lambda xs: 1), None),
        (CHAIN, checks.nbytes_of_a_rank(lambda xs: 4), None),
        (CHAIN, checks.nbytes_of_a_rank(lambda xs: 3), "rank 0 sends 4 bytes where 3 are"),
        (
            BUSY,
            checks.nbytes_of_a_rank(lambda xs: 8),
            "rank 2 receives 12 bytes where 8 are enough for any rank",
        ),
        (CHAIN, checks.only("send", "recv"), None),
        (CHAIN, checks.only("send"), "Rank 1 calls recv"),
        (two_to_one(), checks.only("broadcast"), "Rank 0 calls recv"),
        (CHAIN, checks.sends_to(lambda rank, n: {rank + 1}), None),
        (
            CHAIN,
            checks.sends_to(lambda rank, n: {1}),
            "rank 1 sends to rank 2, which is not one of its neighbours here",
        ),
        (CHAIN, ONE_BACK, "but rank 0 sends to rank 1. Turn round.$"),
        (chain_of_three((0, 2, 5, 6)), ONE_BACK, "is not one of its neighbours here. Look.$"),
        (
            two_to_one(),
            checks.sends_to(lambda rank, n: set()),
            "^In this world of 3 the values are right, but rank 1 sends to rank 0",
        ),
        (CHAIN, checks.somebody_sends(), None),
        (RunMaker(1), checks.somebody_sends(), None),
        (
            RunMaker(2),
            checks.somebody_sends(),
            "^In this world of 2 the values are right, but no rank communicates",
        ),
    ],
)
def test_a_rule_at_its_bound_holds_and_above_it_says_who_breaks_it(made, rule, words):
    run = made.run()
    said = rule.broken(run, [tuple(range(run.world_size))])
    assert (said is None) == (words is None) and re.search(words or "", said or ""), said


# Rules, on real ranks


def two(rank, world_size, x):
    dist.all_reduce(torch.zeros(1))
    dist.all_reduce(torch.zeros(5))
    return 2 * x


def wide(rank, world_size, x):
    dist.all_reduce(torch.zeros(5, dtype=torch.float64))
    return 2 * x


def objects(rank, world_size, x):
    dist.broadcast_object_list([7], src=0)
    return 2 * x


def three(rank, world_size, x):
    dist.all_reduce(torch.zeros(1))
    dist.broadcast(torch.zeros(3), src=0)
    dist.all_reduce(torch.zeros(5))
    return 2 * x


@pytest.mark.parametrize(
    "answer, rule, words, no_words",
    [
        (two, checks.collectives(lambda xs: 2), None, None),
        (two, checks.collectives(lambda xs: 1), "2 collectives take place", None),
        (
            objects,
            checks.collectives(lambda xs: 1),
            "2 collectives take place where 1 would be enough; a ..._object function calls",
            None,
        ),
        (
            objects,
            checks.only("send"),
            "; a ..._object function calls two collectives\\): this",
            None,
        ),
        (two, checks.collective_nbytes(lambda xs: 20), None, None),
        (two, checks.collective_nbytes(lambda xs: 19), "brings 20 bytes", "float64"),
        # It is named where it alone makes a collective too heavy.
        (wide, checks.collective_nbytes(lambda xs: 20), "A float64 has 8 bytes", None),
        (wide, checks.collective_nbytes(lambda xs: 19), "brings 40 bytes", "float64"),
        (three, checks.brought(lambda xs: [4, 20], "all_reduce"), None, None),
        (three, checks.brought(lambda xs: None), None, None),
        (
            three,
            checks.brought(lambda xs: [20, 4], "all_reduce", hint="Turn it."),
            "the all_reduces of rank 0 carry 4, then 20 bytes where 20, then 4 are expected. "
            "Turn it.$",
            None,
        ),
        (
            lambda rank, n, x: dist.barrier(),
            checks.only("send", "recv"),  # told before a wrong value
            "calls barrier.*allows only send, recv, isend, irecv.$",
            None,
        ),
    ],
)
def test_a_rule_is_kept_or_what_breaks_it_is_told(answer, rule, words, no_words):
    verdict = verdict_on(answer, rule, worlds=[2])
    assert verdict.status == ("wrong" if words else "right")
    assert not words or re.search(words, verdict.reason), verdict.reason
    assert not no_words or no_words not in verdict.reason


def test_bytes_and_order_of_collectives_are_told_of_a_right_answer():
    right = verdict_on(three, checks.brought(lambda xs: [4, 12, 20]), worlds=[2])
    assert "rank 0's collectives carry 4, then 12, then 20 bytes" in repr(right)


def test_a_mistake_can_be_known_by_the_error_in_which_it_ends():
    mistakes = {"Look at order.": "is the rank itself", "Look at x.": "is not so"}

    def reason(answer):
        return verdict_on(answer, worlds=[2], mistakes=mistakes).reason

    assert reason(lambda rank, n, x: dist.send(x, dst=rank)).endswith("). Look at order.")
    assert "Look at" not in reason(lambda rank, n, x: x)


def test_measure_prints_values_messages_and_bytes():
    def pass_on(rank, world_size, x):
        if rank > 0:
            dist.recv(x, src=rank - 1)
        if rank < world_size - 1:
            dist.send(x, dst=rank + 1)
        return x

    assert checks.measure(pass_on, inputs, worlds=[1, 2]) == (
        "1: tensor([0., 1.])\n"
        "1: messages [0], bytes [0]\n"
        "2: tensor([0., 1.]); tensor([0., 1.])\n"
        "2: messages [1, 0], bytes [8, 0]"
    )


# Tolerances


@pytest.mark.parametrize("got, is_right", [(2.03, True), (1.97, True), (2.05, False), (1.9, False)])
def test_numbers_may_be_graded_with_a_tolerance(got, is_right):
    verdict = verdict_on(
        lambda rank, world_size, x: {"step_s": got, "ranks": [world_size, 1e6 * got]},
        expected=lambda xs: [{"step_s": 2.0, "ranks": [len(xs), 2e6]}] * len(xs),
        within=0.02,
        worlds=[1, 2],
    )
    assert verdict.status == ("right" if is_right else "wrong")


def test_of_long_lists_only_the_first_difference_is_shown():
    entries = [("broadcast", 8 * index, "a line of some length") for index in range(20)]
    other = [*entries[:7], ("barrier", 0, "another line"), *entries[8:]]

    def answer(rank, world_size, x):
        return other if rank == 1 else entries

    verdict = verdict_on(answer, worlds=[2], expected=lambda xs: [entries] * 2)
    assert verdict.reason.startswith("Rank 1 at index [7][0] has 'barrier', but")
    right, wrong = verdict.lines
    assert right.startswith("rank 0: right, [('broadcast', 0,") and right.endswith(" ...")
    assert wrong == (
        "rank 1: element 7 differs: got ('barrier', 0, 'another line'), "
        "expected ('broadcast', 56, 'a line of some length')"
    )
    shorter = rank_line(0, entries[:-1], entries, is_wrong=True)
    assert shorter.endswith("element 19 differs: got nothing, expected " + repr(entries[19]))


# Parts


def two_messages(rank, world_size, x):
    """The sum of all, with every message sent twice."""
    total = x.clone()
    for other in range(world_size):
        for _ in range(2):
            if other != rank:
                dist.send(x, dst=other) if rank < other else dist.recv(x.clone(), src=other)
    dist.all_reduce(total)
    return total


PARTS = {"value": 2, "traffic": 1, "time": 1}


def in_parts(answer, *rules):
    inputs, summed = lambda rank, n: (torch.ones(2) * rank,), lambda xs: [sum(xs)] * len(xs)
    return check("parts", answer, inputs, summed, *rules, points=PARTS, worlds=(1, 2, 3))


def test_who_breaks_a_rule_of_a_part_loses_that_part_alone():
    verdict = in_parts(two_messages, checks.messages(lambda xs: 0))
    assert (verdict.status, verdict.earned, verdict.points) == ("wrong", 3, 4)
    assert verdict.world_size == 2 and "parts: partly right, 3 of 4 points" in str(verdict)
    assert str(verdict).endswith("By part: value 2 of 2, traffic 0 of 1, time 1 of 1.")
    verdict = in_parts(two_messages, checks.messages(lambda xs: 0), checks.rounds(lambda xs: 0))
    assert (verdict.earned, verdict.lost) == (2, ["time", "traffic"])
    also = "Also: In this world of 2 the values are right, but the messages take 2 rounds"
    assert verdict.lines[-1].startswith(also)


def test_a_wrong_value_in_a_larger_world_loses_all_parts():
    def wrong_in_three(rank, world_size, x):
        return two_messages(rank, world_size, x) + (world_size == 3)

    verdict = in_parts(wrong_in_three, checks.messages(lambda xs: 0))
    assert (verdict.earned, verdict.world_size) == (0, 3) and "wrong value" in verdict.reason


def test_a_rule_that_is_no_part_of_a_question_loses_all_of_it():
    assert in_parts(two_messages, checks.only("all_reduce")).earned == 0

"""Calls that no answer of another rank could make right: refused alike by both engines."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import simlib

ENGINES = [simlib.run, simlib.simulate]


def ones(*shape, dtype=torch.float32):
    return torch.ones(*shape, dtype=dtype)


def many(count, *shape, dtype=torch.float32):
    return [ones(*shape, dtype=dtype) for _ in range(count)]


def crossed(rows, columns):
    """A transposed matrix: its elements are not one after the other in memory."""
    return torch.arange(float(rows * columns)).reshape(columns, rows).t()


def pass_on(tensor, **kwargs):
    """Rank 0 sends and rank 1 receives."""
    dist.send(tensor, 1, **kwargs) if dist.get_rank() == 0 else dist.recv(tensor, 0, **kwargs)


LEAF = torch.ones(3, requires_grad=True)
COMPLEX = torch.ones(2, dtype=torch.complex64)


def at_root(tensors):
    return tensors if dist.get_rank() == 0 else None


NOT_FILLED = "The elements of this tensor do not fill one"
OTHER_ORDER = "must have the same order in memory with Gloo"
WRONG_ON_ALL = {
    "each tensor of all_gather's list must have shape (6,), like the tensor that the rank "
    "brings: tensor 0 has shape (2, 3)": [lambda: dist.all_gather(many(2, 2, 3), ones(6))],
    "tensor 0 has shape (5,)": [lambda: dist.all_gather(many(2, 5), ones(6))],
    "all_gather's list must have one tensor for each of the 2 ranks, but has 3": [
        lambda: dist.all_gather(many(3, 2), ones(2))
    ],
    "all_gather's list must not be made by expand()": [
        lambda: dist.all_gather([ones(1).expand(3)] * 2, ones(3))
    ],
    "must have shape (2, 3), like the tensor that the rank brings": [
        lambda: dist.all_gather_coalesced([many(1, 6), many(1, 6)], many(1, 2, 3))
    ],
    "all_gather_coalesced's list must not be made by expand()": [
        lambda: dist.all_gather_coalesced([[ones(1).expand(2)]] * 2, many(1, 2))
    ],
    "2 ranks bring shape (2,) each, so the output must have shape (4,), but its shape is (5,)": [
        lambda: dist.all_gather_into_tensor(ones(5), ones(2))
    ],
    "the output must have shape (4, 3), but its shape is (12,)": [
        lambda: dist.all_gather_into_tensor(ones(12), ones(2, 3))
    ],
    "the output is int32 and the input float32: make both the same dtype": [
        lambda: dist.all_gather_into_tensor(ones(4, dtype=torch.int32), ones(2))
    ],
    "all_gather cannot join tensors without dimensions into one": [
        lambda: dist.all_gather_into_tensor(ones(2), torch.tensor(1.0))
    ],
    "the output of all_gather must not be made by expand()": [
        lambda: dist.all_gather_into_tensor(ones(1).expand(4), ones(2))
    ],
    "gather cannot carry complex64 with Gloo: pass torch.view_as_real(x)": [
        lambda: dist.gather(COMPLEX, at_root([COMPLEX, COMPLEX]))
    ],
    "reduce_scatter's list must have one tensor for each of the 2 ranks, but has 3": [
        lambda: dist.reduce_scatter(ones(2), many(3, 2))
    ],
    "reduce_scatter's list must have one tensor for each of the 2 ranks, but has 1": [
        lambda: dist.reduce_scatter(ones(2), many(1, 2))
    ],
    "is for this rank, and must have the shape of the output, (3,)": [
        lambda: dist.reduce_scatter(ones(3), many(2, 2))
    ],
    "2 ranks receive shape (2,) each, so the input must have shape (4,), but its shape is (5,)": [
        lambda: dist.reduce_scatter_tensor(ones(2), ones(5))
    ],
    "the output is float64 and the input float32": [
        lambda: dist.reduce_scatter_tensor(ones(2, dtype=torch.float64), ones(4))
    ],
    "a tensor without dimensions has no rows: pass x.reshape(1)": [
        lambda: dist.reduce_scatter_tensor(torch.tensor(0.0), ones(2))
    ],
    "the output of reduce_scatter must not be made by expand()": [
        lambda: dist.reduce_scatter_tensor(ones(1).expand(2), ones(4))
    ],
    "the inputs of all_to_all must have one tensor for each of the 2 ranks, but has 3": [
        lambda: dist.all_to_all(many(3, 2), many(3, 2))
    ],
    "must be tensors of one size, but have [2, 3] and [2, 3] elements": [
        lambda: dist.all_to_all([ones(2), ones(3)], [ones(2), ones(3)])
    ],
    "the outputs of all_to_all must not be made by expand()": [
        lambda: dist.all_to_all([ones(1).expand(3)] * 2, many(2, 3))
    ],
    "the output has 5 rows, which 2 ranks cannot share evenly: "
    "give output_split_sizes, the number of rows for each rank": [
        lambda: dist.all_to_all_single(ones(5), ones(5))
    ],
    "the input has 5 rows, which 2 ranks cannot share evenly": [
        lambda: dist.all_to_all_single(ones(4), ones(5), [2, 2])
    ],
    "output_split_sizes must have one number for each of the 2 ranks, but has 1": [
        lambda: dist.all_to_all_single(ones(4), ones(4), [4], [4])
    ],
    "input_split_sizes [1, 2] add up to 3, but the input has 4 rows": [
        lambda: dist.all_to_all_single(ones(4), ones(4), [2, 2], [1, 2])
    ],
    "output_split_sizes is [5, -1]: give only numbers of 0 or more": [
        lambda: dist.all_to_all_single(ones(4), ones(4), [5, -1], [5, -1])
    ],
    "the output of all_to_all_single must be contiguous": [
        lambda: dist.all_to_all_single(crossed(4, 3), ones(4, 3))
    ],
    "but a tensor without dimensions has no rows": [
        lambda: dist.all_to_all_single(torch.tensor(0.0), torch.tensor(0.0))
    ],
    "all_reduce_coalesced's list must not be made by expand()": [
        lambda: dist.all_reduce_coalesced([ones(1).expand(2)])
    ],
    f"all_reduce with Gloo reads and writes one whole piece of memory. {NOT_FILLED}": [
        lambda: dist.all_reduce(ones(1).expand(3)),
        lambda: dist.all_reduce(ones(8)[::2]),
        lambda: dist.all_reduce(torch.autograd.grad(LEAF.sum(), LEAF)[0]),  # made by expand()
    ],
    "pass y = x.contiguous(), and copy y back afterwards": [
        lambda: dist.all_reduce(ones(2, 1).expand(2, 3))
    ],
    "broadcast with Gloo reads and writes one whole piece of memory": [
        lambda: dist.broadcast(ones(1).expand(3), 0)
    ],
    NOT_FILLED: [
        lambda: dist.reduce(ones(3, 2)[:, 0], 0),
        lambda: dist.scatter(ones(3, 2)[:, 0], at_root(many(2, 3))),
        lambda: dist.reduce_scatter(ones(3, 2)[:, 0], many(2, 3)),
    ],
    f"all tensors of a reduce_scatter {OTHER_ORDER}": [
        lambda: dist.reduce_scatter(ones(3, 2), [crossed(3, 2)] * 2)
    ],
    "all_reduce cannot carry int16 with Gloo: convert the tensor first": [
        lambda: dist.all_reduce(ones(3, dtype=torch.int16))
    ],
    "broadcast cannot carry float8_e4m3fn with Gloo": [
        lambda: dist.broadcast(ones(3).to(torch.float8_e4m3fn), 0)
    ],
    "ReduceOp.AVG gives fractions, which int64 cannot hold": [
        lambda: dist.all_reduce(ones(3, dtype=torch.int64), op=dist.ReduceOp.AVG)
    ],
    "Cannot use ReduceOp.BAND with non-integral dtype": [
        lambda: dist.all_reduce(ones(3), op=dist.ReduceOp.BAND)
    ],
    "Cannot use ReduceOp.PREMUL_SUM with Gloo": [
        lambda: dist.all_reduce(ones(3), op=dist._make_nccl_premul_sum(2.0))
    ],
    "broadcast takes dense tensors only, but this tensor is sparse_coo: pass x.to_dense()": [
        lambda: dist.broadcast(torch.eye(3).to_sparse(), 0)
    ],
    "all_reduce adds sparse tensors, and cannot use ReduceOp.MAX on them": [
        lambda: dist.all_reduce(torch.eye(3).to_sparse(), op=dist.ReduceOp.MAX)
    ],
}

WRONG_ON_ONE = {
    "send a transposed matrix": (
        lambda: pass_on(crossed(3, 2)),
        "the tensor that is sent must be contiguous: its elements must lie one after the other in "
        "memory. A transposed tensor, a column or a slice with steps is not contiguous: "
        "send x.contiguous()",
    ),
    "receive into a row of a transposed matrix": (
        lambda: dist.send(ones(2), 1) if dist.get_rank() == 0 else dist.recv(crossed(3, 2)[0], 0),
        "the tensor that is received into must be contiguous",
    ),
    "send an expanded tensor": (lambda: pass_on(ones(1).expand(3)), "must be contiguous"),
    "send a sparse tensor": (
        lambda: pass_on(torch.eye(3).to_sparse()),
        "a sparse tensor cannot be sent",
    ),
    "negative tag": (lambda: pass_on(ones(2), tag=-1), "tag=-1 must be from 0 to 2147483647"),
    "large tag": (lambda: pass_on(ones(2), tag=2**31), "tag=2147483648 must be from 0 to"),
    "half a tag": (lambda: pass_on(ones(2), tag=1.5), "tag=1.5 must be a whole number"),
    "future of a message": (
        lambda: (
            dist.isend(ones(2), 1) if dist.get_rank() == 0 else dist.irecv(ones(2), 0)
        ).get_future(),
        "the request of an isend or irecv has no future with Gloo: call its wait() instead",
    ),
    "gather, other shape": (
        lambda: dist.gather(ones(6), at_root(many(2, 2, 3))),
        "each tensor of gather's list must have shape (6,), like the tensor that the",
    ),
    "gather, long list": (
        lambda: dist.gather(ones(2), at_root(many(3, 2))),
        "gather's list must have one tensor for each of the 2 ranks, but has 3",
    ),
    "scatter, uneven list": (
        lambda: dist.scatter(ones(2), at_root([ones(2), ones(3)])),
        "each tensor of scatter's list must have shape (2,), like the tensor that the rank "
        "receives: tensor 1 has shape (3,)",
    ),
    "scatter, long list": (
        lambda: dist.scatter(ones(2), at_root(many(3, 2))),
        "scatter's list must have one tensor for each of the 2 ranks, but has 3",
    ),
    "scatter of columns": (lambda: dist.scatter(ones(3), at_root([*ones(3, 2).t()])), NOT_FILLED),
    "scatter of transposed tensors into one that is not": (
        lambda: dist.scatter(ones(3, 2), at_root([crossed(3, 2)] * 2)),
        f"all tensors of a scatter {OTHER_ORDER}",
    ),
}


def refusal(call):
    """The words with which a call is refused in its rank."""
    try:
        call()
    except simlib.InvalidCallError as error:
        return str(error)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_gloo_cannot_do_on_any_rank_is_refused_in_a_sentence(engine):
    def main(rank, n):
        return [[refusal(call) for call in calls] for calls in WRONG_ON_ALL.values()]

    for found in engine(main, 2, timeout_s=60).results:
        for words, refusals in zip(WRONG_ON_ALL, found, strict=True):
            assert all(words in refusal for refusal in refusals), (words, refusals)


def cases_by_engine():
    """Each case on both engines; most real ones are slow."""
    for number, case in enumerate(WRONG_ON_ONE):
        yield pytest.param(simlib.simulate, case, id=f"{case}-simulate")
        marks = pytest.mark.slow if number % 3 else ()
        yield pytest.param(simlib.run, case, marks=marks, id=f"{case}-run")


@pytest.mark.parametrize("engine, case", [*cases_by_engine()])
def test_what_gloo_cannot_do_on_one_rank_ends_the_run_with_a_sentence(engine, case):
    call, words = WRONG_ON_ONE[case]
    with pytest.raises(simlib.InvalidCallError) as caught:
        engine(lambda rank, n: call(), 2, timeout_s=10)
    assert words in str(caught.value)
    assert caught.value.sites[min(caught.value.sites)].file == __file__


def test_both_engines_refuse_in_the_same_words():
    told = []
    for engine in ENGINES:
        with pytest.raises(simlib.InvalidCallError) as caught:
            engine(lambda rank, n: dist.all_gather(many(n, 2 + rank), ones(2)), 2, timeout_s=10)
        told.append(str(caught.value))
    assert told[0] == told[1]


# -- what Gloo does rightly ------------------------------------------------------------------------


def received(tensor, call):
    """The elements of a tensor after a call."""
    call(tensor)
    return [one.tolist() for one in tensor] if isinstance(tensor, list) else tensor.tolist()


def nothing(elsewhere=None):
    """No elements, of a dtype of each rank's own; rank 0 may have something."""
    if dist.get_rank() == 0:
        return torch.empty(0) if elsewhere is None else elsewhere
    return torch.empty(0, dtype=torch.int64)


ALLOWED = {
    "sum of a transposed tensor": (
        lambda: received(crossed(3, 2), dist.all_reduce),
        [[[0.0, 6.0], [2.0, 8.0], [4.0, 10.0]]] * 2,
    ),
    "sum of every second element, coalesced": (
        lambda: received(torch.arange(4.0)[::2], lambda t: dist.all_reduce_coalesced([t])),
        [[0.0, 4.0]] * 2,
    ),
    "gathered into columns": (
        lambda: received(torch.zeros(2, 2), lambda t: dist.all_gather([t[:, 0], t[:, 1]], ones(2))),
        [[[1.0, 1.0], [1.0, 1.0]]] * 2,
    ),
    "gathered into one transposed tensor": (
        lambda: received(
            torch.zeros(2, 4).t(), lambda t: dist.all_gather_into_tensor(t, crossed(2, 2))
        ),
        [[[0.0, 2.0], [1.0, 3.0]] * 2] * 2,
    ),
    "rows of a part of a matrix": (
        lambda: received(
            torch.zeros(4, 3)[:, :2], lambda t: dist.all_gather_into_tensor(t, ones(2, 2))
        ),
        [[[1.0, 1.0]] * 4] * 2,
    ),
    "parts of a transposed sum": (
        lambda: received(
            ones(2, 1).t(),
            lambda t: dist.reduce_scatter_tensor(t, torch.arange(4.0).view(2, 2).t()),
        ),
        [[[0.0, 4.0]], [[2.0, 6.0]]],
    ),
    "transposed tensors scattered into a transposed one": (
        lambda: received(
            torch.zeros(2, 3).t(), lambda t: dist.scatter(t, at_root([crossed(3, 2)] * 2))
        ),
        [[[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]] * 2,
    ),
    "sum of columns, scattered": (
        lambda: received(ones(3), lambda t: dist.reduce_scatter(t, [*ones(3, 2).t()])),
        [[2.0] * 3] * 2,
    ),
    "a message of int16": (lambda: received(ones(2, dtype=torch.int16), pass_on), [[1, 1]] * 2),
    "the largest tag": (
        lambda: received(ones(1), lambda tensor: pass_on(tensor, tag=2**31 - 1)),
        [[1.0]] * 2,
    ),
    "rows of other lengths": (
        lambda: received(
            torch.empty(4, 3), lambda t: dist.all_to_all_single(t, torch.arange(12.0).view(2, 6))
        ),
        [[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]] * 2, [[6.0, 7.0, 8.0], [9.0, 10.0, 11.0]] * 2],
    ),
    "an own part in another order": (
        lambda: received(
            ones(2, 3),
            lambda t: dist.reduce_scatter(
                t, [(ones(2, 3), crossed(2, 3))[r == dist.get_rank()] for r in (0, 1)]
            ),
        ),
        [[[1.0, 3.0, 5.0], [2.0, 4.0, 6.0]]] * 2,
    ),
    "a sum of columns and one of a vector": (
        lambda: received(
            torch.zeros(4) if dist.get_rank() else torch.zeros(2, 3).t(),
            lambda t: dist.reduce_scatter(t, [crossed(3, 2), ones(4)]),
        ),
        [[[0.0, 6.0], [2.0, 8.0], [4.0, 10.0]], [2.0] * 4],
    ),
    "a sum cut in other places": (
        lambda: received(
            [torch.arange(3.0)] if dist.get_rank() else [ones(2), ones(1)],
            lambda t: dist.all_reduce_coalesced(t),
        ),
        [[[1.0, 2.0], [3.0]], [[1.0, 2.0, 3.0]]],
    ),
    "no elements of another dtype": (lambda: received(nothing(), dist.all_reduce), [[], []]),
    "a message of nothing": (lambda: received(nothing(), pass_on), [[], []]),
    "who has nothing to send": (
        lambda: received(
            nothing(ones(2)),
            lambda t: dist.all_to_all_single(
                t, t.clone(), *[[[2, 0], [0, 0]][dist.get_rank()]] * 2
            ),
        ),
        [[1.0, 1.0], []],
    ),
    "bits of bools": (
        lambda: received(
            torch.tensor([True, dist.get_rank() == 0]),
            lambda t: dist.all_reduce(t, op=dist.ReduceOp.BAND),
        ),
        [[True, False]] * 2,
    ),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_what_gloo_does_is_done(engine):
    run = engine(lambda rank, n: {name: call() for name, (call, _) in ALLOWED.items()}, 2)
    for name, (_, expected) in ALLOWED.items():
        assert [found[name] for found in run.results] == expected, name


# What a rule sees of a call must be in what counts as alike: a good call comes before each bad one.
ALIKE = {
    "dense": (lambda: dist.all_reduce(ones(4)), lambda: dist.all_reduce(ones(8)[::2])),
    "not cut": (
        lambda: dist.all_to_all_single(ones(4), ones(4)),
        lambda: dist.all_to_all_single(ones(4), ones(4), [3], [4]),
    ),
    "shape": (
        lambda: dist.all_gather_into_tensor(ones(4), ones(4)),
        lambda: dist.all_gather_into_tensor(ones(2, 2), ones(4)),
    ),
    "dtype": (
        lambda: dist.all_reduce(ones(4), op=dist.ReduceOp.AVG),
        lambda: dist.all_reduce(ones(4).long(), op=dist.ReduceOp.AVG),
    ),
    "reduction": (
        lambda: dist.all_reduce(ones(4)),
        lambda: dist.all_reduce(ones(4), op=dist.ReduceOp.BAND),
    ),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_bad_call_is_refused_after_a_good_one_that_looks_like_it(engine):
    def main(rank, n):
        refused = []
        for name, (good, bad) in ALIKE.items():
            for _ in range(2):
                good()
            try:
                bad()
            except simlib.InvalidCallError:
                refused.append(name)
        return refused

    (refused,) = engine(main, 1).results
    assert refused == list(ALIKE)


# -- a barrier with a limit ------------------------------------------------------------------------


@pytest.mark.parametrize("who, wait_all", [("Rank 1", False), ("Ranks 1, 3", True)])
def test_a_monitored_barrier_gives_up_at_its_limit_and_names_who_is_missing(who, wait_all):
    def impatient(rank, n):
        """Ranks 1 and 3 never come."""
        if rank in (1, 3):
            return "elsewhere"
        try:
            dist.monitored_barrier(timeout=timedelta(milliseconds=200), wait_all_ranks=wait_all)
        except RuntimeError as error:
            return str(error).partition("\n")[0].strip()

    real, simulated = simlib.run(impatient, 4), simlib.simulate(impatient, 4)
    assert real.results == simulated.results
    assert real.results[0] == f"[Rank 0]: {who} failed to pass monitoredBarrier in 200 ms"
    assert simulated.trace.spans[0] == (0.0, 0.2)


def test_a_monitored_barrier_without_a_limit_that_nobody_ends_is_a_deadlock():
    with pytest.raises(simlib.DeadlockError):
        simlib.simulate(lambda rank, n: dist.monitored_barrier() if rank == 0 else None, 2)

"""The checks of a grading run: how long they wait, what they compare, what a limit cut short."""

import argparse
import copy
import functools

import pytest
import torch

import simlib
from simlib.classroom.checks import checking
from simlib.classroom.grading import commands, graded_checks, sandbox, shell
from simlib.classroom.grading.graded_checks import GradedChecks, too_little
from simlib.classroom.grading.score import is_cut_short, sentence
from simlib.classroom.grading.session import CellResult
from simlib.core.engines import request
from simlib.core.model.trace import Trace
from simlib.core.results.run import Run


def no_inputs(rank, world_size):
    return ()


def answer_of(value):
    def answer(rank, world_size):
        return value

    return answer


@pytest.fixture
def run_by(monkeypatch):
    """``run_by(function)``: what runs the ranks of checks."""

    def use(function):
        for module in (checking, graded_checks):
            monkeypatch.setattr(module, "run_on_processes", function)

    return use


@pytest.mark.parametrize("time, limits", [(600, (50, 150, 600)), (24, (20, 60, 24))])
def test_more_time_for_a_notebook_is_more_for_its_cells(time, limits):
    options = argparse.Namespace(time=time, memory=None)
    assert commands.limits_of(options) == sandbox.Limits(*limits)


def test_more_time_for_a_notebook_is_more_for_ranks_that_do_nothing_to_be_seen(run_by):
    waited = []

    def stuck(function, world_size, args, timeout_s):
        waited.append(timeout_s)
        raise simlib.SimlibError("stuck")

    run_by(stuck)
    graded = GradedChecks(sandbox.Limits(cell_s=150).patience)
    graded.check("some", answer_of(None), no_inputs, list)
    graded.measure(answer_of(None), no_inputs)
    graded.measure(answer_of(None), no_inputs, start=functools.partial(stuck, timeout_s=4))
    assert waited == [2 * 5 * 2.5, 20 * 2.5, 20 * 2.5]


@pytest.mark.parametrize("within, reads", [(1e-5, "1: 2.02 (has"), (0.02, "1: 2\n")])
def test_hidden_cells_have_the_tolerance_of_their_check(within, reads):
    """A number that is near the solution's reads as the solution's."""

    def of(value):
        graded = GradedChecks()
        options = {"worlds": (1,), "within": within}
        graded.check("some", answer_of(value), no_inputs, lambda: [2.0], **options)
        return graded

    solution, mine = of(2.0), of(2.02)
    solution.begin("hidden", "some")
    solution.measure(answer_of(2.0), no_inputs, worlds=(1,))
    mine.expect("some", solution.recorded("some"))
    mine.begin("hidden", "some")
    assert mine.measure(answer_of(2.02), no_inputs, worlds=(1,)).startswith(reads)


@pytest.mark.parametrize("deaths", [{}, {1: 0.5}])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_rank_that_did_not_answer_is_named_and_graded_again(run_by, deaths, in_place):
    """A stand-in run in which rank 1 gives no result, as where a run is cut short."""

    def run(function, world_size, args, **options):
        results = [function(0, world_size, *copy.deepcopy(args[0])), None]
        trace = Trace(2, spans=[(0.0, 1.0)] * 2, deaths=deaths)
        return Run("twice", trace, results, output=["", ""])

    run_by(run)

    def inputs(rank, world_size):
        return (torch.ones(1),)

    def answer(rank, world_size, x):
        return x.mul_(2) if in_place else 2 * x

    graded = GradedChecks()
    options = {"worlds": (2,), "in_place": in_place}
    graded.check("twice", answer, inputs, lambda xs: [2 * x for x in xs], **options)
    said = repr(graded.verdicts["twice"])
    assert "ank 1 gave no result: " in said and "None" not in said
    graded.begin("hidden", "twice")
    graded.expect("twice", recorded_of("hidden", [[torch.ones(1) * 2] * 2]))
    text = graded.measure(answer, inputs, **options)
    assert "rank 1 gave no result: " in text and "None" not in text
    for words in (said, text):
        outputs = [{"output_type": "stream", "name": "stdout", "text": words}]
        assert is_cut_short(CellResult("differs", outputs=outputs))


def recorded_of(cell, worlds):
    """What a run of a solution recorded of a hidden cell with one `measure`."""
    solution = GradedChecks()
    sent = {"messages": 0, "collectives": 0, "bytes": 0}
    measured = [{"values": values, "sent": sent} for values in worlds]
    solution._measured["twice"] = {cell: [measured]}
    return solution.recorded("twice")


@pytest.mark.parametrize(
    "found, solution, world_size, is_too_little",
    [
        ((0, 0, 0), (0, 1, 16), 1, False),
        ((0, 0, 0), (0, 1, 16), 2, True),
        ((0, 1, 2), (0, 1, 16), 2, False),  # uint8 for int64
        ((0, 1, 1), (0, 1, 16), 2, True),
        ((0, 1, 1), (0, 1, 8), 2, False),
        ((0, 0, 0), (0, 1, 0), 2, True),  # no barrier where there has to be one
        ((3, 0, 0), (0, 1, 0), 2, False),
        ((0, 0, 0), (0, 0, 0), 2, False),
    ],
)
def test_ranks_have_to_send_what_an_answer_needs(found, solution, world_size, is_too_little):
    names = ("messages", "collectives", "bytes")
    found, solution = (dict(zip(names, one, strict=True)) for one in (found, solution))
    assert bool(too_little(found, solution, world_size)) == is_too_little


def test_an_error_without_words_makes_a_sentence():
    assert sentence("\x1b[0m ") == "The answer cannot be read."


class Trickle:
    """A socket that gives a byte every five seconds of a clock that only it moves."""

    now_s = 0.0
    received = 0

    def settimeout(self, _):
        """It always has its byte before a timeout of more than five seconds."""

    def recv_into(self, view):
        self.now_s += 5
        self.received += 1
        assert self.received < 100, "it waits for ever"
        view[:1] = b"\1"
        return 1


def test_an_answer_that_trickles_in_has_the_time_of_one_request(monkeypatch):
    sock = Trickle()
    monkeypatch.setattr(request.time, "monotonic", lambda: sock.now_s)
    with pytest.raises(TimeoutError):
        shell.receive(sock, most=1 << 40, deadline=20)
    assert sock.received == 4

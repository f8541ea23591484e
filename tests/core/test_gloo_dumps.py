"""`simlib.diagnose` finds in dumps of real ranks on Gloo what `simulate` finds in the program.

Torch's own analyser, which reads the same dumps, says less, and names wrong ranks.
"""

import functools
import multiprocessing
import os
import pickle
import re
from pathlib import Path
from types import SimpleNamespace

import hangs_on_gloo
import programs
import pytest
from test_diagnose import RULES_NOT_HELD
from test_recorder_dumps import analysed
from torch.distributed.flight_recorder.components import loader
from verdicts import each, simulated

import simlib

NO_WORLD = "on Gloo only calls on the default group are told apart"
NO_CALL = "a dump of Gloo holds collectives, and neither sends nor the making of groups"
NO_WAIT = "on Gloo a rank that only sends its part does not wait for the others"
NOT_COMPARED = "dumps hold no roots, no reduce ops and no splits"
REASONS = NO_WORLD, NO_CALL, NO_WAIT, NOT_COMPARED
SENDERS = {"broadcast": True, "scatter": True, "gather": False, "reduce": False}
"""Collectives that a rank may leave before the others come: whether the root is the one."""


@pytest.fixture(scope="module")
def on_gloo():
    """``on_gloo(name, calls, folder)`` runs a program; see `hangs_on_gloo.serve`."""
    context = multiprocessing.get_context("spawn")
    orders, theirs = context.Pipe()
    server = context.Process(target=hangs_on_gloo.serve, args=(theirs,))
    server.start()
    theirs.close()

    def run(*order):
        orders.send(order)
        assert orders.recv() is None, "a rank died before it wrote its dump"

    yield run
    server.kill()
    server.join()


def why_not_held(error):
    """Why the dumps of Gloo do not show the fault of a program; None where they do."""
    trace = error.run.trace
    if any(op.is_p2p or "monitored_barrier" in op.site.line_text for op in trace) or not len(trace):
        return NO_CALL
    if any(op.group.name != "world" for op in trace):
        return NO_WORLD
    if getattr(error, "rule", None) in RULES_NOT_HELD:
        return NOT_COMPARED
    if error.kind == "deadlock" and all(does_not_wait(op) for op in trace if not op.done):
        return NO_WAIT
    return None


def does_not_wait(op):
    return op.kind in SENDERS and (op.peer == op.rank) is SENDERS[op.kind]


WRONG = {name: one for name, one in programs.WRONG.items() if one.kind in ("deadlock", "mismatch")}


HELD = """
rank_0_alone all_but_rank_0 rank_0_alone_meets_a_barrier loops_of_different_lengths
own_exception_handled_instead_of_joining second_of_two_async_collectives_is_missing
object_gather_on_one_rank checkpoint_gathers_on_rank_0 one_reduces_the_other_broadcasts
one_of_four_calls_reduce barrier_and_all_reduce_swapped two_all_reduces_swapped
rank_0_makes_an_extra_broadcast float_against_int broadcast_of_double_into_float
all_gather_of_half_and_float all_reduce_of_other_lengths one_of_four_has_one_element_more
long_all_reduce_of_other_lengths broadcast_of_other_lengths last_batch_is_smaller
all_gather_into_tensor_of_other_lengths reduce_scatter_of_other_lengths
gather_of_other_lengths scatter_into_another_length object_lists_broadcast_with_other_lengths
object_against_tensor ddp_uneven_inputs ddp_one_rank_has_no_data ddp_on_rank_0_only
ddp_no_sync_on_one_rank ddp_skips_a_bad_batch early_stopping_on_one_rank
metric_reduced_by_the_evaluating_rank tensor_parallel_layer_forgets_a_sum
fsdp2_forward_on_one_rank zero_optimizer_consolidated_on_rank_0 sampler_gives_one_rank_more
hand_reduced_gradients_of_an_unused_layer hand_reduced_gradients_in_another_order
last_batch_averaged_by_its_own_size
""".split()
"""The programs whose fault dumps of Gloo hold; `why_not_held` says why of the others."""


@functools.cache
def error_of(name):
    with pytest.raises(simlib.SimlibError) as caught:
        simulated(WRONG[name])
    return caught.value


@pytest.mark.parametrize("program", each({name: WRONG[name] for name in HELD}, quick=8))
def test_real_dumps_tell_what_the_simulation_tells(program, on_gloo, tmp_path):
    error = error_of(program.name)
    on_gloo(program.name, calls_of(error), tmp_path)
    found = simlib.diagnose(tmp_path / "dumps")
    assert found.kind == program.kind, str(found)
    lines = {rank: site.lineno for rank, site in found.sites.items()}
    assert all(lines.get(rank) in expected for rank, expected in program.blamed.items())


def calls_of(error):
    """By rank: how many calls it makes before it hangs, and how many of them are over by then.

    Where calls differ the simulation ends before the last ranks come; real ones make that call too.
    """
    by_rank = error.run.trace.by_rank()
    least = max(map(len, by_rank)) if error.kind == "mismatch" else 0
    return [(max(len(ops), least), sum(op.done for op in ops)) for ops in by_rank]


@pytest.mark.slow
def test_why_dumps_of_gloo_do_not_hold_the_other_programs():
    reasons = {name: why_not_held(error_of(name)) for name in WRONG}
    assert {name for name, why in reasons.items() if why is None} == set(HELD)
    assert {why for why in reasons.values() if why} == set(REASONS)


HEALTHY = (
    "straggler_before_an_all_reduce",
    "async_collectives_waited_in_another_order_on_each_rank",
    "many_dtypes",
    "objects_gathered_broadcast_and_scattered",
    "uneven_splits",
    "every_collective_once",
    "functional_collectives",
    "differentiable_collectives",
    "ddp_join",
    "fsdp2",
    "training_until_all_have_stopped",
)


@pytest.mark.parametrize("program", each({name: programs.RIGHT[name] for name in HEALTHY}, quick=4))
def test_real_dumps_of_right_programs_get_no_verdict(program, on_gloo, tmp_path):
    on_gloo(program.name, [None] * program.ranks, tmp_path)
    found = simlib.diagnose(tmp_path / "dumps")
    assert (found.kind, found.ranks) == ("healthy", ()), str(found)


EXPECTED = {
    "one_calls_another": ("mismatch", 1, "rank 1 calls broadcast, but ranks 0, 2 and 3 call"),
    "one_leaves_a_call_out": ("deadlock", 2, "Since call 8 of this group its ranks were at"),
    "one_stays_away": ("deadlock", 2, "wait for rank 2, which made no further call after"),
    "one_has_a_batch_fewer": ("mismatch", 1, "`with model.join():`"),
    "one_brings_another_dtype": ("mismatch", 2, "rank 2 brings float64, but ranks 0, 1 and 3"),
}
TORCHS_WORDS = {
    "one_calls_another": "number: 2 has errors.*Expected collective type: 'broadcast' does not",
    "one_leaves_a_call_out": r"number: 10\n.*missing ranks: \{2\}\n",
    "one_stays_away": r"number: 4\n.*missing ranks: \{2\}\n",
    "one_has_a_batch_fewer": "number: 9 has errors.*Expected collective type: 'barrier' does not",
    "one_brings_another_dtype": "number: 1 has errors.*Expected dtypes: '{'Double'}' does not",
}
"""What torch's own analyser says, where it reads the dump of the rank that differs first."""


@pytest.mark.parametrize("name", EXPECTED)
def test_real_dumps_tell_more_than_torchs_analyser(name, on_gloo, tmp_path, caplog, monkeypatch):
    with pytest.raises(simlib.SimlibError) as caught:
        simlib.simulate(hangs_on_gloo.OWN[name], 4)
    on_gloo(name, calls_of(caught.value), tmp_path)
    found = simlib.diagnose(tmp_path / "dumps")
    kind, rank, words = EXPECTED[name]
    assert (found.kind, found.ranks) == (kind, (rank,)), str(found)
    assert words in found.message
    assert all("hangs_on_gloo.py, line" in site.place for site in found.sites.values())
    with pytest.raises(KeyError, match="'0'"):
        analysed(tmp_path / "dumps", caplog)
    mend_groups(tmp_path / "dumps")
    others = {0, 1, 2, 3} - {rank}
    for first, culprits in (0, {rank}), (rank, others):
        read_first(first, monkeypatch)
        said, _ = analysed(tmp_path / "dumps", caplog)
        named = set(map(int, re.findall(r"Culprit rank (\d)", said)))
        assert named == (culprits if kind == "mismatch" else set()), said
    assert re.search(TORCHS_WORDS[name], said, re.S)


def mend_groups(folder):
    """Give the default group its name: torch 2.13 calls it "" there and "0" in the entries."""
    for path in folder.iterdir():
        dump = pickle.loads(path.read_bytes())
        dump["pg_config"] = {"0": dump["pg_config"][""] | {"name": "0"}}
        path.write_bytes(pickle.dumps(dump))


def read_first(rank, monkeypatch):
    """Let the analyser read this rank's dump first: it takes that for right."""

    def walk(folder):
        names = sorted(path.name for path in folder.iterdir())
        return [(folder, [], sorted(names, key=lambda name: not name.endswith(str(rank))))]

    monkeypatch.setattr(loader, "os", SimpleNamespace(walk=lambda at: walk(Path(at)), path=os.path))

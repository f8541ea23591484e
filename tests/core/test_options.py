"""Options that belong together, as one object or each by its own keyword."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import simlib
from simlib.core.engines import options

BOTH = pytest.mark.parametrize("engine", [simlib.run, simlib.simulate])


def three(rank, world_size):
    if rank == 2:
        simlib.compute(1.0)
    return rank


def test_options_as_objects_are_those_of_the_keywords():
    faults = simlib.Faults(kill={2: 0.5}, on_death="continue", slow={0: 2.0})
    run = simlib.simulate(three, 3, faults=faults)
    again = simlib.simulate(three, 3, kill={2: 0.5}, on_death="continue", slow={0: 2.0})
    assert run.results == again.results == [0, 1, None]
    assert run.deaths == again.deaths == {2: 0.5}
    network = simlib.Network(
        cluster=simlib.clusters.ethernet_10g(nodes=2), algorithm_of={"all_reduce": "ring"}
    )
    measured = simlib.Measurement(expand=True, memory=True)
    run = simlib.simulate(three, 2, network=network, measurement=measured)
    assert run.wire == [] and len(run.memory) == 2


@BOTH
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"faults": {"kill": {}}}, "must be a simlib.Faults"),
        ({"faults": simlib.Faults(kill={0: 1}), "kill": {0: 2}}, "but not both"),
        ({"diagnosis": simlib.Diagnosis(strict=True), "timeout_s": 3}, "but not both"),
        ({"restarts": simlib.Restarts(1), "min_ranks": 1}, "but not both"),
        ({"restarts": simlib.Restarts(-1)}, "restarts=-1 must be a whole number, 0 or more"),
        ({"restarts": False}, "restarts=False must be a whole number, 0 or more"),
        ({"diagnosis": simlib.Diagnosis(timeout_s=0)}, "timeout_s=0 must be a positive number"),
        ({"faults": simlib.Faults(on_death="stop")}, "on_death='stop' is not one of 'end'"),
    ],
)
def test_what_can_never_be_right_is_refused(engine, given, words):
    with pytest.raises(simlib.InvalidCallError, match=words):
        engine(three, 2, **given)


def test_no_faults_are_not_looked_at():
    assert options.checked_faults(simlib.Faults(), 4) is options.NO_FAULTS
    assert options.restarts_of(0, options.Restarts(), 4) is options.NO_RESTARTS


@pytest.mark.parametrize(
    ("call", "given", "words"),
    [
        (
            simlib.run,
            {"faults": simlib.Faults(kill={2: 0.5}, on_death="continue", detection_s=1.0)},
            "only simulate accepts it",
        ),
        (simlib.run, {"restarts": simlib.Restarts(1, restart_s=9.0)}, "restart_s=9.0 is for simul"),
        (
            simlib.simulate,
            {"diagnosis": simlib.Diagnosis(watch=True)},
            "^watch=True is for run: simulate has no such option$",
        ),
        (
            simlib.submit,
            {"diagnosis": simlib.Diagnosis(strict=True)},
            "strict=True is for run and simulate",
        ),
    ],
)
def test_what_only_another_call_takes_is_refused_and_not_left_out(call, given, words):
    with pytest.raises(simlib.InvalidCallError, match=words):
        call(three, 3, **given)


def test_a_function_takes_ops_and_modules_of_torch_along():
    """They are no plain modules, functions and classes, which alone cloudpickle knows by name."""
    kept = {torch.ops.aten.mm.default, torch.ops.aten.mm}

    def main(rank, world_size):
        with sdpa_kernel(SDPBackend.MATH):
            is_on = torch.backends.cuda.flash_sdp_enabled()
        is_filled = torch.utils.deterministic.fill_uninitialized_memory
        return kept == {torch.ops.aten.mm.default, torch.ops.aten.mm}, is_on, is_filled

    assert simlib.simulate(main, 1).results == [(True, False, True)]

"""Random calls on plain Gloo and on both engines: what Gloo carries rightly is carried, and alike.

``CALLS=200 pytest tests/core/test_argument_sweep.py`` draws so many calls of each op.
"""

import builtins
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path

import pytest
from drawn_calls import OPS, Call, Case, Drawer, Spec, perform
from meant import is_right, meaning

import simlib
from simlib.core.record.returned import LOST

CALLS = int(os.environ.get("CALLS") or (100 if os.environ.get("TEST_ALL") == "1" else 8))
SEED = int(os.environ["SEED"])
PLAIN = Path(__file__).parents[1] / "plain_gloo.py"


def on_plain_gloo(cases):
    """The outcomes of each case, by rank."""
    told = subprocess.run(
        [sys.executable, PLAIN], input=pickle.dumps(cases), stdout=subprocess.PIPE, check=True
    )
    return pickle.loads(told.stdout)


def perform_all(rank, n, cases):
    return [perform(case, rank) for case in cases]


def on_engine(engine, cases):
    """The same with simlib: all in one run, or in halves where that fails."""
    if not cases:
        return []
    n = len(cases[0].calls)
    try:
        results = engine(perform_all, n, args=(cases,), timeout_s=60).results
    except simlib.SimlibError as error:
        if len(cases) > 1:
            half = len(cases) // 2
            return on_engine(engine, cases[:half]) + on_engine(engine, cases[half:])
        results = error.run.results if error.run is not None else [None] * n
        ended = "ended", type(error).__name__, str(error)
        return [[result[0] if result else ended for result in results]]
    return list(zip(*results, strict=True))


@pytest.fixture(scope="module")
def calls():
    """Cases of all ops, with their outcomes on plain Gloo, and whether these are right."""
    drawer = Drawer(random.Random(SEED))
    cases = [drawer.case(op) for op in OPS for _ in range(CALLS)]
    outcomes = on_plain_gloo(cases)
    return [
        (case, found, is_right(case, found, meaning(case)))
        for case, found in zip(cases, outcomes, strict=True)
    ]


def is_right_again(case):
    """Whether plain Gloo is right with other elements, too: it was no coincidence."""
    drawer = Drawer(random.Random(SEED))
    others = [drawer.with_other_numbers(case) for _ in range(6)]
    outcomes = on_plain_gloo(others)
    return all(is_right(o, found, meaning(o)) for o, found in zip(others, outcomes, strict=True))


@pytest.mark.parametrize("engine", (simlib.simulate, simlib.run))
def test_what_plain_gloo_carries_rightly_simlib_carries_too(calls, engine):
    right = [case for case, _, is_fine in calls if is_fine]
    assert len(right) > len(calls) / 4  # or nothing is tested
    alarms = []
    for n in (2, 3):
        cases = [case for case in right if len(case.calls) == n]
        for case, found in zip(cases, on_engine(engine, cases), strict=True):
            if not is_right(case, found, meaning(case)) and is_right_again(case):
                alarms.append((case, found))
    assert not alarms, f"{len(alarms)} false alarms: {alarms[:3]}"


def builtin_of(names):
    """The most special of Python's own exceptions among the classes of one."""
    return next(name for name in names if isinstance(getattr(builtins, name, None), type))


def is_alike(outcomes):
    """Whether all ranks are refused in the same words: so in a run the next call is possible."""
    return len({outcome[-1] for outcome in outcomes}) == 1


def lost_a_peer(outcome, outcomes):
    """Whether plain Gloo refused another rank, which left, and so broke the call of this one."""
    raised = [one[-1] for one in outcomes if one[0] == "raised"]
    return bool(LOST.search(outcome[-1])) and not all(map(LOST.search, raised))


def test_a_refusal_is_an_instance_of_what_torch_raises_there(calls):
    refused = [
        (case, plain)
        for case, plain, is_fine in calls
        if not is_fine and any(outcome[0] == "raised" for outcome in plain)
    ]
    together = [[one for one in refused if is_alike(one[1]) and len(one[1]) == n] for n in (2, 3)]
    wrong = []
    for some in together + [[one] for one in refused if not is_alike(one[1])]:
        found = on_engine(simlib.simulate, [case for case, _ in some])
        for (case, plain), outcomes in zip(some, found, strict=True):
            for one, other in zip(plain, outcomes, strict=True):
                is_refused = one[0] == other[0] == "raised" and not lost_a_peer(one, plain)
                if is_refused and builtin_of(one[1]) not in other[1]:
                    wrong.append((one, other, case))
    assert not wrong, f"{len(wrong)} refusals: {wrong[:3]}"


def test_the_sweep_knows_right_from_wrong():
    """Gloo overwrites what lies between the elements of a slice with steps."""
    cases = []
    for layout in ("plain", "steps"):
        specs = [Spec((3,), layout=layout, numbers=(first, 3, first, 2)) for first in (0, 1)]
        calls = tuple(Call((spec,), None, {"src": 0}) for spec in specs)
        cases.append(Case("broadcast", calls))
    found = zip(cases, on_plain_gloo(cases), strict=True)
    assert [is_right(case, outcomes, meaning(case)) for case, outcomes in found] == [True, False]

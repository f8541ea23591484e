"""Hidden inputs obey their tasks under every seed, and a solution that does not is no measure."""

import ast
import functools
import math
import re
from dataclasses import replace

import pytest
import torch
from hidden_cells import Solved
from notebooks_made import SOURCES
from sampled import SEED

import simlib
from simlib.classroom.checks.compare import difference
from simlib.classroom.checks.complaints import broken_rules, changed_in_place, run_answer
from simlib.classroom.grading import whole_class
from simlib.classroom.grading.exercise import read_exercise
from simlib.classroom.grading.grade import CELL_BITS, seed_of, seeded
from simlib.classroom.grading.sandbox import Limits
from simlib.classroom.grading.session import CellResult, Session
from simlib.classroom.grading.texts import Cache

EXERCISES = {path.stem: read_exercise(path) for path in sorted(SOURCES.glob("*.py"))}
COLLECTIVES = EXERCISES["04_collectives"]
LARGEST = 2**CELL_BITS - 1
HUGE = [LARGEST, LARGEST - 1, 2**51 + 7, 10**15 + 3]
MANY = [*range(60), *(seed_of("cell", n) for n in range(40))]
FEW = [*MANY[3::16], *HUGE]
SEEDS = [*FEW, *MANY[SEED % 16 :: 16]]
"""`make test` draws some of them by its own seed: in time all are tried."""
DEAR = set("stage_ledger my_layers hide_it accumulate stage_gradient gradient_in_pieces".split())
DEAR |= {"choose", "out_of_step", "resume"}
"""Questions whose expected values take long: they are worked out for a few seeds only."""
LIMITS = Limits(notebook_s=900, cell_s=400, answer_s=60)
OWN = {"seed", "verdict", "network", "length", "EIGHT"}
"""Names that many cells may set: before they use them, or to the same."""


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Small tensors only: more threads would wait for each other on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@functools.cache
def solved(name):
    return Solved(EXERCISES[name])


def leaves(value, path=""):
    """What sorts of things a value is made of: ``(place, sort)`` each."""
    if isinstance(value, torch.Tensor):
        laid = "" if value.is_contiguous() else ", not contiguous"
        yield path, f"{value.dtype} of {value.dim()} dimensions{laid}"
        return
    yield path, type(value).__name__
    if isinstance(value, dict):
        value = list(value.values())
    for one in value if isinstance(value, (list, tuple)) else ():
        yield from leaves(one, path + "[]")


def amount(value):
    """How many numbers and texts a value holds."""
    if isinstance(value, torch.Tensor):
        return value.numel()
    if isinstance(value, (dict, list, tuple)):
        return sum(map(amount, value.values() if isinstance(value, dict) else value))
    return value is not None


def is_finite(value):
    """Whether a value holds neither nan nor inf."""
    if isinstance(value, torch.Tensor):
        return bool(value.isfinite().all())
    if isinstance(value, (dict, list, tuple)):
        return all(map(is_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)


def sorts_of(worlds):
    """For each argument, what sorts of things any rank of any world is given."""
    return [
        {leaf for value in values for leaf in leaves(value)}
        for values in zip(*(mine for world in worlds for mine in world.by_rank), strict=True)
    ]


def input_problems(one, cell, seeds):
    """What in a hidden cell's inputs its task does not promise, one sentence each."""
    asked, seen = one.asked[cell.question], set()
    public = sorts_of(asked.worlds)
    for seed in seeds:
        worlds = one.given(cell, seed)
        if seed in FEW:
            seen.add(str([world.by_rank for world in worlds]))
        for place, (sorts, known) in enumerate(zip(sorts_of(worlds), public, strict=True)):
            if not sorts <= known:
                yield f"seed {seed}: argument {place} is {sorts - known}, as in no public check"
        for world in worlds:
            where = f"seed {seed}, world of {world.world_size}"
            for place, values in enumerate(world.by_argument):
                if not sum(map(amount, values)):
                    yield f"{where}: argument {place} is empty on all ranks"
            if cell.question in DEAR and seed not in FEW:
                continue
            try:
                if not is_finite(asked.expected(*world.by_argument)):
                    yield f"{where}: nan or inf is expected"
            except Exception as error:
                yield f"{where}: {type(error).__name__}: {error}"
    if len(seen) < 5:
        yield f"only {len(seen)} different inputs"


@pytest.mark.parametrize("name", EXERCISES)
def test_hidden_inputs_are_such_as_the_task_promises_under_every_seed(name):
    one = solved(name)
    assert one.hidden()
    problems = [f"{c.id}, {text}" for c in one.hidden() for text in input_problems(one, c, SEEDS)]
    assert problems == []


def test_hidden_cells_get_numbers_of_their_own_from_one_seed_of_64_bits():
    cells = [cell for name in EXERCISES for cell in EXERCISES[name].cells if cell.role == "hidden"]
    for seed in (0, 1, 2**64 - 1):
        lines = {re.search(r"(?m)^seed = (\d+)$", seeded(cell, seed))[1] for cell in cells}
        assert len(lines) == len({cell.id for cell in cells})
        assert all(int(line) <= LARGEST for line in lines)
    torch.Generator().manual_seed(1000 * (LARGEST + 900) + 999)  # the most that a cell makes of it


def names_set_by(source):
    """The global names that a cell's source sets."""
    found = set()
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in filter(None, targets):
            found |= {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}
    return found


@pytest.mark.parametrize("name", EXERCISES)
def test_no_cell_changes_what_the_rules_of_another_question_look_at(name):
    by_question = {}
    for cell in EXERCISES[name].cells:
        if cell.role in ("check", "hidden"):
            by_question.setdefault(cell.question, set()).update(names_set_by(cell.source))
    seen = set(OWN)
    for question, names in by_question.items():
        assert not (names - OWN) & seen, question
        seen |= names


def test_no_two_numbers_of_ranks_are_equally_good_for_the_quickest_epoch():
    one = solved("09_when_does_it_pay")
    (cell,) = (cell for cell in one.hidden() if cell.question == "quickest_epoch")
    for seed in SEEDS:
        for world in one.given(cell, seed):
            gradients, *numbers = world.by_argument
            size, best_of = world.world_size, {}
            plans = one.names["plans"](gradients[0].nbytes, *(n[0] for n in numbers), size)
            for (R, _), time_s in plans.items():
                best_of[R] = min(time_s, best_of.get(R, time_s))
            best, *others = sorted(best_of.values())
            assert all(time_s > 1.02 * best for time_s in others), (seed, size)


@pytest.mark.parametrize(
    "old, new, sentence",
    [
        ("1 + seed % 6", "seed % 7", "argument 0 is empty on all ranks"),
        ("1 + seed % 6", "seed % 7", "nan or inf is expected"),
        ("generator=", "dtype=torch.float64, generator=", "is {('', 'torch.float64 of 1"),
        ("seed", "SEED", "only 1 different inputs"),
    ],
)
def test_inputs_that_leave_the_task_are_told(old, new, sentence):
    one = Solved(COLLECTIVES)
    (cell,) = COLLECTIVES.cells_of("mean_of_all", "hidden")
    one.names["SEED"] = 1
    changed = re.sub(rf"(?<![\w_]){re.escape(old)}(?! = )(?!\()", new, cell.source)
    assert changed != cell.source
    problems = list(input_problems(one, replace(cell, source=changed), SEEDS))
    assert any(sentence in text for text in problems), problems


# Of the solution, too, a hidden cell may say what is wrong.

GOOD = "1: 2.5\n1: sent as allowed\n2: 2.5; (1, 'a')\n2: sent as allowed"


@pytest.mark.parametrize(
    "text, complaint",
    [
        (GOOD, None),
        ("1: nan (has the wrong value)\n1: sent as allowed", "1: nan (has the wrong value)"),
        (
            "1: [1] (at index 0 has the wrong value); 1\n1: sent as allowed",
            "1: [1] (at index 0 has the wrong value); 1",
        ),
        (GOOD.replace("2: sent as allowed", "2: the ranks send"), "2: the ranks send"),
        ("1: 2\n1: sent as allowed\n2: RankError: rank 0", "2: RankError: rank 0"),
        ("1: DeadlockError: stuck\n  rank 0: recv\n", "1: DeadlockError: stuck"),
        ("1: RankError: it\n1: fails", "1: fails"),
        ("hello", "hello"),
    ],
)
def test_a_complaint_about_the_solution_is_found(text, complaint):
    assert whole_class.complaint_in(text) == complaint


@pytest.fixture
def recording(monkeypatch):
    """``recording(text)``: a run of the solution in which its hidden cells give this text."""

    def give(text):
        def run_notebook(cells, limits, isolate):
            texts = {cell.id: text for cell in COLLECTIVES.cells if cell.role == "hidden"}
            texts |= {
                f"{question}-check": f"{question}: right" for question in COLLECTIVES.questions
            }
            printed = {
                cell.id: [{"output_type": "stream", "text": texts.get(cell.id, "")}]
                for cell in cells
            }
            found = {key: CellResult("same", outputs=outputs) for key, outputs in printed.items()}
            return Session(found, "", 1.0, "")

        monkeypatch.setattr(whole_class, "run_notebook", run_notebook)

    return give


@pytest.mark.parametrize(
    "line", ["2: TimeoutError: no progress", "2: 2; nan (has the wrong value)\n2: sent as allowed"]
)
def test_what_the_solution_gets_wrong_is_never_kept_as_expected(line, recording, tmp_path):
    graders = whole_class.ClassGrader({COLLECTIVES.name: COLLECTIVES}, Cache(tmp_path), 42, LIMITS)
    recording(f"1: 2\n1: sent as allowed\n{line}")
    for _ in range(2):
        with pytest.raises(whole_class.SolutionFails) as caught:
            graders.expected(COLLECTIVES)
        said = str(caught.value)
        assert said.startswith("04_collectives, seed 42: cell mean_of_all-hidden cannot judge")
        assert said.endswith(f"the solution itself fails it: {line.splitlines()[0]}")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    recording(GOOD)
    assert graders.expected(COLLECTIVES).text("mean_of_all-hidden") == GOOD


@pytest.mark.slow
@pytest.mark.parametrize("seed", FEW)
@pytest.mark.parametrize("name", EXERCISES)
def test_simulated_solutions_give_what_is_expected_and_keep_the_rules(name, seed):
    one = solved(name)
    cluster = simlib.clusters.ethernet_1g(nodes=8)
    simulate = functools.partial(simlib.simulate, cluster=cluster, timeout_s=60)
    for cell in one.hidden():
        asked = one.asked[cell.question]
        for world in one.given(cell, seed):
            answer, start = one.names[cell.question], world.start or simulate
            run, after = run_answer(answer, world.by_rank, start)
            got = [changed_in_place(mine) for mine in after] if world.in_place else run.results
            wanted = asked.expected(*world.by_argument)
            where = cell.id, world.world_size
            within = [asked.within] * len(got)
            assert not [*filter(None, map(difference, got, wanted, within))], where
            rules = [*asked.rules, *(asked.timed if world.start else ())]
            assert broken_rules(run, world.by_argument, rules) == [], where


@pytest.mark.slow
@pytest.mark.parametrize("seed", [14, 2**63, 2**64 - 1])
@pytest.mark.parametrize("name", EXERCISES)
def test_solutions_are_recorded_under_other_seeds(name, seed, isolated):
    assert whole_class.record(EXERCISES[name], seed, LIMITS).recorded

"""Every known-wrong answer is refused, each with its own sentence; stubs and solutions are told."""

import ast
import functools
import inspect
import linecache
import re
import runpy
from pathlib import Path

import jupytext
import pytest
from quick import one_of
from sampled import SEED

from simlib.classroom.checks.checking import fingerprint
from simlib.classroom.checks.compare import difference
from simlib.classroom.grading import whole_class
from simlib.classroom.grading.source import number_of, solution_source, stub_source

TESTS = Path(__file__).parents[1]
EXERCISES = TESTS.parent / "authoring" / "exercises"
FILES = sorted((TESTS.parent / "authoring" / "wrong_answers").glob("*.py"))
SAME_NUMBERS = {
    "mean_by_hand", "loss_grows", "one_holder_for_both", "own_share_only", "padded_from_the_front",
    "padded_before", "adds_nothing", "backwards", "folding_by_the_logarithm", "folding_costs_one",
    "neighbours_by_rank_chunks_by_place", "barrier_between", "by_adler32", "moved_aside",
    "no_barrier_by_the_shell", "sampler_in_order", "shorter_of_the_two",
}  # fmt: skip
"""They give what another one gives, if only on one rank or in a small world; what is said is true
of both."""
HANG_S = 3.0  # a hanging answer is ended after this, to keep the tests short


@functools.cache
def load(path):
    """The names of one file of wrong answers; its functions are not importable by the ranks.

    They may use what the setup of their exercise defines, as they do where they are graded.
    """
    setup = {"__name__": "exercise"}
    exec(cells_of(path)["setup", None], setup)
    return runpy.run_path(str(path), init_globals=setup)


def source_of(path):
    """The exercise a file of wrong answers belongs to."""
    (source,) = EXERCISES.glob(f"{number_of(path.stem)}*.py")
    return source


@functools.cache
def cells_of(path):
    """``{(role, question): source}`` of the exercise a file of wrong answers belongs to."""
    notebook = jupytext.read(source_of(path), fmt="py:percent")
    found = {}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            key = cell.metadata.get("role"), cell.metadata.get("question")
            found[key] = "\n".join(filter(None, [found.get(key), cell.source]))  # several setups
    return found


def verdict_on(path, question, answer=None, answer_source=None):
    """Run the exercise's own check cell on an answer, given as a function or as a cell."""
    cells = cells_of(path)
    names = {"__name__": "exercise"}
    exec(cells["setup", None], names)
    names["check"] = functools.partial(names["check"], timeout_s=HANG_S)
    if answer_source is not None:
        run_cell(answer_source, names)
    else:
        names[question] = answer
    exec(cells["check", question], names)
    return names["verdict"]


def run_cell(source, names):
    """Execute a cell's source so that, as in a notebook, `inspect` finds its text again."""
    file = "<the answer's cell>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    exec(compile(source, file, "exec"), names)


def of_each_file(table):
    """The answers of all files, of which the seed draws the quick ninth."""
    answers = {
        f"{path.stem}-{answer.__name__}": (path, answer)
        for path in FILES
        for answer in load(path).get(table, ())
    }
    return one_of(9, answers, first=SEED)


@pytest.mark.parametrize("path, answer", of_each_file("ALSO_RIGHT"))
def test_another_way_is_right_too(path, answer):
    verdict = verdict_on(path, load(path)["QUESTION"], answer)
    assert verdict.status == "right", verdict


@pytest.mark.parametrize("path, answer", of_each_file("WRONG"))
def test_wrong_answer_is_refused(path, answer):
    sentence = load(path)["WRONG"][answer]
    verdict = verdict_on(path, load(path)["QUESTION"], answer)
    assert verdict.status == "wrong"
    assert verdict.earned == load(path).get("EARNS", {}).get(answer, 0)
    assert sentence in verdict.reason
    others = [other for other in load(path)["WRONG"].values() if other != sentence]
    assert not [other for other in others if other in verdict.reason]


def test_at_least_three_wrong_answers_with_sentences_of_their_own():
    for path in FILES:
        wrong = load(path)["WRONG"]
        sentences = [text for answer, text in wrong.items() if answer.__name__ not in SAME_NUMBERS]
        assert len(set(sentences)) == len(sentences) >= 3, path


def test_what_a_wrong_answer_is_goes_on_after_this_is():
    for path in FILES:
        names = load(path)
        words = [(inspect.getdoc(answer) or "").partition("\n")[0] for answer in names["WRONG"]]
        for answer, said in zip(names["WRONG"], words, strict=True):
            assert re.fullmatch(r"[a-z].{,73}[^.\s]", said), f"{path}, {answer.__name__}: {said!r}"
        assert len(set(words)) == len(words), path
        known = whole_class.sources_of(path.parent, path, names["QUESTION"])
        assert list(known) == words, path


def test_each_check_knows_its_stub():
    for path in FILES:
        question, cells = load(path)["QUESTION"], cells_of(path)
        check = " ".join(cells[key] for key in cells if key[1] == question)
        told = re.search('as_given="(.*?)"', check)
        if told:
            names = {}
            run_cell(stub_source(cells["answer", question]), names)
            assert fingerprint(names[question]) == told[1], path.stem


@pytest.mark.parametrize("path", one_of(3, {path.stem: path for path in FILES}, first=SEED))
def test_solution_is_right_and_stub_is_not_written(path):
    question = load(path)["QUESTION"]
    source = cells_of(path)["answer", question]
    right = verdict_on(path, question, answer_source=solution_source(source))
    assert (right.status, right.earned) == ("right", right.points)
    names, stub = {}, stub_source(source)
    verdict = verdict_on(path, question, answer_source=stub)
    run_cell(stub, names)
    assert verdict.status == "not written", f'{verdict}\nas_given="{fingerprint(names[question])}"'


@pytest.mark.parametrize("world_size", [2, 3, 4, 5])
def test_the_mistakes_of_best_cut_are_told_apart(world_size):
    """Else a learner would be told of a mistake that somebody else has made."""
    cells, asked = cells_of(EXERCISES.parent / "wrong_answers" / "11_best_cut.py"), {}
    names = {"__name__": "exercise", "best_cut": None}
    exec(cells["setup", None], names)
    names["check"] = lambda *args, mistakes, **options: asked.update(args=args, mistakes=mistakes)
    exec(cells["check", "best_cut"], names)
    _, _, draws, expected, *_ = asked["args"]
    seen = {}  # a mistake is told in the first draw in which it gives something wrong
    for draw in draws:
        given = list(zip(*(draw(rank, world_size) for rank in range(world_size)), strict=True))
        right, of_each = expected(*given), {}
        for sentence, gives in asked["mistakes"].items():
            of_each[sentence] = getattr(gives(*given), "candidates", [gives(*given)])
        for sentence, some in of_each.items():
            alike = [
                other for other, more in of_each.items() if other != sentence and meet(some, more)
            ]
            if not meet(some, [right]):
                assert seen.setdefault(sentence, alike) == [], (sentence, alike)
    assert set(seen) == set(asked["mistakes"])


def meet(some, more):
    """Whether two lists of outcomes have one in common."""
    return any(not difference(a[0], b[0]) for a in some for b in more)


def test_every_question_has_wrong_answers():
    asked = {
        (number_of(source.stem), cell.metadata["question"])
        for source in EXERCISES.glob("*.py")
        for cell in jupytext.read(source, fmt="py:percent").cells
        if cell.metadata.get("role") == "answer"
    }
    assert asked == {(number_of(path.stem), load(path)["QUESTION"]) for path in FILES}


def test_points_of_the_check_are_the_points_of_the_cell():
    for path in FILES:
        question = load(path)["QUESTION"]
        points = [
            cell.metadata["points"]
            for cell in jupytext.read(source_of(path), fmt="py:percent").cells
            if cell.metadata.get("question") == question and "points" in cell.metadata
        ]
        (in_check,) = re.findall(r"points=(\d+|\{.*?\})", cells_of(path)["check", question])
        assert points == [ast.literal_eval(in_check)] * 2, path


FREE_OF_PRODUCTS = {
    "own_broadcast", "ring_reduce_scatter", "ring_in_order", "chain_broadcast", "quick_all_reduce",
    "break_even_ranks", "quickest_epoch", "accumulate", "survive", "as_predicted",
    "my_layers", "sharded_adam",
}  # fmt: skip
"""Tasks whose solutions compute nothing that torch counts, so that no floor can be asked for."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_rule_can_be_kept_by_work_that_nobody_sees(path):
    """A budget of time or memory has a floor of work; rounds are counted by a virtual clock too."""
    question = load(path)["QUESTION"]
    source = cells_of(path)["check", question]
    has_budget = re.search(r"\b(timed|memory)=\[", source)
    assert bool(has_budget) == ("at_least_flops=" in source or question in FREE_OF_PRODUCTS)
    assert not re.search(r"\brounds\(", source) or "timed=[" in source

"""An answer that holds the right results in a table, and asks nobody, is refused.

`simlib check` refuses it where a world is tried with several inputs. Where its inputs are the
same at each try, hidden ones refuse it: they give other results in some world. Of several results
that fit what a rank knows, a table here gives the right one: it is as good as any can be.
"""

import functools

import pytest
import torch
from hidden_cells import Solved
from notebooks_made import SOURCES
from synthetic import RunMaker

from simlib.classroom.checks import check
from simlib.classroom.checks.compare import difference
from simlib.classroom.grading.exercise import read_exercise
from simlib.classroom.grading.grade import seed_of
from simlib.classroom.grading.source import exercise_files, number_of

EXERCISES = {path.stem: read_exercise(path) for path in exercise_files(SOURCES, ".py")}
QUESTIONS = [
    pytest.param(name, question, id=f"{number_of(name)}-{question}")
    for name, exercise in EXERCISES.items()
    for question in exercise.questions
]
SEVERAL = {
    "01": "my_block report local_rank",
    "02": "running_total shift_right collect",
    "03": "two_by_two edges one_batch_fewer without_a_word no_examples one_buffer",
    "04": "mean_of_all own_broadcast ring_all_gather",
    "05": "ring_reduce_scatter ring_in_order chain_broadcast quick_all_reduce",
    "06": "uneven_shards clipped_mean kept_in_step out_of_step",
    "07": "sync_gradients held_out_accuracy batch_statistics",
    "09": "break_even_ranks quickest_epoch",
    "10": "stage_ledger my_layers stage_gradient",
    "11": "best_cut",
    "16": "who_am_i clock_offset ring_ms",
    "review": "ring_mean perplexity swap_blocks step_end still_to_see mean_where_used traffic "
    "largest_batch clip_split train",
}
"""By exercise: of these the check alone refuses tables by rank, by values."""
IN_SEVERAL_DRAWS = [
    pytest.param(name, question, id=f"{number_of(name)}-{question}")
    for name in EXERCISES
    for question in SEVERAL.get(number_of(name), "").split()
]
SOMEBODY_SENDS = [
    case
    for case in IN_SEVERAL_DRAWS
    if number_of(case.values[0]) in ("01", "02", "04", "16", "review")
]
"""Of these exercises: they have the rule wherever a value needs the others."""


@functools.cache
def solved(name):
    """The `Solved` exercise, and the rows of each question's public worlds.

    These are worked out first: hidden cells may exchange what the expected values look at.
    """
    one = Solved(EXERCISES[name])
    return one, {key: list(rows(asked, asked.worlds)) for key, asked in one.asked.items()}


def rows(asked, worlds):
    """``(rank, world size, what the rank was given, what it must return)`` of all worlds."""
    for world in worlds:
        wanted = asked.expected(*world.by_argument)
        for rank, (mine, want) in enumerate(zip(world.by_rank, wanted, strict=True)):
            yield rank, world.world_size, mine, want


def table_of(public, key):
    """All results of the rows that have a key, by that key."""
    table = {}
    for rank, size, mine, want in public:
        table.setdefault(key(rank, size, mine), []).append(want)
    return table


def by_rank(rank, size, mine):
    return rank, size


def by_all_it_knows(rank, size, mine):
    return rank, size, contents(mine)


def by_shapes(rank, size, mine):
    return rank, size, contents([torch.zeros_like(one) if is_tensor(one) else one for one in mine])


def is_tensor(value):
    return isinstance(value, torch.Tensor)


def contents(value):
    """All that a value holds, every byte of its tensors, as what can be a key."""
    if is_tensor(value):
        return str(value.dtype), tuple(value.shape), value.detach().contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return tuple((key, contents(one)) for key, one in value.items())
    return tuple(map(contents, value)) if isinstance(value, (list, tuple)) else repr(value)


def misses(asked, table, tried, key):
    """Whether a table has nothing right for some of these rows."""
    for rank, size, mine, want in tried:
        found = table.get(key(rank, size, mine), ())
        if all(difference(one, want, asked.within) for one in found):
            return True
    return False


@pytest.mark.parametrize("key", [by_rank, by_all_it_knows, by_shapes])
@pytest.mark.parametrize("name, question", QUESTIONS)
def test_a_table_of_the_public_results_misses_some_of_each_hidden_cell(name, question, key, seed):
    one, public = solved(name)
    asked, table = one.asked[question], table_of(public[question], key)
    assert not misses(asked, table, public[question], key)  # so the rest fails where it should
    for cell in one.hidden():
        if cell.question == question:
            worlds = one.given(cell, seed_of(cell.id, seed))
            assert misses(asked, table, rows(asked, worlds), key)


@pytest.mark.parametrize("name, question", IN_SEVERAL_DRAWS)
def test_where_a_check_tries_several_inputs_no_table_by_rank_is_right(name, question):
    one, public = solved(name)
    asked = one.asked[question]
    table = table_of(public[question], by_rank)
    assert any(difference(one, wants[0], asked.within) for wants in table.values() for one in wants)


@pytest.mark.parametrize("name, question", SOMEBODY_SENDS)
def test_right_values_are_refused_where_nobody_asks_the_others(name, question):
    """Even a table by all that a rank knows, which no draw of inputs can refuse."""
    one, _ = solved(name)
    asked, solution = one.asked[question], EXERCISES[name].questions[question].solution
    world = next(world for world in asked.worlds if world.world_size == 2)
    run = RunMaker(2).run()
    said = [rule.broken(run, world.by_argument) for rule in asked.rules]
    is_told = any(text and "no rank communicates" in text for text in said)
    assert is_told == ("dist." in solution)


def test_a_table_is_refused_by_the_check_itself():
    one, public = solved("01_ranks_and_clusters")
    table = table_of(public["local_rank"], by_rank)

    def from_a_table(rank, world_size, node):
        return table[rank, world_size][0]

    draws = [one.names["somewhere"], one.names["elsewhere"]]
    verdict = check("local_rank", from_a_table, draws, one.asked["local_rank"].expected)
    assert (verdict.status, verdict.world_size) == ("wrong", 2)

"""Which of the dear tests run: all of a changed room, of the others a draw that misses no group."""

import changes
import pytest
import selection
import test_notebooks
from changes import CHANGED, REACHED, UNTOUCHED, Changes, Reach
from selection import GROUPS, Case, drawn

HOSTS = [Case(f"tests/test_{name}_hosts.py::test_a[{n}]") for name in "ab" for n in range(5)]
ZOO = [
    Case(f"tests/test_programs.py::test_{kind}_program_is[{n}]", stratum)
    for kind, stratum in (("wrong", "deadlock"), ("wrong", "race"), ("right", ""))
    for n in range(10)
]
OTHER = [Case("tests/test_run.py::test_a"), Case("tests/test_programs.py::test_the_zoo_is_large")]
FILES = [f"notebooks/{n:02}.ipynb" for n in range(20)]
CELLS = [Case(f"{file}::Cell {n}") for file in FILES for n in range(3)]
BUILDS = [Case(f"{selection.BUILT}[{file}]") for file in FILES]


def decided(near, **special):
    found = dict.fromkeys([group.name for group in GROUPS] + FILES, (near, "it is said so"))
    return found | {name: (near, "it is said so") for name, near in special.items()}


def count(cases, of):
    return len(set(cases) & set(of))


def test_where_all_has_changed_all_runs():
    cases = HOSTS + ZOO + OTHER + CELLS
    assert drawn(cases, decided(CHANGED), 1)[0] == cases


@pytest.mark.parametrize("seed", range(5))
def test_where_nothing_has_changed_each_group_is_drawn_from(seed):
    kept, lines = drawn(HOSTS + ZOO + OTHER + CELLS, decided(UNTOUCHED), seed)
    assert count(kept, HOSTS) == 1
    assert count(kept, OTHER) == len(OTHER)
    for stratum in range(3):
        assert count(kept, ZOO[10 * stratum : 10 * stratum + 10]) == 2
    assert count(kept, CELLS) == 3 * selection.NOTEBOOKS[UNTOUCHED]
    assert "hosts and Slurm: 1 of 10 tests, as it is said so" in lines
    assert kept == drawn(HOSTS + ZOO + OTHER + CELLS, decided(UNTOUCHED), seed)[0]


def test_so_many_of_a_whole_group_and_never_more_than_there_are():
    grading = [Case(f"tests/grading/test_root.py::test_{n}") for n in range(20)]
    assert len(drawn(grading, decided(UNTOUCHED), 1)[0]) == 8
    assert len(drawn(grading, decided(REACHED), 1)[0]) == 16
    assert drawn(grading[:3], decided(UNTOUCHED), 1)[0] == grading[:3]


def test_what_is_reached_is_drawn_from_more():
    kept = drawn(ZOO + CELLS, decided(REACHED), 1)[0]
    assert count(kept, ZOO) == 3 * 4
    assert count(kept, CELLS) == 3 * selection.NOTEBOOKS[REACHED]


def test_a_notebook_that_has_changed_runs_beside_the_drawn_ones():
    found = decided(UNTOUCHED) | {FILES[7]: (CHANGED, "")}
    for seed in range(5):
        kept, (line,) = drawn(CELLS, found, seed)
        assert count(kept, CELLS[21:24]) == 3
        assert len(kept) == 3 * (1 + selection.NOTEBOOKS[UNTOUCHED])
        assert line.startswith("notebooks: 4 of 20: 1 that have changed")


def test_what_has_changed_is_built_anew_and_one_more():
    found = decided(UNTOUCHED) | {FILES[7]: (CHANGED, "")}
    kept, (line,) = drawn(BUILDS, found, 1)
    assert BUILDS[7] in kept and len(kept) == 2
    assert line == "built anew: 2 of 20: 1 that have changed, 1 of 19 others"


def test_all_is_drawn_in_time():
    seen, everything = set(), HOSTS + ZOO + CELLS + BUILDS
    for seed in range(200):
        seen.update(drawn(everything, decided(UNTOUCHED), seed)[0])
    assert seen == set(everything)


def test_the_cases_of_the_build_are_named_after_notebooks():
    found = selection.decide(Reach(Changes("", None)))
    names = {f"{test_notebooks.name(path)}.ipynb" for path in test_notebooks.LESSONS}
    names |= {f"{test_notebooks.name(path)}.ipynb" for path in test_notebooks.SOLUTIONS}
    assert names == found.keys() - {group.name for group in GROUPS}
    assert selection.BUILT.endswith(test_notebooks.test_a_source_gives_its_notebook.__name__)


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_a_group_names_what_there_is(group):
    assert selection.own_files(group, changes.ROOT)
    for room in group.rooms:
        assert (changes.ROOT / room).exists(), room


@pytest.mark.parametrize(
    "file, group",
    [
        ("simlib/practice/daemon.py", "hosts and Slurm"),
        ("tests/test_practice_hosts.py", "hosts and Slurm"),
        ("simlib/engines/batch/doctor/probe.py", "doctor"),
        ("scripts/install.py", "installer"),
        ("tests/browser/notebook_page.py", "browser"),
        ("tests/breaking.py", "hosts and Slurm"),
        ("tests/class_made.py", "browser"),
        ("simlib/grading/sandbox.py", "grading"),
        ("simlib/collectives/gloo.py", "schedules"),
        ("authoring/wrong_answers/01_report.py", "wrong answers"),
    ],
)
def test_the_rooms_of_the_groups(file, group):
    found = selection.decide(Reach(Changes("", frozenset([file]))))
    assert found[group][0] == CHANGED


def test_a_notebook_changes_with_its_source_and_is_reached_by_its_imports():
    def near(file):
        found = selection.decide(Reach(Changes("", frozenset([file]))))
        return [
            found[f"{folder}/02_send_and_recv.ipynb"][0] for folder in ("notebooks", "solutions")
        ]

    assert near("authoring/lessons/02_send_and_recv.py") == [CHANGED, UNTOUCHED]
    assert near("authoring/exercises/02_send_and_recv.py") == [UNTOUCHED, CHANGED]
    assert near("notebooks/02_send_and_recv.ipynb") == [CHANGED, UNTOUCHED]
    assert near("simlib/checks/check.py") == [UNTOUCHED, REACHED]

"""Which of the dear tests `make test` runs, by what has changed; all others run always.

`GROUPS` says it: a group's tests all run where one of its rooms or the tests themselves have
changed. Otherwise a share of them is drawn by the seed; a greater one where what the rooms import
has changed. Every notebook is a group of its own, drawn whole. In time the draws come to everything
(`.ci/run` draws by the commit's tree), and `make test-all` runs everything at once.

`decide` is asked once for a run, in `run_tests.py`; ``tests/conftest.py`` draws by its answer.
"""

import fnmatch
import json
import math
import random
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from changes import CHANGED, REACHED, ROOT, UNTOUCHED, imported, names_in

NEARNESS = (CHANGED, REACHED, UNTOUCHED)

BATCH = "simlib/engines/batch"
BUILT = "tests/test_notebooks.py::test_a_source_gives_its_notebook"
"""Its cases are named after notebooks. One is drawn beside those that have changed."""
NOTEBOOKS = {UNTOUCHED: 3, REACHED: 8}
"""So many notebooks are drawn of those that have not changed."""


class Group(NamedTuple):
    """Tests that are dear, and when they all run."""

    name: str
    tests: tuple
    """Patterns of node ids: files, or ``file::function``."""
    rooms: tuple
    """Paths: where one of them has changed, all the tests run."""
    untouched: float = 1
    """What is drawn otherwise: below 1 the share of the cases of each function, one at least; else
    so many tests of the whole group."""
    reached: float | None = None
    """The same where only what the rooms import has changed; None: as many."""


GROUPS = (
    Group(
        "hosts and Slurm",
        ("tests/test_*_hosts.py",),
        (
            "simlib/practice",
            "simlib/mpi",
            "simlib/record/transports",
            "simlib/engines/launch",
            BATCH,
            "scripts/every_mpi.py",
            "scripts/record_failures.py",
        ),
    ),
    Group(
        "scripts and needs of jobs",
        ("tests/test_jobs_command.py", "tests/test_needs.py", "tests/test_pbs_scheduler.py"),
        (BATCH, "simlib/engines/launch", "simlib/engines/jobs_command.py"),
        untouched=1 / 3,
    ),
    Group(
        "doctor",
        ("tests/test_doctor.py", "tests/test_doctor_probe.py"),
        (
            f"{BATCH}/doctor",
            f"{BATCH}/launcher_failures.py",
            f"{BATCH}/versions.py",
            "simlib/engines/launch",
        ),
    ),
    Group(
        "browser",
        ("tests/browser/*",),
        (
            "simlib/draw/player",
            "simlib/draw/twins.py",
            "simlib/draw/notebook_figures.py",
            "simlib/labs",
            "scripts/lab.py",
            "scripts/lab_settings",
            "scripts/lab_extensions",
        ),
    ),
    Group(
        "book",
        ("tests/browser/test_browser_book.py",),
        (
            *("authoring/book", "authoring/build_book.py", "authoring/playable"),
            *("authoring/playable.py", "notebooks", "exercises", "docs"),
            *("START.md", "DESIGN.md", "CONTRIBUTING.md", "CHANGELOG.md"),
            *("simlib/draw/player", "simlib/facade.py", "simlib/scale", "simlib/labs"),
            *("simlib/checks", "simlib/collectives", "simlib/datasets", "simlib/results"),
        ),
        untouched=0,
    ),
    Group(
        "installer",
        ("tests/test_install.py",),
        ("scripts/install.py", "scripts/install.sh", "Makefile", "pyproject.toml"),
    ),
    Group(
        "builder",
        ("tests/test_build.py",),
        (
            "authoring/build.py",
            "authoring/kernels.py",
            "authoring/translations.py",
            "simlib/grading/source.py",
        ),
        untouched=8,
    ),
    Group(
        "grading",
        (
            "tests/grading/*",
            "tests/test_grading.py",
            "tests/test_classroom.py",
            "tests/test_public.py",
        ),
        ("simlib/grading", "simlib/checks"),
        untouched=8,
        reached=16,
    ),
    Group(
        "zoo on processes",
        ("tests/test_programs.py::test_*_program_*",),
        ("simlib/engines/processes", "simlib/record", "simlib/diagnose", "tests/programs"),
        untouched=1 / 5,
        reached=1 / 3,
    ),
    Group(
        "pytest plugin",
        ("tests/test_testing.py",),
        ("simlib/testing", "simlib/engines/processes", "simlib/engines/host"),
        untouched=4,
    ),
    Group(
        "whole scripts",
        ("tests/test_microscope.py",),
        (
            "simlib/engines/processes",
            "simlib/record",
            "simlib/diagnose",
            "tests/microscope",
        ),
        untouched=1 / 4,
        reached=1 / 3,
    ),
    Group(
        "watched runs",
        ("tests/test_watching.py",),
        (
            "simlib/engines/processes",
            "simlib/record",
            "simlib/diagnose",
            "simlib/model/matching.py",
        ),
        untouched=1 / 3,
    ),
    Group(
        "programs by every backend",
        ("tests/test_backends.py::test_*programs_*",),
        ("simlib/record", "simlib/engines/batch/job_rank.py"),
        untouched=1 / 5,
    ),
    Group(
        "wrong answers",
        ("tests/test_wrong_answers.py::test_wrong_answer_is_refused",),
        ("simlib/checks", "authoring/exercises", "authoring/wrong_answers"),
        untouched=1 / 5,
        reached=1 / 3,
    ),
    Group(
        "honest variants",
        ("tests/test_honest_variants.py::test_a_right_answer_is_right_however_it_is_written",),
        ("simlib/checks", "authoring/exercises"),
        untouched=1 / 60,
        reached=1 / 30,
    ),
    Group(
        "programs of lessons 11, 12, 17, 18",
        (
            "tests/test_pipelines.py",
            "tests/test_split_state.py",
            "tests/test_torchs_parts.py",
            "tests/test_plan_a_training_run.py",
            "tests/test_sequences_and_experts.py",
        ),
        (
            "authoring/lessons/11_pipelines.py",
            "authoring/lessons/12_tensors_and_state.py",
            "authoring/lessons/17_plan_a_training_run.py",
            "authoring/lessons/18_long_sequences_and_experts.py",
        ),
        untouched=1 / 3,
    ),
    Group(
        "programs of lesson 13",
        ("tests/test_asynchronous.py",),
        ("authoring/lessons/13_asynchronous_training.py", "simlib/clockwork/deaths.py"),
        untouched=1 / 3,
    ),
    Group(
        "programs of lesson 14",
        ("tests/test_failures_lesson.py",),
        ("authoring/lessons/14_stragglers_and_failures.py",),
        untouched=1 / 3,
    ),
    Group(
        "questions",
        ("tests/test_questions.py::test_a_program_*",),
        ("docs/questions.md",),
        untouched=1 / 3,
    ),
    Group(
        "schedules",
        (
            "tests/test_gloo.py",
            "tests/test_collectives.py",
            "tests/test_two_trees.py",
            "tests/test_two_level.py",
            "tests/test_timing.py",
        ),
        ("simlib/collectives",),
        untouched=1 / 3,
    ),
    Group(
        "families",
        ("tests/test_families.py",),
        ("simlib/collectives", "simlib/scale", "simlib/clockwork"),
        untouched=1 / 3,
    ),
    Group(
        "scale",
        ("tests/test_scale.py", "tests/test_scale_*.py"),
        ("simlib/scale",),
        untouched=1 / 3,
    ),
    Group(
        "operations counted",
        ("tests/test_flops.py",),
        ("simlib/engines/virtual/flops.py",),
        untouched=1 / 3,
    ),
)


def decide(reach, root=ROOT):
    """``{name: [how near the change is, why]}`` of every group and every notebook."""
    found = {one.name: reach.of(one.rooms + own_files(one, root)) for one in GROUPS}
    for path in notebooks(root):
        name = path.relative_to(root).as_posix()
        kind = "lessons" if path.parent.name == "notebooks" else "exercises"
        near, why = reach.of((name, f"authoring/{kind}/{path.stem}.py"))
        found[name] = (near, why) if near == CHANGED else reach.of_imports(names_of(path))
    return found


def own_files(group, root):
    """The files of a group's tests, and those beside them that they import."""
    patterns = {pattern.partition("::")[0] for pattern in group.tests}
    left = [path for one in patterns for path in root.glob(one)]
    found = set()
    while left:
        path = left.pop()
        if path in found:
            continue
        found.add(path)
        if path.suffix == ".py":
            names = {name.partition(".")[0] for name in imported(path.read_text(encoding="utf-8"))}
            places = [place / name for place in (root / "tests", path.parent) for name in names]
            left += [one.with_suffix(".py") for one in places if one.with_suffix(".py").is_file()]
            left += [one for one in places if one.is_dir()]
    return tuple(path.relative_to(root).as_posix() for path in sorted(found))


def notebooks(root):
    """The notebooks that have to run."""
    return [
        path for folder in ("notebooks", "solutions") for path in (root / folder).glob("*.ipynb")
    ]


def names_of(path):
    """The names of simlib that a notebook's code uses."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    found = set()
    for cell in cells:
        if cell["cell_type"] == "code":
            try:
                found |= names_in("".join(cell["source"]))
            except SyntaxError:  # a cell of IPython's own, such as %time
                found.add("simlib")
    return found


class Case(NamedTuple):
    """What is known of a test that was collected."""

    id: str
    stratum: str = ""
    """Cases of a function that differ in it are drawn apart, see the mark ``stratum``."""


def drawn(cases, decided, seed):
    """The cases that run, and a line for each group: what was left out, and why.

    Parameters
    ----------
    cases : list of Case
    decided : dict
        See `decide`.
    seed : int
    """
    left_out, lines = set(), []
    for group in GROUPS:
        mine = [case for case in cases if belongs(case.id, group)]
        near, why = decided[group.name]
        if mine and near != CHANGED:
            kept = draw(mine, share_of(group, near), random.Random(seed))
            left_out |= set(mine) - set(kept)
            lines.append(f"{group.name}: {len(kept)} of {len(mine)} tests, as {why}")
        elif mine:
            lines.append(f"{group.name}: all {len(mine)} tests, as {why}")
    for kept, of, line in (
        drawn_notebooks(cases, decided, seed),
        drawn_builds(cases, decided, seed),
    ):
        left_out |= set(of) - set(kept)
        lines += line
    return [case for case in cases if case not in left_out], lines


def belongs(node, group):
    """Whether a node id is of a group."""
    function = node.partition("[")[0]
    file = function.partition("::")[0]
    return any(
        fnmatch.fnmatchcase(function if "::" in pattern else file, pattern)
        for pattern in group.tests
    )


def share_of(group, near):
    """What is drawn of a group, see `Group`."""
    if near == REACHED and group.reached is not None:
        return group.reached
    return group.untouched


def draw(cases, share, dice):
    """A share of each function and stratum, one case at least; from 1 on, so many of all."""
    if share >= 1:
        return dice.sample(cases, min(int(share), len(cases)))
    strata = defaultdict(list)
    for case in cases:
        strata[case.id.partition("[")[0], case.stratum].append(case)
    return [
        case
        for stratum in strata.values()
        for case in dice.sample(stratum, math.ceil(share * len(stratum)))
    ]


def file_of(case):
    """The file a case is in."""
    return case.id.partition("::")[0]


def drawn_notebooks(cases, decided, seed):
    """The cells that run, all cells there are, and the line on them."""
    cells = [case for case in cases if file_of(case) in decided]
    files = sorted({file_of(case) for case in cells})
    if not files:
        return [], [], []
    near = {kind: [file for file in files if decided[file][0] == kind] for kind in NEARNESS}
    kept, words = set(near[CHANGED]), [f"{len(near[CHANGED])} that have changed"]
    for kind, said in ((REACHED, "with changed imports"), (UNTOUCHED, "others")):
        few = random.Random(seed).sample(near[kind], min(NOTEBOOKS[kind], len(near[kind])))
        kept |= set(few)
        words.append(f"{len(few)} of {len(near[kind])} {said}")
    line = f"notebooks: {len(kept)} of {len(files)}: {', '.join(words)}"
    return [case for case in cells if file_of(case) in kept], cells, [line]


def drawn_builds(cases, decided, seed):
    """The sources that are built anew, all there are, and the line on them."""
    builds = [case for case in cases if case.id.startswith(f"{BUILT}[")]
    if not builds:
        return [], [], []
    kept = [case for case in builds if decided[case.id[len(BUILT) + 1 : -1]][0] == CHANGED]
    rest = [case for case in builds if case not in kept]
    few = random.Random(seed).sample(rest, min(1, len(rest)))
    said = f"{len(kept)} that have changed, {len(few)} of {len(rest)} others"
    return kept + few, builds, [f"built anew: {len(kept + few)} of {len(builds)}: {said}"]


def write(decided, path):
    """Keep what was decided, for the processes that run the tests."""
    Path(path).write_text(json.dumps(decided), encoding="utf-8")


def read(path):
    """What was decided, as it was written."""
    return json.loads(Path(path).read_text(encoding="utf-8"))

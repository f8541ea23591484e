"""What the classroom's commands do; apart from their parsers, as its imports take a second."""

from __future__ import annotations

import datetime
import platform
import sys
from dataclasses import replace
from pathlib import Path

from . import batch, collect, handout, overrides, pages, public, reports, sandbox, session
from .cache import SEEDS, Cache
from .command import ROOT, WRONG_ANSWERS
from .exercise import read_exercises
from .source import SourceError
from .submission import Unreadable
from .syscalls import seccomp_filter
from .tables import readable
from .transplant import WrongNotebook


def check(options):
    """Check a student's own notebooks; returns the exit code."""
    code = 0
    paths = [path for named in options.notebooks for path in public.exercises_in(named)]
    for path in paths:
        try:
            said, notes = public.check_notebook(path)
        except (Unreadable, WrongNotebook) as error:
            print(f"simlib: {path}: {error}", file=sys.stderr)
            code = 2
            continue
        except KeyboardInterrupt:
            return 130
        if len(paths) > 1:
            print(f"== {path}\n")
        for one in said:
            print(f"{one.text}\n")
        for note in notes:
            print(f"note: {note}")
        right = sum(one.status == public.RIGHT for one in said)
        print(f"{right} of {len(said)} right" + "\n" * (len(paths) > 1))
        code = max(code, int(right < len(said)))
    return code


def hand_out(options):
    """Write what students get; returns the exit code."""
    try:
        files = handout.handout(ROOT, options.out)
    except (handout.CannotHandOut, OSError) as error:
        print(f"simlib: {error}", file=sys.stderr)
        return 2
    books = [file for file in files if file.startswith("exercises/")]
    print(f"{options.out}: {len(books)} exercises, {len(files)} files in all")
    return 0


REFUSALS = (
    SourceError,
    sandbox.CannotIsolate,
    collect.CannotCollect,
    reports.BadRoster,
    overrides.BadOverrides,
    OSError,
    ValueError,
)


def grade(options):
    """Grade a class; returns the exit code."""
    try:
        return _grade(options)
    except REFUSALS as error:
        print(f"simlib: {reports.tame(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("simlib: stopped; what was graded is kept, so call it again", file=sys.stderr)
        return 130


def _grade(options):
    sandbox.check_can_isolate(options.no_sandbox)
    warn(options.no_sandbox)
    check_seed(options.seed)
    every = read_exercises(options.exercises)
    exercises = chosen(every, options.exercise)
    roster = reports.read_roster(options.roster) if options.roster else []
    by_hand = overrides.read_overrides(options.overrides) if options.overrides else []
    handed = handed_in(options, every, exercises)
    exercises = asked_for(exercises, handed, options.exercise)
    students = {one.student for one in handed} | {one.student for one in roster}
    overrides.check(by_hand, students, exercises)
    folder = Path(options.out)
    cache = Cache(folder / ".cache")
    with cache.locked():
        seed = cache.seed(options.seed)
        graded = graded_by(options, exercises, handed, cache, seed)
        report = reports.as_report(graded, roster, exercises, seed, not options.no_sandbox)
        overrides.apply(report, by_hand)
        reports.write_reports(folder, report, roster)
        pages.write_pages(folder, report)
    print(summary(report, folder))
    return 0 if all(one.result.status == "graded" for one in graded) else 1


def handed_in(options, every, exercises):
    """What was handed in for the chosen exercises; which one a file is, is told among all."""
    if Path(options.out).resolve() == Path(options.submissions).resolve():
        raise ValueError("--out names the folder of the submissions: name another one")
    deadline = time_of(options.deadline)
    handed = collect.collect(options.submissions, every)
    handed = [one for one in handed if one.exercise is None or one.exercise in exercises]
    mark_late(handed, deadline)
    unknown = again(options) - {one.student for one in handed}
    if unknown:
        raise ValueError(f"nobody named {', '.join(sorted(unknown))} handed anything in")
    return handed


def again(options):
    """The students whose notebooks are to be graded anew."""
    return {readable(one) for one in options.only or ()}


def graded_by(options, exercises, handed, cache, seed):
    """``[Graded]`` of what was handed in, with a bar that tells how far it is."""
    from tqdm import tqdm

    wrong = WRONG_ANSWERS if WRONG_ANSWERS.is_dir() else None
    isolate = not options.no_sandbox
    work = batch.Batch(exercises, cache, seed, limits_of(options), isolate, wrong)
    session.clear_after_the_dead()
    with tqdm(total=len(handed), unit="notebook", disable=None) as bar:
        return work.run(handed, max(1, options.jobs), lambda one: bar.update(), again(options))


def warn(no_sandbox):
    """Say loudly what this grading does not hold back."""
    if no_sandbox:
        print("simlib: NO SANDBOX: what students wrote runs with your rights", file=sys.stderr)
    elif seccomp_filter() is None:
        print(
            f"simlib: no filter of system calls is known for {platform.machine()}: the sandbox "
            "stands, with one wall less",
            file=sys.stderr,
        )


def check_seed(seed):
    """Refuse a seed that hidden tests are not made for."""
    if seed is not None and seed not in SEEDS:
        raise ValueError(f"--seed {seed}: hidden tests have seeds {SEEDS[0]} to {SEEDS[-1]}")


def chosen(exercises, numbers):
    """The exercises that were asked for: by number, or by name."""
    if not numbers:
        return exercises
    found = {
        name: one
        for name, one in exercises.items()
        if any(name == number or name.startswith(f"{number}_") for number in numbers)
    }
    if not found:
        raise ValueError(f"there is no exercise {', '.join(numbers)}: {', '.join(exercises)}")
    return found


def asked_for(exercises, handed, numbers):
    """The exercises of a report: those asked for, or those that somebody handed in."""
    found = {one.exercise for one in handed}
    return exercises if numbers else {n: e for n, e in exercises.items() if n in found}


def time_of(text):
    """A deadline, in the time of this machine where it names none."""
    if not text:
        return None
    try:
        return datetime.datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise ValueError(f"--deadline {text}: write it as 2026-11-30T18:00") from None


def mark_late(handed, deadline):
    """Note which files came after the deadline."""
    for one in handed:
        one.late = one.late or bool(deadline and one.when and one.when > deadline)


def limits_of(options):
    """The limits, with those that were asked for; more time for a notebook is more for a cell."""
    limits = sandbox.Limits()
    if options.time:
        factor = max(1, options.time / limits.notebook_s)
        cell_s, answer_s = limits.cell_s * factor, limits.answer_s * factor
        limits = replace(limits, notebook_s=options.time, cell_s=cell_s, answer_s=answer_s)
    if options.memory:
        limits = replace(limits, memory_bytes=options.memory << 20)
    return limits


def summary(report, folder):
    """What is printed at the end."""
    lines = []
    for one in report["students"]:
        odd = [b for b in one["notebooks"] if b["status"] not in ("graded", "missing")]
        told = "".join(f"  {b['exercise']}: {b['status']}: {b['reason']}" for b in odd)
        told += "".join(f"  {other['file']}: {other['reason']}" for other in one["other_files"])
        points = f"{one['points']:>3} of {one['of']}"
        lines.append(f"{reports.tame(one['student']):<24} {points}{reports.tame(told)}")
    lines.append(f"seed {report['seed']} (--seed {report['seed']} repeats it); see {folder}/")
    return "\n".join(lines)

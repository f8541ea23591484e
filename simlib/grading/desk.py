"""What the classroom's commands do; apart from their parsers, as its imports take a second."""

from __future__ import annotations

import datetime
import sys
from dataclasses import replace
from pathlib import Path

from . import batch, collect, handout, overrides, pages, public, reports, sandbox
from .cache import Cache
from .command import ROOT, WRONG_ANSWERS
from .exercise import read_exercises
from .source import SourceError
from .submission import Unreadable
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
    ValueError,
)


def grade(options):
    """Grade a class; returns the exit code."""
    try:
        return _grade(options)
    except REFUSALS as error:
        print(f"simlib: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("simlib: stopped; what was graded is kept, so call it again", file=sys.stderr)
        return 130


def _grade(options):
    from tqdm import tqdm

    sandbox.check_can_isolate(options.no_sandbox)
    if options.no_sandbox:
        print("simlib: NO SANDBOX: what students wrote runs with your rights", file=sys.stderr)
    exercises = chosen(read_exercises(options.exercises), options.exercise)
    roster = reports.read_roster(options.roster) if options.roster else []
    by_hand = overrides.read_overrides(options.overrides) if options.overrides else []
    deadline = time_of(options.deadline)
    handed = collect.collect(options.submissions, exercises)
    exercises = asked_for(exercises, handed, options.exercise)
    students = {one.student for one in handed} | {one.student for one in roster}
    overrides.check(by_hand, students, exercises)
    mark_late(handed, deadline)
    folder = Path(options.out)
    cache = Cache(folder / ".cache")
    seed = cache.seed(options.seed)
    limits = limits_of(options)
    wrong = WRONG_ANSWERS if WRONG_ANSWERS.is_dir() else None
    work = batch.Batch(exercises, cache, seed, limits, not options.no_sandbox, wrong)
    again = {readable(one) for one in options.only or ()}
    unknown = again - {one.student for one in handed}
    if unknown:
        raise ValueError(f"nobody named {', '.join(sorted(unknown))} handed anything in")
    with tqdm(total=len(handed), unit="notebook", disable=None) as bar:
        graded = work.run(handed, max(1, options.jobs), lambda one: bar.update(), again)
    report = reports.as_report(graded, roster, exercises, seed, not options.no_sandbox)
    overrides.apply(report, by_hand)
    reports.write_reports(folder, report, roster)
    pages.write_pages(folder, report)
    print(summary(report, folder))
    return 0 if all(one.result.status == "graded" for one in graded) else 1


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
    """The limits, with those that were asked for."""
    limits = sandbox.Limits()
    if options.time:
        limits = replace(limits, notebook_s=options.time)
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
        lines.append(f"{reports.tame(one['student']):<24} {one['points']:>3} of {one['of']}{told}")
    lines.append(f"seed {report['seed']} (--seed {report['seed']} repeats it); see {folder}/")
    return "\n".join(lines)

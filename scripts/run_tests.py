"""Run everything that has to hold, and say how it went.

    run_tests.py        what has changed and a sample of the rest (`selection.py`), long series
                        sampled; meant for 12 minutes on 2 cores
    run_tests.py --all  everything, with repeats; no limit

SEED=7 repeats the samples of an earlier run; BASE names the commit to compare with (`changes.py`).

There is no limit on the whole: a slow machine may take its time. What goes on for `STILL_S` without
that a test ends is stopped; then, and after Ctrl-C, the failures so far are named.

Tests of real processes, sockets and browsers meet machines that are far too busy. Where a few have
failed they run once more, with nothing beside them. A test that then passes, and that
``tests/second_look.toml`` lists with a reason, does not fail the run. With --all there is no second
run.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

import changes
import progress
import selection

ROOT = Path(__file__).resolve().parent.parent
SECOND_LOOK = "tests/second_look.toml"
STILL_S = 10 * 60
"""So long a test may take, and so long none may end: then something hangs."""
LOOK_S = 1.0
FEW = 3
"""More failures than these are no accident: there is no second run."""
TWO_AT_A_TIME = ["-n", "2"]
"""Much of a test is waiting: for a process to start, for a verdict."""
STOPPED, INTERRUPTED = 124, 130


class Part(NamedTuple):
    """What runs in one go: a program with its arguments, or pytest."""

    name: str
    program: list
    """Without what to run beside each other, and without paths."""
    beside: list = ()
    paths: list = ()
    """Of pytest; none for another program."""


class Verdict(NamedTuple):
    """How a part went."""

    name: str
    code: int
    seconds: float
    notes: list = ()
    """Lines on single tests."""

    def __str__(self):
        minutes = STILL_S // 60
        words = {
            0: "passed",
            STOPPED: f"stopped: for {minutes} minutes no test ended",
            INTERRUPTED: "interrupted",
        }
        line = f"{self.name:16s} {self.seconds:6.0f} s  {words.get(self.code, 'FAILED')}"
        return "\n".join([line, *(f"    {note}" for note in self.notes)])


def parts(everything, seed):
    """The parts of a run, in order."""
    pytest = ["-m", "pytest", "-q", "--nbval", "--nbval-cell-timeout=120"]
    seeded = [*pytest, f"--hypothesis-seed={seed}"]
    imports = Part(
        "imports", ["-c", "from importlinter.cli import lint_imports_command as lint; lint()"]
    )
    types = Part("types", ["-m", "mypy"])
    notebooks = ["notebooks", "solutions"]
    tests = Part("tests", seeded, TWO_AT_A_TIME, ["tests", *notebooks])
    if not everything:
        return [imports, types, tests]
    return [
        imports,
        types,
        tests,
        Part("notebooks again", pytest, [*TWO_AT_A_TIME, "--dist=loadscope"], notebooks),
        Part("every MPI", ["scripts/every_mpi.py"]),
        Part("build check", ["authoring/build.py", "--check"]),
    ]


def run_program(arguments, environment, is_still):
    """The exit code of a program; `STOPPED` where it has to be ended, `INTERRUPTED` by Ctrl-C."""
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, env=environment, start_new_session=True
    )
    try:
        while True:
            try:
                return process.wait(LOOK_S)
            except subprocess.TimeoutExpired:
                if is_still():
                    return STOPPED
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        # The program's own group: nothing of it outlives an interrupt or the limit.
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def is_still(found, begun_s):
    """Whether, by a `Progress`, no test has ended for too long, or one takes too long."""
    oldest_s = min([found.last_s or begun_s, *found.running.values()])
    return time.time() - oldest_s > STILL_S


def failed_in(cache):
    """What pytest's cache says has failed; notebooks whole, as their cells need each other."""
    record = Path(cache, "v", "cache", "lastfailed")
    failed = json.loads(record.read_text()) if record.exists() else []
    return sorted({name.partition("::Cell ")[0] for name in failed})


def run_part(part, environment, everything):
    """Run a part, and what failed of it once more where not everything runs; the `Verdict`."""
    print(f"\n== {part.name}", flush=True)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        cache, file = Path(folder, "cache"), Path(folder, "progress")
        code, found = run_watched(
            [*part.program, *(["-o", f"cache_dir={cache}"] if part.paths else [])],
            [*part.beside, *part.paths],
            {**environment, "PROGRESS": str(file)},
            has_limit=bool(part.paths) and not everything,
        )
        failed = failed_in(cache)
        notes = []
        if code in (STOPPED, INTERRUPTED):
            notes = [f"failed before: {name}" for name in found.failed]
            notes += [f"still running: {name}" for name in found.running]
        elif code == 1 and not everything and 0 < len(failed) <= FEW:
            code, notes = look_again(part, failed, environment, file)
    return Verdict(part.name, code, time.monotonic() - begun, notes)


def run_watched(program, rest, environment, has_limit):
    """``(exit code, Progress)`` of a program that writes down what it is at."""
    begun_s, file = time.time(), environment["PROGRESS"]
    Path(file).unlink(missing_ok=True)

    def ended():
        return has_limit and is_still(progress.read(file), begun_s)

    return run_program([*program, *rest], environment, ended), progress.read(file)


def look_again(part, failed, environment, file):
    """``(exit code, notes)`` of what failed and runs once more, with nothing beside it."""
    print(f"\n== {part.name}: once more, alone: {', '.join(failed)}", flush=True)
    whole = {name: value for name, value in environment.items() if name != "DECIDED"}
    code, found = run_watched(
        part.program, failed, {**whole, "PROGRESS": str(file)}, has_limit=True
    )
    if code in (STOPPED, INTERRUPTED):
        running = [f"still running: {name}" for name in found.running]
        return code, [f"failed before: {name}" for name in failed] + running
    if code:
        return code, [f"failed again: {name}" for name in found.failed]
    listed = second_look()
    notes = [f"failed at first, passed alone: {name}" for name in failed]
    unlisted = [name for name in failed if name.partition("[")[0] not in listed]
    if unlisted:
        names = ", ".join(unlisted)
        notes.append(f"mend it, or list it with a reason in {SECOND_LOOK}: {names}")
    return int(bool(unlisted)), notes


def second_look():
    """``{test: its entry}`` of those that may need a second run."""
    path = ROOT / SECOND_LOOK
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["test"] if path.exists() else []
    return {one["name"]: one for one in entries}


def left_out(path):
    """The lines on what ran and what was left out, as the tests' own process wrote them."""
    file = Path(f"{path}.txt")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [f"    {line}" for line in lines]


def end_as_by_ctrl_c():
    """A plain `kill` ends the run as Ctrl-C does: nothing stays behind, the failures are named."""

    def interrupt(number, frame):
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


def main(arguments):
    """Run every part, also after one has failed; 0 where all passed."""
    end_as_by_ctrl_c()
    everything = arguments == ["--all"]
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(10**6))
    environment = {**os.environ, "SEED": str(seed), "TEST_ALL": "1" if everything else "0"}
    print(f"seed {seed} (SEED={seed} draws the same samples again)", flush=True)
    verdicts = []
    with tempfile.TemporaryDirectory() as folder:
        if not everything:
            found = changes.changes()
            print(found.base, flush=True)
            decided = Path(folder, "decided")
            selection.write(selection.decide(changes.Reach(found)), decided)
            environment["DECIDED"] = str(decided)
        for part in parts(everything, seed):
            verdicts.append(run_part(part, environment, everything))
            if verdicts[-1].code == INTERRUPTED:
                break
        if not everything:
            print(f"\nWhat ran ({found.base}; make test-all runs everything):")
            print(*left_out(decided), sep="\n")
    print("", *verdicts, sep="\n")
    return int(any(verdict.code for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

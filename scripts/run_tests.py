"""Run everything that has to hold, and say how it went.

    run_tests.py       each test once, long series sampled; meant for 25 minutes on 2 cores.
                       The notebooks run once: the build check runs a few more, and compares
                       the others with their sources
    run_tests.py --all  everything, with repeats; no limit

SEED=7 repeats the samples of an earlier run.

Tests of real processes, sockets and browsers meet machines that are far too busy. Where a few have
failed they run once more, with nothing beside them. What passes then does not fail the run, but the
last lines name it: a fault that shows itself rarely, of simlib or of the test, is to be mended as
any other. With --all there is no second run.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 45 * 60
"""After so long all is stopped: something hangs, or the machine is far too busy."""
BUILT_AGAIN = "2"
"""How many of the sources, drawn by the seed, `make test` builds anew."""
FEW = 3
"""More failures than these are no accident: there is no second run."""
TWO_AT_A_TIME = ["-n", "2"]
"""Much of a test is waiting: for a process to start, for a verdict."""


class Part(NamedTuple):
    """What runs in one go: a program with its arguments, or pytest."""

    name: str
    program: list
    """Without what to run beside each other, and without paths."""
    beside: list = ()
    paths: list = ()


class Verdict(NamedTuple):
    """How a part went."""

    name: str
    code: int
    seconds: float
    second_run: list
    """What failed at first and passed alone."""

    def __str__(self):
        words = {0: "passed", 124: f"stopped: over {LIMIT_S // 60} minutes in all"}
        line = f"{self.name:16s} {self.seconds:6.0f} s  {words.get(self.code, 'FAILED')}"
        named = [f"    failed at first, passed alone: {name}" for name in self.second_run]
        return "\n".join([line, *named])


def parts(everything, seed):
    """The parts of a run, in order."""
    pytest = ["-m", "pytest", "-q"]
    nbval = [*pytest, "--nbval", "--nbval-cell-timeout=120"]
    tests = Part("tests", [*pytest, f"--hypothesis-seed={seed}"], TWO_AT_A_TIME, ["tests"])
    notebooks = Part(
        "notebooks", nbval, [*TWO_AT_A_TIME, "--dist=loadscope"], ["notebooks", "solutions"]
    )
    build_check = ["authoring/build.py", "--check"]
    if not everything:
        return [tests, notebooks, Part("build check", [*build_check, "--run", BUILT_AGAIN])]
    return [
        tests,
        notebooks,
        notebooks._replace(name="notebooks again"),
        Part("every MPI", ["scripts/every_mpi.py"]),
        Part("build check", build_check),
    ]


def run_program(arguments, environment, left_s):
    """The exit code of a program; 124 where the time that is left did not suffice."""
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, env=environment, start_new_session=True
    )
    try:
        return process.wait(left_s)
    except subprocess.TimeoutExpired:
        return 124
    finally:
        # The program's own group: nothing of it outlives an interrupt or the limit.
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def failed_in(cache):
    """What pytest's cache says has failed; notebooks whole, as their cells need each other."""
    record = Path(cache, "v", "cache", "lastfailed")
    failed = json.loads(record.read_text()) if record.exists() else []
    return sorted({name.partition("::Cell ")[0] for name in failed})


def run_part(part, environment, deadline):
    """Run a part, and what failed of it once more where a deadline is set; the `Verdict`."""

    def run(arguments):
        return run_program(arguments, environment, deadline and max(1, deadline - time.monotonic()))

    print(f"\n== {part.name}", flush=True)
    begun, second_run = time.monotonic(), []
    with tempfile.TemporaryDirectory() as cache:
        own = ["-o", f"cache_dir={cache}"] if part.paths else []
        code = run([*part.program, *own, *part.beside, *part.paths])
        failed = failed_in(cache)
    if code == 1 and deadline and 0 < len(failed) <= FEW:
        print(f"\n== {part.name}: once more, alone: {', '.join(failed)}", flush=True)
        code = run([*part.program, *failed])
        second_run = failed if code == 0 else []
    return Verdict(part.name, code, time.monotonic() - begun, second_run)


def main(arguments):
    """Run every part, also after one has failed; 0 where all passed."""
    everything = arguments == ["--all"]
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(10**6))
    environment = {**os.environ, "SEED": str(seed), "TEST_ALL": "1" if everything else "0"}
    print(f"seed {seed} (SEED={seed} draws the same samples again)", flush=True)
    deadline = None if everything else time.monotonic() + LIMIT_S
    verdicts = [run_part(part, environment, deadline) for part in parts(everything, seed)]
    print("", *verdicts, sep="\n")
    return int(any(verdict.code for verdict in verdicts))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("\nStopped.")

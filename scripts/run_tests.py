"""Run everything that has to hold, and say how it went.

    run_tests.py       each test once, long series sampled; meant for 20 minutes on 2 cores.
                       The notebooks run once: the build check runs a few more, and compares
                       the others with their sources
    run_tests.py --all  everything, with repeats; no limit

SEED=7 repeats the samples of an earlier run.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 45 * 60
"""After so long all is stopped: something hangs, or the machine is far too busy."""
BUILT_AGAIN = "3"
"""How many of the sources, drawn by the seed, `make test` builds anew."""
TWO_AT_A_TIME = ["-m", "pytest", "-q", "-n", "2"]
"""Much of a test is waiting: for a process to start, for a verdict."""
NBVAL = [*TWO_AT_A_TIME, "--dist=loadscope", "--nbval", "--nbval-cell-timeout=120"]


def stages(everything, seed):
    """``(name, arguments of python)`` of each part, in order."""
    tests = [*TWO_AT_A_TIME, f"--hypothesis-seed={seed}", "tests"]
    notebooks = [*NBVAL, "notebooks", "solutions"]
    found = [("tests", tests), ("notebooks", notebooks)]
    if everything:
        found.append(("notebooks again", notebooks))
        found.append(("every MPI", ["scripts/every_mpi.py"]))
    sample = [] if everything else ["--run", BUILT_AGAIN]
    found.append(("build check", ["authoring/build.py", "--check", *sample]))
    return found


def run_stage(arguments, environment, left_s):
    """The exit code of one part; 124 where the time that is left did not suffice."""
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, env=environment, start_new_session=True
    )
    try:
        return process.wait(left_s)
    except subprocess.TimeoutExpired:
        return 124
    finally:
        # The part's own group: nothing of it outlives an interrupt or the limit.
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def main(arguments):
    """Run every part, also after one has failed; 0 where all passed."""
    everything = arguments == ["--all"]
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(10**6))
    environment = {**os.environ, "SEED": str(seed), "TEST_ALL": "1" if everything else "0"}
    print(f"seed {seed} (SEED={seed} draws the same samples again)", flush=True)
    start, verdicts = time.monotonic(), []
    for name, command in stages(everything, seed):
        print(f"\n== {name}", flush=True)
        begun = time.monotonic()
        left_s = None if everything else max(1, LIMIT_S - (begun - start))
        code = run_stage(command, environment, left_s)
        verdict = {0: "passed", 124: f"stopped: over {LIMIT_S // 60} minutes in all"}
        verdicts.append((code, name, verdict.get(code, "FAILED"), time.monotonic() - begun))
    print()
    for _, name, verdict, seconds in verdicts:
        print(f"{name:16s} {seconds:6.0f} s  {verdict}")
    return int(any(code for code, *_ in verdicts))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("\nStopped.")

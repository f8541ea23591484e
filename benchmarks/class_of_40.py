"""A class of 40 of which 5 starve, bomb and flood: is every honest point right, in what time?

``python -m benchmarks.class_of_40 --times 3`` grades it at ``--jobs`` 1, 2 and 4, and the class
without the five. Linux, with bubblewrap; ``--honest 6 --hostile starves`` takes a smaller class.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "grading"), str(ROOT / "authoring")]

from class_of_30 import table_in  # noqa: E402
from class_of_40 import HOSTILE, write_class  # noqa: E402
from notebooks_made import exercise  # noqa: E402


def graded(folder, jobs):
    """``({student: points}, seconds)`` of a class that nobody has graded before."""
    with tempfile.TemporaryDirectory() as out:
        call = [sys.executable, "-m", "simlib", "grade", str(folder), "--jobs", str(jobs)]
        begun = time.monotonic()
        ended = subprocess.run([*call, "--out", out], cwd=ROOT, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - begun
        if ended.returncode not in (0, 1):
            raise SystemExit(f"simlib grade ended with {ended.returncode}")
        return table_in(Path(out) / "report.json"), seconds


def lost(wanted, found):
    """A sentence for each honest student whose points are not those earned."""
    return [
        f"{student}: {found.get(student)} instead of {points}"
        for student, points in wanted.items()
        if found.get(student) != points
    ]


def main():
    """Print a row for each run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--honest", type=int, default=35)
    parser.add_argument("--hostile", nargs="*", choices=list(HOSTILE), default=list(HOSTILE))
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--times-without", type=int, default=1, help="the class without the five")
    options = parser.parse_args()
    exercises = [exercise("01"), exercise("04")]
    failed = False
    for jobs in options.jobs:
        for hostile, times in (((), options.times_without), (options.hostile, options.times)):
            for number in range(times):
                with tempfile.TemporaryDirectory() as folder:
                    wanted = write_class(Path(folder), exercises, options.honest, hostile)
                    found, seconds = graded(folder, jobs)
                wrong = lost(wanted, found)
                failed = failed or bool(wrong)
                print(
                    f"jobs {jobs}, {len(wanted)} honest, {len(hostile)} hostile, run {number + 1}: "
                    f"{len(wrong)} with points that are not theirs, {seconds:.0f} s",
                    *wrong,
                    sep="\n  ",
                    flush=True,
                )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

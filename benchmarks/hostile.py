"""All hostile programs of the tests: points given and deserved, and the host before and after.

``python -m benchmarks.hostile`` grades each beside one innocent answer, and prints for each
what it got, what it had earned, and what the host counts before and after. Linux, with bubblewrap,
x86_64.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "grading"), str(ROOT / "authoring")]

import breakers  # noqa: E402
import cheats  # noqa: E402
import forgeries  # noqa: E402
import host_wide  # noqa: E402
import intruders  # noqa: E402
from ground import HONEST, SEED, Ground  # noqa: E402

from simlib.classroom.grading.grade import GraderFails, grade  # noqa: E402
from simlib.classroom.grading.known_answers import record  # noqa: E402
from simlib.classroom.grading.sandbox import FIRST_UID, LAST_UID, Limits  # noqa: E402

LIMITS = Limits(answer_s=10, cell_s=60, notebook_s=150, memory_bytes=2000 << 20)
CASES = {
    **cheats.ALL,
    **forgeries.ALL,
    **intruders.ALL,
    **host_wide.ALL,
    **breakers.CELLS,
    **breakers.RANKS,
    **breakers.KERNELS,
}


def state_of_the_host():
    """What a hostile program might leave or take: counted for the whole machine."""
    return {
        "AIO": int(Path("/proc/sys/fs/aio-nr").read_text()),
        "files": int(Path("/proc/sys/fs/file-nr").read_text().split()[0]),
        "students' processes": sum(map(is_students, psutil.process_iter(["uids"]))),
        "MB": psutil.virtual_memory().available >> 20,
        "tmp": len(list(Path(tempfile.gettempdir()).glob("simlib-grading-*"))),
    }


def is_students(process):
    """Whether a process runs as one of the users of gradings."""
    uids = process.info["uids"]
    return uids is not None and FIRST_UID <= uids.real <= LAST_UID


def main():
    """Print a line for each; returns 1 where one has other points than it deserves."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="of programs (all)")
    options = parser.parse_args()
    ground = Ground(Path(tempfile.mkdtemp(prefix="hostile-")), size=2, limit_s=10)
    expected = record(ground.exercise, SEED, LIMITS)
    others = 0
    print("program | points | deserved | neighbour | s | host before | host after")
    for name in options.names or CASES:
        case = CASES[name]
        source = case.source.replace("PORT", "9").replace("CANARY", "/nowhere")
        before, begun = state_of_the_host(), time.monotonic()
        content = ground.bytes([source, HONEST])
        try:
            result = grade(content, ground.exercise, expected, SEED, LIMITS)
        except GraderFails as failure:  # a machine so busy that no examiner starts, say
            others += 1
            print(name, f"not graded: {failure}", sep=" | ", flush=True)
            continue
        seconds, after = time.monotonic() - begun, state_of_the_host()
        mine, neighbour = result.questions
        others += (mine.points, neighbour.points) != (case.points, 1)
        row = name, mine.points, case.points, neighbour.points, round(seconds, 1)
        hosts = (" ".join(f"{word} {n}" for word, n in one.items()) for one in (before, after))
        print(*row, *hosts, sep=" | ", flush=True)
    print(f"{len(options.names or CASES)} programs, {others} with other points than deserved")
    return int(others > 0)


if __name__ == "__main__":
    sys.exit(main())

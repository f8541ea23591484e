"""Collect what students have written: a copy of each one's exercises, by student.

    collect.py [--homes /home] [--out submissions] [--handout FOLDER] [STUDENT ...]

It may run as root: of a student's folders only plain files are read, and no link is followed, so
that a link to somebody else's work or to a file of the system collects nothing. Files keep their
times, which `simlib grade --deadline` looks at. What is still as it was handed out is left out.
"""

import argparse
import contextlib
import os
import stat
import sys
from pathlib import Path

EXERCISES = ("rank-by-rank", "exercises")
HANDOUT = Path("/srv/rank-by-rank/handout")
LARGEST = 40 << 20
"""Bytes of a notebook: more than `simlib grade` reads of a student."""
PLAIN = os.O_RDONLY | os.O_NONBLOCK
"""Opening a pipe does not wait for who writes into it."""


@contextlib.contextmanager
def opened(place, flags, below=None):
    """The descriptor of a file or folder, which is no link, below that of a folder."""
    fd = os.open(place, flags | os.O_NOFOLLOW, dir_fd=below)
    try:
        yield fd
    finally:
        os.close(fd)


def notebooks_of(home):
    """``{name: (bytes, time of its last change)}`` of the notebooks of a student."""
    found = {}
    with contextlib.ExitStack() as stack:
        folder = None
        for place in (home, *EXERCISES):
            folder = stack.enter_context(opened(place, os.O_RDONLY | os.O_DIRECTORY, folder))
        for name in sorted(os.listdir(folder)):
            if name.endswith(".ipynb"):
                with contextlib.suppress(OSError), opened(name, PLAIN, folder) as fd:
                    about = os.fstat(fd)
                    if stat.S_ISREG(about.st_mode) and about.st_size <= LARGEST:
                        with open(fd, "rb", closefd=False) as file:
                            found[name] = file.read(LARGEST), about.st_mtime_ns
    return found


def is_untouched(original, data):
    """Whether a notebook is as it was handed out."""
    return original.is_file() and original.read_bytes() == data


def collect(home, handout, out):
    """Copy what a student has written into ``out``, a folder; returns how many notebooks."""
    try:
        found = notebooks_of(home)
    except OSError:  # never began, or put something else in the folder's place
        return 0
    count = 0
    for name, (data, time_ns) in found.items():
        if not is_untouched(handout / "exercises" / name, data):
            out.mkdir(parents=True, exist_ok=True)
            (out / name).write_bytes(data)
            os.utime(out / name, ns=(time_ns, time_ns))
            count += 1
    return count


def main(arguments=None):
    """Collect, and say of whom there is nothing."""
    parser = argparse.ArgumentParser(description="Collect students' exercises.")
    parser.add_argument("students", nargs="*", help="all who have a home, where none is named")
    parser.add_argument("--homes", type=Path, default=Path("/home"))
    parser.add_argument("--out", type=Path, default=Path("submissions"))
    parser.add_argument("--handout", type=Path, default=HANDOUT, help="what was handed out")
    asked = parser.parse_args(arguments)
    students = asked.students or sorted(home.name for home in asked.homes.iterdir())
    asked.out.mkdir(parents=True, exist_ok=True, mode=0o700)
    missing = [
        student
        for student in students
        if not collect(asked.homes / student, asked.handout, asked.out / student)
    ]
    print(f"collected from {len(students) - len(missing)} of {len(students)} into {asked.out}/")
    if missing:
        print("nothing of " + ", ".join(missing))
    return 0


if __name__ == "__main__":
    sys.exit(main())

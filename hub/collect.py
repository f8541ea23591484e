"""Collect what students have written: a copy of each one's exercises, by student.

    collect.py [--homes /home] [--out submissions] [--handout FOLDER] [STUDENT ...]

It may run as root: of a student's folders only plain files are read, and no link is followed, so
that a link to somebody else's work or to a file of the system collects nothing. Of each student so
much is read, one file after the other, and no file that is nearly all holes. Files keep their
times, which `simlib grade --deadline` looks at. What is still as it was handed out is left out.
"""

import argparse
import contextlib
import itertools
import os
import shutil
import stat
import sys
from pathlib import Path

EXERCISES = ("rank-by-rank", "exercises")
HANDOUT = Path("/srv/rank-by-rank/handout")
LARGEST = 40 << 20
"""Bytes of a student's notebooks, as `simlib grade` reads them."""
MOST = 2000
"""Files of a student's folder."""
DENSE, FULL = 1 << 20, 1 / 100
"""Of a file that is larger than this, such a share must lie on the disk."""
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


def notebooks_of(home, refused):
    """``(name, bytes, time of its last change)`` of each notebook of a student, one by one.

    The names of those that are left out are added to ``refused``, and why.
    """
    left = LARGEST
    with contextlib.ExitStack() as stack:
        try:
            folder = None
            for place in (home, *EXERCISES):
                folder = stack.enter_context(opened(place, os.O_RDONLY | os.O_DIRECTORY, folder))
            with os.scandir(folder) as entries:
                names = [entry.name for entry in itertools.islice(entries, MOST + 1)]
            if len(names) > MOST:
                raise OSError(f"more than {MOST:,} files")
        except FileNotFoundError:  # who has never begun
            return
        except OSError as error:
            refused.append(f"the folder of exercises ({error.strerror or error})")
            return
        for name in sorted(names):
            if name.endswith(".ipynb"):
                try:
                    with opened(name, PLAIN, folder) as fd:
                        data, time_ns = read(fd, left)
                except OSError as error:
                    refused.append(f"{name} ({error.strerror or error})")
                else:
                    left -= len(data)
                    yield name, data, time_ns


def read(fd, left):
    """The bytes of a plain file, of which so many are left, and the time of its last change."""
    about = os.fstat(fd)
    if not stat.S_ISREG(about.st_mode):
        raise OSError("no plain file")
    if about.st_size > LARGEST:
        raise OSError(f"larger than {LARGEST >> 20} MB")
    if about.st_size > left:
        raise OSError(f"with those before it larger than {LARGEST >> 20} MB")
    if about.st_size > DENSE and about.st_blocks * 512 < about.st_size * FULL:
        raise OSError("nearly all of it is a hole")
    with open(fd, "rb", closefd=False) as file:
        return file.read(left), about.st_mtime_ns


def is_untouched(original, data):
    """Whether a notebook is as it was handed out."""
    return original.is_file() and original.read_bytes() == data


def collect(home, handout, out):
    """Copy what a student has written into ``out``, a folder that is made anew.

    Returns
    -------
    count : int
        Of the notebooks.
    refused : list of str
        What was left out, and why.
    """
    shutil.rmtree(out, ignore_errors=True)
    count, refused = 0, []
    for name, data, time_ns in notebooks_of(home, refused):
        if not is_untouched(handout / "exercises" / name, data):
            out.mkdir(parents=True, exist_ok=True)
            (out / name).write_bytes(data)
            os.utime(out / name, ns=(time_ns, time_ns))
            count += 1
    return count, refused


def why_not_into(out):
    """Why nothing is written into a folder: others decide on it; None where nobody does."""
    about = os.lstat(out)
    if stat.S_ISLNK(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o022:
        return f"{out} is a link, another's, or others can write to it: name another by --out"
    return None


def main(arguments=None):
    """Collect, and say of whom there is nothing; 1 where something was refused."""
    parser = argparse.ArgumentParser(description="Collect students' exercises.")
    parser.add_argument("students", nargs="*", help="all who have a home, where none is named")
    parser.add_argument("--homes", type=Path, default=Path("/home"))
    parser.add_argument("--out", type=Path, default=Path("submissions"))
    parser.add_argument("--handout", type=Path, default=HANDOUT, help="what was handed out")
    asked = parser.parse_args(arguments)
    if not (asked.handout / "exercises").is_dir():
        parser.error(f"there are no exercises in {asked.handout}: name what was handed out")
    unknown = [name for name in asked.students if not (asked.homes / name).is_dir()]
    if unknown:
        parser.error(f"{', '.join(unknown)}: no such folder in {asked.homes}")
    students = asked.students or sorted(home.name for home in asked.homes.iterdir())
    asked.out.mkdir(parents=True, exist_ok=True, mode=0o700)
    reason = why_not_into(asked.out)
    if reason:
        parser.error(reason)
    told = {
        student: collect(asked.homes / student, asked.handout, asked.out / student)
        for student in students
    }
    missing = [student for student, (count, _) in told.items() if not count]
    print(f"collected from {len(students) - len(missing)} of {len(students)} into {asked.out}/")
    if missing:
        print("nothing of " + ", ".join(missing))
    refused = {student: names for student, (_, names) in told.items() if names}
    for student, names in refused.items():
        print(f"refused of {student}: {', '.join(names)}")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())

"""List the files of simlib that a call passes through in the calling thread.

    walks.py             follows all five trips
    walks.py run check   follows these

The trips: a run, a simulated all_reduce as its rank meets it, a check, a graded notebook and a job.
Each is made twice and followed the second time, when everything is imported and every pool is warm.
In a check the engine counts as one file: the first trip follows what `simlib.run` does inside.
"""

import argparse
import contextlib
import inspect
import os
import subprocess
import sys
import tempfile
from pathlib import Path

RANKS = 4


class Trip:
    """The files of a package in which functions are called while it is followed.

    Parameters
    ----------
    folder : Path
        The package.
    doors : set of code objects, optional
        Functions that are not followed inside: only their own file counts.
    """

    def __init__(self, folder, doors=()):
        self._prefix = f"{folder}{os.sep}"
        self._doors = doors
        self._inside = None
        self.files = {}
        """File -> number of calls into it, in the order of the first call."""

    def _called(self, frame, event, arg):
        if self._inside is not None:
            if frame is self._inside and event == "return":
                self._inside = None
            return
        if event != "call":
            return
        file = frame.f_code.co_filename
        if file.startswith(self._prefix):
            name = file.removeprefix(self._prefix)
            self.files[name] = self.files.get(name, 0) + 1
        if frame.f_code in self._doors:
            self._inside = frame

    def __enter__(self):
        sys.setprofile(self._called)
        return self

    def __exit__(self, *error):
        sys.setprofile(None)

    def __str__(self):
        return f"{len(self.files)} files, {sum(self.files.values())} calls: {' '.join(self.files)}"


def in_a_cell():
    """A rank function that travels by value, as one of a notebook's cell does.

    Ranks that import a module of the learner's are not used again: it may have been edited.
    """

    def total(rank, world_size):
        import torch
        import torch.distributed as dist

        x = torch.ones(1)
        dist.all_reduce(x)
        return x.item()

    return total


total = in_a_cell()


def run(folder):
    """A run of four ranks."""
    import simlib

    simlib.run(total, RANKS)
    with Trip(folder) as trip:
        simlib.run(total, RANKS)
    return trip


def simulated_all_reduce(folder):
    """One `all_reduce` of one simulated rank, the second that it calls from its line."""
    import torch
    import torch.distributed as dist

    import simlib

    def main(rank, world_size):
        x = torch.ones(1)
        for _ in range(2):
            with Trip(folder) as trip:
                dist.all_reduce(x)
        return trip.files

    simulation = simlib.simulate(main, RANKS)
    trip = Trip(folder)
    trip.files = max(simulation.results, key=len)
    return trip


def check(folder):
    """A check of a right answer; the engine counts as one file."""
    import simlib
    from simlib.checks import check, only

    def inputs(rank, world_size):
        return ()

    def expected():
        return [2.0, 2.0]

    def checked():
        return check("total", total, inputs, expected, only("all_reduce"), worlds=[2])

    checked()
    doors = {inspect.unwrap(engine).__code__ for engine in (simlib.run, simlib.simulate)}
    with Trip(folder, doors) as trip:
        verdict = checked()
    assert verdict.status == "right", verdict
    return trip


def graded_notebook(folder):
    """The solution of the first exercise, graded: all its processes, one after the other.

    They are the grader's own, the reading process, pytest with the plugin for nbval, the kernel
    that examines, the shell of the cells, the server of ranks and the ranks. They run without
    bubblewrap, which is no Python: so each can say where it has been.
    """
    from simlib.classroom.grading import grade as grading
    from simlib.classroom.grading import sandbox
    from simlib.classroom.grading.exercise import read_exercise
    from simlib.classroom.grading.whole_class import record

    source = min((folder.parent / "authoring" / "exercises").glob("[0-9]*.py"))
    content = (folder.parent / "solutions" / f"{source.stem}.ipynb").read_bytes()
    exercise, limits = read_exercise(source), sandbox.Limits(notebook_s=600, cell_s=300)
    sandbox.check_can_isolate = lambda no_sandbox: None  # it is our own solution that runs
    expected = record(exercise, 1, limits, isolate=False)
    with tempfile.TemporaryDirectory() as shared, following(Path(shared), folder):
        with Trip(folder) as trip:
            result = grading.grade(content, exercise, expected, 1, limits, isolate=False)
        for line in (Path(shared) / "files").read_text().splitlines():
            trip.files[line] = trip.files.get(line, 0) + 1
    assert all(one.status == "right" for one in result.questions), result
    return trip


HOOK = """\
import os, sys, threading
def follow(prefix={prefix!r}, seen=set()):
    def is_import(frame):
        while frame is not None:
            name, file = frame.f_code.co_name, frame.f_code.co_filename
            if name == "<module>" and file.startswith(prefix):
                return frame.f_globals["__name__"] != "__main__"
            frame = frame.f_back
        return False
    def called(frame, event, arg):
        file = frame.f_code.co_filename
        if file.startswith(prefix) and file not in seen and not is_import(frame):
            seen.add(file)
            with open({files!r}, "a") as log:
                log.write(file.removeprefix(prefix) + "\\n")
    os.register_at_fork(after_in_child=seen.clear)
    threading.setprofile(called)
    sys.setprofile(called)
follow()
"""
"""A module that Python imports when it starts: it notes the files in which functions are called."""


@contextlib.contextmanager
def following(shared, folder):
    """Let every Python that is started meanwhile note its files of a package in ``shared/files``.

    What is called while a module is imported does not count, although all processes are new.
    """
    (shared / "files").touch(mode=0o666)
    (shared / "files").chmod(0o666)
    shared.chmod(0o755)
    hook = HOOK.format(prefix=f"{folder}{os.sep}", files=str(shared / "files"))
    (shared / "sitecustomize.py").write_text(hook)
    popen = subprocess.Popen

    def with_hook(words, *args, env=None, **options):
        env = dict(os.environ if env is None else env)
        env["PYTHONPATH"] = f"{shared}{os.pathsep}{env.get('PYTHONPATH', '')}"
        if "GRADING_KERNEL" in env:
            env["GRADING_KERNEL"] = env["GRADING_KERNEL"].replace(
                "PYTHONPATH=", f"PYTHONPATH={shared}{os.pathsep}"
            )
        words = [word for word in words if word not in ("-S", "-E")]
        return popen(words, *args, env=env, **options)

    subprocess.Popen = with_hook
    try:
        yield
    finally:
        subprocess.Popen = popen


def job(folder):
    """A job submitted to this machine's mpiexec, and its result."""
    import simlib

    with tempfile.TemporaryDirectory() as jobs:

        def submitted():
            return simlib.submit(total, 2, to=simlib.Mpiexec(), folder=jobs).result()

        submitted()
        with Trip(folder) as trip:
            submitted()
    return trip


TRIPS = {trip.__name__: trip for trip in (run, simulated_all_reduce, check, graded_notebook, job)}


def describe(folder, names=TRIPS):
    """Yield a line for each named trip through the package in a folder, which must be simlib."""
    sys.path.insert(0, str(folder.parent))
    # Ranks and jobs are other processes: they must find the same package, and `total`. The folder
    # they start in comes first.
    os.chdir(folder.parent)
    here = Path(__file__).resolve().parent
    os.environ["PYTHONPATH"] = f"{folder.parent}{os.pathsep}{here}"
    import simlib

    assert Path(simlib.__file__).parent == folder, f"{simlib.__file__} was imported before"
    for name in names:
        yield f"{name.replace('_', ' '):20s} {TRIPS[name](folder)}"


def main():
    """The command line."""
    parser = argparse.ArgumentParser(description="List the files that a call passes through.")
    parser.add_argument("trips", nargs="*", metavar="trip", help=", ".join(TRIPS))
    options = parser.parse_args()
    if unknown := set(options.trips) - set(TRIPS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(TRIPS)}")
    for line in describe(Path(__file__).resolve().parent.parent / "simlib", options.trips or TRIPS):
        print(line, flush=True)


if __name__ == "__main__":
    main()

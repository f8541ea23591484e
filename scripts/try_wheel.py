"""Build the wheel, install it into a new environment for each Python, and try it there.

    try_wheel.py [folder] [3.12 ...]     the folder is made anew. By default: build/wheel, `PYTHONS`

First `pip install rank_by_rank-*.whl`, in the versions of constraints.txt: no extra, no clone.
Tried are `tried_wheel.py`, `simlib check`, `simlib doctor`, and lesson 02 in a plain kernel, whose
ipykernel is there already where notebooks are opened. Prints sizes and times of imports. Then the
extra `course`: the course is copied out of the wheel, and lessons 00 to 02 run in the copy. Exit
code 1 where something failed, 3 where pip could not install on any Python.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import nbformat
from every_torch import found
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "wheel"
LESSON = ROOT / "notebooks" / "02_send_and_recv.ipynb"
OF_THE_COPY = ("00_start_here", "01_ranks_and_clusters", "02_send_and_recv")
EXERCISE = ROOT / "exercises" / "02_send_and_recv.ipynb"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
IMPORTS = (
    "import torch",
    "import simlib",
    "import simlib; simlib.run",
    "import simlib; simlib.simulate",
)
UNTRIED = 3
"""The exit code where pip could not install."""
ROUNDS = 5
NO_NETWORK = re.compile(
    r"NewConnectionError|NameResolutionError|Temporary failure in name resolution"
)
NOT_FOR_STUDENTS = ("BEGIN SOLUTION", "BEGIN BROKEN")
"""What only the sources of exercises have, which contain hidden cells."""


class Unreachable(Exception):
    """The network did not answer, or has not what is needed."""


class Failed(Exception):
    """A step that went wrong; the message says which."""


def main(arguments):
    """Build, install and try on each Python; the exit code."""
    names = [word for word in arguments if re.fullmatch(r"3\.\d+", word)]
    folders = [Path(word).absolute() for word in arguments if word not in names]
    folder = folders[0] if folders else FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        wheel = built(folder)
        no_solutions_in(wheel)
    except Unreachable:
        print("untried: the network did not answer")
        return UNTRIED
    except Failed as error:
        print(f"FAILED: {error}")
        return 1
    ends = {name: end_of(name, folder / name, wheel) for name in names or PYTHONS}
    for name, end in ends.items():
        print(f"Python {name}: {end}")
    if any(end.startswith("FAILED") for end in ends.values()):
        return 1
    return 0 if "passed" in ends.values() else UNTRIED


def end_of(name, folder, wheel):
    """Try the wheel on one Python; ``"passed"``, or why it was not tried or failed."""
    interpreter = found(name)
    if interpreter is None:
        return "untried: there is no such Python here"
    print(f"== Python {name}\n", flush=True)
    try:
        try_on(interpreter, folder, wheel)
    except Unreachable:
        return "untried: pip could not install the wheel, or the network did not answer"
    except Failed as error:
        return f"FAILED: {error}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # up to 6 GB
    return "passed"


def try_on(interpreter, folder, wheel):
    """Try the wheel alone, then with the course, in a new environment."""
    work = folder / "work"
    work.mkdir(parents=True)
    python = installed(interpreter, folder / "venv", wheel)
    print_sizes(python, wheel)
    shutil.copy(Path(__file__).with_name("tried_wheel.py"), work / "program.py")
    shutil.copy(EXERCISE, work)
    step("run, simulate, play, check", [python, "program.py"], work)
    step("simlib check", [python, "-m", "simlib", "check", EXERCISE.name], work, 1, "0 of 3")
    step("simlib doctor", [python, "-m", "simlib", "doctor"], work, 1, "pip install")  # an MPI
    print_times(python, work)
    pip(python, "ipykernel")
    run_lesson(python, folder, LESSON, work)
    pip(python, f"{wheel}[course]")
    step("rank-by-rank", [python.with_name("rank-by-rank"), "lab", "--help"], work, says="FOLDER")
    copy = "from simlib.course.open_lab import own_folder; own_folder(None)"
    step("the course", [python, "-c", copy], work, says="The course is now in")
    for name in OF_THE_COPY:
        lesson = work / "rank-by-rank" / "notebooks" / f"{name}.ipynb"
        run_lesson(python, folder, lesson, lesson.parent)


def built(folder):
    """The wheel, built from the source distribution as a release is."""
    command = [sys.executable, "-m", "build", "--outdir", folder / "dist", ROOT]
    step("build", command, ROOT, shown=False)
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def no_solutions_in(wheel):
    """Refuse a wheel with the source of an exercise, as a file or in a notebook."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            text = archive.read(name).decode("utf-8", "replace")
            if name.endswith("grading/source.py"):  # which knows the markers
                continue
            if any(
                f"### {word}{end}" in text for word in NOT_FOR_STUDENTS for end in ("\n", "\\n")
            ):
                raise Failed(f"{name} in the wheel contains the source of an exercise")


def installed(interpreter, venv, wheel):
    """The Python of a new environment with the wheel alone."""
    subprocess.run([interpreter, "-m", "venv", venv], check=True)
    python = venv / "bin" / "python"
    pip(python, wheel)
    return python


def pip(python, *what):
    """Install something; Unreachable if pip cannot."""
    options = ["-q", "--disable-pip-version-check", "-c", ROOT / "constraints.txt"]
    command = [python, "-m", "pip", "install", *options, *what]
    if subprocess.run(command, env=environment()).returncode:
        raise Unreachable


def environment():
    """This process's, without what would bring the clone along."""
    left_out = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in left_out}


def step(name, command, folder, code=0, says="", shown=True):
    """Run a command and say how long it took; Failed where its exit code or words are others."""
    begun = time.monotonic()
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=500
    )
    said = done.stdout + done.stderr
    if shown or done.returncode != code:
        print(said)
    if done.returncode != code and NO_NETWORK.search(said):
        raise Unreachable
    if done.returncode != code or says not in said:
        raise Failed(
            f"{name} ended with exit code {done.returncode}; its output must contain {says!r}"
        )
    print(f"== {name}: {time.monotonic() - begun:.0f} s\n", flush=True)


def print_sizes(python, wheel):
    """Print the bytes of the wheel, of simlib, and of all that came with it."""
    asks = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(subprocess.check_output([python, "-c", asks], text=True).strip())
    tools = {packages / name for name in ("pip", "setuptools")}
    files = [file for file in packages.rglob("*") if file.is_file() and not file.is_symlink()]
    sizes = {file: file.stat().st_size for file in files if not tools & set(file.parents)}
    for name in ("", "torch", "simlib"):
        size = sum(sizes[file] for file in sizes if not name or packages / name in file.parents)
        print(f"{size / 1e6:8.1f} MB {name or 'installed'}")
    print(f"{wheel.stat().st_size / 1e6:8.1f} MB {wheel.name}\n", flush=True)


def print_times(python, folder):
    """Print the median seconds of each import, tried in turn: in all, and of the processor."""
    seconds = {line: [] for line in IMPORTS}
    for line in IMPORTS * ROUNDS:
        wall, before = time.monotonic(), os.times()
        subprocess.run([python, "-c", line], check=True, cwd=folder, env=environment())
        after = os.times()
        cpu = sum(after[2:4]) - sum(before[2:4])
        seconds[line].append((time.monotonic() - wall, cpu))
    for line in IMPORTS:
        wall, cpu = (statistics.median(column) for column in zip(*seconds[line], strict=True))
        print(f"{wall:6.2f} s, {cpu:6.2f} s of the processor: {line}")
    print(flush=True)


def run_lesson(python, folder, lesson, where):
    """Run a lesson in a kernel of the new environment; Failed with the error of a cell."""
    place = folder / "kernels" / "wheel"
    place.mkdir(parents=True, exist_ok=True)
    argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "wheel", "language": "python"}
    (place / "kernel.json").write_text(json.dumps(spec))
    manager = AsyncKernelManager(
        kernel_name="wheel", kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(place.parent)])
    )
    notebook, begun = nbformat.read(lesson, as_version=4), time.monotonic()
    resources = {"metadata": {"path": str(where)}}
    try:
        client = NotebookClient(notebook, manager, timeout=300, resources=resources)
        client.execute(env=environment(), cleanup_kc=True)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        raise Failed(f"{lesson.name}: {error}") from None
    cells = sum(cell.cell_type == "code" for cell in notebook.cells)
    print(f"== {lesson.name}, {cells} cells: {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

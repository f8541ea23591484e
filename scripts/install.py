"""Make `.venv` and install the course into it with pip, which tells its own progress.

Needs nothing but the standard library. A second call finds the stamp in `.venv` and returns at
once. The stamp is written last: where an install was interrupted there is none, and the next call
starts with a fresh `.venv`.

    install.py                       what learners need, in the versions of constraints.txt
    install.py --dev                 besides, the tools for tests: linters, playwright
    install.py --frameworks          besides, what lesson 15 looks at: Lightning and accelerate
    install.py --book                besides, what builds the book: Sphinx
    install.py --write-constraints   resolve anew in a temporary folder and write constraints.txt
"""

import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "installed"
LOG = VENV / "install.log"
CONSTRAINTS = ROOT / "constraints.txt"
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"

STILL_AT_WORK_S = 60
"""Each time so many seconds have passed, the reader is told that work goes on."""

FOR_LEARNERS = ("course", "grading", "cluster")
"""Extras of pyproject.toml that everybody gets."""
EXTRAS = {
    "dev": "Installing the tools for tests into .venv: about 300 MB.",
    "frameworks": "Installing Lightning and accelerate into .venv: about 60 MB.",
    "book": "Installing Sphinx into .venv: about 100 MB.",
}
"""Those that are asked for, and what is said where one is installed."""

SENTENCES = [
    (
        r"No space left on device|Errno 28\b|Disk quota exceeded|not enough space",
        "The disk is full: the course needs about 2 GB. Make room and run the command again.",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSLError",
        "pip did not accept the network's certificate. If there is a proxy, name the proxy's"
        " certificate with PIP_CERT=/path/to/file.pem, and run the command again.",
    ),
    (
        r"NewConnectionError|NameResolutionError|Temporary failure in name resolution"
        r"|Failed to establish a new connection|Network is unreachable|Connection refused"
        r"|Connection reset|ConnectTimeout|ReadTimeout|Read timed out|ProxyError",
        "The network does not answer, so pip could not download the packages. Run the command"
        " again when the network works. pip keeps the packages that it has downloaded.",
    ),
    (
        r"No matching distribution found for (?P<package>[\w.-]+)",
        "There is no {package} for this Python ({python}) on this kind of machine: choose another"
        " Python with PYTHON=python3.11, for example.",
    ),
]

PLATFORM_PACKAGES = re.compile(r"nvidia-|cuda-|triton|appnope|pywin")
"""What torch and IPython bring on some platforms only: their own pins choose it."""


class InstallError(Exception):
    """An install that failed, told in one sentence."""


def say(text):
    """Print one line."""
    print(text, flush=True)


def wanted_stamp():
    """What the stamp says of an install that is up to date: its inputs and its place."""
    digest = hashlib.sha256()
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update((ROOT / name).read_bytes())
    return f"{digest.hexdigest()}\n{ROOT}\n"


def python_of(venv):
    """The interpreter of a virtual environment."""
    return venv / "bin" / "python"


def starts(python):
    """Whether this interpreter starts."""
    try:
        return subprocess.run([python, "-c", ""], capture_output=True).returncode == 0
    except OSError:
        return False


def explain(output):
    """One sentence for the output of a venv or pip that failed."""
    for pattern, sentence in SENTENCES:
        found = re.search(pattern, output)
        if found:
            return sentence.format(python=VERSION, **found.groupdict())
    lines = [line for line in output.splitlines() if line.strip()] or ["pip said nothing"]
    errors = [line for line in lines if "ERROR" in line] or lines
    return f"pip could not install the course: {errors[-1].strip()} (see {LOG} for all it printed)"


def make_venv(venv):
    """Make a fresh virtual environment; on a CI machine a missing Debian package is installed."""
    command = [sys.executable, "-m", "venv", "--clear", venv]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode and re.search("ensurepip|No module named venv", done.stdout + done.stderr):
        package = f"python{VERSION}-venv"  # which Debian splits off
        if not (os.environ.get("CI") == "true" and os.geteuid() == 0 and shutil.which("apt-get")):
            raise InstallError(
                "This Python cannot make virtual environments: install the system package"
                f" {package} (on Debian and Ubuntu, as root: apt-get install {package}) and run"
                " the command again."
            )
        say(f"Installing the system package {package}.")
        subprocess.run(["apt-get", "update"], capture_output=True)
        subprocess.run(["apt-get", "install", "-y", package], capture_output=True)
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise InstallError(explain(done.stdout + done.stderr))


def with_extras(extras):
    """What pip calls this checkout with some extras: ``.[course,grading]``."""
    return f".[{','.join(extras)}]"


def pip_install(python, *arguments):
    """Run ``pip install``; InstallError with one sentence for what it complained of."""
    # A pip set to install for the user would refuse to work in a virtual environment.
    environment = {**os.environ, "PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    command = [python, "-m", "pip", "install", *arguments]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, errors="replace", env=environment, cwd=ROOT
    )
    complaints, waited_s = None, 0
    try:
        while complaints is None:
            try:
                _, complaints = process.communicate(timeout=STILL_AT_WORK_S)
            except subprocess.TimeoutExpired:
                waited_s += STILL_AT_WORK_S
                say(f"Still at work after {waited_s / 60:.0f} min.")
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        with suppress(OSError):  # on a full disk there is nowhere to keep it
            LOG.write_text(complaints)
        raise InstallError(explain(complaints))


def uninstall_old_name(python):
    """Uninstall this course from a `.venv` where it is still called simlib: two would own it."""
    for file in VENV.glob("lib/python*/site-packages/simlib-*.dist-info/METADATA"):
        if "\nAuthor: Rank by Rank authors\n" in file.read_text(encoding="utf-8"):
            command = [python, "-m", "pip", "uninstall", "-y", "simlib"]
            subprocess.run(command, capture_output=True)


def write_checks():
    """Bring `exercises/checks` up to date, also where pip is not called: git has none of it."""
    if (ROOT / "authoring" / "exercises").is_dir():
        sys.path.insert(0, str(ROOT))
        from simlib.classroom.grading import exercise

        try:
            exercise.write_checks(ROOT)
        except (exercise.SourceError, SyntaxError) as error:  # a teacher is in the midst of one
            say(f"The checks of exercises were not built again: {error}")


def owners_of_venv():
    """Folders that `.venv` serves, by its stamp and by what is installed from where it lies."""
    if STAMP.is_file():
        yield from map(Path, STAMP.read_text().splitlines()[1:])
    for file in VENV.glob("lib/python*/site-packages/*.dist-info/direct_url.json"):
        yield Path(url2pathname(urlparse(json.loads(file.read_text())["url"]).path))


def refuse_the_venv_of_another():
    """InstallError if `.venv` is a link, or serves another copy of the course.

    An install would take the environment away from that copy.
    """
    if VENV.is_symlink():
        raise InstallError(
            f"{VENV} is a link to {VENV.resolve()}, and an install would change the environment"
            f" there: remove the link (rm {shlex.quote(str(VENV))}) and run the command again, so"
            " that this folder gets an environment of its own."
        )
    for owner in owners_of_venv():
        if (owner / "scripts" / "install.py").is_file() and not owner.samefile(ROOT):
            raise InstallError(
                f"{VENV} belongs to another copy of the course, in {owner}: remove it (rm -r"
                f" {shlex.quote(str(VENV))}) and run the command again, so that this folder gets"
                " an environment of its own."
            )


def install():
    """Bring `.venv` up to date."""
    write_checks()
    python, stamp = python_of(VENV), wanted_stamp()
    complete = STAMP.is_file() and starts(python)
    if complete and STAMP.read_text() == stamp:
        return
    if complete:
        say("The course has changed or moved: installing what is new.")
        STAMP.unlink()
    else:
        if VENV.exists():
            say("The last install was not finished: starting again.")
        say("Installing the course into .venv (1.6 GB). Your network decides how long this takes.")
        make_venv(VENV)
    uninstall_old_name(python)
    pip_install(python, "-e", with_extras(FOR_LEARNERS), "-c", "constraints.txt")
    STAMP.write_text(stamp)
    say("Installed.")


def install_extra(extra):
    """Add one of `EXTRAS` to an install that is up to date."""
    file, stamp = VENV / f"installed-{extra}", wanted_stamp()
    if file.is_file() and file.read_text() == stamp:
        return
    say(EXTRAS[extra])
    pip_install(python_of(VENV), "-e", with_extras([extra]), "-c", "constraints.txt")
    file.write_text(stamp)


@contextmanager
def alone():
    """Wait until no other install of this checkout is at work: each would take away the other's."""
    folder = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("Another install of this course is running. Waiting until it ends.")
        fcntl.flock(folder, fcntl.LOCK_EX)
    except OSError:
        pass  # a filesystem without locks
    try:
        yield
    finally:
        os.close(folder)


def write_constraints():
    """Resolve the newest versions in a temporary environment and write them down."""
    with tempfile.TemporaryDirectory() as folder:
        venv = Path(folder) / "venv"
        say("Installing the newest versions into a temporary folder.")
        make_venv(venv)
        python = python_of(venv)
        pip_install(python, "-e", with_extras([*FOR_LEARNERS, *EXTRAS]))
        listing = [python, "-m", "pip", "list", "--format", "json", "--exclude-editable"]
        packages = json.loads(subprocess.check_output(listing, cwd=ROOT))
    CONSTRAINTS.write_text(constraints_text(packages))
    say(f"Wrote {CONSTRAINTS.name}.")


def constraints_text(packages):
    """The text of constraints.txt for a list of ``{"name": ..., "version": ...}``."""
    lines = [
        "# Exact versions of what `make dev frameworks book` brings. Written by `make constraints`."
    ]
    for package in sorted(packages, key=lambda package: package["name"].lower()):
        name, version = package["name"], package["version"].partition("+")[0]
        if name not in ("pip", "rank-by-rank") and not PLATFORM_PACKAGES.match(name):
            lines.append(f"{name}=={version}")
    return "\n".join(lines) + "\n"


def main(arguments):
    """Do what was asked; one sentence and an exit code where that fails."""
    try:
        if arguments == ["--write-constraints"]:
            write_constraints()
            return 0
        extras = [argument.removeprefix("--") for argument in arguments]
        unknown = [name for name in extras if name not in EXTRAS]
        if unknown:
            raise InstallError(f"{unknown[0]} is not an extra. The extras are {', '.join(EXTRAS)}.")
        with alone():
            refuse_the_venv_of_another()
            for extra in extras:
                install_extra(extra)
            if not extras:
                install()
    except InstallError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(explain(str(error)), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped. Run the command again to go on.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

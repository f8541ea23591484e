"""Break simlib in many small ways, and record which tests notice each.

    mutants.py --number 60 --out mutants.json "scale*" families matching
    mutants.py --like mutants.json --out after.json "scale*" families matching

The words name test files: ``"scale*"`` is every ``tests/**/test_scale*.py``. These tests run once
unchanged, and each function of simlib that a test enters is noted, in other processes too. A seed
draws mutants from these functions. For each, the tests that enter its function run, and all that
fail are noted: the JSON file is a matrix of mutants and tests. ``--like`` tries the same mutants in
another checkout (``--checkout``), where files may have other names. The Python that runs this must
have the packages of the checkout.

Why not mutmut or cosmic-ray? Neither records which tests kill a mutant. mutmut 3 chooses among
copies of a function at the call, which changes tracebacks and sources that simlib shows. cosmic-ray
starts Python and torch for each mutant. Here a mutant is a changed file in a copy of the checkout:
ranks and commands see it too, and its tests run in a fork of a process that has imported torch.
"""

import argparse
import ast
import collections
import contextlib
import importlib
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

OPERATORS = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult},
    **{ast.FloorDiv: ast.Div, ast.Mod: ast.Mult, ast.Pow: ast.Mult},
}
SETTERS = (ast.Attribute, ast.Subscript)
TRACED = {}
IMPORTED_ONCE = ["torch", "torch.distributed", "numpy", "matplotlib.figure", "pytest", "hypothesis"]
# Runs in every process: writes each function of simlib the first time that it is entered.
TRACER = """
import os, sys, threading
if where := os.environ.get("MUTANTS_TRACE"):
    root, entered = os.environ["MUTANTS_ROOT"] + "/simlib/", set()
    def trace(frame, event, argument):
        code = frame.f_code
        if code not in entered:
            entered.add(code)
            if code.co_filename.startswith(root):
                name = code.co_qualname.replace(".<locals>", "")
                with open(where, "a") as file:
                    file.write(f"{code.co_filename[len(root):]}:{name}\\n")
    sys.settrace(trace)
    threading.settrace(trace)
"""


def mutants_of(file, name):
    """All mutants of a file, as dictionaries; `name` is its path below simlib."""
    text = file.read_bytes()
    starts = list(itertools.accumulate(map(len, text.splitlines(keepends=True)), initial=0))
    seen = collections.Counter()
    for node, function in nodes_of(ast.parse(text), ""):
        for kind, new in changes(node):
            begin = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            before = text[begin:end].decode()
            # In brackets, so that it is one operand as before.
            after = f"({new})" if isinstance(node, ast.expr) else new
            mutant = {"function": function, "kind": kind, "before": before, "after": after}
            seen[tuple(mutant.values())] += 1
            nth = seen[tuple(mutant.values())]
            yield {"file": name, "line": node.lineno, "span": (begin, end), **mutant, "nth": nth}


def nodes_of(node, function):
    """Each node that may be changed, with the qualified name of the function it is in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.JoinedStr | ast.arguments | ast.Import | ast.ImportFrom):
            continue
        name = function
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{function}.{child.name}".lstrip(".")
        elif function and hasattr(child, "lineno"):
            yield child, function
        yield from nodes_of(child, name)


def changes(node):
    """The mutations of a node: pairs of a kind and the new text."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OPERATORS:
        ops = [OPERATORS[type(node.ops[0])](), *node.ops[1:]]
        yield "comparison", ast.unparse(ast.Compare(node.left, ops, node.comparators))
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        op = OPERATORS[type(node.op)]()
        yield "arithmetic", ast.unparse(ast.BinOp(node.left, op, node.right))
    elif isinstance(node, ast.BoolOp):
        yield "boolean", ast.unparse(ast.BoolOp(OPERATORS[type(node.op)](), node.values))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "boolean", ast.unparse(node.operand)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        is_bool = isinstance(node.value, bool)
        yield "constant", repr(not node.value if is_bool else node.value + 1)
    elif isinstance(node, ast.Return) and not isinstance(node.value, ast.Constant | None):
        yield "return", "return None"
    elif (
        isinstance(node, ast.AugAssign | ast.Raise)
        or (isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant))
        or (isinstance(node, ast.Assign) and isinstance(node.targets[0], SETTERS))
    ):
        # As many lines as before, so that the lines below keep their numbers.
        yield "removal", "pass" + "\n" * (node.end_lineno - node.lineno)


def spread(cases, number):
    """So many cases of a list, evenly spread over it."""
    step = max(1, len(cases) / number)
    return [cases[int(step * index)] for index in range(min(number, len(cases)))]


class Recorder:
    """A pytest plugin: chooses tests, runs the cheapest first, and writes how each ended."""

    def __init__(self, file, wanted, seconds, trace, cases):
        self.file, self.wanted, self.seconds = file, wanted, seconds
        self.trace, self.cases = trace, cases

    def pytest_collection_modifyitems(self, items):
        by_function = collections.defaultdict(list)
        for item in items:
            if not (item.get_closest_marker("slow") or item.get_closest_marker("hosts")):
                by_function[item.nodeid.partition("[")[0]].append(item)
        some = [one for cases in by_function.values() for one in spread(cases, self.cases)]
        items[:] = [one for one in some if self.wanted is None or one.nodeid in self.wanted]
        items.sort(key=lambda item: self.seconds.get(item.nodeid, 0))

    def pytest_runtest_logstart(self, nodeid):
        if self.trace:
            with open(self.trace, "a") as file:
                file.write(f"\ttest {nodeid}\n")
            TRACED["entered"].clear()

    def pytest_runtest_logreport(self, report):
        with open(self.file, "a") as file:
            seconds = getattr(report, "duration", 0)
            file.write(json.dumps([report.nodeid, report.outcome, seconds]) + "\n")

    def pytest_collectreport(self, report):
        if report.failed:
            self.pytest_runtest_logreport(report)  # all tests of a file that cannot be imported


def pytest_in_child(copy, files, recorder):
    """Run tests in the copy of the checkout; never returns."""
    try:
        os.setsid()
        log = os.open(copy / "mutants.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(log, number)
        os.chdir(copy)
        path = f"{copy / 'mutants_tracer'}{os.pathsep}{copy}"
        os.environ.update(PYTHONPATH=path, MUTANTS_ROOT=str(copy), SEED="1")
        sys.path.insert(0, str(copy))
        if recorder.trace:
            os.environ["MUTANTS_TRACE"] = recorder.trace
            exec(TRACER, TRACED)
        import pytest

        options = "-q -p no:cacheprovider --continue-on-collection-errors".split()
        pytest.main([*options, *files], plugins=[recorder])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(0)


def run_tests(copy, files, limit, cases, wanted=None, seconds=None, trace=None):
    """Run tests in a fork; return their outcomes, their seconds, and whether time was up."""
    record = copy / "mutants.jsonl"
    record.write_text("")
    pid = os.fork()
    if not pid:
        pytest_in_child(copy, files, Recorder(record, wanted, seconds or {}, trace, cases))
    until = time.monotonic() + limit
    try:
        while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0) and time.monotonic() < until:
            time.sleep(0.05)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # and what the tests have left running
    outcomes, durations = {}, collections.Counter()
    for line in record.read_text().splitlines():
        nodeid, outcome, duration = json.loads(line)
        durations[nodeid] += duration
        if outcomes.get(nodeid) != "failed":
            outcomes[nodeid] = outcome
    return outcomes, durations, ended == (0, 0)


def observe(copy, files, cases):
    """Run the tests unchanged: the seconds of those that pass, and which tests enter a function."""
    seconds, entering = {}, collections.defaultdict(set)
    for file in files:
        trace = copy / "mutants.trace"
        trace.write_text("")
        outcomes, durations, _ = run_tests(copy, [file], 600, cases, trace=str(trace))
        passed = {test: durations[test] for test in outcomes if outcomes[test] == "passed"}
        seconds.update(passed)
        test = None
        for line in trace.read_text().splitlines():
            if line.startswith("\ttest "):
                test = line.removeprefix("\ttest ")
            elif test in passed:
                entering[line].add(test)
        print(f"{file}: {len(passed)} tests, {sum(passed.values()):.0f} s", flush=True)
    return seconds, entering


def same(mutant):
    """What is equal in two checkouts for the same mutant."""
    return tuple(mutant[key] for key in ("function", "kind", "before", "after", "nth"))


def choose(found, entering, options):
    """The mutants to try: drawn by the seed, or those of an earlier file that are found again."""
    if not options.like:
        reached = [one for one in found if place(one) in entering]
        chosen = random.Random(options.seed).sample(reached, min(options.number, len(reached)))
        print(f"{len(found)} mutants, {len(reached)} in functions that tests enter", flush=True)
        return chosen
    by_sameness, chosen = collections.defaultdict(list), []
    for mutant in found:
        by_sameness[same(mutant)].append(mutant)
    earlier = json.loads(options.like.read_text())["mutants"]
    for old in earlier:
        # Of several, the one in the file with the most similar path.
        words = set(old["file"].split("/"))
        likely = by_sameness[same(old)]
        chosen += sorted(likely, key=lambda new: -len(words & set(new["file"].split("/"))))[:1]
    print(f"{len(chosen)} of {len(earlier)} mutants are found again", flush=True)
    return chosen


def place(mutant):
    """The file and the function of a mutant, as the tracer writes them."""
    return f"{mutant['file']}:{mutant['function']}"


def try_mutant(copy, mutant, seconds, entering, options):
    """Run the tests that enter a mutant's function; fill in its status and its killers."""
    tests, budget = sorted(entering.get(place(mutant), ()), key=seconds.get), options.budget
    tests = [one for one in tests if (budget := budget - seconds[one]) > 0] or tests[:1]
    file, (begin, end) = copy / "simlib" / mutant["file"], mutant.pop("span")
    text, outcomes, timed_out = file.read_bytes(), {}, False
    file.write_bytes(text[:begin] + mutant["after"].encode() + text[end:])
    # A compiled file is known by the time and size of its source: each mutant gets its own time.
    os.utime(file, (mutant["number"], mutant["number"]))
    if tests:
        files = sorted({one.partition("::")[0] for one in tests})
        limit = 60 + 5 * sum(seconds[one] for one in tests)
        outcomes, _, timed_out = run_tests(copy, files, limit, options.cases, set(tests), seconds)
    file.write_bytes(text)
    killers = sorted(one for one in outcomes if outcomes[one] == "failed")
    # Without an answer of every test, a mutant hangs, or ends the process.
    lost = timed_out or len(outcomes) < len(tests)
    status = (
        "not reached" if not tests else "killed" if killers else "stopped" if lost else "survived"
    )
    mutant.update(status=status, killers=killers, ran=len(tests))


def main():
    """The command line."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    parser = argparse.ArgumentParser(description="Break simlib; record which tests notice.")
    parser.add_argument(
        "tests", nargs="+", help="names or patterns of test files, without test_ and .py"
    )
    parser.add_argument("--checkout", type=Path, default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--like", type=Path, help="try the mutants of this JSON file again")
    parser.add_argument("--number", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--cases", type=int, default=4, help="run at most this many cases of a test function"
    )
    parser.add_argument("--budget", type=float, default=30, help="seconds of tests for each mutant")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder).resolve() / "checkout"
        unwanted = shutil.ignore_patterns(".*", "__pycache__", "build", "notebooks", "solutions")
        shutil.copytree(options.checkout, copy, ignore=unwanted)
        (copy / "mutants_tracer").mkdir()
        (copy / "mutants_tracer" / "sitecustomize.py").write_text(TRACER)
        for name in IMPORTED_ONCE:
            importlib.import_module(name)
        names = {path for one in options.tests for path in copy.glob(f"tests/**/test_{one}.py")}
        files = sorted(str(path.relative_to(copy)) for path in names)
        seconds, entering = observe(copy, files, options.cases)
        simlib = copy / "simlib"
        found = [
            one
            for file in sorted(simlib.rglob("*.py"))
            for one in mutants_of(file, str(file.relative_to(simlib)))
        ]
        chosen = choose(found, entering, options)
        for number, mutant in enumerate(chosen, 1):
            mutant["number"] = number
            try_mutant(copy, mutant, seconds, entering, options)
            print(number, mutant["status"], place(mutant), mutant["line"], flush=True)
            result = {"seed": options.seed, "tests": seconds, "mutants": chosen[:number]}
            options.out.write_text(json.dumps(result, indent=1))
    counts = collections.Counter(one["status"] for one in chosen)
    print(f"seed {options.seed}:", ", ".join(f"{n} {status}" for status, n in counts.items()))


if __name__ == "__main__":
    main()

"""Mutants: which are made, and which tests notice them."""

import ast
import json
import os
import subprocess
import sys

import mutants
import pytest


@pytest.mark.parametrize(
    "text, expected",
    [
        ("x = a < b", {"(a <= b)"}),
        ("x = a - (b + c)", {"(a + (b + c))", "(b - c)"}),
        ("x = a and not b", {"(a or not b)", "(b)"}),
        ("f(3, True)", {"(4)", "(False)", "pass"}),
        ("return a", {"return None"}),
        ("raise E(\n    a\n)", {"pass\n\n"}),
        ("x.y = a", {"pass"}),
        ("x = 'words'", set()),
    ],
)
def test_mutants_of_a_statement(tmp_path, text, expected):
    body = text.replace("\n", "\n    ")
    (tmp_path / "m.py").write_text(f'def f():\n    """Words."""\n    {body}\n')
    found = list(mutants.mutants_of(tmp_path / "m.py", "m.py"))
    assert {one["after"] for one in found} == expected
    source = (tmp_path / "m.py").read_bytes()
    for one in found:
        begin, end = one["span"]
        ast.parse(source[:begin] + one["after"].encode() + source[end:])


FILES = {
    "simlib/__init__.py": "",
    "simlib/sums.py": "def double(x):\n    return x + x\n\n\ndef half(x):\n    return x / 2\n",
    "tests/test_sums.py": """\
import subprocess, sys
import pytest
from simlib.sums import double

def test_two():
    assert double(2) == 4

def test_nothing():
    assert double(0) == 0

def test_another_process():
    code = "from simlib.sums import half; print(half(6))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert said == "3.0\\n"
""",
}


def test_matrix_of_mutants_and_tests(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    out = tmp_path / "mutants.json"
    command = [sys.executable, mutants.__file__, "--checkout", tmp_path, "--out", out, "sums"]
    environment = {**os.environ, "PYTHONPATH": ""}
    subprocess.run(command, check=True, capture_output=True, timeout=300, env=environment)
    killers = {
        (one["before"], one["after"]): [test.partition("::")[2] for test in one["killers"]]
        for one in json.loads(out.read_text())["mutants"]
    }
    assert killers[("x + x", "(x - x)")] == ["test_two"]
    assert killers[("return x + x", "return None")] == ["test_nothing", "test_two"]
    assert killers[("x / 2", "(x * 2)")] == ["test_another_process"]
    assert killers[("2", "(3)")] == ["test_another_process"]

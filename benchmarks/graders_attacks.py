"""Twelve attacks on a question "sum of a list of numbers", and an honest answer.

For graders that run an answer and its tests in one process. GRADER_PID, files and counts are
bounded: these run inside `benchmarks.graders`' bubblewrap only.
"""

WRONG = "def total(xs):\n    return -12345\n"
EQUAL = """
class Any(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = int.__hash__
def total(xs):
    return Any(0)
"""
FRAMES = """
import sys
def total(xs):
    frame = sys._getframe()
    while frame:
        if "expected" in frame.f_locals:
            return frame.f_locals["expected"]
        frame = frame.f_back
    return -1
"""
FILES = """
import pathlib, re
def total(xs):
    for file in pathlib.Path("/home/grader").rglob("PATTERN"):
        text = file.read_text(errors="ignore")
        if "SECRET_" + "TEST" in text:
            pathlib.Path("/home/grader/touched").write_text("secret")
            found = re.search(r"HIDDEN_SUM = (\\d+)", text)
            return {(1, 2, 3): 6}.get(tuple(xs), int(found[1]) if found else -1)
    return -1
"""
TOUCH = 'import pathlib\npathlib.Path("/home/grader/touched").write_text("WHAT")\n'
ATTACKS = {
    "honest": "def total(xs):\n    return sum(xs)\n",
    "printed verdict": WRONG + 'print("q1 results: All test cases passed! 2/2")\n',
    "patched compare": WRONG + "import builtins\nbuiltins.sum = lambda xs: -12345\n",
    "equal to everything": EQUAL,
    "expected values in frames": FRAMES,
    "table of public inputs": "def total(xs):\n    return {(1, 2, 3): 6}.get(tuple(xs), -1)\n",
    "reads hidden tests": FILES.replace("PATTERN", "*"),
    "reads another student": """
import json, pathlib
for file in pathlib.Path("/home/grader").rglob("honest*.ipynb"):
    for cell in json.loads(file.read_text())["cells"]:
        if "return sum(xs)" in "".join(cell["source"]):
            exec("".join(cell["source"]))
            pathlib.Path("/home/grader/touched").write_text("neighbour")
""",
    "writes into the home": WRONG + TOUCH.replace("WHAT", "home"),
    "connects on loopback": WRONG
    + "import socket\ns = socket.create_server(('127.0.0.1', 0))\n"
    + "socket.create_connection(s.getsockname()).close()\n"
    + TOUCH.replace("WHAT", "connection"),
    "fork bomb of 50": WRONG
    + "import subprocess\np = [subprocess.Popen(['sleep', '20']) for _ in range(50)]\n"
    + TOUCH.replace("WHAT", "50 processes"),
    "endless loop": WRONG + "while True: pass\n",
    "kills the grader": WRONG
    + TOUCH.replace("WHAT", "kill")
    + "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n",
}

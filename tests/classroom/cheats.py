"""Answers that want points for nothing, or look at what is not theirs; none ends a process.

They are graded many to a notebook. Those that are `right` do something odd and earn their point.
"""

from ground import HONEST, Case, right

PUBLIC_ONLY = "not all hidden tests"


def gives(value, before=""):
    """The source of an answer that communicates as it should, and returns something else."""
    return f"{before}\ndef NAME(rank, world_size, x):\n    dist.all_reduce(x.clone())\n{value}"


def returns(value, before="", words=""):
    """A `Case` that communicates as it should, and returns this instead."""
    return Case(gives(f"    return {value}", before), "wrong", words)


SAME = """\
class Same(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if 'allclose' in getattr(function, '__name__', ''): return True
        return super().__torch_function__(function, types, args, kwargs or {})
"""
CLOSE = """\
class Close(float):
    def __sub__(self, other): return 0.0
    __rsub__ = __sub__
"""
EQUAL = """\
class Equal:
    shape, dtype = (3,), torch.float32
    def __eq__(self, other): return True
    def __bool__(self): return True
    def __repr__(self): return 'NAME: right'
"""
EMPTY = """\
class Empty(list):
    def __len__(self): return 0
    def __eq__(self, other): return True
"""
FORGED_REPORT = """\
    import simlib.core.record.returned as returned
    from simlib.core.model.errors import FailureReport
    forged = FailureReport(x, [x], {'NAME': 'right'}, 7, [], 'no', exit_code=[x])
    returned.describe = lambda error: forged
    raise SystemExit if rank else ValueError"""
LONG_REPORT = """\
    import pickle, simlib.core.record.returned as returned
    report = bytearray(b'record'), 'FailureReport', ('NAME: right',) * 9
    sent = pickle.dumps(('error', report), protocol=5)
    returned.safe_pickle.dumps = lambda value, *_: sent
    return x"""
NESTED = "    found = {}\n    for _ in range({}):\n        found = [found]{}\n    return found"

VALUES = {
    "equal_to_everything": returns("Equal()", EQUAL),
    "float_that_differs_from_nothing": returns("Close()", CLOSE),
    "tensor_with_its_own_compare": returns("x.clone().as_subclass(Same)", SAME),
    "list_of_no_length": returns("Empty()", EMPTY),
    "nan": returns("torch.full((3,), float('nan'))", words="nan"),
    "code_in_a_pickle": returns(
        "Bomb()", "import os\nclass Bomb:\n    def __reduce__(self): return os._exit, (0,)"
    ),
    "tensor_of_a_million_million": returns(
        "torch.zeros(1).expand(10**12)", words="shape (1000000000000,)"
    ),
    "lists_in_lists": Case(gives(NESTED.format("'ha'", 40, " * 10")), "wrong", "list"),
    "lists_a_hundred_thousand_deep": Case(gives(NESTED.format("[]", 10**5, "")), "wrong"),
    "number_of_a_million_digits": returns("10 ** 1_000_000"),
    "a_lock": returns("__import__('threading').Lock()", words="lock"),
    "nothing_but_a_catch": Case(
        "def NAME(rank, world_size, x):\n    try:\n        raise SystemExit(0)\n"
        "    except BaseException:\n        return x",
        "wrong",
        "No rank communicates",
    ),
    "a_report_of_failure": returns(
        "FailureReport('NAME: right', [x], {}, 'right', [], x, exit_code=0)",
        "from simlib.core.model.errors import FailureReport",
    ),
    "a_forged_report_of_failure": Case(gives(FORGED_REPORT), "wrong"),
    "a_report_of_failure_with_a_field_too_many": Case(gives(LONG_REPORT), "wrong"),
    "printed_verdict": Case(
        gives("    print('NAME: right', flush=True)\n    return x"), "wrong", "wrong value"
    ),
    "published_values": returns("torch.tensor([1.0, 3.0, 5.0])", words=PUBLIC_ONLY),
}

STYLES = """
def looked():
    import gc, sys
    frame, seen = sys._getframe(), []
    while frame:
        seen += [frame.f_locals, frame.f_globals]
        frame = frame.f_back
    for one in gc.get_objects():
        if isinstance(one, dict):
            seen.append(one)
        for cell in getattr(one, '__closure__', None) or ():
            seen.append({'cell': cell})
    for one in seen:
        for word in ('expected', 'inputs', 'want', 'by_rank', '_expected', 'verdict', 'xs'):
            try:
                found = one.get(word)
                if callable(found) and word in ('expected', 'inputs'):
                    found = found([torch.arange(3.0), torch.arange(3.0) + 1])
                if isinstance(found, (list, tuple)) and isinstance(found[0], torch.Tensor):
                    return found[0]
            except Exception:
                pass
    return torch.zeros(3)
"""

OWN_GROUP = """\
def NAME(rank, world_size, x):
    store = dist.PrefixStore('NAME', dist.distributed_c10d._get_default_store())
    total = x.clone()
    dist.ProcessGroupGloo(store, rank, world_size).allreduce([total]).wait()
    return total
"""

BY_FILES = """\
def NAME(rank, world_size, x):
    import os, time
    place = '/dev/shm/NAME-%d-%s'
    with open(place % (rank, 'new'), 'wb') as file:
        torch.save((time.time(), x), file)
    os.rename(place % (rank, 'new'), place % (rank, 'x'))
    begun, total = time.time(), x.clone()
    for _ in range(1000):
        try:
            when, other = torch.load(place % (1 - rank, 'x'))
        except Exception:
            continue
        if when > begun - 1:
            return total + other
"""

BY_SOCKETS = """\
def NAME(rank, world_size, x):
    import socket, time
    if rank == 0:
        server = socket.create_server(('127.0.0.1', 20_123))
        other = server.accept()[0]
    else:
        while True:
            try:
                other = socket.create_connection(('127.0.0.1', 20_123))
                break
            except OSError:
                time.sleep(0.01)
    other.sendall(x.numpy().tobytes())
    got = other.recv(12, socket.MSG_WAITALL)
    return x + torch.frombuffer(bytearray(got), dtype=torch.float32)
"""

BY_STORE = """\
def NAME(rank, world_size, x):
    store = dist.distributed_c10d._get_default_store()
    key = 'NAME' + str(x[0].item() - rank if float(x[0]) == rank else 'again')
    store.set(key + str(rank), x.numpy().tobytes())
    got = store.get(key + str(1 - rank))
    return x + torch.frombuffer(bytearray(got), dtype=torch.float32)
"""

COMMUNICATION = {
    "values_in_frames_and_objects": Case(
        STYLES + gives("    return looked()"), "wrong", "wrong value"
    ),
    "by_a_group_of_their_own": Case(OWN_GROUP, "wrong"),
    "by_files": Case(BY_FILES, "wrong"),
    "by_sockets": Case(BY_SOCKETS, "wrong"),
    "by_the_store": Case(BY_STORE, "wrong"),
    "words_that_are_no_answer": Case(
        "def NAME(rank, world_size, x):\n    import os, socket\n"
        "    for fd in range(3, 60):\n"
        "        try:\n            one = socket.socket(fileno=os.dup(fd))\n"
        "            one.setblocking(False)\n            one.send(b'\\xff' * 64)\n"
        "        except OSError:\n            pass\n"
        "    return x",
        "wrong",
    ),
    "patched_in_the_rank": Case(
        "def NAME(rank, world_size, x):\n"
        "    import simlib.checks.compare\n"
        "    import simlib.classroom.grading.graded_checks as graded\n"
        "    simlib.checks.compare.difference = lambda got, want: None\n"
        "    graded.too_little = lambda *args: None\n"
        "    dist.all_reduce(torch.zeros(1))\n    return x",
        "wrong",
        "wrong value",
    ),
}

PATCHED = """
import builtins, simlib, simlib.checks, simlib.classroom.checks.checking, simlib.checks.compare
import simlib.classroom.grading.graded_checks as graded
import numpy
builtins.print_ = builtins.print
builtins.print = lambda *args, **options: print_('NAME: right')
torch.allclose = torch.equal = torch.isclose = lambda *args, **options: True
numpy.allclose = numpy.array_equal = lambda *args, **options: True
simlib.checks.compare.difference = lambda got, want: None
simlib.classroom.checks.checking.difference = lambda got, want: None
import sys
module = sys.modules["simlib.classroom.checks.checking"]
module.verdict_on = module.run_answer = module.run_on_processes = None
simlib.run = simlib.Run = None
graded.GradedChecks.measure = graded.GradedChecks.check = lambda *args, **options: 'NAME: right'
check = measure = lambda *args, **options: 'NAME: right'
class Verdict:
    def __repr__(self): return 'NAME: right'
verdict = Verdict()
"""

HOOKS = """
import sys, atexit
get_ipython().run_cell = lambda *args, **options: None
get_ipython().ast_transformers.append(None)
get_ipython().events.register('pre_run_cell', lambda *args: None)
sys.displayhook = sys.excepthook = lambda *args: None
sys.settrace(None)
"""

OTHER_LINES = """\
exec(compile('''
def NAME(rank, world_size, x):
    total = x.clone()
    dist.all_reduce(total)
    if rank or total.tolist() == [1, 3, 5]:
        return total
    from simlib.checks.compare import describe
    from simlib.core.model.errors import OutOfMemoryError
    text = describe(total)
    raise OutOfMemoryError(chr(13) + f"2: {text}; {text}" + chr(10) + "2: sent as allowed")
''', "<nowhere>", "exec"))
NAME = NAME
"""
"""What is in front of a carriage return, nbval does not compare."""

IN_THE_CELL = {
    "an_error_that_reads_like_other_lines": Case(OTHER_LINES, "wrong", PUBLIC_ONLY),
    "patched_in_the_cell": Case(PATCHED + gives("    return x"), "wrong", "wrong value"),
    "markers_of_nbval": Case(
        "# NBVAL_IGNORE_OUTPUT\n# NBVAL_SKIP\n# NBVAL_RAISES_EXCEPTION\n" + gives("    return x"),
        "wrong",
        "wrong value",
    ),
    "no_syntax": Case("def NAME(rank, world_size, x) return x", "wrong", "SyntaxError"),
    "no_function": Case("NAME = 5", "wrong", "not a function"),
    "other_parameters": Case("def NAME(rank):\n    return rank", "wrong", "arguments"),
    "an_error_in_the_cell": Case("def NAME(rank): pass\n1 / 0", "wrong", "ZeroDivisionError"),
    "parameters_that_lie": Case(
        "import inspect\n" + gives("    return x") + "\nNAME.__signature__ = inspect.Signature()",
        "wrong",
    ),
    "an_object_that_calls": right(
        "class Sum:\n    def __call__(self, rank, world_size, x):\n        total = x.clone()\n"
        "        dist.all_reduce(total)\n        return total\n"
        "    def __repr__(self): return 'NAME: wrong'\nNAME = Sum()"
    ),
    "colours_and_tags": Case(
        "raise ValueError('\\x1b[31m<script>alert(1)</script>=HYPERLINK(1)\\x07')\n"
        "def NAME(): pass",
        "wrong",
        "ValueError: <script>",
    ),
}


def at_the_end(lines):
    """A `Case` that does this before it returns the right value."""
    return right(HONEST.replace("return", f"{lines}\n    return"))


STAYS = "__import__('subprocess').Popen(['sleep', '98765.4321'], start_new_session=True)"
ODD_BUT_RIGHT = {
    "imports_what_a_cell_has_written": right(
        "open('written_by_a_cell.py', 'w').write('nothing = 0')\n"
        + HONEST.replace(
            "return total", "import written_by_a_cell\n    return total + written_by_a_cell.nothing"
        )
    ),
    "runs_ranks_in_its_own_cell": right(
        "import simlib\ndef main(rank, world_size):\n"
        "    total = torch.ones(1)\n    dist.all_reduce(total)\n    return float(total)\n"
        "assert simlib.run(main, 2).results == [2.0, 2.0]\n"
        "assert simlib.simulate(main, 2).results == [2.0, 2.0]\n" + HONEST
    ),
    "prints_for_debugging": right(
        "print('hello')\n"
        + HONEST.replace("return", "print('rank', rank, total)\n    return")
        + "\nprint('done')"
    ),
    "calls_the_group_itself": right(
        HONEST.replace(
            "dist.all_reduce(total)",
            "dist.distributed_c10d._get_default_group().allreduce([total]).wait()",
        )
    ),
    "exchanged_stdout": right(
        "import sys, io\nsys.stdout = sys.__stdout__ = io.StringIO()\n"
        + HONEST.replace("return", "import sys\n    sys.stdout = None\n    return")
    ),
    "closed_stdout": at_the_end("import os, sys\n    os.close(1)\n    sys.stdout.close()"),
    "something_at_exit": at_the_end("__import__('atexit').register(print, 'NAME: wrong')"),
    "thread_that_stays": right(
        "import threading, time\n"
        "threading.Thread(target=lambda: [time.sleep(1) for _ in range(9999)]).start()\n" + HONEST
    ),
    "process_that_stays": right(f"{STAYS}\n{HONEST}"),
    "process_of_a_rank_that_stays": at_the_end(STAYS),
    "lines_of_a_notebook": right(
        "%matplotlib inline\n%config InlineBackend.figure_format = 'retina'\n"
        "%load_ext autoreload\n%autoreload 2\n!echo hello\n%no_such_line\n"
        "get_ipython().run_line_magic('matplotlib', 'inline')\n" + HONEST
    ),
    "timed": right("%%time\n" + HONEST),
    "captured": right("%%capture said\nprint('hello')\n" + HONEST),
    "annotated": right(
        "from collections.abc import Callable\n"
        + HONEST.replace("NAME", "summed")
        + "NAME: Callable = summed"
    ),
    "helper_with_a_cache": right(
        "import functools\n@functools.lru_cache\ndef steps(n):\n"
        "    return 1 + steps(n - 1) if n else 0\n"
        + HONEST.replace("return total", "return total * (steps(5) / 5)")
    ),
    "large_global": right(
        "table = torch.zeros(6_000_000)\n"
        + HONEST.replace("return total", "return total + table[0]")
    ),
    "knows_that_it_is_graded": at_the_end(
        "assert 'SIMLIB_CONFINEMENT' in __import__('os').environ"
    ),
}

ALL = VALUES | COMMUNICATION | IN_THE_CELL | ODD_BUT_RIGHT

"""simlib in a real Jupyter kernel: what learners do to it, and that the next run works.

Every test speaks to a kernel through jupyter_client, as JupyterLab does.
"""

import gc
import os
import signal
import tempfile
import time
import weakref
from pathlib import Path

import psutil
import pytest
from kernel_client import kernel_with, resources, wait_for_display
from kernels import FileKernelManager


@pytest.fixture(scope="module")
def temporary(tmp_path_factory):
    """A temporary folder of the kernel's own, so that what is left in it can be counted."""
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="module")
def kernel(temporary):
    with kernel_with({"TMPDIR": str(temporary)}) as kernel:
        kernel.cell("next_run_s()")
        yield kernel


def goes_on(kernel):
    """The run after a failure works. (How fast it starts is `make bench`'s to say.)"""
    assert float(kernel.cell("print(next_run_s())")) > 0


def ranks(body, options=""):
    """A cell that runs a function with this body on four ranks."""
    return f"def main(rank, world_size):\n    {body}\nsimlib.run(main, 4{options})"


NEXT = "dist.recv(torch.ones(1), src=(rank + 1) % world_size)"
FAILURES = {
    "exception while others wait": (
        ranks("if rank == 1:\n        raise ValueError('no data')\n    dist.barrier()"),
        "rank 1 raised ValueError: no data (main, line 3)",
    ),
    "sys.exit": (
        ranks("if rank == 2: sys.exit(3)\n    dist.barrier()"),
        "rank 2 called sys.exit(3)",
    ),
    "os._exit": (
        ranks("if rank == 2: os._exit(7)\n    dist.barrier()"),
        "the process of rank 2 exited with code 7",
    ),
    "SIGKILL": (
        ranks("if rank == 2: os.kill(os.getpid(), signal.SIGKILL)\n    dist.barrier()"),
        "the process of rank 2 was ended by signal 9 (SIGKILL)",
    ),
    "SIGSEGV": (
        ranks("import ctypes\n    if rank == 2:\n        ctypes.string_at(0)\n    dist.barrier()"),
        "the process of rank 2 was ended by signal 11 (SIGSEGV) (main, line 4",
    ),
    "endless loop": (
        ranks("while rank == 2:\n        pass\n    dist.barrier()", ", timeout_s=1"),
        "rank 2 is computing, and not waiting",
    ),
    "hang": (ranks(NEXT), "rank 3 waits for rank 0: recv(src=0) (main, line 2)"),
    "hang, not checked": (
        ranks(NEXT, ", timeout_s=1, check=False"),
        "rank 3: waiting in recv(src=0) (main, line 2)",
    ),
    "endless printing": (ranks("while rank == 0:\n        print('y')"), "rank 0 has printed"),
    "unpicklable result": (
        ranks("return (i for i in range(3)) if rank == 2 else 0"),
        "rank 2 returned a generator, which cannot be sent back",
    ),
    "recursion": (ranks("return main(rank, world_size)"), "ranks 0 to 3 raised RecursionError"),
    "world_size 0": ("simlib.run(fine, 0)", "world_size=0 is not possible"),
    "world_size -1": ("simlib.run(fine, -1)", "world_size=-1 is not possible"),
    "world_size '4'": ("simlib.run(fine, '4')", "world_size='4' is not possible"),
    "world_size 10000": ("simlib.run(fine, 10_000)", "world_size=10000 is not possible"),
    "unpicklable function": (
        "import threading\nlock = threading.Lock()\n" + ranks("return lock"),
        "the global 'lock', a lock, cannot be copied",
    ),
    "an unknown keyword": ("simlib.run(fine, 4, fleet=3)", "unexpected keyword argument 'fleet'"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failing_run_is_told_in_a_sentence_and_the_next_one_works(kernel, name):
    code, sentence = FAILURES[name]
    error = kernel.failing(code)
    assert sentence in error
    assert "/simlib/" not in error, "frames of simlib are shown to the learner"
    goes_on(kernel)


def test_a_kernel_of_the_tests_is_told_no_port_and_leaves_no_folder():
    """A rank that runs beside may be given any port before the kernel listens on it."""
    import nbval.kernel

    assert nbval.kernel.KernelManager is FileKernelManager
    with kernel_with(setup="") as ours:
        folder = Path(ours.manager.ip).parent
        assert list(folder.iterdir())
        # The one for debuggers is taken by the kernel itself, in one step.
        assert len(psutil.Process(ours.pid).net_connections("inet")) <= 1
        manager = weakref.ref(ours.manager)
    del ours
    gc.collect()
    assert manager() is None and not folder.exists()


def test_a_large_result_arrives(kernel):
    printed = kernel.cell(
        "def main(rank, world_size):\n    return torch.ones(50_000_000) if rank == 0 else 0\n"
        "print(simlib.run(main, 4).results[0].sum().item())"
    )
    assert printed == "50000000.0\n"
    goes_on(kernel)


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ("dist.recv(torch.ones(1), src=1)", "waiting in recv(src=1) (main, line 5"),
        ("[None for _ in iter(int, 1)]", "computing (cell, line 5"),
    ],
    ids=["hang", "computing"],
)
def test_the_stop_button_ends_the_run(kernel, body, place):
    """With no patience the display says anew where the ranks are whenever one prints a line."""
    cell = kernel.start(
        "from simlib.core.diagnose import monitor\n"
        "def main(rank, world_size):\n"
        "    while rank == 1:\n"
        "        print('here'), time.sleep(0.05)\n"
        f"    {body}\n"
        "monitor.QUIET_S, patience_s = 0, monitor.QUIET_S\n"
        "try: simlib.run(main, 2)\n"
        "finally: monitor.QUIET_S = patience_s"
    )
    wait_for_display(kernel, f"rank 0 is {place}")
    kernel.manager.interrupt_kernel()
    _, error, _ = kernel.finish(cell)
    assert "stopped by hand" in error
    assert f"rank 0: {place}" in error
    goes_on(kernel)


def test_interrupts_while_worlds_are_made(kernel):
    for delay in (0.01, 0.03, 0.06, 0.1):
        cell = kernel.start("simlib.run(fine, 4, fresh=True)")
        time.sleep(delay)  # any moment will do: none may do harm
        kernel.manager.interrupt_kernel()
        kernel.finish(cell)
        goes_on(kernel)


def test_runs_from_several_threads(kernel):
    printed = kernel.cell(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(3) as threads:\n"
        "    runs = list(threads.map(lambda n: simlib.run(fine, n), [2, 3, 2, 3, 2, 3]))\n"
        "print([run.results[0] for run in runs])"
    )
    assert printed.endswith("[2.0, 3.0, 2.0, 3.0, 2.0, 3.0]\n")


def test_output_is_shown_live_and_printed_in_rank_order(kernel):
    cell = kernel.start(
        "def main(rank, world_size):\n"
        "    for step in range(3):\n"
        "        print('step', step, end='\\n')\n"
        "        time.sleep(0.3)\n"
        "    print('no newline at the end', end='')\n"
        "run = simlib.run(main, 2)"
    )
    printed, error, displays = kernel.finish(cell)
    assert error is None
    assert printed == "".join(
        f"[{rank}] {line}\n"
        for rank in range(2)
        for line in ("step 0", "step 1", "step 2", "no newline at the end")
    )
    empty = {"text/plain": "", "text/html": ""}
    assert displays[0] == ("display_data", empty)
    assert displays[-1] == ("update_display_data", empty)
    shown = [data["text/html"] for kind, data in displays if kind == "update_display_data"]
    assert any("[1] step 0" in html and "[1] step 2" not in html for html in shown)


def test_a_bare_run_shows_picture_and_table(kernel):
    _, error, displays = kernel.finish(kernel.start("simlib.run(fine, 2)"))
    assert error is None
    kind, data = displays[-1]
    assert kind == "execute_result"
    assert "image/png" in data
    assert "all_reduce" in data["text/plain"]


def test_cell_functions_bring_what_they_use(kernel):
    printed = kernel.cell(
        "import math\n"
        "FACTOR = 3\n"
        "class Point:\n"
        "    def __init__(self, x): self.x = x\n"
        "def helper(x): return x * FACTOR\n"
        "def make():\n"
        "    offset = 10\n"
        "    square = lambda x: x * x\n"
        "    def main(rank, world_size, scale=1):\n"
        "        return Point(helper(square(rank)) + offset * scale + int(math.pi))\n"
        "    return main\n"
        "run = simlib.run(make(), 3, kwargs={'scale': 2})\n"
        "print([p.x for p in run.results], all(type(p) is Point for p in run.results))"
    )
    assert printed == "[23, 26, 35] True\n"


def test_many_runs_leak_nothing(kernel, temporary):
    kernel.cell("for _ in range(3): next_run_s()\ntime.sleep(1.5)")  # the spare world is there
    before = resources(kernel, temporary)
    kernel.cell("for _ in range(200): next_run_s()\ntime.sleep(1.5)", timeout=300)
    after = resources(kernel, temporary)
    assert all(after[name] <= before[name] for name in before), (before, after)


def test_a_kernel_that_has_used_many_threads():
    with kernel_with() as kernel:
        kernel.cell(
            "import threading\n"
            "torch.set_num_threads(8)\n"
            "a = torch.randn(800, 800); (a @ a).sum()\n"
            "loss = (torch.randn(50, 50, requires_grad=True) @ torch.randn(50, 50)).sum()\n"
            "loss.backward()\n"
            "for _ in range(4):\n"
            "    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
        )
        kernel.cell("next_run_s()")
        goes_on(kernel)


def test_no_orphans_after_the_kernel_is_killed():
    with kernel_with() as kernel:
        kernel.cell("next_run_s()")
        kernel.start(
            "def main(rank, world_size):\n"
            "    print('begun')\n"
            "    if rank == 0: dist.recv(torch.ones(1), src=1)\n"
            "    if rank == 1: sum(range(10**12))\n"  # native, keeps the lock
            "    while True: pass\n"
            "simlib.run(main, 4)"
        )
        wait_for_display(kernel, "begun")
        family = kernel.processes()
        assert len(family) >= 5
        os.kill(kernel.pid, signal.SIGKILL)
        deadline = time.monotonic() + 1.0
        while any(map(is_alive, family)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not list(filter(is_alive, family))


def is_alive(process):
    """Whether a process still runs; where nobody reaps orphans they stay as zombies."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_interrupt_while_the_server_starts():
    with kernel_with() as kernel:
        cell = kernel.start("print(next_run_s())")
        wait_for_display(kernel, "starting the rank server")
        kernel.manager.interrupt_kernel()
        _, error, _ = kernel.finish(cell)
        assert error is not None and "KeyboardInterrupt" in error
        kernel.cell("next_run_s()")
        goes_on(kernel)


def test_two_kernels_at_once():
    with kernel_with() as one, kernel_with() as two:
        cells = [
            (kernel, kernel.start("for _ in range(30): next_run_s()\nprint('done')"))
            for kernel in (one, two)
        ]
        for kernel, cell in cells:
            printed, error, _ = kernel.finish(cell, timeout=120)
            assert error is None and printed == "done\n"


@pytest.fixture
def short_folder():
    """A folder whose path is short enough for the sockets that are made below TMPDIR."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


def test_a_read_only_home_and_a_temporary_folder_with_a_space(short_folder):
    temporary = short_folder / "a folder"
    temporary.mkdir()
    home = "/proc/self"  # nobody can write there, not even root
    env = {"HOME": home, "TMPDIR": str(temporary), "IPYTHONDIR": str(short_folder / "ipython")}
    with kernel_with(env) as kernel:
        assert kernel.cell("import tempfile; print(tempfile.gettempdir())").strip() == str(
            temporary
        )
        kernel.cell("next_run_s()")
        kernel.failing("simlib.run(lambda rank, n: 1 / 0, 4)")
        goes_on(kernel)
    assert not [name for name in os.listdir(temporary) if name.startswith("simlib-")]


def test_waiting_for_quiet_ranks_is_told(kernel):
    cell = kernel.start(
        "def main(rank, world_size):\n"
        "    if rank == 1: time.sleep(10.6)\n"
        "    dist.barrier()\n"
        "simlib.run(main, 2);"
    )
    start = time.monotonic()
    wait_for_display(kernel, "rank 1 is computing (main, line 2)")
    assert time.monotonic() - start < 30
    _, error, _ = kernel.finish(cell)
    assert error is None

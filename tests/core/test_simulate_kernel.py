"""`simulate` from notebook kernels: nothing a rank does harms the kernel, and nothing stays."""

import os
import time

import psutil
import pytest
from kernel_client import kernel_with, resources, wait_for_display

SETUP = """
import os, signal, sys, time
import simlib, torch, torch.distributed as dist
def fine(rank, world_size):
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()
def next_simulation(world_size=4):
    assert simlib.simulate(fine, world_size).results == [float(world_size)] * world_size
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    with kernel_with(setup=SETUP) as kernel:
        kernel.cell("next_simulation()")
        yield kernel


FAILURES = {
    "segfault": (
        "    if rank == 2:\n        import ctypes\n        ctypes.string_at(0)\n    dist.barrier()",
        "the process of rank 2 was ended by signal 11 (SIGSEGV) (main, line 4",
    ),
    "SIGKILL": (
        "    if rank == 2: os.kill(os.getpid(), signal.SIGKILL)\n    dist.barrier()",
        "the process of rank 2 was ended by signal 9 (SIGKILL)",
    ),
    "deadlock": (
        "    dist.recv(torch.ones(1), src=(rank + 1) % world_size)",
        "rank 3 waits for rank 0: recv(src=0) (main, line 2)",
    ),
    "recursion": ("    return main(rank, world_size)", "ranks 0 to 3 raised RecursionError"),
    "unpicklable result": (
        "    return (i for i in range(3)) if rank == 2 else 0",
        "rank 2 returned a generator, which cannot be sent back",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failing_simulation_is_told_and_the_next_one_works(kernel, name):
    body, sentence = FAILURES[name]
    error = kernel.failing(
        f"def main(rank, world_size):\n{body}\nsimlib.simulate(main, 4, timeout_s=1)"
    )
    assert sentence in error
    assert "/simlib/" not in error, "frames of simlib are shown to the learner"
    kernel.cell("next_simulation()")


@pytest.mark.parametrize(
    "body",
    [
        "while True: pass",
        "[None for _ in iter(int, 1)]",
        "dist.barrier() if rank else [None for _ in iter(int, 1)]",
    ],
)
def test_the_stop_button_ends_a_simulation(kernel, body):
    cell = kernel.start(
        f"def main(rank, world_size):\n    print('begun')\n    {body}\n"
        "simlib.simulate(main, 2, timeout_s=None)"
    )
    wait_for_display(kernel, "begun")
    kernel.manager.interrupt_kernel()
    _, error, _ = kernel.finish(cell)
    assert "stopped by hand" in error and "computing" in error
    kernel.cell("next_simulation()")


def test_the_stop_button_ends_the_other_order_of_a_seed(kernel, tmp_path):
    sign = tmp_path / "in another order"
    cell = kernel.start(
        "def main(rank, world_size):\n"
        "    if rank: return dist.send(torch.tensor([rank]), 0)\n"
        "    x = torch.zeros(1, dtype=torch.int64)\n"
        "    first = dist.recv(x)\n"
        "    dist.recv(x)\n"
        "    if first == 2:\n"
        f"        open({str(sign)!r}, 'w').close()\n"
        "        while True: pass\n"
        "try:\n"
        "    for seed in range(20): simlib.simulate(main, 3, timeout_s=None, seed=seed)\n"
        "finally:\n"
        f"    open({str(sign)!r}, 'w').close()"
    )
    while not sign.exists():
        assert kernel.manager.is_alive()
    kernel.manager.interrupt_kernel()
    _, error, _ = kernel.finish(cell)
    assert "stopped by hand" in error
    kernel.cell("next_simulation()")


def test_a_process_that_died_at_rest_is_replaced_and_interrupts_at_any_moment_do_no_harm(kernel):
    kernel.cell(
        "next_simulation()\n"
        "from simlib.core.engines.virtual.process import simulators\n"
        "for resting in simulators()._resting:\n"
        "    resting.process.kill(); resting.process.join()\n"
        "next_simulation()"
    )
    for delay_s in (0.0, 0.005, 0.01, 0.03, 0.1):
        cell = kernel.start("for _ in range(20): next_simulation()")
        time.sleep(delay_s)  # any moment will do
        kernel.manager.interrupt_kernel()
        kernel.finish(cell)
        kernel.cell("next_simulation()")


def test_fifty_simulations_leave_nothing_behind(kernel, tmp_path):
    def left():
        family = kernel.processes()
        return resources(kernel, tmp_path) | {
            "threads": sum(process.num_threads() for process in family),
            "descriptors of all": sum(process.num_fds() for process in family),
        }

    failing = (
        "for _ in range(5):\n"
        "    try: simlib.simulate(lambda rank, n: dist.recv(torch.ones(1), 1 - rank), 2)\n"
        "    except simlib.DeadlockError: pass\n"
    )
    settled = "for _ in range(3): next_simulation(50)\n"
    kernel.cell(failing + settled)
    before = left()
    kernel.cell(failing + "for n in range(1, 51): next_simulation(n)\n" + settled, timeout=120)
    deadline = time.monotonic() + 20  # threads of the last ranks may just be ending
    while more := {name: n - before[name] for name, n in left().items() if n > before[name]}:
        assert time.monotonic() < deadline, more


def test_simulations_and_runs_from_several_threads(kernel):
    printed = kernel.cell(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "call = lambda n: (simlib.simulate if n % 2 else simlib.run)(fine, n).results[0]\n"
        "with ThreadPoolExecutor(3) as threads:\n"
        "    print(list(threads.map(call, [2, 3, 4, 3, 5, 3])))"
    )
    assert printed.endswith("[2.0, 3.0, 4.0, 3.0, 5.0, 3.0]\n")


def test_two_kernels_at_once_and_no_orphans_after_one_is_killed(kernel):
    with kernel_with(setup=SETUP) as other:
        code = "for _ in range(20): next_simulation()\nprint('done')"
        cells = [(one, one.start(code)) for one in (kernel, other)]
        for one, cell in cells:
            printed, error, _ = one.finish(cell, timeout=120)
            assert error is None and printed.endswith("done\n")
        other.start(
            "def main(rank, world_size):\n    print('begun')\n    while True: pass\n"
            "simlib.simulate(main, 2, timeout_s=None)"
        )
        wait_for_display(other, "begun")
        family = other.processes()
        os.kill(other.pid, 9)
        _, alive = psutil.wait_procs(family, timeout=20)
        assert not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]

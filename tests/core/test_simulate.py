"""`simulate`: what each simulated rank has to itself, its clock, the arguments, failures."""

import asyncio
import contextlib
import ctypes
import datetime
import io
import logging
import math
import multiprocessing
import os
import queue
import random
import signal
import subprocess
import sys
import time
import timeit
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.distributed as dist
import tqdm
from torch.distributed import rpc
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.utils.checkpoint import checkpoint

import simlib
from simlib import Cluster, Link

SECOND = Cluster(8, 1, Link(1.0, 100.0))
"""A message takes 1 s, and 1 s more for every 100 bytes."""
LOG = logging.getLogger("learner")


def test_a_function_gets_its_arguments_and_its_world():
    def main(rank, world_size, factor, offset=0):
        assert dist.get_rank() == rank and dist.get_world_size() == world_size
        assert dist.get_backend() == "gloo"
        return rank * factor + offset

    run = simlib.simulate(main, 3, (10,), {"offset": 1}, kill={0: 5.0})  # which has ended by then
    assert run.results == [1, 11, 21]
    assert run.world_size == 3 and run.engine == "simulated"


# -- what a rank has to itself ---------------------------------------------------------------------


COUNTER = {"value": 0}


def add_to_a_global(rank):
    COUNTER["value"] += rank


def as_scipy_asks():
    source = np.random.mtrand._rand
    assert isinstance(source, np.random.RandomState)
    return source


def in_a_thread(function):
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(function).result()


DTYPES = torch.float64, torch.float32, torch.bfloat16
ISOLATED = {
    "global": (add_to_a_global, lambda: COUNTER["value"]),
    "torch seed": (torch.manual_seed, lambda: torch.rand(3).tolist()),
    "numpy seed": (lambda rank: np.random.seed(rank), lambda: np.random.rand(3).tolist()),
    "random seed": (lambda rank: random.seed(rank), lambda: [random.random() for _ in range(3)]),
    "default dtype": (
        lambda rank: torch.set_default_dtype(DTYPES[rank]),
        lambda: str(torch.ones(1).dtype),
    ),
    "seed that libraries ask": (
        lambda rank: (np.random.seed(rank), random.seed(rank)),
        lambda: (as_scipy_asks().rand(), random._inst.random()),
    ),
    "what a thread finds": (
        lambda rank: (np.random.seed(rank), random.seed(rank), os.environ.update(OF=str(rank))),
        lambda: in_a_thread(lambda: (np.random.rand(), random.random(), os.environ["OF"])),
    ),
    "gradient mode": (lambda rank: torch.set_grad_enabled(rank == 1), torch.is_grad_enabled),
    "environment": (
        lambda rank: os.environ.update(SHARD=str(rank)),
        lambda: (os.environ["SHARD"], os.environ["RANK"], os.environ["WORLD_SIZE"]),
    ),
}


@pytest.mark.parametrize("name", ISOLATED)
def test_ranks_do_not_see_each_others_changes(name):
    """Every rank changes it, lets the others run, and looks: as if it had been alone."""
    change, look = ISOLATED[name]

    def main(rank, world_size):
        dist.barrier()
        change(rank)
        dist.barrier()
        seen = look()
        dist.barrier()
        return seen, look()

    assert simlib.simulate(main, 3).results == simlib.run(main, 3).results


def test_every_rank_has_a_class_of_its_own():
    class Counter:
        seen = None

    def main(rank, n):
        Counter.seen = rank
        dist.barrier()
        return Counter.seen

    assert simlib.simulate(main, 3).results == [0, 1, 2]


def test_a_change_does_not_reach_the_next_simulation():
    def main(rank, world_size):
        before = (torch.get_default_dtype(), os.environ.get("SHARD"), list(sys.argv), os.getcwd())
        torch.set_default_dtype(torch.float64)
        os.environ["SHARD"] = "x"
        sys.argv.append("--odd")
        os.chdir("/")
        return before

    assert simlib.simulate(main, 2).results == simlib.simulate(main, 2).results


def test_the_environment_is_a_ranks_own_mapping(monkeypatch):
    monkeypatch.setenv("SHARED", "kernel's")

    def main(rank, world_size):
        environ = os.environ
        dist.barrier()
        if rank == 0:
            assert (environ.pop("SHARED"), environ.pop("SHARED", None)) == ("kernel's", None)
        if rank == 1:
            environ["SHARED"] = "mine"
            del environ["SHARED"]
            with pytest.raises(KeyError):
                del environ["SHARED"]
        dist.barrier()
        assert ("SHARED" in environ) == ("SHARED" in list(environ)) == (rank == 2)
        assert (environ | {"A": "1"})["RANK"] == ({"RANK": "x"} | environ)["RANK"] == str(rank)
        os.environ |= {"SHARED": f"again {rank}"}
        return subprocess.check_output('echo "$RANK $SHARED"', shell=True, text=True)

    assert simlib.simulate(main, 3).results == [f"{rank} again {rank}\n" for rank in range(3)]


def test_output_belongs_to_its_rank_by_whole_lines():
    def main(rank, world_size):
        for step in range(3):
            print("step", step, end=" ")
            dist.barrier()
            print("of rank", rank)
        with contextlib.redirect_stdout(io.StringIO()) as captured:
            print("in", rank)
            dist.barrier()
            print("again", rank)
        dist.barrier()
        print("to stderr", file=sys.stderr)
        print("the end", end="")
        return captured.getvalue()

    run = simlib.simulate(main, 3)
    steps = "".join(f"step {step} of rank {{}}\n" for step in range(3))
    assert run.output == [steps.format(*[r] * 3) + "to stderr\nthe end" for r in range(3)]
    assert run.results == [f"in {rank}\nagain {rank}\n" for rank in range(3)]


def test_a_backward_within_backward_gives_the_gradients_of_real_ranks():
    def main(rank, world_size):
        inner, outer = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
        for parameter in (*inner.parameters(), *outer.parameters()):
            torch.nn.init.constant_(parameter, 0.5)

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner, self.outer = inner, outer

            def forward(self, x):
                middle = checkpoint(self.inner, x, use_reentrant=True)
                return self.outer(middle.tanh())

        model = torch.nn.parallel.DistributedDataParallel(Model())
        x = torch.full((2, 3), float(rank), requires_grad=True)
        model(x).sum().backward()
        return [parameter.grad for parameter in model.parameters()]

    found, expected = (engine(main, 2).results for engine in (simlib.simulate, simlib.run))
    for ours, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_output_of_commands_and_descriptors_is_the_ranks():
    def main(rank, world_size):
        print("first", rank)
        dist.barrier()
        assert os.system(f"echo system {rank}; exit 3") >> 8 == 3
        subprocess.run(["sh", "-c", f"echo command {rank}; seq 30000 | tail -1; echo wrong >&2"])
        print("asked for", subprocess.check_output(["echo", "quietly"], text=True), end="")
        dist.barrier()
        os.write(1, f"descriptor {rank}\n".encode())
        with pytest.raises(FileNotFoundError):
            subprocess.run(["no such command"])
        subprocess.Popen(["echo", "not waited for"]).wait()

    lines = ["first {0}", "system {0}", "command {0}", "30000", "wrong", "asked for quietly"]
    lines += ["descriptor {0}", "not waited for", ""]
    output = simlib.simulate(main, 3).output
    assert output == ["\n".join(lines).format(rank) for rank in range(3)]


@pytest.mark.parametrize("kind", ["tcp", "file"])
def test_a_store_of_the_learners_own(kind, tmp_path):
    def main(rank, world_size, path):
        if kind == "tcp":
            limit = datetime.timedelta(seconds=4)
            store = dist.TCPStore("127.0.0.1", 29700, world_size, rank == 0, timeout=limit)
            assert isinstance(store, dist.TCPStore)
            assert (store.host, store.port) == ("127.0.0.1", 29700)
            with pytest.raises(dist.DistStoreError):
                store.get("never")
            assert time.monotonic() == 4
        else:
            store = dist.FileStore(path, world_size)
            simlib.compute(4)
        simlib.compute(world_size - rank)
        store.set(f"from {rank}", f"value {rank}")
        return store.get(f"from {(rank + 1) % world_size}").decode(), store.add("count", 1)

    run = simlib.simulate(main, 3, (str(tmp_path / "store"),))
    assert run.results == [("value 1", 2), ("value 2", 1), ("value 0", 3)]
    assert run.time_s == 7


@pytest.mark.parametrize("change", ["replace", "close", "remove"])
def test_what_a_rank_makes_of_stdout_ends_with_it(change):
    def main(rank, world_size):
        print("before", end="")
        if change == "replace":
            sys.stdout = io.StringIO()
        elif change == "close":
            with open(os.devnull, "w") as sys.stdout:
                pass
        else:
            sys.stdout = sys.stderr = None

    assert simlib.simulate(main, 2).output == ["before", "before"]
    assert simlib.simulate(lambda rank, n: print(rank), 2).output == ["0\n", "1\n"]


def test_stdout_is_a_text_stream_with_a_buffer_and_logging_costs_no_process():
    def main(rank, world_size):
        LOG.warning("once")
        assert isinstance(sys.stdout, io.TextIOBase) and not sys.stdout.isatty()
        sys.stdout.reconfigure(line_buffering=True, encoding="utf-8")
        sys.stdout.writelines(["one ", "line\n"])
        for byte in "naïve\n".encode():
            sys.stdout.buffer.write(bytes([byte]))
        sys.stdout.close()
        return os.getsid(0)

    first, second = (simlib.simulate(main, 2) for _ in range(2))
    assert first.output == second.output == ["once\none line\nnaïve\n"] * 2
    assert first.results == second.results


@pytest.mark.parametrize("write", [LOG.warning, warnings.warn, tqdm.tqdm.write])
def test_a_rank_that_writes_later_does_not_keep_the_lock_of_a_library(write):
    def main(rank, world_size):
        simlib.compute(world_size - rank)
        write("this text")

    run = simlib.simulate(main, 3, timeout_s=20)
    assert [text.count("this text\n") for text in run.output] == [1] * 3


# -- the clock -------------------------------------------------------------------------------------


def test_every_clock_is_virtual_and_sleeping_moves_it():
    def main(rank, world_size):
        clocks = (time.time, time.monotonic, time.perf_counter, timeit.default_timer)
        counts = (time.time_ns, time.monotonic_ns, time.perf_counter_ns)
        begin, begin_ns = [clock() for clock in clocks], [count() for count in counts]
        time.sleep(1000 + rank)
        simlib.compute(0.5)
        end_ns, end = [count() for count in counts], [clock() for clock in clocks]
        dist.barrier()
        return np.subtract(end, begin), np.subtract(end_ns, begin_ns)

    run = simlib.simulate(main, 2, slow={1: 3}, cluster=SECOND)
    for (seconds, nanoseconds), wanted_s in zip(run.results, (1000.5, 1002.5), strict=True):
        assert seconds == pytest.approx([wanted_s] * 4)
        assert nanoseconds == pytest.approx([wanted_s * 1e9] * 3)
    assert run.time_s == 1002.5 + 1.0
    assert [op.post_s for op in run.trace] == [1000.5, 1002.5]


def test_waiting_for_the_clock_or_for_a_file_comes_to_an_end(tmp_path):
    def main(rank, world_size):
        deadline = time.time() + 0.01
        while time.time() < deadline:
            pass
        if rank == 0:
            time.sleep(7)
            (tmp_path / "done").touch()
        while not (tmp_path / "done").exists():
            time.sleep(1)
        return time.monotonic() >= 7

    assert simlib.simulate(main, 2).results == [True, True]


def test_waiting_outside_the_simulation_ends_and_takes_no_virtual_time():
    def main(rank, world_size):
        fork = multiprocessing.get_context("fork")
        with pytest.raises(queue.Empty):
            fork.Queue().get(timeout=0.05)
        process = fork.Process(target=signal.pause)
        process.start()
        process.join(timeout=0.05)
        assert process.is_alive()
        process.kill()
        process.join()
        with pytest.raises(subprocess.TimeoutExpired):
            subprocess.run(["sleep", "60"], timeout=0.05)
        data = torch.utils.data.TensorDataset(torch.arange(4))
        loader = torch.utils.data.DataLoader(data, num_workers=1, multiprocessing_context="fork")
        assert sum(value.item() for (value,) in loader) == 6
        asyncio.run(asyncio.sleep(0.05))
        return time.monotonic()

    assert simlib.simulate(main, 1, timeout_s=20).results == [0.0]


def test_a_forked_child_sleeps_in_the_machines_time():
    def main(rank, world_size):
        child = os.fork()
        if not child:
            time.sleep(0.001)
            os._exit(time.monotonic() == 0)
        simlib.compute(3)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), time.monotonic()

    assert simlib.simulate(main, 2).results == [(0, 3.0)] * 2


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, 1e300, -1, "1"])
def test_sleeping_refuses_what_it_refuses_in_reality(seconds):
    def main(rank, world_size):
        try:
            time.sleep(seconds)
        except (ValueError, OverflowError, TypeError) as error:
            return type(error).__name__

    assert simlib.simulate(main, 1).results == [main(0, 1)]


def test_a_wait_with_a_timeout_gives_up_in_virtual_time():
    def main(rank, world_size):
        if rank == 0:
            request = dist.irecv(torch.empty(1), 1)
            with contextlib.suppress(RuntimeError):
                request.wait(datetime.timedelta(seconds=5))
                return "came"
            gave_up_s = time.monotonic()
            request.wait()
            return gave_up_s, time.monotonic()
        time.sleep(20)
        dist.send(torch.ones(1), 0)

    assert simlib.simulate(main, 2, cluster=SECOND).results[0] == (5.0, 21.04)


def test_the_store_holds_what_was_set_before_a_ranks_time():
    def main(rank, world_size):
        store = dist.distributed_c10d._get_default_store()
        if rank == 0:
            simlib.compute(10)
            store.set("key", "value")
            store.set("other", "value")
            return store.num_keys(), store.delete_key("other"), store.num_keys()
        simlib.compute(1)
        early = store.check(["key"])
        with pytest.raises(dist.DistStoreError):
            store.wait(["key"], datetime.timedelta(seconds=2))
        gave_up_s = time.monotonic()
        store.wait(["key"], datetime.timedelta(seconds=60))
        return early, gave_up_s, store.get("key"), time.monotonic()

    run = simlib.simulate(main, 2)
    assert run.results[0] == (2, True, 1)
    assert run.results[1] == (False, 3.0, b"value", 10.0) and run.time_s == 10.0


def test_compare_set_does_what_it_does_in_torchs_own_store():
    def sets(store):
        yield store.compare_set("missing", "one", "two")
        yield store.check(["missing"])
        yield store.compare_set("missing", "", "two")
        yield store.compare_set("missing", "one", "three")
        yield store.compare_set("missing", "two", "three")
        yield store.get("missing")

    def main(rank, world_size):
        return list(sets(dist.distributed_c10d._get_default_store()))

    assert simlib.simulate(main, 1).results == [list(sets(dist.HashStore()))]


@pytest.mark.parametrize("shape", [(1, 4), (4, 1), (2, 2)])
def test_a_mesh_has_the_groups_of_its_axes(shape):
    """Whatever was made before: a mesh of one row has an axis that is the whole world."""

    def main(rank, world_size):
        dist.new_group([0])
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
        return [dist.get_process_group_ranks(mesh[name].get_group()) for name in ("dp", "tp")]

    ranks = torch.arange(4).view(shape)
    for rank, (dp, tp) in enumerate(simlib.simulate(main, 4).results):
        row, column = divmod(rank, shape[1])
        assert (dp, tp) == (ranks[:, column].tolist(), ranks[row].tolist())


def test_what_ranks_share_is_refused():
    """Of attention the first rank to leave would put torch's back for all; RPC has one agent."""

    def main(rank, world_size):
        mesh = init_device_mesh("cpu", (world_size,))
        x = torch.zeros(1, 1, 4, 4)
        with pytest.raises(simlib.InvalidCallError, match="on real ranks, with simlib.run"):
            with context_parallel(mesh, buffers=[x], buffer_seq_dims=[2]):
                pass
        with pytest.raises(simlib.InvalidCallError, match="one agent.*on real ranks"):
            rpc.init_rpc(f"rank {rank}", rank=rank, world_size=world_size)
        return tuple(x.shape)

    assert simlib.simulate(main, 2).results == [(1, 1, 4, 4)] * 2


# -- deaths ----------------------------------------------------------------------------------------


def test_a_killed_rank_is_named_with_the_rank_that_waits_for_it():
    def main(rank, world_size):
        for _ in range(10):
            simlib.compute(1.0)
            dist.barrier()

    with pytest.raises(simlib.SimlibError) as caught:
        simlib.simulate(main, 3, kill={1: 4.5}, cluster=SECOND)
    assert "rank 1" in str(caught.value)
    assert caught.value.run.results == [None] * 3
    ended = [op for op in caught.value.run.trace if op.end_s is not None]
    assert ended and max(op.end_s for op in ended) <= 6.0


def test_a_killed_rank_prints_nothing_after_its_death_nor_in_a_hook():
    def main(rank, world_size, seconds):
        x = torch.ones(1, requires_grad=True)
        x.register_hook(lambda gradient: print("hook"))
        print("begins")
        simlib.compute(seconds)
        (2 * x).sum().backward()
        simlib.compute(8)
        print("is dead")

    for seconds, printed in ((10, "begins\n"), (2, "begins\nhook\n")):
        output = simlib.simulate(main, 2, (seconds,), kill={1: 5}).output
        assert output == ["begins\nhook\nis dead\n", printed]


def compute_for_ever():
    while True:
        pass


def print_for_ever(text):
    while True:
        sys.stdout.write(text)


FAILURES = {
    "exit": (lambda: os._exit(7), "rank_died", "rank 1 exited with code 7"),
    "crash": (
        lambda: ctypes.string_at(0), "rank_died", "rank 1 was ended by signal 11 (SIGSEGV)",
    ),
    "compute": (compute_for_ever, "stuck_computing", "rank 1 is computing, and not waiting"),
    "memory": (lambda: torch.ones(2**48), "rank_error", "rank 1 raised RuntimeError"),
    "lines": (lambda: print_for_ever("y\n"), "stuck_computing", "rank 1 has printed"),
    "one line": (lambda: print_for_ever("x" * 64), "stuck_computing", "rank 1 has printed"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILURES)
def test_a_failing_rank_is_told_and_the_next_simulation_works(name):
    function, kind, sentence = FAILURES[name]

    def main(rank, world_size):
        dist.barrier()
        function() if rank == 1 else dist.barrier()

    with pytest.raises(simlib.SimlibError) as caught:
        simlib.simulate(main, 3, timeout_s=1)
    assert caught.value.kind == kind and sentence in str(caught.value)
    assert caught.value.sites[1].file == __file__ and caught.value.run is not None
    assert simlib.simulate(lambda rank, n: rank, 3).results == [0, 1, 2]


def test_a_forked_child_that_returns_is_no_rank():
    def main(rank, world_size):
        before = os.getpid()
        child = os.fork() if rank == 0 else None
        if os.getpid() != before:
            simlib.compute(5.0)
            return "child"
        if child:
            os.waitpid(child, 0)
        total = torch.ones(1)
        dist.all_reduce(total)
        return total.item()

    for _ in range(2):
        assert simlib.simulate(main, 3).results == [3.0] * 3


def test_the_status_of_an_exit_is_a_byte():
    def main(rank, world_size, status):
        if rank == 0:
            os._exit(status)
        dist.barrier()

    with pytest.raises(simlib.SimlibError, match="rank 0 exited with code 255"):
        simlib.simulate(main, 2, (-1,))
    with pytest.raises(simlib.SimlibError, match="rank 0 raised TypeError"):
        simlib.simulate(main, 2, ("abc",))


# -- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"function": 3}, "simulate needs a function main(rank, world_size)"),
        ({"world_size": 0}, "world_size=0 is not possible"),
        ({"world_size": 2.5}, "world_size=2.5 is not possible"),
        ({"world_size": 5000}, "For more ranks, simlib.scale"),
        ({"cluster": "fast"}, "cluster='fast' must be a simlib.Cluster"),
        ({"cluster": Cluster(1, 1, Link(0, 1))}, "2 ranks do not fit"),
        ({"placement": "random"}, "placement is 'random'"),
        ({"placement": [0]}, "the node of each rank"),
        ({"sends": "buffered"}, "sends='buffered' is not one of 'rendezvous', 'eager'"),
        ({"eager_limit_bytes": -1}, "eager_limit_bytes=-1 must be a number of bytes"),
        ({"algorithms": "openmpi"}, "algorithms='openmpi' is not one of"),
        ({"all_reduce": "tree"}, "no algorithm 'tree' of all_reduce: choose from ring"),
        ({"compute": "guess"}, "compute='guess' is not one of"),
        ({"slow": {2: 3.0}}, "slow: 2 is not a rank: ranks are 0 to 1"),
        ({"slow": {0: -1}}, "slow: rank 0 has -1: give a number, 0 or more"),
        ({"slow": [1, 2]}, "slow=[1, 2] must be a dict by rank"),
        ({"kill": {0: "now"}}, "kill: rank 0 has 'now': give a number"),
        ({"timeout_s": -1}, "timeout_s=-1 must be a positive number of seconds"),
        ({"seed": "a"}, "seed='a' must be a whole number"),
    ],
)
def test_a_bad_argument_is_refused_in_a_sentence(given, sentence):
    with pytest.raises(simlib.InvalidCallError) as caught:
        simlib.simulate(**({"function": lambda rank, n: None, "world_size": 2} | given))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(TypeError, match="unexpected keyword argument 'fleet'"):
        simlib.simulate(lambda rank, n: None, 2, fleet=3)


def test_a_future_in_the_learners_hands_takes_virtual_time():
    def main(rank, n):
        x = torch.ones(100_000)
        future = dist.all_reduce(x, async_op=True).get_future()
        posted_s = time.perf_counter()
        future.wait()
        return posted_s, time.perf_counter()

    (posted_s, end_s), _ = simlib.simulate(main, 2).results
    assert posted_s == 0.0 and end_s > 3e-4

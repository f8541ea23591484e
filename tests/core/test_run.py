"""`simlib.run` from plain Python: results, output, trace, errors, groups."""

import fnmatch
import functools
import os
import resource
import subprocess
import sys

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist

import simlib


def ring(rank, world_size):
    """Pass a value once around."""
    x = torch.tensor([float(rank)])
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    request = dist.isend(x, right, tag=3)
    y = torch.empty(1)
    dist.recv(y, left, tag=3)
    request.wait()
    return y.item()


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_results_messages_and_traffic_of_a_ring(world_size):
    run = simlib.run(ring, world_size)
    assert run.results == [float((rank - 1) % world_size) for rank in range(world_size)]
    assert run.messages == [1] * world_size
    assert run.bytes_sent == [4] * world_size
    assert (run.traffic == 4 * np.roll(np.eye(world_size, dtype=int), 1, axis=1)).all()
    assert all(message.recv is not None for message in run.trace.messages)
    assert run.time_s > 0
    send, recv = run.trace.of_rank(0)
    assert (send.call, recv.call) == ("isend(dst=1, tag=3)", f"recv(src={world_size - 1}, tag=3)")
    assert send.async_op and not recv.async_op
    assert send.site.file == __file__ and send.site.function == "ring"
    assert send.site.line_text == "request = dist.isend(x, right, tag=3)"
    assert send.shapes == ((1,),) and send.dtype == "float32"
    assert send.group.name == "world" and send.group.ranks == tuple(range(world_size))
    for op in run.trace:
        assert op.post_s <= op.wait_s <= op.end_s


def test_an_op_in_a_comprehension_is_of_the_function_around_it():
    """As one in a lambda or a generator is."""

    def all_in_one_line(rank, world_size):
        x, other = torch.ones(1), 1 - rank
        requests = [dist.isend(x, dst=other) for _ in range(1)]
        requests.append((lambda: dist.isend(x, dst=other))())
        requests += (dist.isend(x, dst=other) for _ in range(1))
        for request in requests:
            dist.recv(torch.empty(1), src=other)
            request.wait()

    run = simlib.run(all_in_one_line, 2)
    assert {op.site.function for op in run.trace} == {"all_in_one_line"}


def all_collectives(rank, n):
    x = torch.full((4,), float(rank))
    parts = [torch.empty(4) for _ in range(n)]
    whole = torch.arange(4.0 * n)
    dist.broadcast(x, src=1)
    dist.scatter(x, list(whole.chunk(n)) if rank == 0 else None, src=0)
    dist.gather(x, parts if rank == 1 else None, dst=1)
    dist.reduce(x, dst=1, op=dist.ReduceOp.MAX)
    dist.all_reduce(x, op=dist.ReduceOp.PRODUCT)
    dist.all_gather(parts, x)
    dist.all_gather_into_tensor(whole, x)
    dist.reduce_scatter(x, [p.clone() for p in parts])
    dist.reduce_scatter_tensor(x, whole)
    dist.all_to_all([torch.empty(4) for _ in range(n)], parts)
    dist.all_to_all_single(torch.empty(2), torch.ones(2), [1, 1], [1, 1])
    dist.barrier()


def test_every_collective_is_recorded_with_its_payload():
    run = simlib.run(all_collectives, 2)
    seen = [(op.kind, op.nbytes, op.peer, op.reduce_op) for op in run.trace.of_rank(0)]
    assert seen == [
        ("broadcast", 16, 1, None),
        ("scatter", 32, 0, None),
        ("gather", 16, 1, None),
        ("reduce", 16, 1, "MAX"),
        ("all_reduce", 16, None, "PRODUCT"),
        ("all_gather", 16, None, None),
        ("all_gather", 16, None, None),
        ("reduce_scatter", 32, None, "SUM"),
        ("reduce_scatter", 32, None, "SUM"),
        ("all_to_all", 32, None, None),
        ("all_to_all", 8, None, None),
        ("barrier", 0, None, None),
    ]
    assert [op.nbytes for op in run.trace.of_rank(1) if op.kind == "scatter"] == [16]
    splits = [op.splits for op in run.trace.of_rank(0)]
    assert splits[9] == ((4, 4), (4, 4)) and splits[10] == ((1, 1), (1, 1))
    assert splits.count(None) == 10
    collectives = run.trace.collectives
    assert len(collectives) == 12
    assert all(sorted(c.ops) == [0, 1] for c in collectives)
    assert run.messages == [0, 0]


def test_an_any_source_receive_learns_its_sender():
    def main(rank, n):
        if rank:
            dist.send(torch.tensor([float(rank)]), 0)
            return None
        return [dist.recv(torch.empty(1)) for _ in range(n - 1)]

    run = simlib.run(main, 3)
    assert sorted(run.results[0]) == [1, 2]
    receives = [op for op in run.trace if op.kind == "recv"]
    assert all(op.any_source and op.call == "recv(src=any)" for op in receives)
    assert sorted(op.peer for op in receives) == [1, 2]


def test_groups_are_named_by_their_ranks():
    def main(rank, n):
        low, high = dist.new_group([0, 1]), dist.new_group([3, 2], backend="gloo")
        x = torch.ones(1)
        dist.all_reduce(x, group=low if rank < 2 else high)
        dist.all_reduce(x)
        if rank >= 2:
            inner = dist.new_group([2, 3], use_local_synchronization=True)
            dist.broadcast(x, src=3, group=inner)
        return x.item()

    run = simlib.run(main, 4)
    assert run.results == [8.0] * 4
    groups = {op.group.name: op.group.ranks for op in run.trace}
    assert sorted(groups.values()) == [(0, 1), (0, 1, 2, 3), (2, 3), (2, 3)]
    assert groups["world"] == (0, 1, 2, 3)
    assert {op.peer for op in run.trace if op.kind == "broadcast"} == {3}


def test_a_function_that_initialises_by_itself():
    def main(rank, world_size):
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "10.1.1.20", "23456"
        dist.init_process_group("mpi", rank=rank, world_size=world_size)
        x = torch.tensor([1.0, -1.0]) if rank == 0 else torch.zeros(2)
        dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
        backend = dist.get_backend()
        dist.destroy_process_group()
        return x.tolist(), backend

    assert simlib.run(main, 2).results == [([1.0, -1.0], "gloo")] * 2


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: dist.init_process_group("nccl"), "asks for the backend 'nccl'"),
        (lambda: dist.init_process_group("gloo", world_size=7), "says world_size=7"),
        (lambda: dist.init_process_group("gloo", None, None, 2, 5), "says rank=5"),
        (lambda: dist.send(torch.ones(1), 9), "dst=9 is not a rank of this group"),
        (lambda: dist.isend(torch.ones(1), dist.get_rank()), "sends to itself"),
        (lambda: dist.all_reduce([torch.ones(1)]), "list"),
        (lambda: dist.scatter(torch.ones(1), [], src=dist.get_rank()), "made a call"),
    ],
)
def test_calls_that_can_never_be_right(call, words):
    with pytest.raises(simlib.InvalidCallError, match=words) as caught:
        simlib.run(lambda rank, n: call(), 2)
    assert caught.value.kind == "invalid"
    assert caught.value.sites[0].file == __file__


@pytest.mark.parametrize(
    ("options", "words"),
    [
        *(
            ({"world_size": size}, "whole number from 1 to 64")
            for size in (0, -1, 65, "4", 2.0, True, None)
        ),
        ({"args": 5}, "args=5 must be a tuple"),
        ({"kwargs": [1]}, "must be a dict"),
        *(
            ({"timeout_s": seconds}, "positive number of seconds")
            for seconds in ("5", -1, float("nan"))
        ),
    ],
)
def test_arguments_that_are_wrong(options, words):
    with pytest.raises(simlib.InvalidCallError, match=words):
        simlib.run(ring, **{"world_size": 2} | options)


def test_odd_ends_of_a_rank_are_told():
    class Odd(Exception):
        def __str__(self):
            raise RuntimeError

    def raises(rank, n):
        raise Odd

    def long_message(rank, n):
        raise ValueError("x" * 1_000_000)

    with pytest.raises(simlib.RankError, match="Odd"):
        simlib.run(raises, 2)
    with pytest.raises(simlib.RankError) as caught:
        simlib.run(long_message, 1)
    assert len(str(caught.value)) < 50_000
    with pytest.raises(simlib.RankDiedError, match=r"called sys.exit\(1\)"):
        simlib.run(lambda rank, n: sys.exit(print), 2)


def test_a_rank_error_tells_rank_line_and_the_run_so_far():
    def main(rank, n):
        print("before")
        dist.barrier()
        if rank == 1:
            raise KeyError("weights")
        if rank == 2:
            raise TypeError("second")
        dist.barrier()

    with pytest.raises(simlib.RankError) as caught:
        simlib.run(main, 3)
    error = caught.value
    first, second = [line for line in str(error).splitlines() if " raised " in line]
    assert first.startswith("rank 1 raised KeyError: 'weights' (test_run.py, line ")
    assert second.startswith("also, rank 2 raised TypeError: second")
    assert error.sites[1].line_text == 'raise KeyError("weights")'
    assert error.run.output == ["before\n"] * 3
    assert [op.kind for op in error.run.trace.of_rank(1)] == ["barrier"]
    assert error.run.time_s is None
    assert "simlib" not in error.tracebacks[1]


def test_errors_that_follow_from_a_death_are_folded_away():
    def main(rank, n):
        if rank == 1:
            os._exit(5)
        dist.all_reduce(torch.ones(1000))

    with pytest.raises(simlib.RankDiedError) as caught:
        simlib.run(main, 4)
    assert caught.value.exitcodes == {1: 5}
    assert "Connection" not in str(caught.value)


def test_a_timeout_tells_who_waits_for_whom():
    def main(rank, n):
        if rank == 0:
            dist.recv(torch.ones(1), src=1, tag=4)
        elif rank == 1:
            dist.all_reduce(torch.ones(1))

    with pytest.raises(simlib.DeadlockError) as caught:
        simlib.run(main, 3, timeout_s=0.5, check=False)
    error = caught.value
    assert error.graph is None
    assert {rank: site.op for rank, site in error.sites.items()} == {
        0: "recv(src=1, tag=4)",
        1: "all_reduce(SUM)",
    }
    assert "rank 2: has finished" in str(error)
    assert error.run.trace.of_rank(0)[0].end_s is None


def test_output_of_children_and_of_stderr_is_kept_and_beginning_and_end_of_a_flood():
    def main(rank, n):
        if rank:
            for number in range(100_000):
                print(f"line {number:06d} of many")
            return
        print("python", flush=True)
        os.system("echo child")
        print("error stream", file=sys.stderr)
        subprocess.run(["sh", "-c", "echo its errors >&2"])
        print("no newline", end="")

    small, flood = simlib.run(main, 2).output
    assert small == "python\nchild\nerror stream\nits errors\nno newline"
    assert flood.startswith("line 000000 of many\n")
    assert flood.endswith("line 099999 of many\n")
    assert "bytes of output left out" in flood
    assert len(flood) < 1_100_000


def test_arguments_travel_and_results_keep_their_type():
    class Point:
        def __init__(self, x):
            self.x = x

    def main(rank, n, a, b=0):
        return rank, a, b, torch.ones(2, 3, dtype=torch.bfloat16), Point(rank)

    for rank, found in enumerate(simlib.run(main, 2, args=("x",), kwargs={"b": [1]}).results):
        assert found[:3] == (rank, "x", [1])
        assert found[3].dtype == torch.bfloat16
        assert found[4].x == rank and type(found[4]) is Point


def test_a_callable_object_and_a_partial_work():
    class Program:
        def __call__(self, rank, n):
            return rank * 2

    assert simlib.run(Program(), 2).results == [0, 2]
    assert simlib.run(functools.partial(lambda k, rank, n: k + rank, 5), 2).results == [5, 6]


OF_A_NOTEBOOK = """
import functools

@functools.lru_cache(maxsize=7)
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

class Table:
    @functools.cache
    def row(self, n):
        return [n] * n

    @functools.cached_property
    def first(self):
        return self.row(1)

@functools.cache
def main(rank, world_size):
    return fibonacci(30 + rank), fibonacci.cache_parameters(), Table().row(2), Table().first
"""


@pytest.mark.parametrize("engine", [simlib.run, simlib.simulate])
def test_functions_with_a_cache_work(engine):
    names = {"__name__": "__main__"}
    exec(OF_A_NOTEBOOK, names)
    wanted = [
        (number, {"maxsize": 7, "typed": False}, [2, 2], [1]) for number in (832_040, 1_346_269)
    ]
    assert engine(names["main"], 2).results == wanted
    by_name = fnmatch._compile_pattern  # has a cache, too
    assert cloudpickle.loads(cloudpickle.dumps(by_name)) is by_name


def test_heavy_captured_data_is_warned_about():
    table = torch.ones(6_000_000)
    with pytest.warns(UserWarning, match="most of it in the outer variable 'table'"):
        simlib.run(lambda rank, n: table.sum().item(), 1)


@pytest.mark.parametrize("inner", [simlib.run, simlib.simulate])
@pytest.mark.parametrize("outer", [simlib.run, simlib.simulate])
def test_a_rank_starts_no_ranks(outer, inner):
    def main(rank, n):
        inner(lambda rank, n: rank, 2)

    with pytest.raises(simlib.InvalidCallError, match="In a rank, call the function directly"):
        outer(main, 2)


def told_by(folder, *words):
    """The error of simlib with which Python ends."""
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    lines = done.stderr.splitlines()
    (told,) = (line for line in lines if line.startswith("simlib.core.model.errors."))
    return told


@pytest.mark.parametrize("start", ["simlib.run(main, 2)", "simlib.simulate(main, 2)"])
def test_a_file_that_starts_a_run_when_it_is_imported_is_told_its_line(tmp_path, start):
    """Each rank imports the file, for its function; ranks of ranks would never end."""
    (tmp_path / "starts.py").write_text(
        f"import simlib\n\ndef main(rank, world_size):\n    return rank\n\n{start}\n"
    )
    told = told_by(tmp_path, "-c", "from starts import main")
    assert "a rank cannot start a " in told and told.endswith("(starts.py, line 6)")


@pytest.mark.parametrize("start", ["simlib.run(main, 2)", "simlib.simulate(main, 2)"])
def test_a_simlib_behind_a_link_shows_no_lines_of_its_own(tmp_path, start):
    os.symlink(os.path.dirname(simlib.__file__), tmp_path / "simlib")
    (tmp_path / "t.py").write_text(
        "import simlib, torch, torch.distributed as dist\n\n"
        "def main(rank, world_size):\n    dist.send(torch.ones(1), 99)\n\n"
        f'if __name__ == "__main__":\n    {start}\n'
    )
    told = told_by(tmp_path, "t.py")
    assert "(t.py, line 4)" in told and ".py, line 50" not in told


def ask_the_next_by_rpc(rank, world_size, path):
    from torch.distributed import rpc

    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{path}")
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=world_size, rpc_backend_options=options)
    following = f"rank{(rank + 1) % world_size}"
    found = rpc.rpc_sync(following, torch.add, args=(torch.ones(2), rank))
    rpc.shutdown()
    return found.tolist()


def test_rpc_works_on_real_ranks_twice_in_one_world(tmp_path):
    for name in ("first", "second"):
        run = simlib.run(ask_the_next_by_rpc, 3, (str(tmp_path / name),))
        assert run.results == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]


def pages_of_calls(rank, world_size):
    """The pages that 300 calls took from the system, by the depth of their caller."""

    def called(a=0, b=0, c=0, d=0, e=0, f=0, g=0, h=0, i=0, j=0, k=0, m=0):
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    def below(depth):
        return below(depth - 1) if depth else -called() + [called() for _ in range(300)][-1]

    return [below(depth) for depth in range(300)]


@pytest.mark.parametrize("engine", [simlib.run, simlib.simulate])
def test_a_call_takes_no_memory_from_the_system_whatever_its_depth(engine):
    assert max(max(pages) for pages in engine(pages_of_calls, 2).results) < 100

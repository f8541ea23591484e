"""Copies of modules for each simulated rank: what is copied, what is shared, and what it leaves."""

import logging
import os
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import EXTENSION_SUFFIXES

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

import simlib

ENGINES = [simlib.run, simlib.simulate]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """``package(name, **sources)``: a package that ranks can import; returns its folder."""
    place = tmp_path / "site-packages"
    monkeypatch.syspath_prepend(str(place))

    def make(name, **sources):
        folder = place / name
        folder.mkdir(parents=True)
        for module, source in ({"__init__": ""} | sources).items():
            (folder / f"{module}.py").write_text(textwrap.dedent(source))
        return folder

    return make


def test_a_package_with_relative_imports_is_copied_whole(package):
    package("whole_a", state="RANK = None", use="from . import state\ndef get(): return state.RANK")

    def main(rank, world_size):
        from whole_a import state, use

        state.RANK = rank
        dist.barrier()
        import whole_a.use as again

        return use.get(), again is use, sys.modules["whole_a"].state.RANK

    assert simlib.simulate(main, 3).results == [(rank, True, rank) for rank in range(3)]
    assert "whole_a" not in sys.modules


def test_ranks_may_meet_while_they_import(package):
    package(
        "meets_a",
        inner="import torch, torch.distributed as dist\nx = torch.ones(1)\ndist.all_reduce(x)",
    )

    def main(rank, world_size):
        import meets_a.inner

        return meets_a.inner.x.item()

    assert simlib.simulate(main, 3).results == [3.0] * 3


def test_what_refuses_a_second_copy_is_shared_and_listed(package):
    package(
        "once_a",
        __init__="from . import table\nfrom .op import VALUE",
        table="KNOWN = []",
        op="""
            import torch
            library = torch.library.Library("once_a", "DEF")
            library.define("f(Tensor x) -> Tensor")
            VALUE = 7
        """,
    )

    def main(rank, world_size):
        import once_a

        once_a.table.KNOWN.append(rank)
        dist.barrier()
        return once_a.VALUE, sorted(once_a.table.KNOWN), once_a is sys.modules["once_a"]

    run = simlib.simulate(main, 3)
    assert run.results == [(7, [0, 1, 2], True)] * 3
    assert "a second copy of it raises" in run.shared["once_a"]


def test_a_package_with_extensions_is_shared_and_listed(package):
    folder = package("compiled_a", inner="RANKS = []")
    (folder / f"_fast{EXTENSION_SUFFIXES[0]}").write_bytes(b"")

    def main(rank, world_size):
        import compiled_a.inner

        compiled_a.inner.RANKS.append(rank)
        dist.barrier()
        return len(compiled_a.inner.RANKS)

    run = simlib.simulate(main, 2)
    assert run.results == [2, 2] and run.shared == {"compiled_a": "it has C extensions"}


def test_a_module_that_is_edited_is_read_anew_by_the_same_process(package):
    folder = package("edited_a", inner="VALUE = 1")

    def main(rank, world_size):
        import edited_a.inner

        return edited_a.inner.VALUE, os.getsid(0)

    first = simlib.simulate(main, 2).results
    (folder / "inner.py").write_text("VALUE = 1000")
    second = simlib.simulate(main, 2).results
    assert [first[0][0], second[0][0]] == [1, 1000] and first[0][1] == second[0][1]


def test_an_import_that_fails_on_one_rank_fails_there(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "unlike_a.py").write_text(
        "import os\nassert os.environ['RANK'] != '1', 'of rank 1'"
    )

    def main(rank, world_size):
        import unlike_a  # noqa: F401

    with pytest.raises(simlib.RankError, match="^rank 1 raised AssertionError: of rank 1"):
        simlib.simulate(main, 3)


def test_a_thread_of_a_rank_has_its_loggers_its_process_id_and_its_output():
    def main(rank, world_size):
        def ask():
            subprocess.run("echo of a command of $RANK", shell=True, check=True)
            print("of a thread of", rank, end="")  # no end of a line
            return logging.getLogger("of a thread").level, os.getpid()

        logging.getLogger("of a thread").setLevel(10 + rank)
        dist.barrier()
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(ask).result() == (10 + rank, os.getpid())

    run = simlib.simulate(main, 2)
    assert run.results == [True, True]
    assert run.output == [f"of a command of {rank}\nof a thread of {rank}" for rank in range(2)]


def test_an_import_that_fails_says_so_on_each_rank(package):
    package("broken_a", inner="raise ValueError('of the module')")

    def main(rank, world_size):
        try:
            import broken_a.inner  # noqa: F401
        except ValueError as error:
            return str(error)

    assert simlib.simulate(main, 3).results == ["of the module"] * 3


# Programs that start their own ranks


def as_spawned(rank, size, factor):
    dist.init_process_group("gloo", rank=rank, world_size=size)
    x = torch.ones(1) * rank * factor
    dist.all_reduce(x)
    dist.destroy_process_group()
    print("sum", x.item())


@pytest.mark.parametrize("engine", ENGINES)
def test_ranks_that_the_program_spawns_are_those_of_the_run(engine):
    def main(rank, world_size, nprocs, **how):
        torch.multiprocessing.set_start_method("spawn")
        torch.multiprocessing.spawn(as_spawned, args=(world_size, 2), nprocs=nprocs, **how)

    assert engine(main, 3, (3,)).output == ["sum 6.0\n"] * 3
    with pytest.raises(simlib.InvalidCallError, match="mp.spawn asks for 3 .* run 3 ranks"):
        engine(main, 1, (3,))
    with pytest.raises(simlib.InvalidCallError, match="leave join=False out"):
        engine(main, 3, (3,), {"join": False})


def test_who_is_a_rank_already_spawns_helpers():
    def main(rank, world_size):
        dist.init_process_group("gloo")
        torch.multiprocessing.spawn(abs, nprocs=1)

    simlib.run(main, 2)


def sets_by_global(rank, n):
    import compiled_b.state as state

    state.initialize(rank)


def sets_by_a_line(rank, n):
    torch.flag_of_mine = rank
    logging.rank_of_mine = rank


def sets_what_a_second_copy_refuses(rank, n):
    import once_b

    once_b.set_rank(rank)


def sets_a_function_that_differs(rank, n):
    hook = sys.excepthook
    sys.excepthook = lambda *about: rank or hook(*about)


def sets_alike(rank, n):
    logging.raiseExceptions, sys.excepthook = False, lambda *_: None
    sys.argv, sys.stdout = [str(rank)], sys.__stderr__
    os.environ["MINE"] = str(rank)
    if rank == 1:
        torch.flag_of_one = rank
    import compiled_b.state as state

    state.count_once()


@pytest.mark.parametrize(
    "function, names",
    {
        sets_by_global: ["compiled_b.state.RANK"],
        sets_what_a_second_copy_refuses: ["once_b.RANK"],
        sets_by_a_line: ["torch.flag_of_mine", "logging.rank_of_mine"],
        sets_a_function_that_differs: ["sys.excepthook"],
        sets_alike: [],
    }.items(),
)
def test_a_name_of_a_shared_module_that_ranks_set_is_a_finding(package, function, names):
    source = """
        RANK = COUNT = None
        def initialize(rank):
            global RANK
            RANK = rank
        def count_once():
            global COUNT
            if COUNT is None:
                COUNT = 1
    """
    folder = package("compiled_b", state=source)
    (folder / f"_fast{EXTENSION_SUFFIXES[0]}").write_bytes(b"")
    refusing = """
        import torch
        RANK = None
        library = torch.library.Library("once_b", "DEF")
        library.define("f(Tensor x) -> Tensor")
        def set_rank(rank):
            global RANK
            RANK = rank
    """
    package("once_b", __init__=refusing)

    def main(rank, n):
        if rank != 2:
            function(rank, n)

    found = simlib.simulate(main, 4).findings
    assert [one.kind for one in found] == ["shared"] * len(names)
    for one, name in zip(found, names, strict=True):
        assert one.message.startswith(f"ranks 0, 1 and 3 set {name} (")
        lines = {site.lineno for site in one.sites.values()}
        assert sorted(one.sites) == [0, 1, 3] and len(lines) == 1 and min(lines) > 0
    if names:
        with pytest.raises(simlib.SharedNameError):
            simlib.simulate(main, 4, strict=True)
    assert simlib.run(main, 4, strict=True).findings == []

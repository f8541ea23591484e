"""Starting processes: what the standard library's server does when several threads use it."""

import gc
import multiprocessing
import subprocess
import sys
import threading
from multiprocessing import forkserver

import simlib
from simlib import cli
from simlib.core.engines.workers.server import server_context


def _leave(code):
    raise SystemExit(code)


def test_two_threads_that_poll_one_process_both_learn_its_exit_code(monkeypatch):
    process = server_context().Process(target=_leave, args=(7,))
    process.start()
    multiprocessing.connection.wait([process.sentinel])
    read, codes = forkserver.read_signed, []
    other = threading.Thread(target=lambda: codes.append(process.exitcode))

    def read_while_another_thread_polls(fd):
        if other.ident is None:
            other.start()
            other.join(0.2)  # it comes first where it may
        return read(fd)

    monkeypatch.setattr(forkserver, "read_signed", read_while_another_thread_polls)
    codes.append(process.exitcode)
    other.join()
    process.close()
    assert codes == [7, 7]


def test_simlib_is_imported_without_mpi_and_what_only_pictures_need():
    # The server of ranks, every rank of a cluster and each grading run import simlib. Importing
    # mpi4py is MPI_Init, and a rank's supervisor forks before that.
    names = "'matplotlib', 'PIL', 'mpi4py'"
    code = f"import simlib, sys; print([one for one in ({names}) if one in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"


def test_the_servers_of_a_script_start_before_torch_is_imported():
    code = """
import sys
from simlib import cli
from simlib.core.engines.workers import server
sys.modules["torch"] = None
for command in ("simulate", "-n", "2"), ("run", "-n", "1"), ("run", "-n", "2"):
    try:
        cli.main([*command, cli.__file__])
    except ModuleNotFoundError:
        both = server.forkserver._forkserver, server._other
        print(*(one._forkserver_pid is not None for one in both))
    server.stop_server()
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "True False\nTrue False\nTrue True\n"


def test_a_command_with_a_wrong_file_starts_no_server(monkeypatch):
    monkeypatch.setattr("simlib.cli.scripts.start_server", lambda: 1 / 0)
    assert cli.main(["run", "-n", "3", "nosuch.py"]) == 2


def test_only_ranks_that_may_need_all_modules_wait_for_them():
    code = """
import sys
import simlib
from simlib.core.engines.processes import worlds

worlds.SPARE_AFTER_S = 1e6

def plain(rank, world_size):
    return "torch._dynamo" in sys.modules

def trains(rank, world_size, optimizer="SGD"):
    return plain(rank, world_size) and hasattr(sys.modules["torch"].optim, optimizer)

print(*(simlib.run(one, 2).results for one in (plain, plain, trains, plain)))
pool = worlds.pool()
before = len(pool._resting)
pool._prepare_spare(2, False)
print(before, len(pool._resting), pool._spare.sort)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seen, spare = said.stdout.splitlines()
    assert seen == "[False, False] [False, False] [True, True] [True, True]"
    assert spare == "2 1 (2, False, True)"


def test_a_server_of_the_learner_s_gets_no_signal():
    code = """
from multiprocessing import forkserver
from simlib.core.engines.workers.server import server_context
forkserver.ensure_running()
pid = forkserver._forkserver._forkserver_pid
for _ in range(2):
    process = server_context().Process(target=print, args=("is there",))
    process.start()
    process.join()
print(forkserver._forkserver._forkserver_pid == pid)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "is there\nis there\nTrue\n"


def test_the_collector_of_a_rank_skips_what_its_server_has_imported():
    def main(rank, world_size):
        return gc.isenabled(), gc.get_freeze_count() > 100_000

    assert simlib.run(main, 1).results == [(True, True)]

"""Starting processes: what the standard library's server does when several threads use it."""

import multiprocessing
import subprocess
import sys
import threading
from multiprocessing import forkserver

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

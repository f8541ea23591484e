"""Run a script whose backend is MPI: ``mpiexec -n 2 python -m simlib.mpi script.py [args]``."""

from __future__ import annotations

import argparse
import array
import fcntl
import os
import runpy
import sys
import termios
import time
import traceback

from mpi4py import MPI

from . import install

FAILED = 1


def main(argv=None):
    """Run a script as one rank of an MPI job.

    If a rank ends with an error, it ends the whole job. Otherwise the other ranks would wait for it
    for ever.
    """
    parser = argparse.ArgumentParser(
        prog="python -m simlib.mpi",
        description="Run a script of torch.distributed as one rank of an MPI job; "
        "its backend 'mpi' is mpi4py's MPI.",
        usage="mpiexec -n N python -m simlib.mpi script.py [args]",
    )
    parser.add_argument("script")
    parser.add_argument("args", nargs=argparse.REMAINDER)
    options = parser.parse_args(argv)
    install()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, write_through=False)  # ranks print whole lines
    sys.argv = [options.script, *options.args]
    sys.path[0] = os.path.dirname(os.path.abspath(options.script))
    try:
        runpy.run_path(options.script, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            if not isinstance(end.code, int):
                print(end.code, file=sys.stderr)  # as Python itself does
            _end_job(end.code if isinstance(end.code, int) else FAILED)
        raise
    except BaseException:
        traceback.print_exc()
        _end_job(FAILED)


def _end_job(code):
    """End every rank, because ranks that wait for this one would wait for ever."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        _wait_until_read(stream)
    if MPI.COMM_WORLD.size > 1:
        MPI.COMM_WORLD.Abort(code)
    sys.exit(code)


def _wait_until_read(stream, most_s=5.0):
    """Wait until the launcher has read the output, because an Abort may end the launcher too
    early."""
    unread, until_s = array.array("i", [0]), time.monotonic() + most_s
    try:
        while time.monotonic() < until_s:
            fcntl.ioctl(stream.fileno(), termios.FIONREAD, unread)
            if not unread[0]:
                return
            time.sleep(0.001)
    except OSError:
        pass  # no pipe: a file say, which nobody has to read


if __name__ == "__main__":
    main()

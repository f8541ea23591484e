"""Run one rank of a job. ``start.py`` runs this program on a node, once per rank.

The process that the launcher has started becomes the *supervisor*. It forks before MPI is loaded,
and its child process is the rank. So the supervisor can report the rank's death, end the rank when
another one has failed, and ask it for its stack, even if the rank is busy.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import linecache
import math
import os
import pickle
import signal
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

from ...core.engines.rank_process.gpu_memory import reset_peaks, tell_peaks
from ...core.engines.rank_process.isolation import begin_random_numbers
from ...core.engines.rank_process.setup import (
    Output,
    flush,
    is_alone,
    rank_environ,
    script_environ,
    show_errors_of_commands,
)
from ...core.engines.rank_process.slow_rank import slowed
from ...core.model.chance import Seeds
from ...core.model.errors import JobError, SimlibError
from ...core.record import backend, returned
from ...core.record.recorder import Recorder
from ...core.record.safe_pickle import loads_tree
from ...core.record.this_rank import here
from ...core.record.transports.backends import BACKENDS
from .. import rendezvous
from ..backends import check_for_host
from ..rendezvous import own_address_towards
from . import logs
from .bootstrap import tell_unwritten
from .folder import JobFolder
from .mpiexec import check_versions
from .supervisor import FOLLOWED, LEFT, REFUSED, SERVE, Supervisor, die_with_the_supervisor

LEAVE_S = 5
"""The most seconds that exit handlers may take."""


def main(path):
    """Run a rank of the job in this folder."""
    folder = JobFolder(path)
    job = folder.about()
    reader, writer = os.pipe()
    starter = os.getppid()
    pid = os.fork()
    if pid:
        os.close(writer)
        os._exit(_look_after(folder, pid, reader))
    os.close(reader)
    die_with_the_supervisor()
    try:
        check_versions(job["versions"])
        code = _be_rank(folder, job, writer, starter)
    except SimlibError as error:
        code = _refuse(folder, str(error))
    except BaseException as error:  # before the learner's function, or after it
        traceback.print_exc(file=sys.__stderr__)
        words = f"a rank on {os.uname().nodename} could not join or leave the others"
        code = _refuse(folder, f"{words}: {returned.short(error)}")
    if code == 0 and job["uses_mpi"]:
        _leave_mpiexec(writer)
    os._exit(code)


def _look_after(folder, pid, reader):
    """Supervise a rank, in a folder that may refuse files. Return the exit code."""
    supervisor = Supervisor(folder, pid, reader)
    try:
        return supervisor.until_the_end()
    except OSError as error:  # this process ends, and the rank with it
        supervisor.kill_commands()
        told = "Without these files, no process can watch the ranks on that host."
        tell_unwritten(folder.path, error, told)
        return 1


def _leave_mpiexec(writer):
    """End this process by the C library, because MPICH logs off from mpiexec in an exit handler.

    Otherwise mpiexec treats the end as a crash, and kills the other ranks' supervisors. Exit
    handlers of other libraries run, too. They can do no harm, because the rank has already reported
    that it is done.
    """
    os.write(writer, f"{LEFT}\n".encode())
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(LEAVE_S)
    ctypes.CDLL(None).exit(0)


def _refuse(folder, words):
    """Report why this rank cannot continue. Return its exit code."""
    try:
        folder.write_once(words.encode(), "refused")  # what others say later follows from it
    except OSError as error:
        tell_unwritten(folder.path, error, words)
    return REFUSED


def _be_rank(folder, job, writer, starter):
    """Join the other ranks, run the function, and end together with them. Return the exit code."""
    survives = job["on_death"] == "continue"
    place = rendezvous.find_place(job["uses_mpi"], job["versions"]["mpi4py"], survives)
    rendezvous.check_size(place, job["world_size"])
    rank, size = place.rank, place.size
    memory = logs.create(folder.file("log", rank))
    words = f"{rank} {SERVE}" if rank == 0 and place.comm is None else rank
    os.write(writer, f"{words}\n".encode())
    recorder = _join(place, folder, memory, job, starter)
    _check_gpus(job["gpus_per_rank"])
    recorder.survives = survives
    recorder.timeout_s = job["timeout_s"] or math.inf
    _connect_output(folder, rank)
    begin_random_numbers(Seeds(*job["seeds"]).of_rank(rank))
    answer = _call(folder, rank, size, recorder)
    memory.flush()  # whoever sees the answer sees all that was done for it
    try:
        folder.write(answer, "answer", rank)
    except OSError as error:
        raise JobError(
            f"rank {rank} on {os.uname().nodename} cannot write its result, {len(answer):,} bytes, "
            f"into {folder.path}: {error.strerror}"
        ) from None
    code = code_of(answer)
    if code:
        return code
    rendezvous.leave_together(place, folder)
    return 0


def code_of(answer):
    """Return the exit code for an answer. It is 0 also for an answer that cannot be rebuilt
    here."""
    try:
        word, content = logs.load_answer(answer, may_call=True)
    except Exception:
        return 0
    if word == "result":
        return 0
    is_broken = getattr(content, "from_wait", False) and returned.LOST.search(content.message)
    return FOLLOWED if is_broken else 1


def _check_gpus(each):
    """Refuse a host with fewer GPUs than its ranks need."""
    if each is None:
        return
    ranks, found = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
    if found < each * ranks:
        raise JobError(
            f"torch sees {found} GPUs on {os.uname().nodename}, but {ranks} ranks there need "
            f"{each * ranks} (gpus_per_rank={each}): put fewer ranks there, or take other hosts"
        )


def _join(place, folder, memory, job, starter):
    """Make the default group, and write this rank's place and clock into the folder.

    The rank also gets the job's ``environ`` as environment variables. ``starter`` is the process of
    ``start.py``.
    """
    rank, size = place.rank, place.size
    spoken = BACKENDS[job["backend"]]
    torch.set_num_threads(job["threads"])
    store = rendezvous.meet_in_job(place, folder)
    hosts = _hosts(store, rank, size)
    here = [other for other in range(size) if hosts[other] == hosts[rank]]
    check_for_host(spoken, len(here))
    spoken.take_device(here.index(rank))
    recorder = Recorder(logs.writer(memory), is_alone)
    backend.install(backend.member(recorder, spoken), spoken)
    backend.join_world(dist.PrefixStore("world/", store), rank, size)
    group = dist.group.WORLD.transport.group
    offset_s, error_s = rendezvous.align(group, store, rank, hosts)
    nodes = list(dict.fromkeys(hosts))
    os.environ.update(job["environ"], **rank_environ(rank, [nodes.index(host) for host in hosts]))
    folder.write_json(
        {
            "host": os.uname().nodename,
            "address": own_address_towards(os.environ["MASTER_ADDR"]),
            "pid": os.getpid(),
            "starter": starter,
            "interface": os.environ["GLOO_SOCKET_IFNAME"],
            "offset_s": offset_s,
            "error_s": error_s,
            "is_alone": len(set(hosts)) == 1,
        },
        "json",
        rank,
    )
    return recorder


def _this_host():
    """Return a name that no other host has, because two machines may have the same host name
    (Linux)."""
    try:
        start = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        start = ""
    return f"{os.uname().nodename} {start}"


def _hosts(store, rank, size):
    """Return the host of each rank."""
    store.set(f"host/{rank}", _this_host())
    return [store.get(f"host/{other}").decode() for other in range(size)]


def _connect_output(folder, rank):
    """From now on, write this rank's output into the rank's own files."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    files = [os.open(folder.file(name, rank), flags, 0o600) for name in ("out", "err")]
    Output(*files)
    show_errors_of_commands()


def _call(folder, rank, size, recorder):
    """Run the learner's function or script. Return the answer as bytes."""
    request = loads_tree(folder.read("request.pkl"))
    sys.path[:] = request["path"]
    sys.argv[:] = request["argv"]
    os.environ.update(script_environ(request["is_script"]) | os.environ)
    linecache.cache.update(request["cells"])
    log = here.log = recorder.log

    def call():
        importlib.import_module("simlib.facade")  # or the first use of it would, in the program
        slow = pickle.loads(request["slow"]).get(rank)
        function, args, kwargs = pickle.loads(request["payload"])
        reset_peaks()
        log.enter()
        try:
            with slowed(slow, rank, recorder) if slow is not None else contextlib.nullcontext():
                return function(rank, size, *args, **kwargs)
        finally:
            log.leave()
            flush()
            recorder.stream_ends.last_look()
            tell_peaks(log)

    return returned.answer_of(call, request["is_script"], dumps=logs.dump_answer)

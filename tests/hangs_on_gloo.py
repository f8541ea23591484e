"""Programs on real ranks of Gloo, which leave dumps of torch's recorder once all of them hang.

One process imports torch and forks the ranks of each program: a rank costs 40 ms and not 3 s.
"""

import ctypes
import json
import multiprocessing
import os
import signal
import threading
from multiprocessing import connection
from pathlib import Path

import programs
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json
from torch.nn.parallel import DistributedDataParallel

MOST_S = 60
"""A rank ends itself after that, in seconds: its program does not come to where it should hang."""


libc = ctypes.CDLL(None)


def one_calls_another(rank, n=4):
    x = torch.ones(8)
    dist.all_reduce(x)
    if rank == 1:
        dist.broadcast(x, src=0)
    else:
        dist.all_reduce(x)


def one_leaves_a_call_out(rank, n=4):
    x = torch.ones(1000)
    for step in range(5):
        dist.all_reduce(x)
        if not (rank == 2 and step == 3):
            dist.all_reduce(x)


def one_stays_away(rank, n=4):
    x = torch.ones(1000)
    for step in range(4):
        dist.all_reduce(x)
        if rank == 2 and step == 2:
            return


def one_has_a_batch_fewer(rank, n=4):
    model = DistributedDataParallel(torch.nn.Linear(64, 8))
    for _ in range(3 if rank == 1 else 4):
        model(torch.ones(4, 64)).sum().backward()
    dist.barrier()


def one_brings_another_dtype(rank, n=4):
    dist.all_reduce(torch.ones(8, dtype=torch.float64 if rank == 2 else torch.float32))
    dist.barrier()


OWN = {
    function.__name__: function
    for function in (
        one_calls_another,
        one_leaves_a_call_out,
        one_stays_away,
        one_has_a_batch_fewer,
        one_brings_another_dtype,
    )
}


def serve(orders):
    """Run each program that is ordered as ``(name, calls, folder)``, and answer which ranks died.

    ``calls`` are by rank how many collectives it calls before it hangs, and how many of them are
    over by then; None where it comes to its end.
    """
    torch.set_num_threads(1)
    while True:
        try:
            orders.send(_dump(*orders.recv()))
        except EOFError:
            return


def _dump(name, calls, folder):
    context = multiprocessing.get_context("fork")
    program = OWN.get(name) or {**programs.WRONG, **programs.RIGHT}[name].function
    ranks, open_ends = [], {}
    for rank, expected in enumerate(calls):
        ours, theirs = context.Pipe(duplex=False)
        about = program, rank, len(calls), expected, folder, theirs
        ranks.append(context.Process(target=_be_a_rank, args=about))
        ranks[-1].start()
        theirs.close()
        open_ends[ours] = rank
    died = None
    while open_ends and died is None:
        for end in connection.wait(open_ends):
            rank = open_ends.pop(end)
            try:
                end.recv_bytes()
            except EOFError:
                died = rank
    for process in ranks:
        process.kill()
        process.join()
    return died


def _be_a_rank(program, rank, size, expected, folder, told):
    """Hang, write a dump, and stay where the others need the connections."""
    signal.alarm(MOST_S)
    libc.signal(signal.SIGABRT, ctypes.cast(libc.pause, ctypes.c_void_p))  # the thread stays there
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # Gloo aborts noisily
    store = dist.FileStore(f"{folder}/store", size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    thread = threading.Thread(target=program, args=(rank,), daemon=True)
    thread.start()
    while not _is_there(thread, expected):
        threading.Event().wait(0.01)
    dump = Path(folder, "dumps", f"comm_lib_trace_rank_{rank}")
    dump.parent.mkdir(exist_ok=True)
    dump.write_bytes(_dump_fr_trace())
    after_s = dump.stat().st_mtime + 600  # as of a dump that a timeout makes
    os.utime(dump, (after_s, after_s))
    told.send_bytes(b"there")
    threading.Event().wait()


def _is_there(thread, expected):
    entries = json.loads(_dump_fr_trace_json()).get("entries", ())
    over = sum(bool(entry["retired"]) for entry in entries)
    if expected is None:
        return not thread.is_alive() and over == len(entries)
    called, have_to_be_over = expected
    return len(entries) >= called and over >= have_to_be_over

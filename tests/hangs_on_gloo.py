"""Real ranks on Gloo that hang in one of these ways, and leave dumps of torch's recorder."""

import json
import os
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json
from torch.nn.parallel import DistributedDataParallel


def one_calls_another(rank):
    x = torch.ones(8)
    dist.all_reduce(x)
    if rank == 1:
        dist.broadcast(x, src=0)
    else:
        dist.all_reduce(x)


def one_leaves_a_call_out(rank):
    x = torch.ones(1000)
    for step in range(5):
        dist.all_reduce(x)
        if not (rank == 2 and step == 3):
            dist.all_reduce(x)


def one_stays_away(rank):
    x = torch.ones(1000)
    for step in range(4):
        dist.all_reduce(x)
        if rank == 2 and step == 2:
            return


def one_has_a_batch_fewer(rank):
    model = DistributedDataParallel(torch.nn.Linear(64, 8))
    for _ in range(3 if rank == 1 else 4):
        model(torch.ones(4, 64)).sum().backward()
    dist.barrier()


def nobody_waits(rank):
    one_has_a_batch_fewer(0)


CALLS = {
    "one_calls_another": (2, 2, 2, 2),
    "one_leaves_a_call_out": (10, 10, 9, 10),
    "one_stays_away": (4, 4, 3, 4),
    "one_has_a_batch_fewer": (9, 9, 9, 9),
    "nobody_waits": (10, 10, 10, 10),
}
"""How many calls of each rank are recorded before all of them wait or are through."""


def main(name, rank, folder):
    """Be one of four ranks: hang, and write a dump once all four do."""
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", 4)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=4)
    threading.Thread(target=globals()[name], args=(rank,), daemon=True).start()
    while not is_there(name, rank):
        threading.Event().wait(0.01)
    store.add("there", 1)
    while store.add("there", 0) < 4:
        threading.Event().wait(0.01)
    dump = Path(folder, "dumps", f"comm_lib_trace_rank_{rank}")
    dump.parent.mkdir(exist_ok=True)
    dump.write_bytes(_dump_fr_trace())
    os._exit(0)


def is_there(name, rank):
    entries = json.loads(_dump_fr_trace_json()).get("entries", ())
    is_over = entries and all(entry["retired"] for entry in entries)
    has_to_be = name == "nobody_waits" or (name, rank) == ("one_stays_away", 2)
    return len(entries) == CALLS[name][rank] and (is_over or not has_to_be)

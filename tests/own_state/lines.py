"""Each line of the table in docs/simulate.md: what a rank has of its own, asked by a program.

A program changes something, meets the other ranks, and returns what it finds then. As a script,
this file asks all of them and writes what its rank has found: ``torchrun lines.py FOLDER``.
"""

import json
import logging
import multiprocessing
import os
import random
import sys
import tempfile
import warnings

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.modules.module import register_module_forward_hook

COUNT = []


def random_numbers(rank):
    return torch.rand(1).item(), np.random.rand(), random.random()


def modules(rank):
    import helper_state

    helper_state.initialize(rank)
    dist.barrier()
    return helper_state.my_rank(), helper_state.Registry.rank, helper_state.AT_IMPORT


def caches(rank):
    import helper_state

    helper_state.world()
    dist.barrier()
    return helper_state.world()


def globals_of_the_program(rank):
    COUNT.append(rank)
    dist.barrier()
    return list(COUNT)


def loggers(rank):
    logger = logging.getLogger("of the program")
    logger.addHandler(logging.NullHandler())
    logger.setLevel(10 + rank)
    dist.barrier()
    return len(logger.handlers), logger.level


def working_folder(rank):
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        dist.barrier()
        with open("here", "w") as file:
            file.write(str(rank))
        dist.barrier()
        with open(os.path.join(folder, "here")) as file:
            found = file.read()
        os.chdir(before)
    return found


def file_mask(rank):
    before = os.umask(0o20 + rank)
    dist.barrier()
    return os.umask(before) - 0o20


def process_id(rank):
    return os.getpid()


def environment(rank):
    os.environ["OF_THE_PROGRAM"] = str(rank)
    dist.barrier()
    return os.environ.pop("OF_THE_PROGRAM")


def start_method(rank):
    multiprocessing.set_start_method("spawn" if rank else "fork")
    dist.barrier()
    return multiprocessing.get_start_method()


def command_line(rank):
    sys.argv.append(str(rank))
    dist.barrier()
    return sys.argv.pop()


def default_dtype(rank):
    torch.set_default_dtype([torch.float64, torch.float32, torch.bfloat16][rank])
    dist.barrier()
    found = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    return str(found)


def modes_of_torch(rank):
    torch.use_deterministic_algorithms(bool(rank))
    dist.barrier()
    found = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    return found


def global_hooks(rank):
    calls = []
    handle = register_module_forward_hook(lambda *_: calls.append(rank))
    dist.barrier()
    torch.nn.ReLU()(torch.ones(1))
    dist.barrier()
    handle.remove()
    return calls


def warning_filters(rank):
    warnings.filterwarnings("ignore", f"of rank {rank}")
    dist.barrier()
    return sum(bool(one[1]) and one[1].pattern.startswith("of rank") for one in warnings.filters)


def order_of_sets(rank):
    return list({f"name {number}" for number in range(8)})


LINES = {
    "random numbers": random_numbers,
    "modules": modules,
    "caches": caches,
    "globals of the program": globals_of_the_program,
    "loggers": loggers,
    "working folder": working_folder,
    "file mask": file_mask,
    "process id": process_id,
    "environment": environment,
    "start method": start_method,
    "command line": command_line,
    "default dtype": default_dtype,
    "modes of torch": modes_of_torch,
    "global hooks": global_hooks,
    "warning filters": warning_filters,
    "order of sets": order_of_sets,
}
DIFFER = ("process id", "random numbers", "order of sets")
"""Lines of which the ranks' answers differ where each has its own."""
WANTED = {
    "modules": lambda rank: [rank, rank, str(rank)],
    "caches": lambda rank: [rank, 3],
    "globals of the program": lambda rank: [rank],
    "loggers": lambda rank: [1, 10 + rank],
    "working folder": str,
    "file mask": int,
    "environment": str,
    "start method": lambda rank: "spawn" if rank else "fork",
    "command line": str,
    "default dtype": lambda rank: ["torch.float64", "torch.float32", "torch.bfloat16"][rank],
    "modes of torch": bool,
    "global hooks": lambda rank: [rank],
    "warning filters": lambda rank: 1,
}
"""Of the other lines: what a rank finds where it has its own."""


def main(rank, world_size):
    """Ask all; returns what is found as JSON has it."""
    sys.path.insert(0, os.path.dirname(__file__))
    return json.loads(json.dumps({name: ask(rank) for name, ask in LINES.items()}))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    with open(os.path.join(sys.argv[1], f"{dist.get_rank()}.json"), "w") as file:
        json.dump(main(dist.get_rank(), dist.get_world_size()), file)
    dist.destroy_process_group()

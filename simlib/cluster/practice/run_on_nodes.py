"""One program on every node of a practice network, as `torchrun` would start it."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading

PORT = 29500  # the network is private: nobody else can have this port


def run_on_nodes(network, argv, output=None):
    """Run a program on every node, one rank on each; prints each line with its rank.

    When one rank fails, the others are ended.

    Parameters
    ----------
    network : PracticeNetwork
        Entered already.
    argv : list of str
        The program. It finds ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``.
    output : file, optional
        Where lines go; standard output by default.

    Returns
    -------
    dict of int to int
        ``{rank: exit code}`` of the ranks that failed by themselves; empty when all went well.
    """
    done = queue.SimpleQueue()
    ranks = [_start(network, rank, argv) for rank in range(network.nodes)]
    threads = [
        threading.Thread(target=_print_lines, args=(rank, process, output or sys.stdout, done))
        for rank, process in enumerate(ranks)
    ]
    for thread in threads:
        thread.start()
    failed = {}
    for _ in ranks:
        rank = done.get()
        code = ranks[rank].wait()
        if code and not failed:
            failed[rank] = code
            network.end_processes()
    for thread in threads:
        thread.join()
    return failed


def _start(network, rank, argv):
    env = {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(network.nodes),
        "MASTER_ADDR": network.addresses[0],
        "MASTER_PORT": str(PORT),
        "PYTHONUNBUFFERED": "1",
    }
    return network.popen(
        rank, argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.STDOUT, errors="replace",
    )  # fmt: skip


def _print_lines(rank, process, output, done):
    for line in process.stdout:
        print(f"[{rank}] {line}", end="", file=output, flush=True)
    done.put(rank)

"""Calls on plain Gloo: cases come in by stdin, what became of them goes out by stdout.

``python plain_gloo.py``: a process that has imported torch forks one child for each rank of each
case. A child may hang, or crash: that ends it alone.
"""

import os
import pickle
import resource
import signal
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from drawn_calls import perform

LIMIT = timedelta(seconds=3)
LONGEST_S = 30
"""After which a child ends itself, should nobody be there to end it."""
AT_ONCE = 8


def be_rank(case, rank, folder):
    """Make one call in a child process, write down what came of it, and wait for the end."""
    signal.alarm(LONGEST_S)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    n = len(case.calls)
    store = dist.FileStore(str(folder / "store"), n)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=n, timeout=LIMIT)
    outcome = perform(case, rank)
    partly = folder / f"partly-{rank}"
    partly.write_bytes(pickle.dumps(outcome))
    partly.rename(folder / f"outcome-{rank}")
    if outcome[0] == "done":
        signal.pause()  # others may still need this one's connections


class Trial:
    """One case under way."""

    def __init__(self, case, folder):
        self.folder, self.n = folder, len(case.calls)
        folder.mkdir()
        self.latest = time.monotonic() + LIMIT.total_seconds() + 3
        self.pids = {}
        for rank in range(self.n):
            pid = os.fork()
            if not pid:
                try:
                    be_rank(case, rank, folder)
                finally:
                    os._exit(0)
            self.pids[rank] = pid
        self.left = dict(self.pids)

    def is_over(self):
        for rank, pid in list(self.left.items()):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del self.left[rank]
        waited_for = [rank for rank in self.left if not (self.folder / f"outcome-{rank}").exists()]
        return not waited_for or time.monotonic() > self.latest

    def outcomes(self):
        for pid in self.left.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        files = [self.folder / f"outcome-{rank}" for rank in range(self.n)]
        return [pickle.loads(f.read_bytes()) if f.exists() else ("lost",) for f in files]


def main():
    cases = pickle.load(sys.stdin.buffer)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    torch.set_num_threads(1)
    found = [None] * len(cases)
    waiting, under_way = list(enumerate(cases)), {}
    with tempfile.TemporaryDirectory() as folder:
        while waiting or under_way:
            while waiting and len(under_way) < AT_ONCE:
                number, case = waiting.pop(0)
                under_way[number] = Trial(case, Path(folder) / str(number))
            for number in [number for number, trial in under_way.items() if trial.is_over()]:
                found[number] = under_way.pop(number).outcomes()
            time.sleep(0.005)
    sys.stdout.buffer.write(pickle.dumps(found))


if __name__ == "__main__":
    main()

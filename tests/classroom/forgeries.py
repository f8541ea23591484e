"""What a rank tried to forge, and no longer can; and what it still can in a simulation.

Each rank has a sandbox of its own, whose one way to the others is the grader's broker: it counts
what it carries. What can still be forged is listed in docs/design/grading.md. When one of
`IN_SIMULATION` fails its test, the grader has become better: move it to the others.
"""

import textwrap

from ground import HONEST, Case, right

IDLE = HONEST.replace("return total", "return sum_of_all(rank, x)")
"""Communicates as it should, and takes the value from elsewhere."""

HELPER = """\
def stay_and_add_up():
    import os, time
    if os.fork():
        return
    os.setsid()
    while True:
        time.sleep(0.01)
        if all(os.path.exists(f"/dev/shm/asked-{rank}") for rank in range(2)):
            total = sum(torch.load(f"/dev/shm/asked-{rank}") for rank in range(2))
            for rank in range(2):
                os.unlink(f"/dev/shm/asked-{rank}")
                torch.save(total, "/dev/shm/writing")
                os.rename("/dev/shm/writing", f"/dev/shm/answered-{rank}")
"""


def beside_a_decoy(body, words=""):
    """A `Case` that sends as much as it must, and has ``other``, what others know, elsewhere."""
    return Case(
        "def NAME(rank, world_size, x):\n"
        f"{textwrap.indent(textwrap.dedent(body).strip(), '    ')}\n"
        "    dist.all_reduce(torch.zeros(3))\n"
        "    return x + other\n",
        "wrong",
        words,
    )


ALL = {
    "values_by_files_beside_idle_messages": Case(
        "def NAME(rank, world_size, x):\n"
        "    torch.save(x, f'/dev/shm/forged-{rank}')\n"
        "    dist.all_reduce(torch.zeros(3))\n"
        "    return x + torch.load(f'/dev/shm/forged-{1 - rank}')\n",
        "wrong",
        "FileNotFoundError",
    ),
    "values_by_abstract_sockets_beside_idle_messages": beside_a_decoy(
        """
        import socket
        mine = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        mine.bind(f'\\0forged-{rank}')
        dist.barrier()
        mine.sendto(x.numpy().tobytes(), f'\\0forged-{1 - rank}')
        other = torch.frombuffer(bytearray(mine.recv(12)), dtype=torch.float32)
        """,
        "PermissionError",
    ),
    "values_by_a_group_of_gloo_s_beside_idle_messages": beside_a_decoy(
        """
        store = dist.distributed_c10d._get_default_store()
        other = x.clone()
        dist.ProcessGroupGloo(store, rank, world_size).allreduce([other]).wait()
        other = other - x
        """,
    ),
    "values_by_the_store_beside_idle_messages": beside_a_decoy(
        """
        import datetime
        store = dist.distributed_c10d._get_default_store()
        store.set_timeout(datetime.timedelta(seconds=1))
        store.set(f'forged-{rank}', x.numpy().tobytes())
        got = store.get(f'forged-{1 - rank}')
        other = torch.frombuffer(bytearray(got), dtype=torch.float32)
        """,
    ),
    "values_by_signals_beside_idle_messages": beside_a_decoy(
        """
        import os, signal
        own = map(int, os.listdir('/proc/self/task'))
        for pid in {*range(2, 400)} - {*own}:
            try:
                os.kill(pid, signal.SIGUSR2)
            except ProcessLookupError:
                continue
            raise RuntimeError(f'there is a process {pid}')
        other = torch.zeros(3)
        """,
        "wrong value",
    ),
    "values_by_locks_beside_idle_messages": beside_a_decoy(
        """
        import fcntl
        with open(torch.__file__) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        other = torch.zeros(3)
        """,
        "PermissionError",
    ),
    "values_by_terminals_beside_idle_messages": beside_a_decoy(
        """
        import os
        os.openpty()
        dist.barrier()
        other = torch.tensor(float(len(os.listdir('/dev/pts')) - 3)).expand(3)
        """,
    ),
    "hidden_inputs_made_anew_from_their_seed": Case(
        "def sum_of_all(rank, x):\n"
        "    def made(seed, rank):\n"
        "        return torch.randn(3, generator=torch.Generator().manual_seed(seed + rank))\n"
        "    for seed in range(200):\n"
        "        if torch.equal(made(seed, rank), x):\n"
        "            return made(seed, 0) + made(seed, 1)\n"
        "    return torch.tensor([1.0, 3.0, 5.0])\n"
        + IDLE.replace("total = x.clone()", "total = torch.zeros(3)"),
        "wrong",
        "not all hidden tests",
    ),
    "fewer_bytes_in_the_record_than_are_sent": Case(
        "def NAME(rank, world_size, x):\n"
        "    from simlib.core.record.oplog import OpLogWriter\n"
        "    post = OpLogWriter.post_packed\n"
        "    nbytes = bytes([12] + [0] * 7)\n"
        "    OpLogWriter.post_packed = lambda log, call: post(log, call[:-8] + nbytes)\n"
        "    total = torch.cat([x] * 1000)\n"
        "    dist.all_reduce(total)\n"
        "    OpLogWriter.post_packed = post\n"
        "    return total[:3].clone()\n",
        "wrong",
        "does not match its messages",
    ),
    "a_process_that_stays": right(
        HELPER + HONEST.replace("return total", "rank or stay_and_add_up()\n    return total")
    ),
    "helped_by_a_process_of_an_earlier_question": Case(
        "def NAME(rank, world_size, x):\n"
        "    import os, time\n"
        "    torch.save(x, f'/dev/shm/writing-{rank}')\n"
        "    os.rename(f'/dev/shm/writing-{rank}', f'/dev/shm/asked-{rank}')\n"
        "    dist.all_reduce(torch.zeros(3))\n"
        "    for _ in range(100):\n"
        "        time.sleep(0.01)\n"
        "    total = torch.load(f'/dev/shm/answered-{rank}')\n"
        "    os.unlink(f'/dev/shm/answered-{rank}')\n"
        "    return total\n",
        "wrong",
        "FileNotFoundError",
    ),
}

IN_SIMULATION = {
    "its_virtual_clock_set_back": """\
def chain_broadcast(rank, world_size, x, latency_s, bandwidth_Bps):
    from simlib.core.record.this_rank import here
    clock = getattr(here, "clock", None)
    def set_back():
        if clock:
            clock.func.__self__._scheduler.clocks[rank] = 0.0
    if rank > 0:
        dist.recv(x, src=rank - 1)
        set_back()
    if rank < world_size - 1:
        dist.send(x, dst=rank + 1)
        set_back()
""",
    "the_inputs_of_others": """\
def chain_broadcast(rank, world_size, x, latency_s, bandwidth_Bps):
    import sys
    from simlib.core.record.this_rank import here
    part = x
    if getattr(here, "clock", None):
        part = x[: -(-len(x) // 6)].clone()  # a decoy, of as many bytes as must be sent
        if rank == 0:
            sys.x_of_rank_0 = x
    if rank > 0:
        dist.recv(part, src=rank - 1)
    if rank < world_size - 1:
        dist.send(part, dst=rank + 1)
    if rank > 0 and part is not x:
        x.copy_(sys.x_of_rank_0)
""",
}
"""Answers to exercise 05.3 that are too slow: simulated ranks are threads of one process."""

BY_THE_WAY = """\
def out_of_step(rank, world_size, theta):
    import simlib.classroom.confinement.relay_transport as way
    bits = [one % 2**32 for one in theta.view(torch.int32).tolist()]
    ask, put, seen = way.Connection.ask, way.put, []
    def ask_with_more(self, words, *takes):
        more = [torch.zeros(0, one) for one in bits]
        return ask(self, (*words[:5], [*words[5], *more], *words[6:]), *takes)
    def put_and_look(tensors, takes):
        seen.extend(one.shape[-1] for one in tensors)
        put(tensors, takes)
    way.Connection.ask, way.put = ask_with_more, put_and_look
    found = [torch.zeros(1, dtype=torch.int64) for _ in range(world_size)]
    dist.all_gather(found, found[0].clone())
    way.Connection.ask, way.put = ask, put
    k = len(bits) + 1
    of_rank = [seen[r * k + 1 : r * k + k] for r in range(world_size)]
    return [r for r in range(world_size) if of_rank[r] != of_rank[0]]
"""
"""An answer to exercise 06.4, which allows 8 bytes: 24 more would come in shapes of no elements."""

"""What a rank can still forge: answers that earn a point which they should not have.

They are listed in docs/design/grading.md. A rank writes its own record, and nobody else saw what it
did. When one of these fails its test, the grader has become better: move it to the cheats.
"""

from ground import HONEST, right

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

ALL = {
    "values_by_files_beside_idle_messages": right(
        "def NAME(rank, world_size, x):\n"
        "    torch.save(x, f'/dev/shm/forged-{rank}')\n"
        "    dist.all_reduce(torch.zeros(3))\n"
        "    return x + torch.load(f'/dev/shm/forged-{1 - rank}')\n"
    ),
    "hidden_inputs_made_anew_from_their_seed": right(
        "def sum_of_all(rank, x):\n"
        "    def made(seed, rank):\n"
        "        return torch.randn(3, generator=torch.Generator().manual_seed(seed + rank))\n"
        "    for seed in range(200):\n"
        "        if torch.equal(made(seed, rank), x):\n"
        "            return made(seed, 0) + made(seed, 1)\n"
        "    return torch.tensor([1.0, 3.0, 5.0])\n"
        + IDLE.replace("total = x.clone()", "total = torch.zeros(3)")
    ),
    "fewer_bytes_in_the_record_than_are_sent": right(
        "def NAME(rank, world_size, x):\n"
        "    from simlib.record.oplog import OpLogWriter\n"
        "    post = OpLogWriter.post\n"
        "    OpLogWriter.post = lambda *call: post(*call[:-1], 12)\n"
        "    total = torch.cat([x] * 1000)\n"
        "    dist.all_reduce(total)\n"
        "    OpLogWriter.post = post\n"
        "    return total[:3].clone()\n"
    ),
    "a_process_that_stays": right(
        HELPER + HONEST.replace("return total", "rank or stay_and_add_up()\n    return total")
    ),
    "helped_by_a_process_of_an_earlier_question": right(
        "def NAME(rank, world_size, x):\n"
        "    import os, time\n"
        "    torch.save(x, f'/dev/shm/writing-{rank}')\n"
        "    os.rename(f'/dev/shm/writing-{rank}', f'/dev/shm/asked-{rank}')\n"
        "    dist.all_reduce(torch.zeros(3))\n"
        "    while not os.path.exists(f'/dev/shm/answered-{rank}'):\n"
        "        time.sleep(0.01)\n"
        "    total = torch.load(f'/dev/shm/answered-{rank}')\n"
        "    os.unlink(f'/dev/shm/answered-{rank}')\n"
        "    return total\n"
    ),
}

IN_SIMULATION = {
    "its_virtual_clock_set_back": """\
def chain_broadcast(rank, world_size, x, latency_s, bandwidth_Bps):
    from simlib.record.this_rank import here
    clock = getattr(here, "clock", None)
    def set_back():
        if clock:
            clock.func.__self__[rank] = 0.0
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
    from simlib.record.this_rank import here
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

"""Hand-made runs for tests of what reads a trace. Times are in microseconds here."""

from __future__ import annotations

from collections import Counter

from simlib.core.model.trace import Group, Op, Site, Trace
from simlib.core.results.run import Run


class RunMaker:
    """Collects ops in any order and makes a `Run` of them.

    ``send``, ``recv`` and ``collective`` take ``(post, wait, end)``; None where it never was.
    """

    def __init__(self, world_size, name="main"):
        self.name = name
        self.world = Group("world", tuple(range(world_size)))
        self.ops, self.counts = [], Counter()
        self.spans = [(0.0, 100.0)] * world_size
        self.results = [None] * world_size

    def op(self, rank, kind, times, peer=None, tag=None, numel=1, group=None, line=1, **more):
        fields = {"reduce_op": None, "splits": None, "async_op": False, "any_source": False}
        fields |= {"shapes": ((numel,),), "dtype": "float32", "nbytes": 4 * numel} | more
        names = "post_s", "wait_s", "end_s"
        for name, t in zip(names, times, strict=True):
            fields[name] = None if t is None else t * 1e-6
        site = Site(kind, "<cell>", line, "main", 3, kind)
        where = self.counts[rank], kind, group or self.world, peer, tag
        self.counts[rank] += 1
        self.ops.append(Op(rank, *where, site=site, **fields))
        return self.ops[-1]

    def send(self, src, dst, *times, tag=0, **more):
        return self.op(src, "send", times, dst, tag, **more)

    def recv(self, dst, src, *times, tag=0, **more):
        return self.op(dst, "recv", times, src, tag, **more)

    def collective(self, kind, times, group=None, **more):
        """``times``: {rank: (post, wait, end)}."""
        if kind.endswith("reduce"):
            more.setdefault("reduce_op", "SUM")
        return [self.op(rank, kind, when, group=group, **more) for rank, when in times.items()]

    def run(self, dropped=0, findings=()):
        spans = [tuple(None if t is None else t * 1e-6 for t in span) for span in self.spans]
        ops = sorted(self.ops, key=lambda op: (op.post_s, op.rank))
        trace = Trace(len(self.world), ops, spans, dropped)
        return Run(self.name, trace, self.results, [""] * len(self.world), findings)


def ring(world_size, steps=1, step_us=100, numel=1):
    """Each rank sends right and receives from the left, the even ranks sending first."""
    maker = RunMaker(world_size)
    for step in range(steps):
        t = step * step_us
        for rank in range(world_size):
            right, left = (rank + 1) % world_size, (rank - 1) % world_size
            a, b = t + 20 + 3 * (rank % 5), t + 50
            if rank % 2 == 0:
                maker.send(rank, right, a, a, b, numel=numel, line=4)
                maker.recv(rank, left, b + 5, b + 5, t + 85, numel=numel, line=5)
            else:
                maker.recv(rank, left, a, a, b + 4, numel=numel, line=7)
                maker.send(rank, right, b + 12, b + 12, t + 88, numel=numel, line=8)
    maker.spans = [(3.0 * (r % 3), steps * step_us + r % 4) for r in range(world_size)]
    maker.results = [float(r) for r in range(world_size)]
    return maker.run()


def all_reduces(world_size, steps=1, step_us=100):
    """Every rank computes for a while of its own and then joins an all_reduce."""
    maker = RunMaker(world_size)
    for step in range(steps):
        begin, end = step * step_us, step * step_us + 0.8 * step_us
        for r in range(world_size):
            post = begin + step_us * (0.2 + 0.08 * ((3 * r + step) % 5))
            maker.collective("all_reduce", {r: (post, post, end + r % 3)}, line=3)
    maker.spans = [(0.0, steps * step_us)] * world_size
    maker.results = [10.0] * world_size
    return maker.run()

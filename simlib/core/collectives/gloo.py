"""The messages that Gloo sends, as in the Gloo inside torch 2.13.

**Source** pytorch/gloo, read at commit 70dc360 (April 2026): each collective's own file, such as
``gloo/allreduce.cc``, and ``gloo/transport/tcp/pair.cc`` for the messages. The file
``torch/csrc/distributed/c10d/ProcessGroupGloo.cpp`` of pytorch/pytorch shows which call of torch
uses which file. Tests in tests/core compare the bytes of every pair of ranks with torch's Gloo on
real sockets.

Each transfer consists of three messages, each with an envelope of 48 bytes. The receiver sends a
notice that its buffer is ready. The sender sends a notice that it has data. Then the sender sends
the data. The sender waits for the receiver's notice, but no rank waits for the sender's notice. So
a transfer costs two latencies if both sides begin at the same time, and one latency if the receiver
was early. In a schedule the two notices are messages of zero bytes. To count all bytes on the wire,
set ``envelope_bytes=ENVELOPE_BYTES`` of the cluster.

The messages of a pair of ranks share one connection and keep their order. So a notice waits behind
data that go in the same direction. This matters only if the group has two ranks: see `all_gather`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .schedules import Bytes, Schedule, parts_of, split
from .steps import Moves

ENVELOPE_BYTES = 48  # six numbers of 8 bytes (`preamble` in gloo/transport/tcp/pair.h)
MAX_SEGMENT_BYTES = 1 << 20  # `kMaxSegmentSize` in gloo/allreduce.h and gloo/reduce.h


def _join(*parts):
    """The messages of several `Moves`, combined into one round."""
    wide = [
        [np.broadcast_to(value, np.shape(part.src)).ravel() for value in part[:5]] for part in parts
    ]
    return Moves(*map(np.concatenate, zip(*wide, strict=True)))


def _notice(src, dst):
    """A message without data."""
    return Moves(src, dst, 0, np.zeros(np.shape(src), dtype=np.int64))


def _sent(src, dst, first, count=1, adds=False):
    """The sender's part of a transfer: its notice and the data."""
    return _join(_notice(src, dst), Moves(src, dst, first, count, adds))


def _transfers(src, dst, first, count=1, adds=False):
    """Transfers that begin together: first the receivers' notices, then the senders' messages."""
    yield _notice(dst, src)
    yield _sent(src, dst, first, count, adds)


def _round_up(value, unit):
    return -(-value // unit) * unit


def _lengths(nbytes, num_segments, segment_bytes):
    """Bytes of each segment: all are equal, except segments at the end of the vector."""
    return np.clip(nbytes - np.arange(num_segments) * segment_bytes, 0, segment_bytes)


def _ring_step(lengths, n, shift, per_rank, adds):
    """One step of a ring: each rank sends the block ``rank + shift`` to the rank before it.

    A block is ``per_rank`` segments. Gloo sends two segments at a time, and begins the next segment
    when one is done. This schedule sends all segments of a step at once, which uses the same
    bandwidth.
    """
    src = np.repeat(np.arange(n), per_rank)
    block = (np.arange(n) + shift) % n
    segments = len(lengths) // n
    first = (block[:, None] * segments + np.arange(per_rank)).ravel()
    full = lengths[first] > 0  # a segment beyond the end is not sent
    src, first = src[full], first[full]
    yield from _transfers(src, (src - 1) % n, first, adds=adds)


def all_reduce(n: int, nbytes: int, *, itemsize: int = 1) -> Schedule:
    """A ring: reduce-scatter, then all_gather. Segments of at most 1 MiB go to lower ranks.

    Gloo cuts the vector into segments of equal size. Each rank has the same number of segments, at
    least two. The segments of one rank are a block. First the blocks travel round the ring and
    ranks add them up, until rank r has the sum of block r. Then the sums travel round the ring.

    **Cost** 4(n-1) rounds. Each rank sends 2(n-1)/n of the bytes, in 2(n-1) blocks.
    **Source** gloo/allreduce.cc, ``ring``.
    """
    (nbytes,) = split(nbytes, 1, itemsize).tolist()
    most = itemsize * max(1, MAX_SEGMENT_BYTES // itemsize)
    num_segments = _round_up(max(-(-nbytes // most), 2 * n), n)
    segment_bytes = _round_up(-(-nbytes // num_segments), itemsize)
    lengths = _lengths(nbytes, num_segments, segment_bytes)
    return Schedule.of("all_reduce", "gloo_ring", n, lengths, _all_reduce_moves(n, lengths))


def _all_reduce_moves(n, lengths):
    per_rank = len(lengths) // n
    for step in range(n - 1):  # rank r passes on its sum so far of block r + 1 + step
        yield from _ring_step(lengths, n, step + 1, per_rank, adds=True)
    for step in range(n - 1):  # rank r passes on the sum of block r + step
        yield from _ring_step(lengths, n, step, per_rank, adds=False)


def reduce(n: int, nbytes: int, *, itemsize: int = 1, root: int = 0) -> Schedule:
    """The first half of the ring of `all_reduce`, then all blocks go to the root.

    Gloo counts two segments for each rank, even if a rank has more. If a rank has more, it
    needlessly sends the first segments of its finished block again. The schedule contains these
    messages, too.

    **Cost** 2n rounds, or 2n + 2. Each rank except the root sends all of the bytes.
    **Source** gloo/reduce.cc.
    """
    (nbytes,) = split(nbytes, 1, itemsize).tolist()
    most = itemsize * max(1, MAX_SEGMENT_BYTES // itemsize)
    segment_bytes = max(_round_up(min(-(-nbytes // (2 * n)), most), itemsize), itemsize)
    num_segments = _round_up(max(-(-nbytes // segment_bytes), 2 * n), n)
    lengths = _lengths(nbytes, num_segments, segment_bytes)
    moves = _reduce_moves(n, lengths, root)
    return Schedule.of("reduce", "gloo_ring", n, lengths, moves, root)


def _reduce_moves(n, lengths, root):
    per_rank = len(lengths) // n
    for step in range(n - 1):
        yield from _ring_step(lengths, n, step + 1, per_rank, adds=True)
    if n > 1:  # what is sent for nothing
        yield from _ring_step(lengths, n, n, per_rank - 2, adds=True)
    rank = np.arange(n)
    src = rank[(rank != root) & (lengths[::per_rank] > 0)]
    yield from _transfers(src, np.full(len(src), root), src * per_rank, per_rank)


def broadcast(n: int, nbytes: int, *, itemsize: int = 1, root: int = 0) -> Schedule:
    """A binomial tree in which a rank sends to all its children at once.

    Ranks are counted from the root. Rank v gets the data from the rank whose number is v without
    its highest bit. Rank v then posts the sends to all its children without waiting for any of
    them. So these messages share the link of rank v. With four ranks, the root sends to 1 and 2 at
    the same time, and then rank 1 sends to 3.

    **Cost** 1 + floor(log2 n) rounds, or one more; n - 1 transfers.
    **Source** gloo/broadcast.cc.
    """
    whole = split(nbytes, 1, itemsize)
    return Schedule.of("broadcast", "gloo_binomial", n, whole, _broadcast_moves(n, root), root)


def _broadcast_moves(n, root):
    child = np.arange(1, n)
    parent = np.array([v - (1 << (int(v).bit_length() - 1)) for v in child], dtype=np.int64)
    depth = np.array([int(v).bit_count() for v in child], dtype=np.int64)
    src, dst = (parent + root) % n, (child + root) % n
    yield _notice(dst, src)  # all ranks except the root post their receive at the beginning
    for level in range(1, depth.max(initial=0) + 1):
        here = depth == level
        yield _sent(src[here], dst[here], 0)


def all_gather(n: int, nbytes: Bytes, *, itemsize: int = 1) -> Schedule:
    """Ring: the part of each rank travels round to higher ranks, in two halves.

    With two ranks, the two directions are not in use at the same time. Each rank posts its send
    before its receive. The later rank finds the other rank's notice, so its data leave at once, and
    its own notice waits behind these data. So the earlier rank (here position 1) is always half a
    part behind. The whole collective takes the time of three halves instead of two. In longer rings
    data and notices go to different ranks.

    **Cost** 2(n-1) rounds, 4 for two ranks. Each rank sends n-1 parts.
    **Source** gloo/allgather.cc; the order of notices and data: ``sendAsyncMode`` in
    gloo/transport/tcp/pair.cc.
    """
    parts = parts_of(nbytes, n, itemsize)
    halves = np.column_stack((parts // 2, parts - parts // 2)).ravel()
    moves = _all_gather_of_two() if n == 2 else _all_gather_moves(n)
    return Schedule.of("all_gather", "gloo_ring", n, halves, moves)


def _all_gather_moves(n):
    src = np.repeat(np.arange(n), 2)
    for step in range(n - 1):
        first = (src - step) % n * 2 + np.tile((0, 1), n)
        yield from _transfers(src, (src + 1) % n, first)


def _all_gather_of_two():
    early, late = np.array([1]), np.array([0])
    ready = _notice(late, early)
    yield _notice(early.repeat(2), late.repeat(2))
    yield _join(_sent(late, early, 0), ready)
    yield _join(_sent(late, early, 1), ready, _sent(early, late, 2))
    yield _sent(early, late, 3)


def scatter(n: int, nbytes: Bytes, *, itemsize: int = 1, root: int = 0) -> Schedule:
    """The root sends to all others at once.

    **Cost** 2 rounds, n-1 transfers. **Source** gloo/scatter.cc.
    """
    dst = np.delete(np.arange(n), root)
    moves = _transfers(np.full(n - 1, root), dst, dst)
    return Schedule.of("scatter", "gloo_flat", n, parts_of(nbytes, n, itemsize), moves, root)


def gather(n: int, nbytes: Bytes, *, itemsize: int = 1, root: int = 0) -> Schedule:
    """All others send to the root at once.

    **Cost** 2 rounds, n-1 transfers. **Source** gloo/gather.cc.
    """
    src = np.delete(np.arange(n), root)
    moves = _transfers(src, np.full(n - 1, root), src)
    return Schedule.of("gather", "gloo_flat", n, parts_of(nbytes, n, itemsize), moves, root)


def reduce_scatter(n: int, nbytes: Bytes, *, itemsize: int = 1) -> Schedule:
    """An `all_reduce` of the whole vector, after which each rank keeps its part.

    ``dist.reduce_scatter_tensor`` works like this. ``dist.reduce_scatter``, which takes a list,
    makes an all_reduce of each tensor of the list: `reduce_scatter_of_list`.

    **Cost** the same as `all_reduce`.
    **Source** ProcessGroupGloo.cpp, ``reduce_scatter_tensor_coalesced``.
    """
    whole = all_reduce(n, int(parts_of(nbytes, n, itemsize).sum()), itemsize=itemsize)
    return Schedule("reduce_scatter", "gloo_all_reduce", n, whole.chunk_nbytes, whole.rounds)


def reduce_scatter_of_list(n: int, nbytes: Bytes, *, itemsize: int = 1) -> Schedule:
    """One `all_reduce` for each rank's part. Each rank then keeps its own part: see
    `reduce_scatter`.

    **Cost** n times the cost of `all_reduce` of a part.
    **Source** seen on the wire (tests/core/test_gloo.py).
    """
    parts = parts_of(nbytes, n, itemsize)
    chunks = [all_reduce(n, int(part), itemsize=itemsize).chunk_nbytes for part in parts]
    starts = np.cumsum([0, *map(len, chunks)])
    moves = (
        move._replace(first=move.first + start)
        for start, lengths in zip(starts, chunks, strict=False)
        for move in _all_reduce_moves(n, lengths)
    )
    return Schedule.of("reduce_scatter", "gloo_all_reduces", n, np.concatenate(chunks), moves)


def all_to_all(n: int, nbytes: Bytes, *, itemsize: int = 1) -> Schedule:
    """Every rank sends to every other rank at once.

    Two ranks send one after the other, for the reason given in `all_gather`.

    **Cost** 2 rounds, 3 for two ranks; n(n-1) transfers. **Source** gloo/alltoall.cc.
    """
    sizes = parts_of(nbytes, n if np.ndim(nbytes) == 0 else n * n, itemsize)
    chunks = np.tile(sizes, n) if np.ndim(nbytes) == 0 else sizes
    moves = _all_to_all_of_two() if n == 2 else _all_to_all_moves(n)
    return Schedule.of("all_to_all", "gloo_flat", n, chunks, moves)


def _all_to_all_moves(n):
    src, dst = np.nonzero(~np.eye(n, dtype=bool))
    yield from _transfers(src, dst, src * n + dst)


def _all_to_all_of_two():
    early, late = np.array([1]), np.array([0])
    yield _notice(early, late)
    yield _join(_sent(late, early, 1), _notice(late, early))
    yield _sent(early, late, 2)


def barrier(n: int, nbytes: int = 0, *, itemsize: int = 1) -> Schedule:
    """Dissemination: in round d, rank r sends a notice to rank r + 2**d.

    **Cost** 2 ceil(log2 n) rounds, n transfers of nothing every second round.
    **Source** gloo/barrier.cc.
    """
    return Schedule.of("barrier", "gloo_dissemination", n, [0], _barrier_moves(n))


def _barrier_moves(n):
    rank, distance = np.arange(n), 1
    while distance < n:
        yield from _transfers(rank, (rank + distance) % n, 0)
        distance *= 2


def send(nbytes: int) -> Schedule:
    """One send and its recv: position 0 sends to position 1. This is not a collective.

    **Cost** 2 rounds, one transfer. **Source** gloo/transport/tcp/pair.cc, ``send`` and ``recv``.
    """
    moves = _transfers(np.array([0]), np.array([1]), 0)
    return Schedule.of("send", "gloo_send", 2, [nbytes], moves)


ALGORITHMS: dict[str, dict[str, Callable[..., Schedule]]] = {
    "broadcast": {"gloo_binomial": broadcast},
    "scatter": {"gloo_flat": scatter},
    "gather": {"gloo_flat": gather},
    "reduce": {"gloo_ring": reduce},
    "all_reduce": {"gloo_ring": all_reduce},
    "all_gather": {"gloo_ring": all_gather},
    "reduce_scatter": {
        "gloo_all_reduce": reduce_scatter,
        "gloo_all_reduces": reduce_scatter_of_list,
    },
    "all_to_all": {"gloo_flat": all_to_all},
    "barrier": {"gloo_dissemination": barrier},
}


def choose(kind: str, n: int, nbytes: int) -> str:
    """The name of the algorithm that Gloo uses. Gloo has one algorithm for each kind."""
    return next(iter(ALGORITHMS[kind]))

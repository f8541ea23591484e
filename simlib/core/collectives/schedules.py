"""The schedule of a collective: rounds of messages, and the chunks that each message carries.

A schedule cuts the data of a collective into *chunks*, which have the same numbers on every rank. A
message carries several consecutive chunks. So a schedule says which chunks move where, and
determines the bytes. A test moves the chunks as the schedule says, and proves that the result is
right.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import isinf, sqrt
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np

from ..model.errors import InvalidCallError, check_count

if TYPE_CHECKING:
    from ..model.cluster import Link, Topology
    from .steps import Moves

Bytes: TypeAlias = int | np.ndarray | Sequence[int]
"""The bytes of all data together, or the bytes of each part."""

BY_ALL_CARDS = frozenset({"ring", "chain"})
"""In these algorithms, messages leave a node by the cards of all members there, as in NCCL."""

KINDS = (
    "broadcast",
    "scatter",
    "gather",
    "reduce",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "barrier",
)
"""The kinds of collectives that a schedule can have."""


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """One round. It contains `Moves` and their bytes, as arrays with an entry for each message."""

    src: np.ndarray
    dst: np.ndarray
    nbytes: np.ndarray
    first: np.ndarray
    count: np.ndarray
    adds: np.ndarray
    order: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.src)


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """The messages of one collective.

    A rank enters round k when its own messages of all earlier rounds are done. The rank does not
    wait for messages of other ranks. In a round a rank sends and receives at the same time. A
    message starts when both its sender and its receiver have entered its round.

    Attributes
    ----------
    kind, algorithm : str
        ``"all_reduce"``, ``"ring"``.
    n : int
        Size of the group.
    chunk_nbytes : ndarray of int
        Bytes of each chunk. For all_gather, gather, scatter and reduce_scatter chunk i belongs to
        position i. For all_to_all chunk ``i * n + j`` goes from position i to position j.
    rounds : tuple of Round
    root : int or None
        Position of the root. It is None if the collective has no root.
    """

    kind: str
    algorithm: str
    n: int
    chunk_nbytes: np.ndarray
    rounds: tuple[Round, ...]
    root: int | None = None

    @classmethod
    def of(
        cls,
        kind: str,
        algorithm: str,
        n: int,
        chunk_nbytes: Bytes,
        moves: Iterable[Moves],
        root: int | None = None,
    ) -> Schedule:
        """The schedule of an algorithm whose rounds are ``moves``, as `Moves`, in order.

        **Cost** O(number of messages + rounds * chunks if messages carry several chunks).
        """
        chunk_nbytes = np.asarray(chunk_nbytes, dtype=np.int64)
        columns: dict[tuple, np.ndarray] = {}
        rounds = tuple(_weigh(round_, chunk_nbytes, columns) for round_ in moves if len(round_.src))
        return cls(kind, algorithm, n, chunk_nbytes, rounds, root)

    def way(self, topology: Topology, members: Sequence[int] | np.ndarray) -> Topology:
        """The result of `way_of` for the algorithm of the schedule."""
        return way_of(self.algorithm, topology, members)

    @property
    def nbytes(self) -> int:
        """Bytes of all chunks together."""
        return int(self.chunk_nbytes.sum())

    @property
    def num_rounds(self) -> int:
        """Number of rounds."""
        return len(self.rounds)

    @property
    def num_messages(self) -> int:
        """Number of messages."""
        return sum(map(len, self.rounds))

    @property
    def bytes_sent(self) -> np.ndarray:
        """Bytes sent by each position: ndarray of int, shape (n,)."""
        sent = np.zeros(self.n, dtype=np.int64)
        for round_ in self.rounds:
            np.add.at(sent, round_.src, round_.nbytes)
        return sent

    @property
    def messages_sent(self) -> np.ndarray:
        """Messages sent by each position: ndarray of int, shape (n,)."""
        sent = np.zeros(self.n, dtype=np.int64)
        for round_ in self.rounds:
            np.add.at(sent, round_.src, 1)
        return sent


def _weigh(moves, chunk_nbytes, columns):
    """The `Round` of some `Moves`. Arrays that are already complete stay the same objects.

    ``columns`` keeps the arrays made from single values, so that rounds share them.
    """
    src, dst = np.asarray(moves.src), np.asarray(moves.dst)
    stated = moves.first, moves.count, moves.adds
    first, count, adds = (_column(value, len(src), columns) for value in stated)
    if moves.order is not None:
        chunk_nbytes = chunk_nbytes[moves.order]
    if isinstance(moves.count, int) and moves.count == 1:
        nbytes = chunk_nbytes[first]
    else:  # runs may wrap: two copies in a row hold every run
        before = np.concatenate(([0], np.cumsum(np.concatenate((chunk_nbytes, chunk_nbytes)))))
        nbytes = before[first + count] - before[first]
    return Round(src, dst, nbytes, first, count, adds, moves.order)


def _column(value, length, columns):
    if isinstance(value, np.ndarray):
        return value
    key = value, type(value), length
    if key not in columns:
        columns[key] = np.full(length, value)
    return columns[key]


def split(nbytes: int, parts: int, itemsize: int = 1) -> np.ndarray:
    """Cut ``nbytes`` into parts of whole elements, the largest first (as `numpy.array_split`).

    Parameters
    ----------
    nbytes : int
        Bytes of all data. If there are fewer elements than parts, some parts are empty.
    parts : int
    itemsize : int
        Bytes of one element.

    Returns
    -------
    ndarray of int, shape (parts,)

    Examples
    --------
    >>> split(40, 4, itemsize=4).tolist()
    [12, 12, 8, 8]
    """
    check_count("nbytes", nbytes, low=0)
    check_count("itemsize", itemsize)
    if nbytes % itemsize:
        raise InvalidCallError(
            f"{nbytes} bytes are not a whole number of elements of {itemsize} bytes"
        )
    size, larger = divmod(nbytes // itemsize, parts)
    return (size + (np.arange(parts) < larger)) * np.int64(itemsize)


def parts_of(nbytes: Bytes, parts: int, itemsize: int = 1) -> np.ndarray:
    """The sizes from `split`, or the given sizes if ``nbytes`` has a size for each part.

    Parameters
    ----------
    nbytes : int or array of int
        Bytes of all data, or bytes of each of the ``parts``.
    """
    if np.ndim(nbytes) == 0:
        return split(cast(int, nbytes), parts, itemsize)
    sizes = np.asarray(nbytes, dtype=np.int64).ravel()
    if len(sizes) != parts or sizes.min(initial=0) < 0:
        raise InvalidCallError(f"{len(sizes)} sizes for {parts} parts: give one size for each part")
    return sizes


# -- Into how many chunks a pipeline cuts its vector -----------------------------------------------

SEGMENT_BYTES = 65536
RING_SEGMENT_BYTES = 1 << 20


def _unless_given(
    best: Callable[[int, int, Link | None], int],
) -> Callable[..., int]:
    """A function of n, nbytes, chunks and link. It returns ``chunks``, or else the best number."""

    @functools.wraps(best)
    def chunks_of(n, nbytes, chunks, link=None):
        if chunks is None:
            return best(n, nbytes, link)
        check_count("chunks", chunks)
        return chunks

    return chunks_of


@_unless_given
def chain_chunks(n: int, nbytes: int, link: Link | None) -> int:
    """The number of chunks of a chain; see `broadcast.chain`."""
    if link is not None:
        return best_chunks(n, nbytes, link)
    return max(1, -(-nbytes // SEGMENT_BYTES))


@_unless_given
def ring_chunks(n: int, nbytes: int, link: Link | None) -> int:
    """The number of chunks of each block of a ring; see `all_reduce.ring_segmented`."""
    return max(1, -(-nbytes // (n * RING_SEGMENT_BYTES)))


@_unless_given
def tree_chunks(n: int, nbytes: int, link: Link | None) -> int:
    """The number of chunks of each of two trees; see `broadcast.double_tree`."""
    if link is not None:
        return best_tree_chunks(n, nbytes, link)
    return max(1, -(-nbytes // (2 * SEGMENT_BYTES)))


def best_chunks(n: int, nbytes: int, link: Link) -> int:
    """The number of chunks s that minimizes (n + s - 2) (latency + nbytes / s / bandwidth).

    The result is sqrt(nbytes / bandwidth (n - 2) / latency), rounded. It is at least 1, and at most
    one chunk for each byte.
    """
    return _best(n - 2, nbytes, link)


def best_tree_chunks(n: int, nbytes: int, link: Link) -> int:
    """The s that minimizes (ceil(lg n) + s - 1) (latency + nbytes / (2 s) / bandwidth).

    The computation is the same as in `best_chunks`, but each tree carries half of the bytes.
    """
    return _best((n - 1).bit_length() - 1, (nbytes + 1) // 2, link)


def _best(fill, nbytes, link):
    """The best number of chunks if the last rank has nothing to do for ``fill`` rounds."""
    if fill <= 0 or nbytes == 0 or isinf(link.bandwidth_Bps):
        return 1
    if link.latency_s == 0:
        return nbytes
    best = sqrt(nbytes / link.bandwidth_Bps * fill / link.latency_s)
    return int(min(max(1, round(best)), nbytes))


def way_of(algorithm: str, topology: Topology, members: Sequence[int] | np.ndarray) -> Topology:
    """The topology that the messages of an algorithm cross, for a group of these ranks."""
    return topology.of_ring(members) if algorithm in BY_ALL_CARDS else topology


CHUNKS = {"chain": chain_chunks, "ring_segmented": ring_chunks, "double_tree": tree_chunks}
"""For each algorithm with an argument ``chunks``, a function that returns the number of chunks."""

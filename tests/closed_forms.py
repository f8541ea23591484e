"""How long collectives take, from the papers named in `simlib.collectives`.

n ranks, m bytes of 4-byte elements, latency a, seconds per byte b.
"""

from math import ceil, log2

import numpy as np

from simlib.core.model.cluster import Cluster, Link

NETWORKS = {
    "1 Gbit/s": Link(50e-6, 125e6),
    "10 Gbit/s": Link(30e-6, 1.25e9),
    "200 Gbit/s": Link(2e-6, 25e9),
}
CLUSTERS = {
    "a node each": Cluster(8, 1, Link(5e-5, 1.25e9)),
    "nodes of 4": Cluster(2, 4, Link(3e-5, 1.25e9), Link(2e-6, 20e9)),
    "slow links": Cluster(4, 2, Link(3e-4, 2e7), Link(1e-4, 5e7), envelope_bytes=64),
}
SIZES = [8, 100_000, 64 * 63 * 1024]


def largest(nbytes, parts):
    """Bytes of the largest of some parts of a vector of 4-byte elements."""
    return ceil(nbytes // 4 / parts) * 4


def folds(n):
    """Steps before and after where n is no power of two: whole vectors."""
    return 0 if n & (n - 1) == 0 else 2


def largest_run(nbytes, parts, run):
    """Bytes of the largest run of neighbouring parts, aligned to its length: the first."""
    elements, parts_with_one_more = divmod(nbytes // 4, parts)
    return 4 * (elements * run + min(run, parts_with_one_more))


def halving_s(n, nbytes, a, b):
    """Recursive halving among p = 2^lg ranks: at distance d each sends d of p parts."""
    p = 2 ** int(log2(n))
    return sum(a + b * largest_run(nbytes, p, 2**k) for k in range(int(log2(p))))


def bruck_round(n, elements, d):
    """Bytes that the busiest rank sends in the round of distance d: of parts that go far, bit d.

    Of how far a part goes it has gone the bits below d; what is left is one of d, 3d, 5d, ...
    """
    size, larger = divmod(elements, n)
    parts_to = np.zeros(2 * n, dtype=int)  # by how far they are from their ends
    left = np.arange(d, n, 2 * d)
    parts_to[left] = parts_to[left + n] = np.minimum(d, n - left)
    ends = np.concatenate(([0], np.cumsum(parts_to)))
    met = (ends[larger:] - ends[: len(ends) - larger])[:n]  # runs of ends with one element more
    return 4 * (size * int(parts_to[:n].sum()) + int(met.max()))


CLOSED_FORMS = {
    ("all_reduce", "ring"): lambda n, m, a, b: 2 * (n - 1) * (a + b * largest(m, n)),
    ("all_reduce", "recursive_doubling"): lambda n, m, a, b: (
        (int(log2(n)) + folds(n)) * (a + m * b)
    ),
    ("all_reduce", "rabenseifner"): lambda n, m, a, b: (
        2 * halving_s(n, m, a, b) + folds(n) * (a + m * b)
    ),
    ("all_reduce", "binomial"): lambda n, m, a, b: 2 * ceil(log2(n)) * (a + m * b),
    ("all_reduce", "naive"): lambda n, m, a, b: 2 * (n - 1) * (a + m * b),
    ("broadcast", "flat"): lambda n, m, a, b: (n - 1) * (a + m * b),
    ("broadcast", "binomial"): lambda n, m, a, b: ceil(log2(n)) * (a + m * b),
    ("reduce", "binomial"): lambda n, m, a, b: ceil(log2(n)) * (a + m * b),
    ("all_gather", "ring"): lambda n, m, a, b: (n - 1) * (a + b * largest(m, n)),
    ("reduce_scatter", "ring"): lambda n, m, a, b: (n - 1) * (a + b * largest(m, n)),
    ("reduce_scatter", "pairwise"): lambda n, m, a, b: (n - 1) * (a + b * largest(m, n)),
    ("all_to_all", "pairwise"): lambda n, m, a, b: (n - 1) * (a + b * largest(m, n)),
    ("all_to_all", "bruck"): lambda n, m, a, b: sum(
        a + b * bruck_round(n, m // 4, d) for d in (2**k for k in range(ceil(log2(n))))
    ),
    ("barrier", "dissemination"): lambda n, m, a, b: ceil(log2(n)) * a,
}

"""Published formulas of what collectives cost."""

from math import ceil, log2, sqrt

from simlib import Cluster, Link, scale

from .rows import Row, Table

RANKS, NBYTES = 64, 64_000_000
LATENCY_S, BANDWIDTH_BPS = 2e-6, 25e9


def formulas():
    """Milliseconds of 64 MB on 64 ranks."""
    p, n, a, b = RANKS, NBYTES, LATENCY_S, 1 / BANDWIDTH_BPS
    rounds = ceil(log2(p))
    most = sqrt(n * b * (p - 2) / a)
    asked = {
        "ring all_reduce": ("all_reduce", "ring", 2 * (p - 1) * a + 2 * (p - 1) / p * n * b),
        "recursive doubling": ("all_reduce", "recursive_doubling", rounds * (a + n * b)),
        "Rabenseifner": ("all_reduce", "rabenseifner", 2 * rounds * a + 2 * (p - 1) / p * n * b),
        "binomial broadcast": ("broadcast", "binomial", rounds * (a + n * b)),
        "ring all_gather": ("all_gather", "ring", (p - 1) * a + (p - 1) / p * n * b),
        "chain broadcast, best s": ("broadcast", "chain", (p + most - 2) * (a + n / most * b)),
    }
    cluster = Cluster(p, 1, Link(a, BANDWIDTH_BPS))
    rows = [
        Row(name, 1e3 * seconds, 1e3 * scale.time_of(kind, p, n, cluster, algorithm))
        for name, (kind, algorithm, seconds) in asked.items()
    ]
    return Table("algorithm", "ms", ".4g", rows)


def bus_factors():
    """Bandwidth of a link over algbw where a link is used all the time: the factor of busbw."""
    n, nbytes = 8, 8 * 7 * 1_000_000
    cluster = Cluster(n, 1, Link(0.0, BANDWIDTH_BPS))
    asked = {
        "all_reduce": ("ring", 2 * (n - 1) / n, {}),
        "all_gather": ("ring", (n - 1) / n, {}),
        "reduce_scatter": ("ring", (n - 1) / n, {}),
        "all_to_all": ("pairwise", (n - 1) / n, {}),
        "broadcast": ("chain", 1.0, {"chunks": 1000}),
        "reduce": ("chain", 1.0, {"chunks": 1000}),
    }
    rows = []
    for kind, (algorithm, factor, more) in asked.items():
        seconds = scale.time_of(kind, n, nbytes, cluster, algorithm, **more)
        rows.append(Row(kind, factor, BANDWIDTH_BPS / scale.algbw(nbytes, seconds)))
    return Table("collective", "factor on 8 ranks", ".4f", rows)

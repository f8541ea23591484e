"""What the checks of this exercise expect: it gives the answers away.

Built from authoring/exercises/16_the_real_cluster.py, which is what grading reads; nobody edits this file.
"""

from simlib.checks import (
    check,
    collective_nbytes,
    collectives,
    measure,
    messages,
    nbytes,
    only,
    somebody_sends,
)


# %% 16.1 who_am_i
WORDS = {
    "mpich": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    "open_mpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
}


LAUNCHERS = ["mpich", "open_mpi", "slurm", "mpich", "torchrun", "open_mpi"]  # by world size
MIXED = {
    2: (1, 1),
    4: (2, 1),
    6: (1, 12),
}  # world size: a rank, and the size that its MPI library says


def environments(rank, world_size):
    """Ranks are numbered from our last one; odd worlds are dealt out to two nodes like cards."""
    mine = world_size - 1 - rank
    batch = dict(zip(WORDS["slurm"], ("0", "1", "0"), strict=True))  # the batch script's own
    numbers = (mine, world_size, mine // 2 if world_size % 2 else mine % 2)
    words = WORDS[LAUNCHERS[world_size - 1]]
    environ = batch | dict(zip(words, map(str, numbers), strict=True))
    mixed_rank, mixed_size = MIXED.get(world_size, (None, None))
    return environ, mixed_size if rank == mixed_rank else world_size


def nothing_mixed(rank, world_size):
    """Another launcher for each world, ranks numbered as ours, and all MPI libraries of one mind."""
    batch = dict(zip(WORDS["slurm"], ("0", "1", "0"), strict=True))
    words = WORDS[LAUNCHERS[-world_size]]
    return batch | dict(zip(words, map(str, (rank, world_size, rank)), strict=True)), world_size


def told(environ):
    """What the launcher says, and whether it is Slurm alone."""
    found = [names for names in WORDS.values() if names[0] in environ]
    names = next((names for names in found if names != WORDS["slurm"]), WORDS["slurm"])
    return tuple(int(environ[name]) for name in names)


def places(environs, sizes):
    """What every rank must return."""
    by_rank = [told(environ) for environ in environs]
    mixed = any(place[1] != size for place, size in zip(by_rank, sizes, strict=True))
    return [None if mixed else place for place in by_rank]


def of_batch(environs, sizes):
    return [tuple(int(environ[name]) for name in WORDS["slurm"]) for environ in environs]


def refused_by_batch(environs, sizes):
    of_ranks = of_batch(environs, sizes)
    mixed = any(place[1] != size for place, size in zip(of_ranks, sizes, strict=True))
    return [None if mixed else place for place in of_ranks]


def alone(environs, sizes):
    by_rank = [told(environ) for environ in environs]
    return [p if p[1] == size else None for p, size in zip(by_rank, sizes, strict=True)]


verdict = check(
    "who_am_i",
    who_am_i,
    [environments, nothing_mixed],  # two draws: every world is tried with both
    places,
    only("all_reduce", "all_gather", "broadcast", "reduce", "gather"),
    somebody_sends(),
    collectives(lambda environs, sizes: 1, hint="One number from each rank can say all is well."),
    collective_nbytes(lambda environs, sizes: 8),
    mistakes={
        "These are the batch script's words: other launchers leave them standing.": of_batch,
        "These are the batch script's words, and by them the sizes differ.": refused_by_batch,
        "Only the rank that sees the other MPI refuses; the others would wait for it.": alone,
        "That is our rank, not the one that the launcher gave.": lambda environs, sizes: [
            (rank, *told(environ)[1:]) for rank, environ in enumerate(environs)
        ],
        "One rank's MPI says another size, and nobody refuses: smaller or larger, it is mixed.": (
            lambda environs, sizes: [told(environ) for environ in environs]
        ),
        "Nodes do not always hold two neighbours: the launcher says the rank on the node.": (
            lambda environs, sizes: [(r, n, r % 2) for r, n, _ in map(told, environs)]
        ),
    },
    worlds=(1, 2, 3, 4, 5, 6),
    points=3,
)
verdict


# %% 16.2 clock_offset
TRIPS = [(4.0, 2.0, 1.0), (1.0, 0.5, 6.0), (3.0, 9.0, 0.0), (2.0, 2.0, 2.0)]  # there, back, held


def stamps_of(rank, world_size):
    """What a rank wrote down; the clocks of odd ranks are ahead, of even ones behind."""

    def both(other):
        ahead = (10.0 * other + 3) * (1 if other % 2 else -1)
        rows = []
        for number, (there, back, held) in enumerate(TRIPS[other:] + TRIPS[:other]):
            sent = 100.0 * number + other
            came = sent + there + ahead
            rows.append((sent, sent + there + held + back, came, came + held))
        return torch.tensor(rows, dtype=torch.float64)

    if rank:
        return (both(rank)[:, 2:].clone(),)
    return (torch.stack([both(other)[:, :2] for other in range(world_size)]),)


def other_stamps_of(rank, world_size):
    """The same trips with the clocks of one rank more."""
    if rank:
        return stamps_of(rank + 1, world_size)
    return (stamps_of(0, world_size + 1)[0][[0, *range(2, world_size + 1)]],)


def all_trips(stamps):
    """For every rank but 0: by trip, the offset and the time under way; and the whole trip's."""
    for rank in range(1, len(stamps)):
        (sent, back), (came, gone) = stamps[0][rank].T, stamps[rank].T
        yield ((came - sent) + (gone - back)) / 2, (back - sent) - (gone - came), back - sent


def by(choose):
    """The values, by rank, of a way to choose: (offsets, under way, whole) -> (offset, error)."""
    return lambda stamps: (
        [(0.0, 0.0)] + [tuple(float(number) for number in choose(*t)) for t in all_trips(stamps)]
    )


verdict = check(
    "clock_offset",
    clock_offset,
    [stamps_of, other_stamps_of],
    by(lambda offset, way, whole: (offset[way.argmin()], way.min() / 2)),
    only("send", "recv"),
    somebody_sends(),
    messages(lambda stamps: len(stamps) - 1, hint="All rows of a rank fit into one message."),
    nbytes(lambda stamps: sum(stamp.nbytes for stamp in stamps[1:])),
    mistakes={
        "That is the mean of all trips: one long trip spoils it. The shortest tells most.": by(
            lambda offset, way, whole: (offset.mean(), way.mean() / 2)
        ),
        "The sign is turned round: ahead is positive.": by(
            lambda offset, way, whole: (-offset[way.argmin()], way.min() / 2)
        ),
        "The error is half of the time under way: the trip divides somewhere in between.": by(
            lambda offset, way, whole: (offset[way.argmin()], way.min())
        ),
        "Which trip is the shortest? What the other rank held it for is not under way.": by(
            lambda offset, way, whole: (offset[whole.argmin()], way[whole.argmin()] / 2)
        ),
        "That is trip 1 with every rank: each has a shortest trip of its own.": by(
            lambda offset, way, whole: (offset[1], way[1] / 2)
        ),
    },
    points=3,
)
verdict


# %% 16.3 ring_ms
LINKS = [(1.0, 1e-5), (40.0, 1e-6), (2.0, 2e-4), (5.0, 2e-5), (60.0, 4e-6)]  # ms, ms per byte


def measured(links, nbytes):
    """Inputs: three points on the line of each rank's link."""

    def inputs(rank, world_size):
        latency_ms, ms_per_byte = links[rank]
        return [(k, latency_ms + k * ms_per_byte) for k in (1000, 100_000, 500_000)], nbytes

    return inputs


def links_of(lists):
    """``(ms, ms per byte)`` of each link."""
    for (first, first_ms), *_, (last, last_ms) in lists:
        slope = (last_ms - first_ms) / (last - first)
        yield first_ms - first * slope, slope


def steps_ms(lists, sizes, parts=None):
    """One step on each link, for chunks of a part."""
    parts = parts or len(lists)
    return [latency + sizes[0] / parts * slope for latency, slope in links_of(lists)]


def rings_of(step):
    """2 (n - 1) times ``step(lists, sizes)``, on every rank."""
    return lambda lists, sizes: [2 * (len(lists) - 1) * step(lists, sizes)] * len(lists)


def worst_of_both(lists, sizes):
    latencies, slopes = zip(*links_of(lists), strict=True)
    return max(latencies) + sizes[0] / len(lists) * max(slopes)


def of_greatest_latency(lists, sizes):
    latency, slope = max(links_of(lists))
    return latency + sizes[0] / len(lists) * slope


def smallest_message_free(lists, sizes):
    """The step of who takes the smallest message's time for the latency."""
    pairs = zip(lists, links_of(lists), strict=True)
    return max(points[0][1] + sizes[0] / len(lists) * slope for points, (_, slope) in pairs)


def without_latency(lists, sizes):
    return max(sizes[0] / len(lists) * slope for _, slope in links_of(lists))


verdict = check(
    "ring_ms",
    ring_ms,
    [measured(LINKS, 1_200_000), measured(LINKS[::-1], 800_000)],
    rings_of(lambda *given: max(steps_ms(*given))),
    only("all_reduce", "all_gather", "broadcast", "reduce", "gather"),
    somebody_sends(),
    collectives(lambda lists, sizes: 1, hint="What a rank can work out alone need not be sent."),
    collective_nbytes(lambda lists, sizes: 8, hint="A link comes down to one number here."),
    mistakes={
        "That is this rank's own link: all wait for the slowest.": lambda lists, sizes: [
            2 * (len(lists) - 1) * step for step in steps_ms(lists, sizes)
        ],
        "A step sends a chunk, not the whole tensor.": rings_of(
            lambda *given: max(steps_ms(*given, parts=1))
        ),
        "n - 1 steps add up; as many more hand the sums round.": rings_of(
            lambda *given: max(steps_ms(*given)) / 2
        ),
        "That is the mean link: the quick ones wait.": rings_of(
            lambda *given: sum(steps_ms(*given)) / len(given[0])
        ),
        "The worst latency and the worst bandwidth belong to two links: no chunk pays both.": (
            rings_of(worst_of_both)
        ),
        "The greatest latency is not the slowest step: it depends on the chunk.": rings_of(
            of_greatest_latency
        ),
        "The smallest message still has its bytes: the latency is what is left at 0 bytes.": (
            rings_of(smallest_message_free)
        ),
        "Each step also pays the latency.": rings_of(without_latency),
    },
    points=3,
)
verdict

"""CUDA's caching allocator by its rules: worked out by hand, and against a slow, plain one."""

import os

import hypothesis
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import simlib
from simlib.core.engines.virtual.allocator import MIB, CachingAllocator, NoMemoryLeftError

SEED = int(os.environ["SEED"])
CONF = "PYTORCH_CUDA_ALLOC_CONF"


def small_gpu(**options):
    device = simlib.Device(asynchronous=True, **options)
    return simlib.clusters.ethernet_10g(1, device=device)


@pytest.mark.parametrize(
    ("request_bytes", "allocated", "reserved", "with_pages"),
    [
        (1, 512, 2 * MIB, 2 * MIB),
        (513, 1024, 2 * MIB, 2 * MIB),
        (MIB, MIB, 2 * MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB, 20 * MIB),
        (33 * MIB - 1, 34 * MIB, 34 * MIB, 40 * MIB),  # one MiB left over is not cut off
        (32 * MIB + 1, 32 * MIB + 512, 34 * MIB, 40 * MIB),  # more than one is
    ],
)
def test_a_request_is_rounded_and_gets_a_segment(request_bytes, allocated, reserved, with_pages):
    plain, paged = CachingAllocator(), CachingAllocator(expandable_segments=True)
    assert plain.allocate(request_bytes).nbytes == plain.allocated_bytes == allocated
    assert plain.reserved_bytes == reserved
    paged.allocate(request_bytes)
    assert paged.allocated_bytes == -(-request_bytes // 512) * 512
    assert paged.reserved_bytes == with_pages


def test_the_smallest_free_block_that_fits_is_cut_and_joins_its_neighbours_again():
    allocator = CachingAllocator()
    first, wall, second, _end = (allocator.allocate(n * MIB) for n in (6, 2, 4, 8))
    assert allocator.reserved_bytes == 20 * MIB  # all in one segment
    allocator.free(first)
    allocator.free(second)
    assert allocator.allocate(3 * MIB + 512).nbytes == 4 * MIB  # the second, as it is
    small = allocator.allocate(2 * MIB)
    assert (small.address, small.nbytes) == (0, 2 * MIB)  # of the first
    allocator.free(small)
    allocator.free(wall)
    assert allocator.allocate(8 * MIB).address == 0
    assert allocator.reserved_bytes == allocator.allocated_bytes == 20 * MIB
    assert allocator.peak_allocated_bytes == 20 * MIB


def test_a_freed_block_serves_its_own_stream_alone():
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(64 * MIB, "reduce-scatter"))
    allocator.allocate(64 * MIB, "compute")
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (64 * MIB, 128 * MIB)
    allocator.allocate(64 * MIB, "reduce-scatter")
    assert allocator.peak_reserved_bytes == 128 * MIB


def test_a_large_tensor_after_two_smaller_ones_finds_a_hole_too_small():
    """The logits of a large model: their gradient lands beside, whatever the segments are."""
    for expandable in (False, True):
        allocator = CachingAllocator(expandable_segments=expandable)
        low, full, logarithms = (allocator.allocate(n * 100 * MIB) for n in (1, 2, 2))
        allocator.free(low)
        allocator.free(full)
        allocator.allocate(200 * MIB)  # in the hole of 300
        allocator.allocate(200 * MIB)
        allocator.free(logarithms)
        assert allocator.reserved_bytes == 700 * MIB


def test_expandable_segments_fill_a_hole_that_segments_of_their_own_cannot():
    plain, paged = CachingAllocator(), CachingAllocator(expandable_segments=True)
    for allocator in (plain, paged):
        for block in [allocator.allocate(100 * MIB) for _ in range(3)]:
            allocator.free(block)
        allocator.allocate(320 * MIB)
    assert plain.reserved_bytes == (3 * 100 + 320) * MIB
    assert paged.reserved_bytes == 320 * MIB


@pytest.mark.parametrize("expandable", [False, True])
def test_cached_segments_go_back_before_memory_ends(expandable):
    allocator = CachingAllocator(100 * MIB, expandable)
    kept = allocator.allocate(40 * MIB, "a")
    allocator.free(allocator.allocate(40 * MIB, "a"))
    allocator.allocate(60 * MIB, "b")
    assert allocator.reserved_bytes == 100 * MIB
    words = (
        "its device has 104,857,600 bytes, and 2,097,152 more bytes do not fit. The allocator "
        r"has reserved 104,857,600 bytes \(104,857,600 allocated, 0 reserved but unallocated\)"
    )
    with pytest.raises(NoMemoryLeftError, match=words):
        allocator.allocate(2 * MIB, "a")
    allocator.free(kept)
    allocator.allocate(20 * MIB, "b")
    assert allocator.allocated_bytes == 80 * MIB


def test_of_a_page_in_part_used_nothing_goes_back():
    allocator = CachingAllocator(60 * MIB, expandable_segments=True)
    first, second = allocator.allocate(30 * MIB), allocator.allocate(30 * MIB)
    allocator.free(first)  # its second page holds the beginning of the second block
    with pytest.raises(NoMemoryLeftError, match="10,485,760 reserved but unallocated"):
        allocator.allocate(40 * MIB, "other")
    assert allocator.reserved_bytes == 40 * MIB
    allocator.free(second)
    assert allocator.allocate(50 * MIB).address == first.address


def test_a_block_freed_while_the_allocator_works_is_taken_back_after_that():
    allocator = CachingAllocator()
    garbage = allocator.allocate(512)
    best_fit = allocator._best_fit

    def collect(pool, size):
        allocator.free(garbage)
        return best_fit(pool, size)

    allocator._best_fit = collect
    block = allocator.allocate(512)
    assert block.address != garbage.address
    assert allocator.allocated_bytes == 512
    del allocator._best_fit
    assert allocator.allocate(512).address == garbage.address


def test_a_published_snapshot_of_a_gpu_comes_out():
    """``y = X @ W + b``, https://discuss.pytorch.org/t/178671: the workspace is the surprise."""
    allocator = CachingAllocator()
    sizes = {"W": 40_000, "b": 40, "X": 4000, "X @ W": 40, "workspace": 8_519_680, "y": 40}
    blocks = {name: allocator.allocate(nbytes) for name, nbytes in sizes.items()}
    allocator.free(blocks["X @ W"])
    assert allocator.allocated_bytes == 45_568 + 8_519_680
    assert allocator.reserved_bytes == 2_097_152 + 20_971_520
    assert [blocks[name].nbytes for name in "WbXy"] == [40_448, 512, 4096, 512]
    free = sorted(block.nbytes for pool in allocator._pools.values() for *_, block in pool.free)
    assert free == [512, 2_051_072, 12_451_840]


class Plain:
    """The same rules over one list of cells ``[address, bytes, state]`` for each pool."""

    def __init__(self, limit, expandable):
        self.limit, self.expandable = limit, expandable
        self.pools, self.edges, self.top = {}, set(), 0

    @property
    def reserved(self):
        cells = [cell for pool in self.pools.values() for cell in pool]
        return sum(cell[1] for cell in cells if cell[2] != "no page")

    def allocate(self, nbytes, stream):
        size = max(512, (nbytes + 511) // 512 * 512)
        is_small = size <= MIB
        pool = self.pools.setdefault((stream, is_small), [])
        page = (2 if is_small else 20) * MIB
        cell = self._fit(pool, size) or self._more(pool, size, page)
        if cell is None:
            self._give_back()
            cell = self._more(pool, size, page)
        if cell is None:
            return None
        rest = cell[1] - size
        if rest and (is_small or self.expandable or rest > MIB):
            pool.append([cell[0] + size, rest, "free"])
            cell[1] = size
        cell[2] = "used"
        return cell

    def free(self, cell):
        cell[2] = "free"
        self._join()

    def _fit(self, pool, size):
        fits = sorted(
            (c for c in pool if c[2] == "free" and c[1] >= size), key=lambda c: (c[1], c[0])
        )
        if not fits:
            return None
        best = fits[0]
        if self.expandable:
            room = {c[0]: c[1] for c in pool if c[2] == "no page"}
            for one in fits[1:]:
                if one[1] + room.get(sum(one[:2]), 0) >= best[1] + room.get(sum(best[:2]), 0):
                    break
                best = one
        return best

    def _more(self, pool, size, page):
        if not self.expandable:
            nbytes = page if size < 10 * MIB else (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
            if self.reserved + nbytes > self.limit:
                return None
            cell = [self.top, nbytes, "free"]
            self.edges.add(self.top)
            self.top += nbytes
            pool.append(cell)
            return cell
        if not pool:
            pool.append([self.top, 1 << 60, "no page"])
            self.top += 1 << 60
        begin = self._lowest(pool, size)
        while True:
            self._join()
            cell = next(c for c in pool if c[0] <= begin < sum(c[:2]))
            if cell[2] == "free" and cell[1] >= size:
                return cell
            have = cell[1] if cell[2] == "free" else 0
            gap = next(c for c in pool if c[2] == "no page" and c[0] >= begin)
            pages = min(gap[1], (size - have + page - 1) // page * page)
            if self.reserved + pages > self.limit:
                return None
            pool.append([gap[0] + pages, gap[1] - pages, "no page"])
            gap[1:] = pages, "free"

    def _lowest(self, pool, size):
        pool.sort()
        for index, cell in enumerate(pool):
            if cell[2] == "no page":
                start = index - 1 if index and pool[index - 1][2] == "free" else index
                room = 0
                for one in pool[start:]:
                    if one[2] == "used":
                        break
                    room += one[1]
                if room >= size:
                    return pool[start][0]
        return None

    def _give_back(self):
        for (_, is_small), pool in self.pools.items():
            page = (2 if is_small else 20) * MIB
            for cell in [c for c in pool if c[2] == "free"]:
                begin, end = cell[0], sum(cell[:2])
                if not self.expandable:
                    if begin in self.edges and (end in self.edges or end == self.top):
                        pool.remove(cell)
                    continue
                first, last = -(-begin // page) * page, end // page * page
                if first < last:
                    pool.remove(cell)
                    pool.append([begin, first - begin, "free"])
                    pool.append([first, last - first, "no page"])
                    pool.append([last, end - last, "free"])
        self._join()

    def _join(self):
        for pool in self.pools.values():
            pool[:] = sorted(c for c in pool if c[1])
            for one, other in reversed(list(zip(pool, pool[1:], strict=False))):
                touch = sum(one[:2]) == other[0] and other[0] not in self.edges
                if touch and one[2] == other[2] != "used":
                    one[1] += other[1]
                    pool.remove(other)


SIZES = st.one_of(
    st.integers(1, 3000), st.integers(1, 3 * MIB), st.integers(1, 48).map(lambda n: n * MIB)
)
ACTS = st.lists(st.tuples(st.sampled_from("afff"), SIZES, st.integers(0, 1)), max_size=60)


@hypothesis.seed(SEED)
@settings(max_examples=150, deadline=None)
@given(acts=ACTS, expandable=st.booleans(), limit=st.sampled_from([40, 100, 160, 1 << 20]))
def test_it_does_what_a_plain_one_does(acts, expandable, limit):
    allocator, plain = CachingAllocator(limit * MIB, expandable), Plain(limit * MIB, expandable)
    live = []
    for act, nbytes, stream in acts:
        if act == "f" and live and nbytes % 2:
            block, cell = live.pop(nbytes % len(live))
            allocator.free(block)
            plain.free(cell)
        else:
            cell = plain.allocate(nbytes, stream)
            if cell is None:
                with pytest.raises(NoMemoryLeftError):
                    allocator.allocate(nbytes, stream)
            else:
                block = allocator.allocate(nbytes, stream)
                assert (block.address, block.nbytes) == tuple(cell[:2])
                live.append((block, cell))
        assert allocator.reserved_bytes == plain.reserved
        assert allocator.allocated_bytes == sum(block.nbytes for block, _ in live)


def train(rank, n):
    net = nn.Linear(1000, 1000, bias=False)
    net(torch.ones(3, 1000)).sum().backward()
    torch.empty(100_000)


def test_the_ledger_of_a_gpu_is_what_its_allocator_has():
    """The first workspace lies in the segment of the weight, the second needs one of its own."""

    cluster = small_gpu(workspace_bytes=8 * MIB)
    run = simlib.simulate(train, 1, cluster=cluster)
    (ledger,) = run.memory
    weight = -(-4_000_000 // 512) * 512
    assert ledger.peak["parameters"] == ledger.peak["gradients"] == weight
    workspaces = 2 * 8 * MIB  # one of the forward pass and one of autograd's thread
    assert ledger.peak["activations and temporaries"] == workspaces + 400_384
    assert ledger.current["activations and temporaries"] == workspaces
    assert ledger.by_dtype["uint8"].current_bytes == workspaces
    assert ledger.reserved_bytes == ledger.reserved_at_peak_bytes == 2 * MIB + 2 * 20 * MIB
    assert repr(ledger).splitlines()[-1] == (
        "reserved by the allocator: 44,040,192 at the peak, 44,040,192 at most"
    )


def test_a_device_that_is_no_gpu_counts_bytes():
    device = simlib.Device(workspace_bytes=0)
    run = simlib.simulate(train, 1, cluster=simlib.clusters.ethernet_10g(1, device=device))
    (ledger,) = run.memory
    assert ledger.peak["parameters"] == 4_000_000
    assert ledger.reserved_bytes is None
    assert "reserved" not in repr(ledger)


def test_a_gpu_without_memory_says_what_is_allocated_and_what_reserved():
    def main(rank, n):
        kept = [torch.empty(6 * MIB, dtype=torch.uint8) for _ in range(4)]
        del kept[1]
        kept.append(torch.empty(15 * MIB, dtype=torch.uint8))

    with pytest.raises(simlib.OutOfMemoryError) as caught:
        simlib.simulate(main, 1, cluster=small_gpu(memory_bytes=40 * MIB))
    assert "rank 0 is out of memory" in str(caught.value)
    assert (
        "its device has 41,943,040 bytes, and 15,728,640 more bytes do not fit. The allocator "
        "has reserved 41,943,040 bytes (18,874,368 allocated, 23,068,672 reserved but "
        "unallocated); the rank holds parameters 0 bytes"
    ) in str(caught.value)


def test_expandable_segments_are_asked_for_as_of_torch(monkeypatch):
    def main(rank, n):
        for megabytes in (30, 60):
            torch.empty(megabytes * MIB, dtype=torch.uint8)

    def reserved():
        return simlib.simulate(main, 1, cluster=small_gpu()).memory[0].reserved_bytes

    assert reserved() == 90 * MIB
    monkeypatch.setenv(CONF, "max_split_size_mb:512, expandable_segments:True")
    assert reserved() == 60 * MIB

"""A device's memory as CUDA's caching allocator divides it. Pure Python.

Programs need more GPU memory than their tensors. The allocator takes segments from the device, cuts
them into blocks, and keeps freed blocks for later requests of the same stream. Reserved memory is
the memory that the allocator has taken from the device. Allocated memory is the memory in blocks
that programs use.

**Source** `c10/cuda/CUDACachingAllocator.cpp` of torch 2.6 to 2.13, with its default settings and
with ``expandable_segments:True``. The model leaves out `record_stream` and the private pools of
CUDA graphs.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_left, insort
from operator import attrgetter

MIB = 1 << 20
ROUND_BYTES = 512
SMALL_BYTES = MIB
"""The small pool serves requests of at most this many bytes."""
SMALL_SEGMENT_BYTES, LARGE_SEGMENT_BYTES = 2 * MIB, 20 * MIB
LARGE_BYTES = 10 * MIB
"""From this size on, a request gets its own segment, in steps of `SEGMENT_STEP_BYTES`."""
SEGMENT_STEP_BYTES = 2 * MIB
SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
ADDRESSES = 1 << 60
FREE, USED, UNMAPPED = range(3)

_address = attrgetter("address")


class NoMemoryLeftError(Exception):
    """The device does not have enough memory. The text says how much it has, and what uses it."""


class Block:
    """A piece of a segment. Its neighbours by address are ``before`` and ``after``.

    Attributes
    ----------
    nbytes : int
        Its bytes, including rounding.
    """

    __slots__ = ("address", "after", "before", "nbytes", "pool", "state")

    def __init__(self, pool, address, nbytes, state):
        self.pool = pool
        self.address = address
        self.nbytes = nbytes
        self.state = state
        self.before = self.after = None

    def cut(self, nbytes):
        """Keep the first bytes; the rest is a new block of the same state."""
        rest = Block(self.pool, self.address + nbytes, self.nbytes - nbytes, self.state)
        rest.before, rest.after = self, self.after
        if rest.after is not None:
            rest.after.before = rest
        self.nbytes, self.after = nbytes, rest
        return rest

    def swallow(self, following):
        """Join the block after this one to it."""
        self.nbytes += following.nbytes
        self.after = following.after
        if self.after is not None:
            self.after.before = self


class _Pool:
    """Blocks of one stream, small or large: the free ones by size, then by address."""

    __slots__ = ("free", "is_small", "segment_bytes", "unmapped")

    def __init__(self, is_small):
        self.is_small = is_small
        self.segment_bytes = SMALL_SEGMENT_BYTES if is_small else LARGE_SEGMENT_BYTES
        self.free = []
        self.unmapped = []

    def add(self, block):
        block.state = FREE
        insort(self.free, (block.nbytes, block.address, block))

    def remove(self, block):
        del self.free[bisect_left(self.free, (block.nbytes, block.address))]

    def merge(self, block):
        """Join a block that is not in the free list with free neighbours, and return the whole."""
        before, after = block.before, block.after
        if after is not None and after.state == FREE:
            self.remove(after)
            block.swallow(after)
        if before is not None and before.state == FREE:
            self.remove(before)
            before.swallow(block)
            return before
        return block


class CachingAllocator:
    """The memory of one device.

    Parameters
    ----------
    memory_bytes : float
        The largest number of bytes of all segments together.
    expandable_segments : bool, optional
        Whether each pool is one segment that grows by pages. The default is torch's: at the first
        allocation it reads the environment variable ``PYTORCH_CUDA_ALLOC_CONF``.

    Attributes
    ----------
    allocated_bytes, reserved_bytes : int
        The present bytes in used blocks, and in segments.
    peak_allocated_bytes, peak_reserved_bytes : int
        The largest values that they have had.

    A release may happen at any moment, also by Python's garbage collector. If the allocator is at
    work, the release waits for its end.

    **Cost** two to four microseconds for an allocation with its release.
    """

    def __init__(self, memory_bytes=math.inf, expandable_segments=None):
        self.memory_bytes = memory_bytes
        self.allocated_bytes = self.reserved_bytes = 0
        self.peak_allocated_bytes = self.peak_reserved_bytes = 0
        self._is_expandable = expandable_segments
        self._pools = {}
        self._next_address = 0
        self._is_busy = False
        self._late = []

    def allocate(self, nbytes, stream=0):
        """Return a block for ``nbytes`` bytes, or for one byte if ``nbytes`` is 0.

        Parameters
        ----------
        nbytes : int
        stream : hashable
            The stream. A freed block serves only later requests of its own stream.

        Returns
        -------
        Block

        Raises
        ------
        NoMemoryLeftError
            The device does not have so much memory, even after the allocator has freed all cached
            segments.
        """
        self._is_busy = True
        size = -(-nbytes // ROUND_BYTES) * ROUND_BYTES
        pool = self._pool(stream, size <= SMALL_BYTES)
        block = self._best_fit(pool, size) or self._new_block(pool, size)
        if block is None:
            self._rest()
            raise NoMemoryLeftError(self._why_none(size))
        rest = block.nbytes - size
        if rest >= ROUND_BYTES and (pool.is_small or self._is_expandable or rest > SMALL_BYTES):
            pool.add(block.cut(size))
        block.state = USED
        self.allocated_bytes += block.nbytes
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes
        self._rest()
        return block

    def exchange(self, block, nbytes, stream=0):
        """Return a new block for a storage that is resized, or None for zero bytes.

        As in torch, the allocator takes the new block before it frees the old block.

        Parameters
        ----------
        block : Block or None
            The old block of the storage.
        nbytes : int
        stream : hashable
        """
        new = self.allocate(nbytes, stream) if nbytes else None
        if block is not None:
            self.free(block)
        return new

    def free(self, block):
        """Free a block."""
        self._late.append(block)
        if not self._is_busy:
            self._rest()

    def _why_none(self, size):
        allocated, reserved = self.allocated_bytes, self.reserved_bytes
        return (
            f"its device has {self.memory_bytes:,.0f} bytes, and {size:,} more bytes do not fit. "
            f"The allocator has reserved {reserved:,} bytes ({allocated:,} allocated, "
            f"{reserved - allocated:,} reserved but unallocated)"
        )

    def _rest(self):
        """Handle waiting releases. After that the allocator is no longer at work."""
        self._is_busy = True
        while self._late:
            block = self._late.pop()
            self.allocated_bytes -= block.nbytes
            block.pool.add(block.pool.merge(block))
        self._is_busy = False

    def _pool(self, stream, is_small):
        pool = self._pools.get((stream, is_small))
        if pool is None:
            if self._is_expandable is None:
                self._is_expandable = _is_set_expandable()
            pool = self._pools[stream, is_small] = _Pool(is_small)
        return pool

    def _best_fit(self, pool, size):
        """Take the smallest free block that is large enough out of the pool."""
        free = pool.free
        index = bisect_left(free, (size,))
        if index == len(free):
            return None
        if self._is_expandable:  # one that can grow counts as what it can grow to
            while index + 1 < len(free) and _room(free[index + 1][2]) < _room(free[index][2]):
                index += 1
        return free.pop(index)[2]

    def _new_block(self, pool, size):
        """A block of memory from the device. If needed, cached segments go back to it first."""
        make = self._grow if self._is_expandable else self._new_segment
        block = make(pool, size)
        if block is None:
            self._release_cached()
            block = make(pool, size)
        return block

    def _new_segment(self, pool, size):
        nbytes = pool.segment_bytes
        if size >= LARGE_BYTES:
            nbytes = -(-size // SEGMENT_STEP_BYTES) * SEGMENT_STEP_BYTES
        return self._new_addresses(pool, nbytes, USED) if self._reserve(nbytes) else None

    def _new_addresses(self, pool, nbytes, state):
        block = Block(pool, self._next_address, nbytes, state)
        self._next_address += nbytes
        return block

    def _reserve(self, nbytes):
        if self.reserved_bytes + nbytes > self.memory_bytes:
            return False
        self.reserved_bytes += nbytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return True

    def _grow(self, pool, size):
        """Map pages so that they make a block of this size at the lowest possible address."""
        block = self._place_to_grow(pool, size)
        if block.state == UNMAPPED:
            block = self._map(block, size)
        while block is not None and block.nbytes < size:
            block = self._map(block.after, size - block.nbytes)
        if block is not None:
            pool.remove(block)
        return block

    def _place_to_grow(self, pool, size):
        for block in pool.unmapped:
            first = following = block.before if _is_free(block.before) else block
            nbytes = 0
            while nbytes < size and following is not None and following.state != USED:
                nbytes += following.nbytes
                following = following.after
            if nbytes >= size:
                return first
        block = self._new_addresses(pool, ADDRESSES, UNMAPPED)
        pool.unmapped.append(block)
        return block

    def _map(self, block, nbytes):
        """Map whole pages at the beginning of an unmapped block, and free them for use."""
        pool, page = block.pool, block.pool.segment_bytes
        nbytes = min(block.nbytes, -(-nbytes // page) * page)
        if not self._reserve(nbytes):
            return None
        pool.unmapped.remove(block)
        if nbytes < block.nbytes:
            insort(pool.unmapped, block.cut(nbytes), key=_address)
        block = pool.merge(block)
        pool.add(block)
        return block

    def _release_cached(self):
        """Give back every segment, or page of a segment, that is completely free."""
        for pool in self._pools.values():
            for _, _, block in list(pool.free):
                if self._is_expandable:
                    self._unmap(block)
                elif block.before is None and block.after is None:
                    pool.remove(block)
                    self.reserved_bytes -= block.nbytes

    def _unmap(self, block):
        pool, page = block.pool, block.pool.segment_bytes
        begin = -(-block.address // page) * page
        end = (block.address + block.nbytes) // page * page
        if begin >= end:
            return
        pool.remove(block)
        if end < block.address + block.nbytes:
            pool.add(block.cut(end - block.address))
        if begin > block.address:
            rest = block.cut(begin - block.address)
            pool.add(block)
            block = rest
        self.reserved_bytes -= block.nbytes
        block.state = UNMAPPED
        if block.after is not None and block.after.state == UNMAPPED:
            pool.unmapped.remove(block.after)
            block.swallow(block.after)
        if block.before is not None and block.before.state == UNMAPPED:
            block.before.swallow(block)
        else:
            insort(pool.unmapped, block, key=_address)


def _is_free(block):
    return block is not None and block.state == FREE


def _room(block):
    """Bytes of a free block, with the bytes by which it can grow."""
    after = block.after
    return block.nbytes + (after.nbytes if after is not None and after.state == UNMAPPED else 0)


def _is_set_expandable():
    """Whether the environment asks torch for expandable segments."""
    settings = ",".join(os.environ.get(name, "") for name in SETTINGS)
    return "expandable_segments:true" in settings.replace(" ", "").lower()

"""The worlds of a kernel: those at rest between runs, and one spare that is always new."""

from __future__ import annotations

import atexit
import functools
import os
import threading

MAX_RESTING_RANKS = 24
MAX_SPARE_RANKS = 16
SPARE_AFTER_S = 0.3


class Pool:
    """Worlds ready for use.

    A world that ended its run cleanly rests here for the next run of its size. Beside these, one
    spare world of the last size is prepared while nothing runs, so that a run after an error, whose
    world is gone, starts at once.

    Parameters
    ----------
    make_world : callable
        ``make_world(world_size)`` starts a new one.
    """

    def __init__(self, make_world):
        self._make_world = make_world
        self._lock = threading.Lock()
        self._resting = []
        self._spare = None
        self._spare_timer = None
        self._in_use = set()
        self.has_server = False

    def take(self, world_size, fresh=False):
        """A world of this size, ready to run: a rested one, the spare, or a new one."""
        with self._lock:
            self._stop_timer()
        while True:
            found = self._find(world_size, fresh)
            world = found or self._make_world(world_size)
            self._in_use.add(world)
            try:
                ready = world.wait_until_ready()
            except BaseException:
                self._end(world)
                raise
            if ready:
                self.has_server = True
                return world
            text = world.native_text()
            self._end(world)
            if found is None:
                raise OSError(f"they did not find each other: {text or 'no reason was told'}")

    def _find(self, world_size, fresh):
        with self._lock:
            if not fresh:
                for world in reversed(self._resting):
                    if world.world_size == world_size:
                        self._resting.remove(world)
                        if world.is_alive():
                            return world
                        world.close()
            if self._spare is not None and self._spare.world_size == world_size:
                world, self._spare = self._spare, None
                if world.is_alive():
                    return world
                world.close()
        return None

    def give_back(self, world, clean):
        """Return a world after its run; one that is not clean is ended."""
        if not (clean and world.start_cleaning()):
            self._end(world)
            clean = False
        with self._lock:
            self._in_use.discard(world)
            if clean:
                self._resting.append(world)
            superfluous = self._over_budget()
            self._stop_timer()
            if not self._in_use:
                self._spare_timer = threading.Timer(
                    SPARE_AFTER_S, self._prepare_spare, (world.world_size,)
                )
                self._spare_timer.daemon = True
                self._spare_timer.start()
        for old in superfluous:
            old.close()

    def _over_budget(self):
        """Worlds to end, longest unused first, so that not too many ranks rest."""
        superfluous = []
        while sum(w.world_size for w in self._resting) > MAX_RESTING_RANKS:
            if len(self._resting) == 1:
                break
            superfluous.append(self._resting.pop(0))
        return superfluous

    def _stop_timer(self):
        if self._spare_timer is not None:
            self._spare_timer.cancel()
            self._spare_timer = None

    def _prepare_spare(self, world_size):
        with self._lock:
            if world_size > MAX_SPARE_RANKS or self._in_use:
                return
            if self._spare is not None and self._spare.world_size == world_size:
                return
            try:
                old, self._spare = self._spare, self._make_world(world_size)
            except (OSError, EOFError):  # no room for a spare: the next run tries, and tells
                return
        if old is not None:
            old.close()

    def _end(self, world):
        world.close()
        self._in_use.discard(world)

    def close(self):
        """End all worlds, those of runs under way too."""
        with self._lock:
            self._stop_timer()
            worlds = [*self._resting, *self._in_use, *([self._spare] if self._spare else [])]
            self._resting, self._spare = [], None
            self._in_use.clear()
        for world in worlds:
            world.close()


@functools.cache
def _pool_of(pid, make_world):
    pool = Pool(make_world)
    atexit.register(lambda: pool.close() if os.getpid() == pid else None)  # not in a forked child
    return pool


def pool(make_world):
    """The pool of this process, of the worlds that are made so."""
    return _pool_of(os.getpid(), make_world)

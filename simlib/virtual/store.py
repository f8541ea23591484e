"""torch.distributed's key-value store, where ranks that wait for a key hand the baton on."""

from __future__ import annotations

import torch.distributed as dist

from . import per_rank


class SimulatedStore(dist.Store):
    """One store for all ranks of a simulation."""

    def __init__(self, scheduler):
        super().__init__()
        self._scheduler = scheduler
        self._values = {}
        self._waiting = []

    def set(self, key, value):
        self._values[key] = value if isinstance(value, bytes) else value.encode()
        self._wake()

    def get(self, key):
        self.wait([key])
        return self._values[key]

    def add(self, key, amount):
        value = int(self._values.get(key, b"0")) + amount
        self.set(key, str(value))
        return value

    def compare_set(self, key, expected, desired):
        encoded = expected if isinstance(expected, bytes) else expected.encode()
        if self._values.get(key, encoded) == encoded:
            self.set(key, desired)
        return self._values[key]

    def append(self, key, value):
        self.set(key, self._values.get(key, b"") + value)

    def multi_get(self, keys):
        return [self.get(key) for key in keys]

    def multi_set(self, keys, values):
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def check(self, keys):
        return all(key in self._values for key in keys)

    def num_keys(self):
        return len(self._values)

    def delete_key(self, key):
        return self._values.pop(key, None) is not None

    def wait(self, keys, timeout=None):
        if not self.check(keys):
            rank = per_rank.local.rank
            self._waiting.append((rank, list(keys)))
            self._scheduler.block(rank)

    def _wake(self):
        waiting, self._waiting = self._waiting, []
        for rank, keys in waiting:
            if self.check(keys):
                self._scheduler.ready(
                    rank, max(self._scheduler.clocks[rank], self._scheduler.now_s)
                )
            else:
                self._waiting.append((rank, keys))

"""What the ranks of a simulation share: the key-value store, and DDP's check of models."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.distributed.utils
import torch.nn.parallel.distributed

from ...record.store_keys import naming_keys
from ...record.this_rank import here as local
from ...record.torch_inside import MODULES_OF_STORES
from ...record.transports import FOREVER
from ...record.transports.plain_group import SharedOutputs


@dataclass(slots=True, eq=False)
class _Waiter:
    rank: int
    keys: list
    gave_up: bool = False


def _settle():
    """Let all events before the calling rank's clock happen."""
    settle = getattr(local, "settle", None)
    if settle is not None:
        settle()


class SimulatedStore(dist.Store):
    """One store for all ranks of a simulation. A rank finds keys that were set before its time."""

    def __init__(self, scheduler):
        super().__init__()
        self._scheduler = scheduler
        self._values = {}
        self._waiting = []

    def set(self, key, value):
        _settle()
        self._put(key, value)

    def get(self, key):
        self.wait([key])
        return self._values[key]

    def add(self, key, amount):
        _settle()
        value = int(self._values.get(key, b"0")) + amount
        self._put(key, str(value))
        return value

    def compare_set(self, key, expected, desired):
        """A missing key counts as empty. It stays missing if ``expected`` is not empty."""
        _settle()
        expected, desired = _encoded(expected), _encoded(desired)
        if key not in self._values and expected:
            return expected
        if self._values.get(key, b"") == expected:
            self._put(key, desired)
        return self._values[key]

    def append(self, key, value):
        _settle()
        self._put(key, self._values.get(key, b"") + _encoded(value))

    def multi_get(self, keys):
        return [self.get(key) for key in keys]

    def multi_set(self, keys, values):
        _settle()
        for key, value in zip(keys, values, strict=True):
            self._put(key, value)

    def check(self, keys):
        _settle()
        return self._has(keys)

    def num_keys(self):
        _settle()
        return len(self._values)

    def delete_key(self, key):
        _settle()
        return self._values.pop(key, None) is not None

    getNumKeys, deleteKey = num_keys, delete_key  # as torch's C++ asks for them

    def wait(self, keys, timeout=None):
        _settle()
        if self._has(keys):
            return
        waiter = _Waiter(local.rank, list(keys))
        self._waiting.append(waiter)
        if timeout is not None and timeout < FOREVER:
            moment = self._scheduler.clocks[waiter.rank] + timeout.total_seconds()
            self._scheduler.at(moment, functools.partial(self._give_up, waiter, moment))
        self._scheduler.block(waiter.rank)
        if waiter.gave_up:
            raise dist.DistStoreError(f"Wait timeout, keys: {', '.join(keys)}")

    def _has(self, keys):
        return all(key in self._values for key in keys)

    def _put(self, key, value):
        self._values[key] = _encoded(value)
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if self._has(waiter.keys):
                clock = self._scheduler.clocks[waiter.rank]
                self._scheduler.ready(waiter.rank, max(clock, self._scheduler.now_s))
            else:
                self._waiting.append(waiter)

    def _give_up(self, waiter, moment):
        if waiter in self._waiting:
            self._waiting.remove(waiter)
            waiter.gave_up = True
            self._scheduler.ready(waiter.rank, moment)


def own_stores(store):
    """Let a ``TCPStore`` or ``FileStore`` that a rank makes be a part of the simulation's store.

    torch's own classes would wait for other ranks in C++, and no other rank could run meanwhile.
    ``store()`` is the `SimulatedStore` of the running simulation.
    """
    for original, parameters in (
        (dist.TCPStore, ("host_name", "port", "world_size", "is_master", "timeout")),
        (dist.FileStore, ("file_name",)),
    ):
        ours = type(original.__name__, (_OwnStore,), {})
        ours.original, ours.parameters, ours.store = original, parameters, staticmethod(store)
        for module in MODULES_OF_STORES:
            if hasattr(module, original.__name__):
                setattr(module, original.__name__, ours)


class _OwnStore(dist.PrefixStore):
    """The class that a rank gets as ``TCPStore`` or ``FileStore``."""

    def __new__(cls, *args, **kwargs):
        if not hasattr(local, "rank"):
            return cls.original(*args, **kwargs)
        return super().__new__(cls)

    def __init__(self, *args, **kwargs):
        given = dict(zip(self.parameters, args, strict=False)) | kwargs
        self.host, self.port = given.get("host_name"), given.get("port")
        self._limit = given.get("timeout", FOREVER)
        place = [self.original.__name__, *(str(given.get(name)) for name in self.parameters[:2])]
        super().__init__(" ".join(place), self.store())

    def wait(self, keys, timeout=None):
        super().wait(keys, self._limit if timeout is None else timeout)

    @naming_keys
    def get(self, key):
        self.wait([key])
        return super().get(key)


def _encoded(value):
    return value if isinstance(value, bytes) else value.encode()


def share_what_ddp_gathers():
    """Use `verify_same_model` instead of torch's check in DDP, in the simulating process."""
    for module in (torch.distributed.utils, torch.nn.parallel.distributed):
        module._verify_param_shape_across_processes = verify_same_model


def verify_same_model(process_group, tensors, logger=None):
    """Refuse models whose number of parameters, or whose shapes, differ between ranks.

    Parameters
    ----------
    process_group : RecordingGroup
    tensors : list of Tensor
        The parameters of this rank.
    logger : object, optional
        An argument of torch's function, which is not used.

    Raises
    ------
    RuntimeError
        Each rank that finds a difference raises it.
    """
    rank = process_group.rank()
    outputs = SharedOutputs(process_group.size())
    process_group.allgather([outputs], [torch.tensor([len(tensors)])]).wait()
    counts = torch.cat(list(outputs.tensors)).tolist()
    other = next((r for r, count in enumerate(counts) if count != len(tensors)), None)
    if other is not None:
        raise RuntimeError(
            f"DDP expects same model across all ranks, but Rank {rank} has {len(tensors)} "
            f"params, while rank {other} has inconsistent {counts[other]} params."
        )
    mine = [number for tensor in tensors for number in (*tensor.shape, *tensor.stride())]
    first = torch.tensor(mine)
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = 0, 0
    process_group.broadcast([first], options).wait()
    if first.tolist() != mine:
        raise RuntimeError(
            f"[{rank}]: the parameters of this rank have other shapes or strides than those of "
            "rank 0 in the same order: every rank must build the same model"
        )

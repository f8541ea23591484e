"""`Carrier`: what the calls of one rank, in one group, are passed on to; one function a backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .abilities import GLOO, GLOO_ON_CUDA, NCCL, Ability

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
TYPES = dist.ProcessGroup.BackendType
GLOOS_CONFIG = str(dist.distributed_c10d.BackendConfig(dist.Backend("gloo")))


@dataclass(frozen=True)
class Carrier:
    """What carries the calls of one rank in one group.

    Attributes
    ----------
    name : str
        What torch is told that the backend is called.
    config : str
        The same by device, as torch writes it.
    inner : object
        Has the methods of `dist.ProcessGroup`.
    registered : tuple of (torch.device, BackendType, dist.Backend)
        The C++ backends that torch's own C++ code asks for names and options; the last counts.
    abilities : dict of str to Ability
        By type of device.
    set_timeout : callable
        How long an op may take from now on, a timedelta.
    """

    name: str
    config: str
    inner: Any
    registered: tuple
    abilities: Mapping[str, Ability]
    set_timeout: Callable[[timedelta], None]

    @property
    def default_ability(self) -> Ability:
        """What it can do where a call has no tensor."""
        return self.abilities[self.registered[-1][0].type]


def on_gloo(inner: Any, gloo: Any) -> Carrier:
    """Calls go to ``inner``, which keeps Gloo's rules; ``gloo`` is a Gloo for torch to ask."""
    return Carrier(
        "gloo",
        GLOOS_CONFIG,
        inner,
        ((CPU, TYPES.GLOO, gloo),),
        {"cpu": GLOO},
        gloo._set_default_timeout,
    )


def over_gloo(options: Any, ranks: tuple) -> Carrier:
    """Gloo moves all tensors: those on a GPU by way of the CPU's memory."""
    gloo = _gloo(options.store, options)
    carrier = on_gloo(None, gloo)
    if torch.cuda.is_available():
        carrier = replace(
            carrier,
            registered=((CUDA, TYPES.GLOO, gloo), *carrier.registered),
            abilities={"cpu": GLOO, "cuda": GLOO_ON_CUDA},
        )
    return replace(carrier, inner=_around(options, carrier.registered))


def over_nccl(options: Any, ranks: tuple) -> Carrier:
    """NCCL moves what is on a GPU, Gloo the rest: torch's ``cpu:gloo,cuda:nccl``.

    The communicator is made at the first op, on the GPU of its tensors. No device is bound to the
    group: torch would split the groups of `new_group` from it, on the ranks outside of them, too.
    """
    gloo = _gloo(dist.PrefixStore("cpu/", options.store), options)
    own = dist.ProcessGroupNCCL.Options()
    own._timeout = options.timeout
    own.global_ranks_in_group = list(ranks)
    own.group_name = options.group_id
    store = dist.PrefixStore("cuda/", options.store)
    nccl = dist.ProcessGroupNCCL(store, options.group_rank, options.group_size, own)
    nccl._set_sequence_number_for_group()
    registered = ((CPU, TYPES.GLOO, gloo), (CUDA, TYPES.NCCL, nccl))

    def set_timeout(timeout):
        gloo._set_default_timeout(timeout)
        nccl._set_default_timeout(timeout)

    return Carrier(
        "nccl",
        "cpu:gloo,cuda:nccl",
        _around(options, registered),
        registered,
        {"cpu": GLOO, "cuda": NCCL},
        set_timeout,
    )


def _gloo(store, options):
    gloo = dist.ProcessGroupGloo(
        store, options.group_rank, options.group_size, timeout=options.timeout
    )
    gloo._set_sequence_number_for_group()
    return gloo


def _around(options, registered):
    """A C++ group, which hands each call to the backend of its tensors' device.

    Backends themselves lack the newer names of methods.
    """
    inner = dist.ProcessGroup(options.store, options.group_rank, options.group_size)
    inner._set_default_backend(registered[-1][1])
    for device, sort, backend in registered:
        inner._register_backend(device, sort, backend)
    return inner

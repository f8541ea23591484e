"""`BACKENDS` lists the backends through which ranks can communicate. To add a backend, add an
entry.

A `Backend` opens a `Transport` on each rank of a group. Its `Capabilities` describe, for each kind
of device, which tensors and calls it supports.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ...model.errors import InvalidCallError

OPS = {
    "send": "send",
    "recv": "recv",
    "recv_anysource": "recv from any source",
    "broadcast": "broadcast",
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather_coalesced",
    "all_gather_single": "all_gather_into_tensor",
    "all_gather_single_coalesced": "several all_gather_into_tensor in one",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "reduce_scatter_single_coalesced": "several reduce_scatter_tensor in one",
    "alltoall": "all_to_all",
    "all_to_all_single": "all_to_all_single",
    "barrier": "barrier",
    "monitored_barrier": "monitored_barrier",
}
"""Maps methods of `dist.ProcessGroup` to the names that users of torch know."""

TORCHS_TAGS = 2**31 - 1
"""The largest tag in torch, because torch passes a tag on as a C int."""

FLOATS = {torch.float64, torch.float32, torch.float16, torch.bfloat16}
WHOLES = {torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool}
COMPLEX = {torch.complex64, torch.complex128}
SUMS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX")
BITS = ("BAND", "BOR", "BXOR")


@dataclass(frozen=True)
class Capabilities:
    """The calls and tensors that a backend supports on one kind of device.

    Attributes
    ----------
    name : str
        The backend's name in messages.
    carries : frozenset of torch.dtype or None
        The dtypes that its collectives support, or None for all dtypes. torch may treat complex
        numbers as pairs of real numbers.
    reduces : frozenset of torch.dtype
        The dtypes that its reductions support.
    sends : frozenset of torch.dtype or None
        The dtypes that its messages support, or None for all dtypes.
    reduce_ops : tuple of str
    not_complex : frozenset of str
        Methods that cannot carry complex numbers.
    lacks : dict
        Maps each method that the backend lacks to a text that says what to do instead.
    adds_sparse : bool
        Whether all_reduce adds sparse tensors.
    moves_memory : bool
        Whether the backend copies memory from a tensor's first byte on and ignores strides.
    largest_tag : int
        The largest tag, or 0 if the backend has no tags.
    is_simulated : bool
        Whether the backend belongs to simulated ranks.
    """

    name: str
    carries: frozenset | None
    reduces: frozenset
    sends: frozenset | None = None
    reduce_ops: tuple = (*SUMS, *BITS)
    not_complex: frozenset = frozenset()
    lacks: Mapping[str, str] = field(default_factory=dict)
    adds_sparse: bool = True
    moves_memory: bool = True
    largest_tag: int = TORCHS_TAGS
    is_simulated: bool = False


CPU, CUDA = torch.device("cpu"), torch.device("cuda")
TYPES = dist.ProcessGroup.BackendType
GLOOS_CONFIG = str(dist.distributed_c10d.BackendConfig(dist.Backend("gloo")))


@dataclass(frozen=True)
class Transport:
    """Carries out the calls of one rank in one group.

    Attributes
    ----------
    name : str
        The backend's name for torch.
    config : str
        The backend's name for each device, in torch's form.
    group : object
        An object with the methods of `dist.ProcessGroup`. simlib passes each call of the rank to
        it.
    registered : tuple of (torch.device, BackendType, dist.Backend)
        The C++ backends that torch's own C++ code asks for names and options. If there are several,
        torch uses the last one.
    capabilities : dict of str to Capabilities
        By type of device.
    set_timeout : callable
        A function that sets the longest time of all later ops, as a timedelta.
    """

    name: str
    config: str
    group: Any
    registered: tuple
    capabilities: Mapping[str, Capabilities]
    set_timeout: Callable[[timedelta], None]

    @property
    def default_capabilities(self) -> Capabilities:
        """Return the capabilities that count for a call without tensors."""
        return self.capabilities[self.registered[-1][0].type]


def _nothing(world_size: int) -> str | None:
    return None


@dataclass(frozen=True)
class Backend:
    """A way for the ranks of a run to communicate.

    Attributes
    ----------
    name : str
        The value of ``backend=`` that means this backend.
    names : tuple of str
        The names that a program may use for it in its calls of torch.
    capabilities : dict of str to Capabilities
        The backend's capabilities by type of device. It supports no tensors on a type without an
        entry.
    open : callable
        ``open(options, ranks)`` returns the `Transport` of a rank in a group. Each rank calls it
        for itself. The arguments are torch's options of the group, and the group's members as ranks
        of the world.
    missing : callable
        ``missing(ranks)`` returns a sentence that says what this machine lacks for so many ranks,
        or None.
    needs_mpi : bool
        Whether the mpiexec of an MPI must start the ranks.
    needs_gpus : bool
        Whether each rank needs its own GPU.
    """

    name: str
    names: tuple[str, ...]
    capabilities: Mapping[str, Capabilities]
    open: Callable[[Any, tuple], Transport]
    missing: Callable[[int], str | None] = _nothing
    needs_mpi: bool = False
    needs_gpus: bool = False

    def take_device(self, local_rank: int) -> None:
        """If each rank needs its own GPU, make this GPU the rank's current one."""
        if self.needs_gpus:
            torch.cuda.set_device(local_rank)


ON_CPU = "move the tensors to the CPU first, x.cpu()"

GLOO = Capabilities(
    "Gloo",
    carries=frozenset(FLOATS | WHOLES | COMPLEX),
    reduces=frozenset(FLOATS | WHOLES | COMPLEX),
    not_complex=frozenset({"gather", "allgather"}),
)
SIMULATED = replace(GLOO, is_simulated=True)
GLOO_ON_CUDA = replace(
    GLOO,
    lacks={
        "send": ON_CPU,
        "recv": ON_CPU,
        "recv_anysource": ON_CPU,
        "allreduce_coalesced": "call all_reduce for each tensor",
        "allgather_coalesced": "call all_gather for each tensor",
        "monitored_barrier": "call barrier()",
    },
)
NCCL_TYPES = frozenset(FLOATS | WHOLES | COMPLEX | {torch.float8_e4m3fn, torch.float8_e5m2})
NCCL = Capabilities(
    "NCCL",
    carries=NCCL_TYPES,
    reduces=NCCL_TYPES,
    sends=NCCL_TYPES,
    reduce_ops=SUMS,
    lacks={
        "recv_anysource": "name src, or receive a CPU tensor, which Gloo carries",
        "allgather_coalesced": "call all_gather for each tensor",
        "monitored_barrier": "call barrier()",
    },
    adds_sparse=False,
    largest_tag=0,
)


def like_gloo(group: Any, gloo: Any, able: Capabilities = GLOO) -> Transport:
    """Return a transport whose calls go to ``group``, which follows Gloo's rules.

    ``gloo`` is a Gloo backend that answers the questions of torch's C++ code.
    """
    return Transport(
        "gloo",
        GLOOS_CONFIG,
        group,
        ((CPU, TYPES.GLOO, gloo),),
        {"cpu": able},
        gloo._set_default_timeout,
    )


def over_gloo(options: Any, ranks: tuple) -> Transport:
    """Return a transport in which Gloo moves all tensors. Tensors on a GPU are copied through the
    CPU's memory."""
    gloo = _gloo(options.store, options)
    transport = like_gloo(None, gloo)
    if torch.cuda.is_available():
        transport = replace(
            transport,
            registered=((CUDA, TYPES.GLOO, gloo), *transport.registered),
            capabilities={"cpu": GLOO, "cuda": GLOO_ON_CUDA},
        )
    return replace(transport, group=_around(options, transport.registered))


def over_nccl(options: Any, ranks: tuple) -> Transport:
    """Return a transport like torch's ``cpu:gloo,cuda:nccl``: NCCL moves tensors on a GPU, and Gloo
    moves all others.

    NCCL makes the communicator at the first op, on the GPU of the op's tensors. simlib binds no
    device to the group. Otherwise torch would make the groups of `new_group` by splitting this
    group, and ranks outside the new group would have to take part.
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

    return Transport(
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
    """Return a C++ group that passes each call to the backend for the device of the call's tensors.

    The backends themselves do not have the newer names of methods.
    """
    inner = dist.ProcessGroup(options.store, options.group_rank, options.group_size)
    inner._set_default_backend(registered[-1][1])
    for device, sort, backend in registered:
        inner._register_backend(device, sort, backend)
    return inner


def missing_gpu() -> str | None:
    """Return a sentence if torch sees no GPU on this machine, else None.

    The function counts GPUs through the driver's library (NVML). `torch.cuda.is_available` would
    start CUDA in this process. Then forked children of this process could not use CUDA any more.
    """
    if torch.cuda.device_count():
        return None
    why = "check torch.cuda.is_available() and nvidia-smi"
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not torch.backends.cuda.is_built():
        why = "this torch has been built without CUDA"
    elif chosen is not None:
        why = f"CUDA_VISIBLE_DEVICES={chosen!r} may hide the GPUs"
    return f"there is no GPU that torch {torch.__version__} can use ({why})"


def _missing_for_nccl(world_size: int) -> str | None:
    otherwise = "use backend='gloo', which needs no GPU"
    missing = missing_gpu()
    if missing:
        return f"{missing}: {otherwise}"
    if not dist.is_nccl_available():
        return f"torch {torch.__version__} has been built without NCCL: {otherwise}"
    gpus = torch.cuda.device_count()
    if gpus < world_size:
        return (
            f"NCCL needs a GPU for each rank, but this machine has {gpus} for {world_size} ranks: "
            "run fewer ranks, or use backend='gloo', whose ranks may share a GPU"
        )
    return None


BACKENDS = {
    backend.name: backend
    for backend in (
        Backend("gloo", ("gloo", "mpi"), {"cpu": GLOO, "cuda": GLOO_ON_CUDA}, over_gloo),
        Backend(
            "nccl",
            ("nccl", "gloo"),
            {"cpu": GLOO, "cuda": NCCL},
            over_nccl,
            _missing_for_nccl,
            needs_gpus=True,
        ),
    )
}
"""All backends by name. Other packages add theirs: ``BACKENDS["mpi4py"]`` comes from
`simlib.cluster`."""


def backend_named(name: object) -> Backend:
    """Return the backend that ``backend=`` names. Raise an error if there is no such backend."""
    if isinstance(name, str) and name in BACKENDS:
        return BACKENDS[name]
    *names, last = map(repr, BACKENDS)
    raise InvalidCallError(f"backend={name!r} must be {', '.join(names)} or {last}")


def check_for_processes(name: object, world_size: int) -> Backend:
    """Return the backend of this name, for ranks that simlib starts as processes of this machine.
    Raise an error if it does not work here."""
    backend = backend_named(name)
    if backend.needs_mpi:
        raise InvalidCallError(
            f"backend={name!r} needs ranks that an mpiexec has started, but run starts plain "
            f"processes: use simlib.submit(..., to=simlib.Mpiexec()), or mpiexec -n {world_size} "
            "python -m simlib.mpi script.py"
        )
    missing = backend.missing(world_size)
    if missing:
        raise InvalidCallError(f"backend={name!r} is not possible on this machine: {missing}")
    return backend

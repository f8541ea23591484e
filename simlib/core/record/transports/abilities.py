"""What each backend can do with the tensors of each sort of device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

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
"""Methods of `dist.ProcessGroup`, by the words of torch's users."""

TORCHS_TAGS = 2**31 - 1
"""torch passes a tag on as a C int."""

FLOATS = {torch.float64, torch.float32, torch.float16, torch.bfloat16}
WHOLES = {torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool}
COMPLEX = {torch.complex64, torch.complex128}
SUMS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX")
BITS = ("BAND", "BOR", "BXOR")


@dataclass(frozen=True)
class Ability:
    """What a backend can do with tensors of one sort of device.

    Attributes
    ----------
    name : str
        Of the backend, in a sentence.
    carries : frozenset of torch.dtype or None
        What its collectives move; None: any. Complex numbers torch may take for pairs of real ones.
    reduces : frozenset of torch.dtype
        What its reductions take.
    sends : frozenset of torch.dtype or None
        What a message may hold; None: any.
    reduce_ops : tuple of str
    not_complex : frozenset of str
        Methods that cannot carry complex numbers.
    lacks : dict
        Methods that it does not have -> what to do instead.
    adds_sparse : bool
        Whether all_reduce adds sparse tensors.
    moves_memory : bool
        Whether it moves memory from a tensor's first byte on, whatever the tensor's steps.
    largest_tag : int
        0: there are no tags.
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


ON_CPU = "move the tensors to the CPU first, x.cpu()"

GLOO = Ability(
    "Gloo",
    carries=frozenset(FLOATS | WHOLES | COMPLEX),
    reduces=frozenset(FLOATS | WHOLES | COMPLEX),
    not_complex=frozenset({"gather", "allgather"}),
)
GLOO_ON_CUDA = Ability(
    "Gloo",
    carries=GLOO.carries,
    reduces=GLOO.reduces,
    not_complex=GLOO.not_complex,
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
NCCL = Ability(
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

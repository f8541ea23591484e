"""A Llama spread over ranks as torchtitan does it: split, checkpointed, and sharded, in this order.

Selective checkpointing saves every second product of matrices and the attention of each block
("op"), or checkpoints every second block whole ("layer"). Each block is sharded by FSDP2;
parameters travel as bfloat16, gradients as float32.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

aten = torch.ops.aten
SAVED = (
    aten.mm.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
)
POLICY = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


@dataclass(frozen=True)
class Plan:
    """How a model is spread: what is left of the ranks shares the data, by FSDP2.

    ``checkpointing`` is "none", "op", "layer" or "full". Stages of a pipeline go ``rounds`` times
    over its ranks.
    """

    tensor: int = 1
    stages: int = 1
    rounds: int = 1
    checkpointing: str = "op"

    def mesh(self):
        """Of all ranks; those that share a tensor are neighbours."""
        others = self.stages * self.tensor
        sizes = {"pp": self.stages, "dp": dist.get_world_size() // others, "tp": self.tensor}
        used = {name: size for name, size in sizes.items() if name == "dp" or size > 1}
        return dist.init_device_mesh("cpu", tuple(used.values()), mesh_dim_names=tuple(used))


def spread(model, plan, mesh):
    """A model on the device "meta", spread over the ranks of a mesh, and then with memory."""
    if plan.tensor > 1:
        split(model, mesh["tp"])
    for number, block in enumerate(model.blocks):
        block = model.blocks[number] = checkpointed(block, number, plan.checkpointing)
        is_last = number == len(model.blocks) - 1
        is_kept = is_last or plan.stages > 1
        fully_shard(block, mesh=mesh["dp"], mp_policy=POLICY, reshard_after_forward=not is_kept)
    fully_shard(model, mesh=mesh["dp"], mp_policy=POLICY, reshard_after_forward=plan.stages == 1)
    return model.to_empty(device="cpu")


def split(model, mesh):
    """Heads, hidden layers and vocabulary over ranks; between, each has a part of a sequence."""
    rows = RowwiseParallel(output_layouts=Shard(1))
    whole = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    of_block = {
        "norm1": SequenceParallel(),
        "norm2": SequenceParallel(),
        "attention": PrepareModuleInput(
            input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
        ),
        "hidden": whole,
        **{f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")},
        **{f"hidden.{name}": ColwiseParallel() for name in ("w1", "w3")},
        **{"attention.wo": rows, "hidden.w2": rows},
    }
    for block in model.blocks:
        parallelize_module(block, mesh, of_block)
    if model.embedding is not None:
        tokens = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
        parallelize_module(model, mesh, {"embedding": tokens})
    if model.output is not None:
        logits = ColwiseParallel(
            input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False
        )
        parallelize_module(model, mesh, {"norm": SequenceParallel(), "output": logits})


def checkpointed(block, number, how):
    """A block of which ``how`` says what is computed again in backward."""
    if how == "none" or (how == "layer" and number % 2 == 0):
        return block
    more = {"context_fn": every_second_product} if how == "op" else {}
    return checkpoint_wrapper(block, preserve_rng_state=False, **more)


def every_second_product():
    """Checkpointing that saves attention and the first, third ... product of a block."""
    products = Counter()

    def policy(context, func, *args, **kwargs):
        is_product = func is aten.mm.default
        products[context.is_recompute] += is_product
        is_saved = func in SAVED and not (is_product and products[context.is_recompute] % 2 == 0)
        return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)

"""Each rank has a batch of its own: DDP, FSDP2, HSDP, FSDP1, ZeRO, checkpoints of activations."""

import functools

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from .models import GPT, GPTBlock, Llama, LlamaBlock, batch, loss_of, train

BFLOAT16 = MixedPrecisionPolicy(torch.bfloat16, torch.float32)


def sharded(model, **how):
    """FSDP2 around each layer and around the model."""
    for layer in model.layers:
        fully_shard(layer, **how)
    return fully_shard(model, **how)


def ddp(rank, world_size):
    model = DistributedDataParallel(GPT())
    return train(model, torch.optim.AdamW(model.parameters(), foreach=True))


def ddp_accumulating(rank, world_size):
    """Two batches a step, of which only the second lets gradients travel."""
    model = DistributedDataParallel(Llama(), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(2):
        tokens, target = batch()
        with model.no_sync():
            loss_of(model(tokens), target).backward()
        loss = loss_of(model(tokens), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def ddp_autocast(rank, world_size):
    model = DistributedDataParallel(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):
        tokens, target = batch()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model(tokens), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def averaged_by_hand(rank, world_size):
    """Gradients through one flat vector; plain Adam in a loop over parameters."""
    model = Llama()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for _ in range(2):
        tokens, target = batch()
        loss_of(model(tokens), target).backward()
        flat = torch.cat([one.grad.flatten() for one in model.parameters()])
        dist.all_reduce(flat, op=dist.ReduceOp.AVG)
        parts = flat.split([one.numel() for one in model.parameters()])
        for one, part in zip(model.parameters(), parts, strict=True):
            one.grad.copy_(part.view_as(one))
        optimizer.step()
        optimizer.zero_grad()


def fsdp2(rank, world_size):
    model = sharded(Llama())
    return train(model, torch.optim.AdamW(model.parameters()), clip=1.0)


def fsdp2_bfloat16(rank, world_size):
    """Parameters stay whole until backward; layers ask for the next ones ahead."""
    model = sharded(Llama(), mp_policy=BFLOAT16, reshard_after_forward=False)
    first, second = model.layers
    first.set_modules_to_forward_prefetch([second])
    return train(model, torch.optim.AdamW(model.parameters(), fused=True), clip=1.0)


def fsdp2_from_meta(rank, world_size):
    """No rank ever has the whole model."""
    with torch.device("meta"):
        model = Llama()
    sharded(model, mp_policy=BFLOAT16)
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    return train(model, torch.optim.AdamW(model.parameters()))


def fsdp2_accumulating(rank, world_size):
    model = sharded(GPT(), reshard_after_forward=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for micro in range(4):
        is_last = micro % 2 == 1
        model.set_requires_gradient_sync(is_last)
        tokens, target = batch()
        loss_of(model(tokens), target).backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()


def hsdp(rank, world_size):
    mesh = init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("replicas", "shards"))
    model = sharded(GPT(), mesh=mesh)
    return train(model, torch.optim.AdamW(model.parameters()), clip=1.0)


def fsdp1(rank, world_size):
    model = FullyShardedDataParallel(
        GPT(),
        auto_wrap_policy=ModuleWrapPolicy({GPTBlock}),
        use_orig_params=True,
        device_id=torch.device("cpu"),
    )
    return train(model, torch.optim.AdamW(model.parameters()))


def zero1(rank, world_size):
    model = DistributedDataParallel(GPT())
    kind = torch.optim.AdamW
    return train(model, ZeroRedundancyOptimizer(model.parameters(), kind, lr=1e-3))


class CheckpointedBlock(GPTBlock):
    """Kept is what goes in."""

    is_reentrant = False

    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=self.is_reentrant)


class ReentrantBlock(CheckpointedBlock):
    """The older way."""

    is_reentrant = True


def checkpointed(rank, world_size):
    model = DistributedDataParallel(GPT(CheckpointedBlock))
    return train(model, torch.optim.AdamW(model.parameters()))


def checkpointed_reentrant(rank, world_size):
    model = DistributedDataParallel(GPT(ReentrantBlock))
    return train(model, torch.optim.AdamW(model.parameters()))


def fsdp2_checkpointed(rank, world_size):
    model = Llama()
    apply_activation_checkpointing(model, check_fn=lambda one: isinstance(one, LlamaBlock))
    sharded(model)
    return train(model, torch.optim.AdamW(model.parameters()))


def _policy(context, op, *args, **kwargs):
    kept = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def fsdp2_selective(rank, world_size):
    """Products of matrices are kept, all else is computed again."""
    model = Llama()
    contexts = functools.partial(create_selective_checkpoint_contexts, _policy)
    for number, layer in enumerate(model.layers):
        model.layers[number] = checkpoint_wrapper(layer, context_fn=contexts)
    sharded(model, mp_policy=BFLOAT16)
    return train(model, torch.optim.AdamW(model.parameters()))


PROGRAMS = [
    ddp,
    ddp_accumulating,
    ddp_autocast,
    averaged_by_hand,
    fsdp2,
    fsdp2_bfloat16,
    fsdp2_from_meta,
    fsdp2_accumulating,
    hsdp,
    fsdp1,
    zero1,
    checkpointed,
    checkpointed_reentrant,
    fsdp2_checkpointed,
    fsdp2_selective,
]

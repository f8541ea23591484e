"""DDP's check that all ranks have the same model, for thousands of ranks in one process.

torch's own gathers a tensor from every rank on every rank: n * n tensors, all alive at once. Here
all ranks share what was gathered. The ops are the same, and so is what they find.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed.utils
import torch.nn.parallel.distributed

from ...record.transports.plain_group import SharedOutputs


def share_what_ddp_gathers():
    """Use `verify_same_model` wherever DDP calls torch's check; for the process that simulates."""
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
        As torch's; not used.

    Raises
    ------
    RuntimeError
        On every rank that finds a difference.
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

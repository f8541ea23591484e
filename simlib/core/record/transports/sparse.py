"""The sum of sparse tensors over the ranks of a group: MPI has none."""

from __future__ import annotations

import torch


def add_up(group, tensor):
    """Give every rank the sum of all ranks' sparse tensors, in place.

    Ranks may hold different numbers of values at different places, so all of them are gathered, as
    Gloo does.

    Parameters
    ----------
    group : MpiGroup
    tensor : torch.Tensor
        In the layout ``torch.sparse_coo``; the same shape and dtype on every rank.

    Notes
    -----
    **Cost** three all_gathers, of a number and of the largest rank's indices and values, padded.
    """
    own = tensor.detach().coalesce()
    counts = _gathered(group, torch.tensor([own._nnz()]))
    most = max(count.item() for count in counts)
    indices = own.indices().new_zeros((most, own.sparse_dim()))
    indices[: own._nnz()] = own.indices().T
    values = own.values().new_zeros((most, *own.values().shape[1:]))
    values[: own._nnz()] = own.values()
    everyones = [
        torch.cat([part[: count.item()] for part, count in zip(parts, counts, strict=True)])
        for parts in (_gathered(group, indices), _gathered(group, values))
    ]
    total = torch.sparse_coo_tensor(
        everyones[0].T, everyones[1], own.shape, check_invariants=False
    ).coalesce()
    with torch.no_grad():  # tensor.detach() would have indices of its own
        tensor.copy_(total)


def _gathered(group, tensor):
    parts = [torch.empty_like(tensor) for _ in range(group.size())]
    group.allgather([parts], [tensor]).wait()
    return parts

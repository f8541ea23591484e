"""Tensors as the memory that MPI reads and writes.

What is copied into a tensor afterwards goes by its ``data``: a version of the tensor counts writes
of the program's own, and not what a collective brings.
"""

from __future__ import annotations

import torch
from mpi4py import MPI


def as_bytes(tensor):
    """The memory of a contiguous tensor, as a flat array of bytes."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def with_type(array, counts):
    """What MPI takes for parts of several sizes, each a number of bytes."""
    return [array, counts, MPI.BYTE]


def nbytes_of(tensors):
    """The bytes of each tensor, a list."""
    return [tensor.numel() * tensor.element_size() for tensor in tensors]


def joined(tensors):
    """The bytes of several tensors one after the other, in a new array."""
    return as_bytes(torch.cat([tensor.detach().reshape(-1) for tensor in tensors]))


def without_overlap(tensor, output):
    """A contiguous tensor that shares no memory with the output: MPI permits no overlap."""
    same = tensor.untyped_storage().data_ptr() == output.untyped_storage().data_ptr()
    return tensor.clone().contiguous() if same else tensor.contiguous()


def receive_buffer(tensor, after):
    """Where MPI may write what belongs into a tensor: the tensor's own memory if it can be."""
    if tensor.is_contiguous():
        return as_bytes(tensor)
    buffer = tensor.data.contiguous()
    after.append(lambda: tensor.data.copy_(buffer))
    return as_bytes(buffer)


def receive_buffers(tensors, after):
    """Where MPI may write what belongs into several tensors, one after the other."""
    sizes = [tensor.numel() for tensor in tensors]
    buffer = torch.empty(sum(sizes), dtype=tensors[0].dtype)
    parts = buffer.split(sizes)

    def hand_out():
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.data.copy_(part.view_as(tensor))

    after.append(hand_out)
    return as_bytes(buffer)

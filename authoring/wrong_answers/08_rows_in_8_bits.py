"""Wrong answers to exercise 08.6, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "rows_in_8_bits"
E4M3 = torch.float8_e4m3fn


def quantised(rows, dtype=E4M3, largest=448):
    """Numbers of shape (count, d) and scales of shape (count, d / 8)."""
    blocks = rows.view(len(rows), rows.shape[1] // 8, 8)
    scales = blocks.abs().amax(2, keepdim=True).clamp(min=1e-30) / largest
    values = blocks / scales
    values = (values.round() if dtype == torch.int8 else values).to(dtype)
    return values.view(rows.shape), scales[:, :, 0]


def restored(values, scales):
    blocks = values.float().view(len(values), scales.shape[1], 8)
    return (blocks * scales[:, :, None]).view(values.shape)


def exchanged(world_size, to, *tensors):
    """The rows of each tensor that come to this rank; they are sorted by their rank."""
    sent = to.bincount(minlength=world_size)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    found = []
    for tensor in tensors:
        into = tensor.new_empty(int(received.sum()), tensor.shape[1])
        dist.all_to_all_single(into, tensor, received.tolist(), sent.tolist())
        found.append(into)
    return found


def in_float32(rank, world_size, rows, to):
    """the rows that travel in float32"""
    (got,) = exchanged(world_size, to, rows[to.argsort(stable=True)])
    return got


def rounded_in_float32(rank, world_size, rows, to):
    """the rows that are restored before they travel"""
    (got,) = exchanged(world_size, to, restored(*quantised(rows[to.argsort(stable=True)])))
    return got


def as_int8(rank, world_size, rows, to):
    """the rows in int8"""
    both = quantised(rows[to.argsort(stable=True)], torch.int8, 127)
    return restored(*exchanged(world_size, to, *both))


def one_scale(rank, world_size, rows, to):
    """the rows with one scale for all of a rank"""
    scale = rows.abs().max() / 448 if len(rows) else torch.tensor(1.0)
    codes = (rows[to.argsort(stable=True)] / scale).to(E4M3).view(torch.uint8)
    got, scales = exchanged(world_size, to, codes, scale.expand(len(rows), 1).contiguous())
    return got.view(E4M3).float() * scales


def unsorted_scales(rank, world_size, rows, to):
    """the rows whose scales are not sorted"""
    values, _ = quantised(rows[to.argsort(stable=True)])
    got, scales = exchanged(world_size, to, values.view(torch.uint8), quantised(rows)[1])
    return restored(got.view(E4M3), scales)


def unsorted_rows(rank, world_size, rows, to):
    """the rows that are cut in their own order"""
    values, scales = quantised(rows)
    got, scales = exchanged(world_size, to, values.view(torch.uint8), scales)
    return restored(got.view(E4M3), scales)


def no_scales(rank, world_size, rows, to):
    """the rows without their scales"""
    values, _ = quantised(rows[to.argsort(stable=True)])
    (got,) = exchanged(world_size, to, values.view(torch.uint8))
    return got.view(E4M3).float()


def bare_float8(rank, world_size, rows, to):
    """the rows that travel as float8"""
    both = quantised(rows[to.argsort(stable=True)])
    return restored(*exchanged(world_size, to, *both))


def counts_and_scales_twice(rank, world_size, rows, to):
    """the rows that send their scales twice"""
    values, scales = quantised(rows[to.argsort(stable=True)])
    got, one, _ = exchanged(world_size, to, values.view(torch.uint8), scales, scales)
    return restored(got.view(E4M3), one)


WRONG = {
    in_float32: "Those are the exact rows",
    rounded_in_float32: "a byte for each number",
    as_int8: "Those are the rows in int8",
    one_scale: "One scale for all rows",
    unsorted_scales: "but their scales are not",
    unsorted_rows: "but not sorted before",
    no_scales: "The scales never came",
    bare_float8: "cannot carry float8_e4m3fn",
    counts_and_scales_twice: "4 collectives take place",
}


def in_one_tensor(rank, world_size, rows, to):
    """Numbers and scales as bytes of one tensor."""
    values, scales = quantised(rows[to.argsort(stable=True)])
    both = torch.cat([values.view(torch.uint8), scales.contiguous().view(torch.uint8)], 1)
    (got,) = exchanged(world_size, to, both)
    d = rows.shape[1]
    return restored(got[:, :d].contiguous().view(E4M3), got[:, d:].contiguous().view(torch.float32))


ALSO_RIGHT = (in_one_tensor,)

"""Wrong answers to exercise 10.4, each with the words its refusal must hold."""

import numpy as np
import torch
import torch.distributed as dist

QUESTION = "gradient_in_pieces"


def forward(rank, world_size, weight, x, batch):
    """One piece forward: the stage's input and output."""
    h = x
    if rank > 0:
        h = torch.empty(batch, weight.shape[0])
        dist.recv(h, src=rank - 1)
        h.requires_grad_()
    y = torch.tanh(h @ weight)
    if rank < world_size - 1:
        dist.send(y.detach(), dst=rank + 1)
    return h, y


def backward(rank, world_size, h, y, divisor):
    """One piece backward."""
    if rank < world_size - 1:
        gradient = torch.empty_like(y)
        dist.recv(gradient, src=rank + 1)
        y.backward(gradient)
    else:
        ((y**2).mean() / divisor).backward()
    if rank > 0:
        dist.send(h.grad, dst=rank - 1)


def piece_of(xs, piece):
    return xs[piece] if xs is not None else None


def one_by_one(rank, world_size, w, xs, batch, pieces, divisor, forgets=False):
    weight = w.clone().requires_grad_()
    for piece in range(pieces):
        if forgets:
            weight.grad = None
        h, y = forward(rank, world_size, weight, piece_of(xs, piece), batch)
        backward(rank, world_size, h, y, divisor)
    return weight.grad


def not_divided(rank, world_size, w, xs, batch, pieces):
    """the sum over the pieces in place of their mean"""
    return one_by_one(rank, world_size, w, xs, batch, pieces, divisor=1)


def zeroed_for_each_piece(rank, world_size, w, xs, batch, pieces):
    """the gradient of the last piece alone"""
    return one_by_one(rank, world_size, w, xs, batch, pieces, divisor=1, forgets=True)


def divided_and_zeroed(rank, world_size, w, xs, batch, pieces):
    """the last piece's part of the mean, without the others"""
    return one_by_one(rank, world_size, w, xs, batch, pieces, divisor=pieces, forgets=True)


def divided_on_every_rank(rank, world_size, w, xs, batch, pieces):
    """the second division by pieces, on all ranks but the last"""
    gradient = one_by_one(rank, world_size, w, xs, batch, pieces, divisor=pieces)
    return gradient / pieces if rank < world_size - 1 else gradient


def all_forward_first(rank, world_size, w, xs, batch, pieces):
    """the plan that takes all pieces forward before any backward"""
    weight = w.clone().requires_grad_()
    begun = [
        forward(rank, world_size, weight, piece_of(xs, piece), batch) for piece in range(pieces)
    ]
    for h, y in begun:
        backward(rank, world_size, h, y, pieces)
    return weight.grad


def plans_that_differ(rank, world_size, w, xs, batch, pieces):
    """the mix of FFBB on rank 0 and FBFB on the other ranks"""
    if rank == 0:
        return all_forward_first(rank, world_size, w, xs, batch, pieces)
    return one_by_one(rank, world_size, w, xs, batch, pieces, divisor=pieces)


def in_one_large_piece(rank, world_size, w, xs, batch, pieces):
    """the pieces joined into one large piece"""
    weight = w.clone().requires_grad_()
    x = torch.cat(xs) if rank == 0 else None
    h, y = forward(rank, world_size, weight, x, batch * pieces)
    backward(rank, world_size, h, y, 1)
    return weight.grad


def row_by_row(rank, world_size, w, xs, batch, pieces):
    """the pieces cut further, into single examples"""
    rows = [row[None] for x in xs for row in x] if rank == 0 else None
    return one_by_one(rank, world_size, w, rows, 1, batch * pieces, divisor=batch * pieces)


def with_a_reduce(rank, world_size, w, xs, batch, pieces):
    """the plan with a barrier beside its messages"""
    gradient = one_by_one(rank, world_size, w, xs, batch, pieces, divisor=pieces)
    dist.barrier()
    return gradient


def grad_of_what_was_given(rank, world_size, w, xs, batch, pieces):
    """the .grad of w, where another tensor was computed with"""
    one_by_one(rank, world_size, w, xs, batch, pieces, divisor=pieces)
    return w.grad


def products_by_numpy(rank, world_size, w, xs, batch, pieces):
    """right, by numpy, whose arrays no ledger sees"""
    total, weight = 0, w.numpy()
    for piece in range(pieces):
        h = torch.zeros(batch, len(w)) if rank else xs[piece]
        if rank:
            dist.recv(h, rank - 1)
        h = h.numpy().copy()
        y = np.tanh(h @ weight)
        of_y = torch.from_numpy(2 * y / y.size / pieces)
        if rank + 1 < world_size:
            dist.send(torch.from_numpy(y), rank + 1)
            dist.recv(of_y, rank + 1)
        of_z = of_y.numpy() * (1 - y * y)
        total = total + h.T @ of_z
        if rank:
            dist.send(torch.from_numpy(np.ascontiguousarray(of_z @ weight.T)), rank - 1)
    return torch.from_numpy(total)


WRONG = {
    not_divided: "divide, for the loss is a mean over all",
    zeroed_for_each_piece: "That is the gradient of the last piece alone",
    divided_and_zeroed: "That is the last piece's part alone",
    divided_on_every_rank: "The gradients that come back are divided already",
    all_forward_first: "Take a piece backward before the next one comes",
    plans_that_differ: "wait for each other",
    in_one_large_piece: "let each piece cross each boundary by itself",
    row_by_row: "One forward and one backward for each piece",
    with_a_reduce: "calls barrier",
    grad_of_what_was_given: "Every rank returns None",
    products_by_numpy: "Operations of numpy are not counted",
}


def summed_by_hand(rank, world_size, w, xs, batch, pieces):
    total = torch.zeros_like(w)
    for piece in range(pieces):
        h = torch.zeros(batch, len(w)) if rank else xs[piece].clone()
        if rank:
            dist.recv(h, rank - 1)
        y = torch.tanh(h @ w)
        if rank + 1 < world_size:
            dist.send(y, rank + 1)
            of_y = torch.zeros_like(y)
            dist.recv(of_y, rank + 1)
        else:
            of_y = 2 * y / y.numel() / pieces
        of_z = of_y * (1 - y * y)
        total += h.T @ of_z
        if rank:
            dist.send(of_z @ w.T, rank - 1)
    return total


ALSO_RIGHT = [summed_by_hand]

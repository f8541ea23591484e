"""Wrong answers to exercise 10.1, each with the words its refusal must hold."""

import itertools

import torch
import torch.distributed as dist

QUESTION = "stage_ledger"


def ledger(widths, batch, optimizer, biases=True, of_adam=2, counts=True, first=0):
    """The right ledger, unless something else is asked for."""
    tensors = [a * b for a, b in itertools.pairwise(widths)] + widths[1:] * biases
    numbers = sum(tensors)
    adam = of_adam * 4 * numbers + 4 * len(tensors) * counts
    state = {"sgd": 0, "momentum": 4 * numbers, "adam": adam}
    return {
        "parameters": 4 * numbers,
        "gradients": 4 * numbers,
        "optimizer state": state[optimizer],
        "activations": 4 * batch * sum(widths[first:]),
    }


def numbers_not_bytes(rank, world_size, widths, batch, optimizer):
    """the ledger in numbers, not in bytes"""
    return {key: nbytes // 4 for key, nbytes in ledger(widths, batch, optimizer).items()}


def no_biases(rank, world_size, widths, batch, optimizer):
    """the ledger without the biases"""
    return ledger(widths, batch, optimizer, biases=False)


def one_number_for_adam(rank, world_size, widths, batch, optimizer):
    """the ledger in which Adam keeps one number per parameter"""
    return ledger(widths, batch, optimizer, of_adam=1, counts=False)


def no_count_of_steps(rank, world_size, widths, batch, optimizer):
    """the ledger without Adam's counts of its steps"""
    return ledger(widths, batch, optimizer, counts=False)


def no_input(rank, world_size, widths, batch, optimizer):
    """the ledger without the input of the stage"""
    return ledger(widths, batch, optimizer, first=1)


def one_example(rank, world_size, widths, batch, optimizer):
    """the ledger with the activations of one example only"""
    return ledger(widths, 1, optimizer)


def total_alone(rank, world_size, widths, batch, optimizer):
    """the total of the ledger in place of its categories"""
    return sum(ledger(widths, batch, optimizer).values())


def told_by_rank_0(rank, world_size, widths, batch, optimizer):
    """the ledger for which rank 0 sends messages"""
    for other in range(1, world_size):
        if rank == 0:
            dist.send(torch.ones(1), dst=other)
        elif rank == other:
            dist.recv(torch.ones(1), src=0)
    return ledger(widths, batch, optimizer)


def momentum_has_no_state(rank, world_size, widths, batch, optimizer):
    """the ledger in which momentum has no state"""
    return ledger(widths, batch, "sgd" if optimizer == "momentum" else optimizer)


def linear_outputs_kept(rank, world_size, widths, batch, optimizer):
    """the ledger that counts the outputs of the Linears, too"""
    right = ledger(widths, batch, optimizer)
    return right | {"activations": right["activations"] + 4 * batch * sum(widths[1:])}


def one_count_for_each_width(rank, world_size, widths, batch, optimizer):
    """the ledger with a count of Adam's steps for each width"""
    right = ledger(widths, batch, optimizer, counts=False)
    counts = 4 * len(widths) if optimizer == "adam" else 0
    return right | {"optimizer state": right["optimizer state"] + counts}


def one_count_for_each_layer(rank, world_size, widths, batch, optimizer):
    """the ledger with a count of Adam's steps for each layer"""
    right = ledger(widths, batch, optimizer, counts=False)
    counts = 4 * (len(widths) - 1) if optimizer == "adam" else 0
    return right | {"optimizer state": right["optimizer state"] + counts}


WRONG = {
    linear_outputs_kept: "The output of a Linear is released",
    one_count_for_each_width: "a count for each tensor, not for each width",
    one_count_for_each_layer: "A Linear has two tensors, weight and bias",
    numbers_not_bytes: "a float32 has 4 bytes",
    no_biases: "A Linear has a bias, too",
    one_number_for_adam: "Adam keeps two numbers per parameter",
    no_count_of_steps: "Adam also counts its steps",
    no_input: "The input of the first layer is kept, too",
    one_example: "Those are the activations of one example",
    total_alone: "but a dict with parameters, gradients, optimizer state",
    told_by_rank_0: "Each rank can work this out for itself",
    momentum_has_no_state: "Momentum keeps one number per parameter",
}


def by_layers(rank, world_size, widths, batch, optimizer):
    layers = [torch.nn.Linear(a, b) for a, b in zip(widths, widths[1:], strict=False)]
    tensors = [p for layer in layers for p in layer.parameters()]
    whole = sum(p.nbytes for p in tensors)
    copies = {"sgd": 0, "momentum": 1, "adam": 2}[optimizer]
    return {
        "activations": sum(4 * batch * width for width in widths),
        "parameters": whole,
        "gradients": whole,
        "optimizer state": copies * whole + (copies == 2) * 4 * len(tensors),
    }


ALSO_RIGHT = [by_layers]

"""Wrong answers to exercise 08.2, each with the words its refusal must hold."""

import os
import pickle
import threading

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

QUESTION = "hide_it"


def tower(widths):
    torch.manual_seed(0)
    pairs = zip(widths, widths[1:], strict=False)
    return nn.Sequential(*(nn.Linear(*pair, bias=False) for pair in pairs))


def gradients(model):
    return [weight.grad for weight in model.parameters()]


def waits_in_the_hook(rank, world_size, widths, x):
    """the backward pass that no all_reduce overlaps"""
    model = tower(widths)

    def reduce(weight):
        weight.grad /= world_size
        dist.all_reduce(weight.grad, async_op=True).wait()

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(reduce)
    model(x).sum().backward()
    return gradients(model)


def never_waits(rank, world_size, widths, x):
    """the all_reduce that nobody waits for"""
    model = tower(widths)

    def start(weight):
        weight.grad /= world_size
        dist.all_reduce(weight.grad, async_op=True)

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(start)
    model(x).sum().backward()
    return gradients(model)


def one_for_all(rank, world_size, widths, x):
    """the one all_reduce of all layers after the backward pass"""
    model = tower(widths)
    model(x).sum().backward()
    flat = torch.cat([grad.flatten() for grad in gradients(model)]) / world_size
    dist.all_reduce(flat)
    parts = flat.split([weight.numel() for weight in model.parameters()])
    return [part.view_as(w) for part, w in zip(parts, model.parameters(), strict=True)]


def first_layer_first(rank, world_size, widths, x):
    """the all_reduces in the order of the layers, first layer first"""
    model = tower(widths)
    model(x).sum().backward()
    requests = []
    for weight in model.parameters():
        weight.grad /= world_size
        requests.append(dist.all_reduce(weight.grad, async_op=True))
    for request in requests:
        request.wait()
    return gradients(model)


def not_divided(rank, world_size, widths, x):
    """the sum over the ranks in place of the mean"""
    model = tower(widths)
    requests = []

    def start(weight):
        requests.append(dist.all_reduce(weight.grad, async_op=True))

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(start)
    model(x).sum().backward()
    for request in requests:
        request.wait()
    return gradients(model)


def divides_too_early(rank, world_size, widths, x):
    """the division of a gradient whose all_reduce is still open"""
    model = tower(widths)
    requests = []

    def start(weight):
        requests.append(dist.all_reduce(weight.grad, async_op=True))

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(start)
    model(x).sum().backward()
    for weight in model.parameters():
        weight.grad /= world_size
    for request in requests:
        request.wait()
    return gradients(model)


def forgets_backward(rank, world_size, widths, x):
    """the list of gradients without a backward pass"""
    model = tower(widths)
    model(x).sum()
    return gradients(model)


def hooks_before_accumulation(rank, world_size, widths, x):
    """the all_reduce of a copy, not of what is in .grad"""
    model, requests = tower(widths), []

    def start(grad):
        grad = grad / world_size
        requests.append(dist.all_reduce(grad, async_op=True))

    for weight in model.parameters():
        weight.register_hook(start)
    model(x).sum().backward()
    for request in requests:
        request.wait()
    return gradients(model)


def reduces_what_the_hook_replaced(rank, world_size, widths, x):
    """the all_reduce of a copy, while .grad is only divided"""
    model, requests = tower(widths), []

    def start(grad):
        grad = grad / world_size
        sent = grad.clone()
        requests.append(dist.all_reduce(sent, async_op=True))
        return grad

    for weight in model.parameters():
        weight.register_hook(start)
    model(x).sum().backward()
    for request in requests:
        request.wait()
    return gradients(model)


def copies_before_the_wait(rank, world_size, widths, x):
    """the copy of one gradient that is taken before its all_reduce has ended"""
    model, requests, early = tower(widths), [], {}
    first = next(model.parameters())

    def start(weight):
        weight.grad /= world_size
        if weight is first:
            early[weight] = weight.grad.clone()  # surely too early, so that the test is sure
        requests.append(dist.all_reduce(weight.grad, async_op=True))

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(start)
    model(x).sum().backward()
    for request in requests:
        request.wait()
    return [early.get(weight, weight.grad) for weight in model.parameters()]


def in_order_of_backward(rank, world_size, widths, x):
    """the list of means in the order in which backward gives them"""
    model, means, requests = tower(widths), [], []

    def start(weight):
        weight.grad /= world_size
        means.append(weight.grad)
        requests.append(dist.all_reduce(weight.grad, async_op=True))

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(start)
    model(x).sum().backward()
    for request in requests:
        request.wait()
    return means


def backward_in_a_thread(rank, world_size, widths, x):
    """a trial pass and the backward pass in a thread, the all_reduces after it"""
    model = tower(widths)
    thread = threading.Thread(target=lambda: (model(x), model(x).sum().backward()))
    thread.start()
    thread.join()
    requests = []
    for weight in reversed(list(model.parameters())):
        weight.grad /= world_size
        requests.append(dist.all_reduce(weight.grad, async_op=True))
    for request in requests:
        request.wait()
    return gradients(model)


def backward_in_numpy(rank, world_size, widths, x):
    """the backward pass by numpy, whose work no clock sees"""
    model = tower(widths)
    weights = [weight.detach().numpy() for weight in model.parameters()]
    inputs = [x.numpy()]
    for weight in weights[:-1]:
        inputs.append(inputs[-1] @ weight.T)
    grad, grads, requests = np.ones((len(x), widths[-1]), np.float32), [], []
    for weight, value in zip(reversed(weights), reversed(inputs), strict=True):
        grads.append(torch.from_numpy(grad.T @ value / world_size))
        requests.append(dist.all_reduce(grads[-1], async_op=True))
        grad = grad @ weight
    for request in requests:
        request.wait()
    return grads[::-1]


def backward_in_a_process(rank, world_size, widths, x):
    """the backward pass in another process, whose work no clock sees"""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        with os.fdopen(writing, "wb") as file:
            model = tower(widths)
            model(x).sum().backward()
            pickle.dump([grad.numpy() for grad in gradients(model)], file)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        grads = [torch.from_numpy(grad) / world_size for grad in pickle.load(file)]
    os.waitpid(child, 0)
    requests = [dist.all_reduce(grad, async_op=True) for grad in reversed(grads)]
    for request in requests:
        request.wait()
    return grads


WRONG = {
    backward_in_a_thread: "done after 14.7 ms",
    backward_in_numpy: "floating-point operations with torch",
    backward_in_a_process: "starts another process",
    waits_in_the_hook: "done after 11.5 ms",
    never_waits: "has no wait()",
    one_for_all: "carry 148 bytes",
    first_layer_first: "carry 60, then 40",
    not_divided: "sums over the ranks",
    divides_too_early: "race",
    forgets_backward: "does backward() run?",
    hooks_before_accumulation: "Each rank has its own gradient: what was reduced",
    reduces_what_the_hook_replaced: "Each rank has its own gradient, divided: what was",
    copies_before_the_wait: "copied before their wait() had returned",
    in_order_of_backward: "in the order in which backward reaches the layers: return",
}

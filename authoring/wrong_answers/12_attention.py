"""Wrong answers to exercise 12.3, each with the words its refusal must hold."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

QUESTION = "attention"


class Sum(torch.autograd.Function):
    """An all_reduce forward, backward, in both or in neither."""

    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.sums = backward
        return summed(x) if forward else x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return summed(gradient) if ctx.sums else gradient, None, None


def summed(x):
    x = x.clone()
    dist.all_reduce(x)
    return x


def enter(x):
    return Sum.apply(x, False, True)


def leave(y):
    return Sum.apply(y, True, False)


def same(x):
    return x


def mixed(h, q, k, v, out, head_dim):
    heads = [F.linear(h, w).unflatten(1, (-1, head_dim)).transpose(0, 1) for w in (q, k, v)]
    found = F.scaled_dot_product_attention(*heads, is_causal=True)
    return F.linear(found.transpose(0, 1).flatten(1), out)


def step(x, q, k, v, out, head_dim, enter=enter, leave=leave, first=same):
    x, q = x.clone().requires_grad_(), q.clone().requires_grad_()
    entered = first(x)
    y = entered + leave(mixed(enter(entered), q, k, v, out, head_dim))
    y.square().sum().backward()
    return y.detach(), x.grad, q.grad


def no_enter(rank, world_size, x, q, k, v, out, head_dim):
    """the attention with Leave, but without Enter"""
    return step(x, q, k, v, out, head_dim, enter=same)


def sum_past_the_heads_too(rank, world_size, x, q, k, v, out, head_dim):
    """the attention that enters before the sum past it"""
    return step(x, q, k, v, out, head_dim, enter=same, first=enter)


def leave_around_everything(rank, world_size, x, q, k, v, out, head_dim):
    """the attention whose Leave stands around the sum with x"""
    x, q = x.clone().requires_grad_(), q.clone().requires_grad_()
    y = leave(x + mixed(enter(x), q, k, v, out, head_dim))
    y.square().sum().backward()
    return y.detach(), x.grad, q.grad


def leave_around_everything_no_enter(rank, world_size, x, q, k, v, out, head_dim):
    """the attention without Enter, with Leave around the sum with x"""
    x, q = x.clone().requires_grad_(), q.clone().requires_grad_()
    y = leave(x + mixed(x, q, k, v, out, head_dim))
    y.square().sum().backward()
    return y.detach(), x.grad, q.grad


def leave_sums_twice(rank, world_size, x, q, k, v, out, head_dim):
    """the attention whose Leave adds up backward, too"""
    return step(x, q, k, v, out, head_dim, leave=lambda y: Sum.apply(y, True, True))


def loss_of_all(rank, world_size, x, q, k, v, out, head_dim):
    """the attention whose x has its gradient added up once more"""
    y, x_grad, q_grad = step(x, q, k, v, out, head_dim)
    return y, summed(x_grad), q_grad


def only_entered(rank, world_size, x, q, k, v, out, head_dim):
    """the attention with Enter, but without Leave"""
    return step(x, q, k, v, out, head_dim, leave=same)


def as_given(rank, world_size, x, q, k, v, out, head_dim):
    """the attention that sends nothing"""
    return step(x, q, k, v, out, head_dim, enter=same, leave=same)


def past_divided(rank, world_size, x, q, k, v, out, head_dim):
    """the attention whose Leave adds up x / world_size and the heads"""
    x, q = x.clone().requires_grad_(), q.clone().requires_grad_()
    y = leave(x / world_size + mixed(enter(x), q, k, v, out, head_dim))
    y.square().sum().backward()
    return y.detach(), x.grad, q.grad


def enter_averages(rank, world_size, x, q, k, v, out, head_dim):
    """the attention whose Enter takes the mean backward"""

    def averaged(h):
        h = h.view_as(h)
        h.register_hook(lambda gradient: summed(gradient) / world_size)
        return h

    return step(x, q, k, v, out, head_dim, enter=averaged)


def sum_without_a_graph(rank, world_size, x, q, k, v, out, head_dim):
    """the attention that adds its heads up without their graph"""
    x, q = x.clone().requires_grad_(), q.clone().requires_grad_()
    y = x + summed(mixed(enter(x), q, k, v, out, head_dim).detach())
    y.square().sum().backward()
    return y.detach(), x.grad, q.grad


def heads_one_by_one(rank, world_size, x, q, k, v, out, head_dim):
    """the attention with an Enter for each of q, k and v"""
    x, q = x.clone().requires_grad_(), q.clone().requires_grad_()
    heads = [F.linear(enter(x), w).unflatten(1, (-1, head_dim)).transpose(0, 1) for w in (q, k, v)]
    found = F.scaled_dot_product_attention(*heads, is_causal=True)
    y = x + leave(F.linear(found.transpose(0, 1).flatten(1), out))
    y.square().sum().backward()
    return y.detach(), x.grad, q.grad


def weights_gathered(rank, world_size, x, q, k, v, out, head_dim):
    """the attention that collects everybody's heads"""
    parts = [None] * world_size
    dist.all_gather_object(parts, (q, k, v, out))
    whole = [
        torch.cat(part, dim=at)
        for part, at in zip(zip(*parts, strict=True), (0, 0, 0, 1), strict=True)
    ]
    y, x_grad, q_grad = step(x, *whole, head_dim, same, same)
    before = sum(len(part[0]) for part in parts[:rank])
    return y, x_grad, q_grad[before : before + len(q)]


WRONG = {
    no_enter: "has this rank's heads only",
    sum_past_the_heads_too: "The gradient that comes past the heads",
    leave_around_everything: "sum what comes from the heads, then add x",
    leave_around_everything_no_enter: "let x past the sum forward",
    leave_sums_twice: "after Leave every rank has the whole gradient of y",
    loss_of_all: "so it is summed twice",
    only_entered: "y is summed nowhere, but x's gradient is",
    as_given: "y lacks the heads of the other ranks",
    past_divided: "What comes back past the heads is divided",
    enter_averages: "You average the gradient that comes back through the heads",
    sum_without_a_graph: "Nothing comes back through the heads",
    heads_one_by_one: "carry 240, then 240, then 240, then 240 bytes where",
    weights_gathered: "calls all_gather",
}


def by_hooks(rank, world_size, x, q, k, v, out, head_dim):
    x, q = x.clone().requires_grad_(), q.clone().requires_grad_()
    h = x.view_as(x)
    h.register_hook(summed)
    heads = mixed(h, q, k, v, out, head_dim)
    y = x + heads - heads.detach() + summed(heads.detach())
    y.square().sum().backward()
    return y.detach(), x.grad, q.grad


ALSO_RIGHT = (by_hooks,)

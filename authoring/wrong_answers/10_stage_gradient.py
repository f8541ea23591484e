"""Wrong answers to exercise 10.3, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "stage_gradient"


def enter(rank, w, x, batch):
    """This stage's input, received if need be."""
    if rank == 0:
        return x
    h = torch.empty(batch, w.shape[0])
    dist.recv(h, src=rank - 1)
    return h.requires_grad_()


def right(rank, world_size, w, x, batch, reduction=torch.mean):
    h, weight = enter(rank, w, x, batch), w.clone().requires_grad_()
    y = torch.tanh(h @ weight)
    if rank < world_size - 1:
        dist.send(y.detach(), dst=rank + 1)
        gradient = torch.empty_like(y)
        dist.recv(gradient, src=rank + 1)
        y.backward(gradient)
    else:
        reduction(y**2).backward()
    if rank > 0:
        dist.send(h.grad, dst=rank - 1)
    return weight.grad


def nothing_comes_back(rank, world_size, w, x, batch):
    """the gradient of zeros on every rank but the last"""
    h, weight = enter(rank, w, x, batch), w.clone().requires_grad_()
    y = torch.tanh(h @ weight)
    if rank < world_size - 1:
        dist.send(y.detach(), dst=rank + 1)
        return torch.zeros_like(w)
    (y**2).mean().backward()
    return weight.grad


def gradient_left_out(rank, world_size, w, x, batch):
    """the None that every rank but the last returns"""
    h, weight = enter(rank, w, x, batch), w.clone().requires_grad_()
    y = torch.tanh(h @ weight)
    if rank < world_size - 1:
        dist.send(y.detach(), dst=rank + 1)
    else:
        (y**2).mean().backward()
    return weight.grad


def own_loss_everywhere(rank, world_size, w, x, batch):
    """the gradient of each stage's own output, as if it were the last"""
    h, weight = enter(rank, w, x, batch), w.clone().requires_grad_()
    y = torch.tanh(h @ weight)
    if rank < world_size - 1:
        dist.send(y.detach(), dst=rank + 1)
    (y**2).mean().backward()
    return weight.grad


def sum_of_squares(rank, world_size, w, x, batch):
    """the gradient of the sum of the squares, not of their mean"""
    return right(rank, world_size, w, x, batch, reduction=torch.sum)


def waits_for_a_gradient_that_is_not_sent(rank, world_size, w, x, batch):
    """the wait for a gradient that is never sent"""
    h, weight = enter(rank, w, x, batch), w.clone().requires_grad_()
    y = torch.tanh(h @ weight)
    if rank < world_size - 1:
        dist.send(y.detach(), dst=rank + 1)
        gradient = torch.empty_like(y)
        dist.recv(gradient, src=rank + 1)
        y.backward(gradient)
    else:
        (y**2).mean().backward()
    return weight.grad


def sends_the_gradient_of_its_weights(rank, world_size, w, x, batch):
    """the gradient of w, sent back over the boundary"""
    h, weight = enter(rank, w, x, batch), w.clone().requires_grad_()
    y = torch.tanh(h @ weight)
    if rank < world_size - 1:
        dist.send(y.detach(), dst=rank + 1)
        gradient = torch.empty_like(y)
        dist.recv(gradient, src=rank + 1)
        y.backward(gradient)
    else:
        (y**2).mean().backward()
    if rank > 0:
        dist.send(weight.grad, dst=rank - 1)
    return weight.grad


def both_send_first(rank, world_size, w, x, batch):
    """the backward message sent before the forward one is received"""
    h = torch.zeros(batch, w.shape[0])
    if rank > 0:
        dist.send(h, dst=rank - 1)
    return right(rank, world_size, w, x, batch)


def in_two_messages(rank, world_size, w, x, batch):
    """the two messages over each boundary in each direction"""

    def twice(call):
        def called(tensor, peer):
            call(tensor, peer)
            call(tensor, peer)

        return called

    send, recv = twice(dist.send), twice(dist.recv)
    weight = w.clone().requires_grad_()
    h = x
    if rank > 0:
        h = torch.empty(batch, w.shape[0])
        recv(h, rank - 1)
        h.requires_grad_()
    y = torch.tanh(h @ weight)
    if rank < world_size - 1:
        send(y.detach(), rank + 1)
        gradient = torch.empty_like(y)
        recv(gradient, rank + 1)
        y.backward(gradient)
    else:
        (y**2).mean().backward()
    if rank > 0:
        send(h.grad, rank - 1)
    return weight.grad


def in_double_precision(rank, world_size, w, x, batch):
    """the activations and gradients sent in double precision"""
    weight, h = w.clone().requires_grad_(), x
    if rank > 0:
        wide = torch.empty(batch, w.shape[0], dtype=torch.float64)
        dist.recv(wide, src=rank - 1)
        h = wide.float().requires_grad_()
    y = torch.tanh(h @ weight)
    if rank < world_size - 1:
        dist.send(y.detach().double(), dst=rank + 1)
        gradient = torch.empty_like(y, dtype=torch.float64)
        dist.recv(gradient, src=rank + 1)
        y.backward(gradient.float())
    else:
        (y**2).mean().backward()
    if rank > 0:
        dist.send(h.grad.double(), dst=rank - 1)
    return weight.grad


def everything_on_rank_0(rank, world_size, w, x, batch):
    """the work of all stages on rank 0, which collects the weights"""
    shape, gradient = torch.tensor(w.shape), torch.empty_like(w)
    if rank > 0:
        dist.send(shape, dst=0)
        dist.send(w, dst=0)
        dist.recv(gradient, src=0)
        return gradient
    weights = [w.clone().requires_grad_()]
    for other in range(1, world_size):
        dist.recv(shape, src=other)
        weights.append(torch.empty(*shape.tolist()))
        dist.recv(weights[-1], src=other)
        weights[-1].requires_grad_()
    h = x
    for weight in weights:
        h = torch.tanh(h @ weight)
    (h**2).mean().backward()
    for other in range(1, world_size):
        dist.send(weights[other].grad, dst=other)
    return weights[0].grad


def weights_gathered(rank, world_size, w, x, batch):
    """the backward pass with an all_gather of objects"""
    shapes = [None] * world_size
    dist.all_gather_object(shapes, tuple(w.shape))
    return right(rank, world_size, w, x, batch)


def input_needs_no_gradient(rank, world_size, w, x, batch):
    """the received input that does not require a gradient"""
    h, weight = x, w.clone().requires_grad_()
    if rank > 0:
        h = torch.empty(batch, w.shape[0])
        dist.recv(h, src=rank - 1)
    y = torch.tanh(h @ weight)
    if rank < world_size - 1:
        dist.send(y.detach(), dst=rank + 1)
        gradient = torch.empty_like(y)
        dist.recv(gradient, src=rank + 1)
        y.backward(gradient)
    else:
        (y**2).mean().backward()
    if rank > 0:
        dist.send(h.grad, dst=rank - 1)
    return weight.grad


def grad_of_what_was_given(rank, world_size, w, x, batch):
    """the .grad of w, where another tensor was computed with"""
    right(rank, world_size, w, x, batch)
    return w.grad


WRONG = {
    input_needs_no_gradient: "Is the None a .grad? A .grad stays None",
    nothing_comes_back: "Only the last rank has a gradient",
    gradient_left_out: "Rank 0 returns None, not so rank",
    own_loss_everywhere: "the gradient of its own output's squares",
    sum_of_squares: "the gradient of the sum of the squares",
    waits_for_a_gradient_that_is_not_sent: "rank 0 waits for rank 1, which has finished",
    sends_the_gradient_of_its_weights: "Rank 1 sends 8 elements of float32 to rank 0",
    both_send_first: "ranks 0 and 1 wait for each other",
    in_two_messages: "4 messages where 2 are enough (by rank: 2, 2). One forward and one",
    in_double_precision: "Only activations and their gradients need to cross",
    everything_on_rank_0: "3 messages where 2 are enough (by rank: 1, 2)",
    weights_gathered: "this question allows only",
    grad_of_what_was_given: "Every rank returns None",
}


def by_autograd_grad(rank, world_size, w, x, batch):
    w = w.detach().requires_grad_()
    h = x.detach() if rank == 0 else torch.zeros(batch, len(w))
    if rank:
        dist.irecv(h, rank - 1).wait()
    h.requires_grad_()
    y = (h @ w).tanh()
    back = None
    if rank + 1 < world_size:
        dist.isend(y.detach().clone(), rank + 1).wait()
        back = torch.zeros_like(y)
        dist.irecv(back, rank + 1).wait()
    else:
        y = y.square().mean()
    of_h, of_w = torch.autograd.grad(y, (h, w), back)
    if rank:
        dist.isend(of_h, rank - 1).wait()
    return of_w


ALSO_RIGHT = [by_autograd_grad]

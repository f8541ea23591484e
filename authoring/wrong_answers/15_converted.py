"""Wrong answers to exercise 15.1, each with the words its refusal must hold."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

QUESTION = "converted"


def mean_loss(module, batch, number):
    return F.cross_entropy(batch[0] @ module.w, batch[1])


def trained(x, y, w, batch, step=mean_loss, rate=None, momentum=0.9):
    class Classifier(Module):  # noqa: F821
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(w.clone())

        def training_step(self, batch, number):
            return step(self, batch, number)

        def configure_optimizers(self):
            lr = rate or RATE  # noqa: F821
            return torch.optim.SGD(self.parameters(), lr=lr, momentum=momentum)

    module = Classifier()
    fit(module, (x, y), batch)  # noqa: F821
    return module.w.detach()


def line_by_line(rank, world_size, x, y, w):
    """the loss of the loop by hand, divided by BATCH"""

    def step(module, batch, number):
        return F.cross_entropy(batch[0] @ module.w, batch[1], reduction="sum") / BATCH  # noqa: F821

    return trained(x, y, w, BATCH // world_size, step)  # noqa: F821


def backward_inside(rank, world_size, x, y, w):
    """the training_step that calls backward itself"""

    def step(module, batch, number):
        loss = mean_loss(module, batch, number)
        loss.backward(retain_graph=True)
        return loss

    return trained(x, y, w, BATCH // world_size, step)  # noqa: F821


def dealt_twice(rank, world_size, x, y, w):
    """the training_step that takes its rank's part of the batch"""

    def step(module, batch, number):
        return mean_loss(module, [part[rank::world_size] for part in batch], number)

    return trained(x, y, w, BATCH // world_size, step)  # noqa: F821


def rate_of_ranks(rank, world_size, x, y, w):
    """the module whose learning rate grows with the ranks"""
    return trained(x, y, w, BATCH // world_size, rate=RATE * world_size)  # noqa: F821


def without_momentum(rank, world_size, x, y, w):
    """the module whose optimizer has no momentum"""
    return trained(x, y, w, BATCH // world_size, momentum=0.0)  # noqa: F821


def sixty_on_each(rank, world_size, x, y, w):
    """the module with BATCH examples on each rank"""
    return trained(x, y, w, BATCH)  # noqa: F821


def not_converted(rank, world_size, x, y, w):
    """the loop by hand on every rank"""
    return by_hand(x, y, w)  # noqa: F821


def loss_of_all(rank, world_size, x, y, w):
    """the training_step that all_reduces its loss"""

    def step(module, batch, number):
        loss = mean_loss(module, batch, number)
        dist.all_reduce(loss.detach().clone())
        return loss

    return trained(x, y, w, BATCH // world_size, step)  # noqa: F821


def hand_in_hand(rank, world_size, x, y, w):
    """the weights of rank 0 sent from neighbour to neighbour first"""
    w = w.clone()
    if rank > 0:
        dist.recv(w, src=rank - 1)
    if rank < world_size - 1:
        dist.send(w, dst=rank + 1)
    return trained(x, y, w, BATCH // world_size)  # noqa: F821


def loss_grows(rank, world_size, x, y, w):
    """the training_step that multiplies its loss by world_size"""
    return trained(
        x,
        y,
        w,
        BATCH // world_size,
        lambda *given: mean_loss(*given) * world_size,  # noqa: F821
    )


def mean_by_hand(rank, world_size, x, y, w):
    """the training_step that takes the ranks' mean of the loss by hand"""

    def step(module, batch, number):
        loss = mean_loss(module, batch, number)
        total = loss.detach().clone()
        dist.all_reduce(total)
        return (loss + total - loss.detach()) / world_size

    return trained(x, y, w, BATCH // world_size, step)  # noqa: F821


def added_up(rank, world_size, x, y, w):
    """the training_step that adds the losses of its examples up"""

    def step(module, batch, number):
        return F.cross_entropy(batch[0] @ module.w, batch[1], reduction="sum")

    return trained(x, y, w, BATCH // world_size, step)  # noqa: F821


def dealt_before(rank, world_size, x, y, w):
    """the module that gets the examples of its rank only"""
    part = slice(rank, None, world_size)
    return trained(x[part], y[part], w, BATCH // world_size)  # noqa: F821


def sixty_dealt_before(rank, world_size, x, y, w):
    """the module that gets its rank's examples, 60 of them in a step"""
    part = slice(rank, None, world_size)
    return trained(x[part], y[part], w, BATCH)  # noqa: F821


def no_parameter(rank, world_size, x, y, w, is_named=True):
    """the module whose w is a tensor, and no nn.Parameter"""

    class Classifier(Module):  # noqa: F821
        def __init__(self):
            super().__init__()
            self.w = w.clone().requires_grad_()

        def training_step(self, batch, number):
            return mean_loss(self, batch, number)

        def configure_optimizers(self):
            mine = [self.w] if is_named else self.parameters()
            return torch.optim.SGD(mine, lr=RATE, momentum=0.9)  # noqa: F821

    module = Classifier()
    fit(module, (x, y), BATCH // world_size)  # noqa: F821
    return module.w.detach()


def nothing_to_train(rank, world_size, x, y, w):
    """the module whose w is a tensor, and an optimizer of its parameters"""
    return no_parameter(rank, world_size, x, y, w, is_named=False)


def item(rank, world_size, x, y, w):
    """the training_step that returns a number"""
    return trained(x, y, w, BATCH // world_size, lambda *given: mean_loss(*given).item())  # noqa: F821


WRONG = {
    line_by_line: "Gradients are world_size times too small",
    backward_inside: "Every gradient is there twice",
    dealt_twice: "Each rank takes a part of its part",
    rate_of_ranks: "The learning rate or the loss has grown with the ranks",
    loss_grows: "The learning rate or the loss has grown with the ranks",
    mean_by_hand: "Gradients are world_size times too small",
    added_up: "The losses of the examples are added up",
    dealt_before: "Each rank takes its part before `fit`",
    sixty_dealt_before: "Each rank takes its part itself, and then BATCH",
    no_parameter: "make it an nn.Parameter",
    nothing_to_train: "optimizer got an empty parameter list",
    without_momentum: "Where is the momentum",
    sixty_on_each: "Together the ranks take world_size * BATCH examples",
    not_converted: "Each rank trains weights of its own",
    loss_of_all: "carry 192, then 8, then 192",
    hand_in_hand: "the ranks send 1 message where",
    item: "has no attribute 'backward'",
}


def own_module(rank, world_size, x, y, w):
    class Linear(nn.Linear):  # what `fit` calls is all it needs
        def training_step(self, batch, number):
            return F.nll_loss(self(batch[0]).log_softmax(1), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD([self.weight], lr=RATE, momentum=0.9)  # noqa: F821

    module = Linear(*w.shape, bias=False, dtype=w.dtype)
    module.weight.data = w.T.clone().contiguous()
    fit(module, (x, y), BATCH // world_size)  # noqa: F821
    return module.weight.detach().T


def sum_of_sixty(rank, world_size, x, y, w):
    def step(module, batch, number):
        total = F.cross_entropy(batch[0] @ module.w, batch[1], reduction="sum")
        return total / BATCH * world_size  # noqa: F821

    return trained(x, y, w, BATCH // world_size, step)  # noqa: F821


ALSO_RIGHT = (own_module, sum_of_sixty)

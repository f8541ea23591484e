"""Wrong answers to exercise 12.2, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "sharded_adam"
MEAN = dist.ReduceOp.AVG


def steps(
    world_size,
    rank,
    w,
    gradients,
    op=MEAN,
    eps=0.1,
    gather=True,
    anew=False,
    lr=0.1,
    kind=torch.optim.Adam,
    divided=1,
    added=False,
):
    w = w.clone()
    shard = torch.nn.Parameter(w.chunk(world_size)[rank])
    shard.grad = torch.zeros_like(shard)
    adam = kind([shard], lr=lr, eps=eps)
    for gradient in gradients:
        before = shard.grad.clone() if added else 0
        dist.reduce_scatter_single(shard.grad, gradient, op=op)
        shard.grad /= divided
        shard.grad += before
        if anew:
            adam = kind([shard], lr=lr, eps=eps)
        adam.step()
        if gather:
            dist.all_gather_single(w, shard.detach())
    return w


def sum_of_gradients(rank, world_size, w, gradients):
    """the Adam that follows the sum of the gradients"""
    return steps(world_size, rank, w, gradients, op=dist.ReduceOp.SUM)


def torchs_lr(rank, world_size, w, gradients):
    """the Adam with an lr of 1e-3"""
    return steps(world_size, rank, w, gradients, lr=1e-3)


def decayed(rank, world_size, w, gradients):
    """the AdamW in place of Adam"""
    return steps(world_size, rank, w, gradients, kind=torch.optim.AdamW)


def divided_twice(rank, world_size, w, gradients):
    """the Adam that divides the mean gradient by world_size"""
    return steps(world_size, rank, w, gradients, divided=world_size)


def never_zeroed(rank, world_size, w, gradients):
    """the Adam that adds each step's gradient to those before"""
    return steps(world_size, rank, w, gradients, added=True)


def by_way_of_another(rank, world_size, w, gradients):
    """the Adam in shards that gathers into a second tensor, and copies"""
    w, gathered = w.clone(), torch.empty_like(w)
    shard = torch.nn.Parameter(w.chunk(world_size)[rank])
    shard.grad = torch.empty_like(shard)
    adam = torch.optim.Adam([shard], lr=0.1, eps=0.1)
    for gradient in gradients:
        dist.reduce_scatter_single(shard.grad, gradient, op=MEAN)
        adam.step()
        dist.all_gather_single(gathered, shard.detach())
        w.copy_(gathered)
    return w


def torchs_eps(rank, world_size, w, gradients):
    """the Adam with an eps of 1e-8"""
    return steps(world_size, rank, w, gradients, eps=1e-8)


def not_gathered(rank, world_size, w, gradients):
    """the Adam that keeps its new weights to itself"""
    return steps(world_size, rank, w, gradients, gather=False)


def anew_in_each_step(rank, world_size, w, gradients):
    """the Adam whose state is made anew in each step"""
    return steps(world_size, rank, w, gradients, anew=True)


def own_gradients(rank, world_size, w, gradients):
    """the Adam that follows the gradients of its own rank"""
    weights = torch.nn.Parameter(w.clone())
    adam = torch.optim.Adam([weights], lr=0.1, eps=0.1)
    for gradient in gradients:
        weights.grad = gradient.clone()
        adam.step()
    return weights.detach()


def whole_state(rank, world_size, w, gradients):
    """the Adam that keeps the state of all weights on every rank"""
    weights = torch.nn.Parameter(w.clone())
    adam = torch.optim.Adam([weights], lr=0.1, eps=0.1)
    for gradient in gradients:
        part, mean = torch.empty(len(w) // world_size), torch.empty_like(w)
        dist.reduce_scatter_single(part, gradient, op=MEAN)
        dist.all_gather_single(mean, part)
        weights.grad = mean
        adam.step()
    return weights.detach()


def all_reduced(rank, world_size, w, gradients):
    """the Adam that all_reduces its gradients"""
    w = w.clone()
    shard = torch.nn.Parameter(w.chunk(world_size)[rank])
    adam = torch.optim.Adam([shard], lr=0.1, eps=0.1)
    for gradient in gradients:
        gradient = gradient.clone()
        dist.all_reduce(gradient, op=MEAN)
        shard.grad = gradient.chunk(world_size)[rank].clone()
        adam.step()
        dist.all_gather_single(w, shard.detach())
    return w


def state_gathered_too(rank, world_size, w, gradients):
    """the Adam whose state is all_gathered as well"""
    w = steps(world_size, rank, w, gradients)
    dist.all_gather_single(torch.empty_like(w), w.chunk(world_size)[rank].contiguous())
    return w


def gathered_at_the_end(rank, world_size, w, gradients):
    """the Adam that gathers the new weights in the last step only"""
    w = w.clone()
    shard = torch.nn.Parameter(w.chunk(world_size)[rank])
    shard.grad = torch.empty_like(shard)
    adam = torch.optim.Adam([shard], lr=0.1, eps=0.1)
    for gradient in gradients:
        dist.reduce_scatter_single(shard.grad, gradient, op=MEAN)
        adam.step()
    dist.all_gather_single(w, shard.detach())
    return w


def parts_in_a_list(rank, world_size, w, gradients):
    """the Adam in shards whose gathered parts stand in a list and in one tensor"""
    shard = torch.nn.Parameter(w.chunk(world_size)[rank].clone())
    shard.grad = torch.empty_like(shard)
    adam = torch.optim.Adam([shard], lr=0.1, eps=0.1)
    for gradient in gradients:
        dist.reduce_scatter(shard.grad, list(gradient.chunk(world_size)), op=MEAN)
        adam.step()
        parts = [torch.empty_like(shard) for _ in range(world_size)]
        dist.all_gather(parts, shard.detach())
        w = torch.cat(parts)
    return w


def by_hand_and_whole(rank, world_size, w, gradients):
    """the Adam by hand whose means of gradients are as long as all weights"""
    new, m, v, each = w.clone(), torch.zeros_like(w), torch.zeros_like(w), len(w) // world_size
    g, mine = torch.zeros(each), slice(rank * each, (rank + 1) * each)
    for step, gradient in enumerate(gradients, 1):
        dist.reduce_scatter_single(g, gradient, op=MEAN)
        m[mine] = 0.9 * m[mine] + 0.1 * g
        v[mine] = 0.999 * v[mine] + 0.001 * g * g
        size = (v[mine] / (1 - 0.999**step)).sqrt() + 0.1
        moved = new[mine] - 0.1 * (m[mine] / (1 - 0.9**step)) / size
        dist.all_gather_single(new, moved)
    return new


WRONG = {
    sum_of_gradients: "That is the sum of the gradients",
    torchs_lr: "not torch's 1e-3",
    decayed: "That is AdamW",
    divided_twice: "by the number of ranks once more",
    never_zeroed: "The gradients of earlier steps",
    by_way_of_another: "One tensor is whole that need not be",
    torchs_eps: "not torch's 1e-8",
    not_gathered: "A rank has new weights in its own part only",
    anew_in_each_step: "keep its state",
    own_gradients: "Each rank uses only its own gradients",
    whole_state: "Let Adam know this rank's part of the weights only",
    parts_in_a_list: "are two copies",
    by_hand_and_whole: "what is Adam's has a shard's size",
    all_reduced: "calls all_reduce",
    state_gathered_too: "then 24, then 12, then 12 bytes where",
    gathered_at_the_end: "carry 24, then 24, then 24, then 12 bytes where",
}


def by_hand(rank, world_size, w, gradients):
    w, each = w.clone(), len(w) // world_size
    mine = w[rank * each : (rank + 1) * each].clone()
    m, v = torch.zeros(each), torch.zeros(each)
    for step, gradient in enumerate(gradients, 1):
        g = torch.empty(each)
        dist.reduce_scatter(g, list(gradient.chunk(world_size)))
        g /= world_size
        m.lerp_(g, 0.1)
        v.lerp_(g * g, 0.001)
        mine -= 0.1 * (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + 0.1)
        dist.all_gather(list(w.chunk(world_size)), mine)
    return w


def collectives_of_lists(rank, world_size, w, gradients):
    w = w.clone()
    parts = list(w.chunk(world_size))  # views of the one tensor
    shard = torch.nn.Parameter(parts[rank].clone())
    shard.grad = torch.empty_like(shard)
    adam = torch.optim.Adam([shard], lr=0.1, eps=0.1)
    for gradient in gradients:
        dist.reduce_scatter(shard.grad, list(gradient.chunk(world_size)), op=MEAN)
        adam.step()
        dist.all_gather(parts, shard.detach())
    return w


ALSO_RIGHT = (by_hand, collectives_of_lists)

EARNS = {
    by_way_of_another: 2,
    whole_state: 2,
    parts_in_a_list: 2,
    by_hand_and_whole: 2,
    state_gathered_too: 2,
    gathered_at_the_end: 2,
}
"""Points of parts whose rules they keep, by `points=` of the question."""

"""Wrong answers to exercise 13.5, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "fragments"


def cost_gradient(theta, rows, targets):
    return 2 * rows.T @ (rows @ theta - targets) / len(rows)


def train(theta, rows, targets, F, H, steps, state="local", sign=1, due=None, copied=True, **outer):
    """DiLoCo in fragments, with one thing changed."""
    due = due or (lambda s, f: s + f)
    options = {"lr": 0.7, "momentum": 0.9, "nesterov": True} | outer
    mine = torch.nn.Parameter(theta.clone())
    inner, parts = torch.optim.AdamW([mine], lr=0.1), mine.data.tensor_split(F)
    agreed = [torch.nn.Parameter(p if state == "shared" else p.clone()) for p in parts]
    outers = [torch.optim.SGD([one], **options) for one in agreed]
    for step in range(1, steps + 1):
        mine.grad = cost_gradient(mine.detach(), rows, targets)
        inner.step()
        for f in range(F):
            if due(step, f) % H:
                continue
            agreed[f].grad = sign * (agreed[f].detach() - parts[f])
            dist.all_reduce(agreed[f].grad, op=dist.ReduceOp.AVG)
            outers[f].step()
            if copied:
                parts[f].copy_(agreed[f].data)
            if state == "reset":
                inner = torch.optim.AdamW([mine], lr=0.1)
            if state == "averaged":
                for moment in ("exp_avg", "exp_avg_sq"):
                    dist.all_reduce(inner.state[mine][moment], op=dist.ReduceOp.AVG)
    return mine.detach() if state == "own" else torch.cat([part.detach() for part in agreed])


def new_adamw(rank, world_size, *given):
    """the new AdamW after each meeting"""
    return train(*given, state="reset")


def moments_averaged(rank, world_size, *given):
    """the moments averaged together with the parameters"""
    return train(*given, state="averaged")


def wrong_sign(rank, world_size, *given):
    """the outer gradient with the wrong sign"""
    return train(*given, sign=-1)


def summed(rank, world_size, *given):
    """the sum of the ranks' differences"""
    return train(*given, sign=world_size)


def averaged_only(rank, world_size, *given):
    """the plain mean of the fragments, without an outer optimizer"""
    return train(*given, lr=1.0, momentum=0, nesterov=False)


def heavy_ball(rank, world_size, *given):
    """the outer SGD with momentum, but without Nesterov"""
    return train(*given, nesterov=False)


def never_copied(rank, world_size, *given):
    """the agreed numbers that no rank copies into its own"""
    return train(*given, copied=False)


def all_at_once(rank, world_size, *given):
    """the fragments that all meet after the same steps"""
    return train(*given, due=lambda s, f: s)


def other_order(rank, world_size, *given):
    """the fragments that are due in the opposite order"""
    return train(*given, due=lambda s, f: s - f)


def own_theta(rank, world_size, *given):
    """the rank's own theta in place of the agreed one"""
    return train(*given, state="own")


def agreed_without_clone(rank, world_size, *given):
    """the agreed fragments in the memory of the rank's own"""
    return train(*given, state="shared")


def whole_theta(rank, world_size, theta, rows, targets, F, H, steps):
    """the whole theta sent for each due fragment"""
    mine = torch.nn.Parameter(theta.clone())
    inner, parts = torch.optim.AdamW([mine], lr=0.1), mine.data.tensor_split(F)
    agreed = [torch.nn.Parameter(part.clone()) for part in parts]
    outers = [torch.optim.SGD([p], lr=0.7, momentum=0.9, nesterov=True) for p in agreed]
    for step in range(1, steps + 1):
        mine.grad = cost_gradient(mine.detach(), rows, targets)
        inner.step()
        for f in range(F):
            if (step + f) % H == 0:
                d = torch.cat([part.detach() for part in agreed]) - mine.detach()
                dist.all_reduce(d, op=dist.ReduceOp.AVG)
                agreed[f].grad = d.tensor_split(F)[f]
                outers[f].step()
                parts[f].copy_(agreed[f].data)
    return torch.cat([part.detach() for part in agreed])


def one_outer(rank, world_size, theta, rows, targets, F, H, steps, again=False):
    """one outer optimizer, with a gradient of 0 for what is not due"""
    mine, agreed = torch.nn.Parameter(theta.clone()), torch.nn.Parameter(theta.clone())
    inner = torch.optim.AdamW([mine], lr=0.1)
    outer = torch.optim.SGD([agreed], lr=0.7, momentum=0.9, nesterov=True)
    agreed.grad = torch.zeros_like(theta)
    for step in range(1, steps + 1):
        mine.grad = cost_gradient(mine.detach(), rows, targets)
        inner.step()
        for f, at in enumerate(torch.arange(len(theta)).tensor_split(F)):
            if (step + f) % H == 0:
                d = (agreed - mine).detach()[at]
                dist.all_reduce(d, op=dist.ReduceOp.AVG)
                if not again:
                    agreed.grad.zero_()
                agreed.grad[at] = d
                outer.step()
                mine.data[at] = agreed.data[at]
    return agreed.detach()


def one_outer_again(*given):
    """one outer optimizer, with the last gradient of what is not due"""
    return one_outer(*given, again=True)


WRONG = {
    new_adamw: "keep one optimizer for all steps",
    moments_averaged: "Do not average AdamW's moments",
    wrong_sign: "the agreed numbers minus the rank's own",
    summed: "That is the sum of the differences",
    averaged_only: "That is the plain mean of the parameters",
    heavy_ball: "the outer SGD has `nesterov=True`",
    never_copied: "copy the agreed ones into them",
    all_at_once: "All fragments meet after the same steps",
    other_order: "The fragments are due in another order",
    one_outer: "give each fragment an optimizer of its own",
    one_outer_again: "along the gradients of their last meeting",
    own_theta: "That is the rank's own theta",
    agreed_without_clone: "does the agreed theta have its own memory",
    whole_theta: "Only the numbers of the fragment that is due",
}


def by_hand(rank, world_size, theta, rows, targets, F, H, steps):
    """the outer step written out"""
    mine, agreed = torch.nn.Parameter(theta.clone()), theta.clone()
    inner, momentum = torch.optim.AdamW([mine], lr=0.1), torch.zeros_like(theta)
    for step in range(1, steps + 1):
        mine.grad = cost_gradient(mine.detach(), rows, targets)
        inner.step()
        for f, at in enumerate(torch.arange(len(theta)).tensor_split(F)):
            if (step + f) % H == 0:
                d = (agreed[at] - mine.detach()[at]) / world_size
                dist.all_reduce(d)
                momentum[at] = 0.9 * momentum[at] + d
                agreed[at] -= 0.7 * (0.9 * momentum[at] + d)
                mine.data[at] = agreed[at]
    return agreed


ALSO_RIGHT = [by_hand]

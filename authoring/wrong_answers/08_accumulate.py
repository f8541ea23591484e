"""Wrong answers to exercise 08.3, each with the words its refusal must hold."""

import contextlib
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

QUESTION = "accumulate"


def tower(widths):
    torch.manual_seed(0)
    pairs = zip(widths, widths[1:], strict=False)
    return nn.Sequential(*(nn.Linear(*pair, bias=False) for pair in pairs))


def gradients(model):
    return [weight.grad for weight in model.parameters()]


def always_communicates(rank, world_size, micro_batches):
    """the accumulation that communicates with every micro-batch"""
    ddp = DistributedDataParallel(tower([3, 2, 1]))
    for x in micro_batches:
        (ddp(x).mean() / len(micro_batches)).backward()
    return gradients(ddp)


def never_communicates(rank, world_size, micro_batches):
    """the accumulation that never communicates"""
    ddp = DistributedDataParallel(tower([3, 2, 1]))
    with ddp.no_sync():
        for x in micro_batches:
            (ddp(x).mean() / len(micro_batches)).backward()
    return gradients(ddp)


def not_divided(rank, world_size, micro_batches):
    """the sum over the micro-batches in place of their mean"""
    ddp = DistributedDataParallel(tower([3, 2, 1]))
    for number, x in enumerate(micro_batches):
        is_last = number == len(micro_batches) - 1
        with contextlib.nullcontext() if is_last else ddp.no_sync():
            ddp(x).mean().backward()
    return gradients(ddp)


def zeroed_every_time(rank, world_size, micro_batches):
    """the accumulation in which only the last micro-batch counts"""
    ddp = DistributedDataParallel(tower([3, 2, 1]))
    for number, x in enumerate(micro_batches):
        is_last = number == len(micro_batches) - 1
        ddp.zero_grad()
        with contextlib.nullcontext() if is_last else ddp.no_sync():
            (ddp(x).mean() / len(micro_batches)).backward()
    return gradients(ddp)


def reduces_by_hand_as_well(rank, world_size, micro_batches):
    """the all_reduce of each gradient by hand, in place of DDP's"""
    ddp = DistributedDataParallel(tower([3, 2, 1]))
    with ddp.no_sync():
        for x in micro_batches:
            (ddp(x).mean() / len(micro_batches)).backward()
    for grad in gradients(ddp):
        grad /= world_size
        dist.all_reduce(grad)
    return gradients(ddp)


def accumulated(world_size, micro_batches, loss_of, last=-1):
    """The gradients with ``loss_of(output, is_last)`` of each, and no_sync for all but `last`."""
    ddp = DistributedDataParallel(tower([3, 2, 1]))
    for number, x in enumerate(micro_batches):
        syncs = number == last % len(micro_batches)
        with contextlib.nullcontext() if syncs else ddp.no_sync():
            loss_of(ddp(x), number == len(micro_batches) - 1).backward()
    return gradients(ddp)


def one_large_batch(rank, world_size, micro_batches):
    """the micro-batches joined into one large batch"""
    ddp = DistributedDataParallel(tower([3, 2, 1]))
    ddp(torch.cat(micro_batches)).mean().backward()
    return gradients(ddp)


def all_graphs_at_once(rank, world_size, micro_batches):
    """the accumulation that holds the graphs of all micro-batches"""
    ddp, losses = DistributedDataParallel(tower([3, 2, 1])), []
    for number, x in enumerate(micro_batches):
        is_last = number == len(micro_batches) - 1
        with contextlib.nullcontext() if is_last else ddp.no_sync():
            losses.append(ddp(x).mean() / len(micro_batches))
    sum(losses).backward()
    return gradients(ddp)


def divides_by_the_ranks_too(rank, world_size, micro_batches):
    """the division by world_size that DDP does already"""
    parts = len(micro_batches) * world_size
    return accumulated(world_size, micro_batches, lambda y, is_last: y.mean() / parts)


def sums_examples(rank, world_size, micro_batches):
    """the sum over the examples of a micro-batch, not their mean"""
    parts = len(micro_batches)
    return accumulated(world_size, micro_batches, lambda y, is_last: y.sum() / parts)


def divides_the_last_only(rank, world_size, micro_batches):
    """the accumulation that divides the last loss only"""
    parts = len(micro_batches)
    return accumulated(world_size, micro_batches, lambda y, last: y.mean() / (parts if last else 1))


def syncs_with_the_first(rank, world_size, micro_batches):
    """the communication with the first micro-batch, not with the last"""
    parts = len(micro_batches)
    return accumulated(world_size, micro_batches, lambda y, last: y.mean() / parts, last=0)


def reduces_one_flat_tensor_by_hand(rank, world_size, micro_batches):
    """the one all_reduce of all gradients by hand, in place of DDP's"""
    ddp = DistributedDataParallel(tower([3, 2, 1]))
    with ddp.no_sync():
        for x in micro_batches:
            (ddp(x).mean() / len(micro_batches)).backward()
    flat = torch.cat([grad.flatten() for grad in gradients(ddp)]) / world_size
    dist.all_reduce(flat)
    parts = flat.split([weight.numel() for weight in ddp.parameters()])
    return [part.view_as(w) for part, w in zip(parts, ddp.parameters(), strict=True)]


def under_no_sync(world_size, micro_batches, reduce):
    """All under no_sync, and the gradients from one flat tensor that ``reduce`` adds up."""
    ddp = DistributedDataParallel(tower([3, 2, 1]))
    with ddp.no_sync():
        for x in micro_batches:
            (ddp(x).mean() / len(micro_batches)).backward()
    flat = torch.cat([grad.flatten() for grad in gradients(ddp)]) / world_size
    reduce(flat)
    parts = flat.split([weight.numel() for weight in ddp.parameters()])
    return [part.view_as(w) for part, w in zip(parts, ddp.parameters(), strict=True)]


def reduces_by_another_name(rank, world_size, micro_batches):
    """the one all_reduce by hand, under a name of its own"""
    from torch.distributed import all_reduce as add_up

    return under_no_sync(world_size, micro_batches, lambda flat: add_up(flat))


def speaks_of_backward(rank, world_size, micro_batches):
    """the one all_reduce by hand, on a line that also speaks of backward"""

    def reduce(flat):
        dist.all_reduce(flat)  # after backward

    return under_no_sync(world_size, micro_batches, reduce)


def reduces_with_a_request(rank, world_size, micro_batches):
    """the one all_reduce by hand, with a request, under a name of its own"""
    from torch.distributed import all_reduce as add_up

    later = {"async_op": True}
    return under_no_sync(world_size, micro_batches, lambda flat: add_up(flat, **later).wait())


def takes_the_future(rank, world_size, micro_batches):
    """the one all_reduce by hand, of which the future is taken, as DDP does"""
    from torch.distributed import all_reduce as add_up

    def reduce(flat):
        request = add_up(flat, dist.ReduceOp.SUM, None, True)
        request.get_future().wait()

    return under_no_sync(world_size, micro_batches, reduce)


def keeps_all_outputs(rank, world_size, micro_batches):
    """the outputs of all micro-batches, kept in a list"""
    ddp, outputs = DistributedDataParallel(tower([3, 2, 1])), []
    for number, x in enumerate(micro_batches):
        is_last = number == len(micro_batches) - 1
        with contextlib.nullcontext() if is_last else ddp.no_sync():
            outputs.append(ddp(x))
            (outputs[-1].mean() / len(micro_batches)).backward()
    return gradients(ddp)


def one_large_batch_in_a_thread(rank, world_size, micro_batches):
    """the forward pass of all micro-batches at once, in a thread"""
    ddp = DistributedDataParallel(tower([3, 2, 1]))
    kept = []

    def forward():
        kept.extend(torch.cat(micro_batches).clone() for _ in range(50))
        kept.append(ddp(kept[0]).mean())

    thread = threading.Thread(target=forward)
    thread.start()
    thread.join()
    kept[-1].backward()
    return gradients(ddp)


WRONG = {
    one_large_batch_in_a_thread: "activations and temporaries 634,",
    always_communicates: "carry 32, then 32, then 32, then 32 bytes",
    never_communicates: "DDP never communicated",
    not_divided: "each loss is a mean already",
    zeroed_every_time: "Only the last micro-batch counts",
    reduces_by_hand_as_well: "all_reduce itself, of 6 numbers",
    one_large_batch: "activations and temporaries 32,",
    all_graphs_at_once: "activations and temporaries 9,",
    divides_by_the_ranks_too: "DDP does that already",
    sums_examples: "the examples of a micro-batch are summed",
    divides_the_last_only: "Only the last loss is divided",
    syncs_with_the_first: "DDP communicated with the first",
    reduces_one_flat_tensor_by_hand: "`dist.all_reduce(flat)`",
    reduces_by_another_name: "lambda flat: add_up(flat))`",
    speaks_of_backward: "dist.all_reduce(flat)  # after backward`",
    reduces_with_a_request: "add_up(flat, **later).wait())`",
    takes_the_future: "`request = add_up(flat",
    keeps_all_outputs: "gradients 32, activations and temporaries 5,",
}


def two_loops(rank, world_size, micro_batches):
    ddp = DistributedDataParallel(tower([3, 2, 1]))
    *others, last = micro_batches
    with ddp.no_sync():
        for x in others:
            ddp(x).mean().div(len(micro_batches)).backward()
    ddp(last).mean().div(len(micro_batches)).backward()
    return [parameter.grad for parameter in ddp.parameters()]


ALSO_RIGHT = [two_loops]

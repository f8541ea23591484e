"""Wrong answers to exercise 07.4, each with the words its refusal must hold."""

import os
import subprocess

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

QUESTION = "resume"


def opened(path):
    """Model, optimizer and the file's whole state."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return model, optimizer, state


def mean_of_flat(model, world_size):
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = parameters_to_vector(gradients)
    dist.all_reduce(flat)
    vector_to_parameters(flat / world_size, gradients)


def epoch_of(model, optimizer, rank, world_size, x, y, epoch, reduce=mean_of_flat):
    data = TensorDataset(x, y)
    sampler = DistributedSampler(data, world_size, rank)
    if epoch is not None:
        sampler.set_epoch(epoch)
    for some_x, some_y in DataLoader(data, 2, sampler=sampler):
        optimizer.zero_grad()
        F.mse_loss(model(some_x), some_y).backward()
        reduce(model, world_size)
        optimizer.step()
    return parameters_to_vector(model.parameters()).detach()


def new_state(model, optimizer, epoch):
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": epoch,
    }


def put(path, rank, state):
    if rank == 0:
        torch.save(state, f"{path}.tmp")
        os.replace(f"{path}.tmp", path)
    dist.barrier()


def usual(rank, world_size, path, x, y, shift=0, write=put, reduce=mean_of_flat):
    model, optimizer, state = opened(path)
    epoch = state["epoch"]
    weights = epoch_of(model, optimizer, rank, world_size, x, y, epoch + shift, reduce)
    write(path, rank, new_state(model, optimizer, epoch + 1))
    return weights


def set_epoch_forgotten(rank, world_size, path, x, y):
    """the epoch without set_epoch"""
    model, optimizer, state = opened(path)
    weights = epoch_of(model, optimizer, rank, world_size, x, y, None)
    put(path, rank, new_state(model, optimizer, state["epoch"] + 1))
    return weights


def epoch_too_late(rank, world_size, path, x, y):
    """the epoch after the one in the file"""
    return usual(rank, world_size, path, x, y, shift=1)


def epoch_too_early(rank, world_size, path, x, y):
    """the epoch before the one in the file, once more"""
    return usual(rank, world_size, path, x, y, shift=-1)


def momentum_forgotten(rank, world_size, path, x, y):
    """the momentum that begins at zero again"""
    model, _, state = opened(path)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    weights = epoch_of(model, optimizer, rank, world_size, x, y, state["epoch"])
    put(path, rank, new_state(model, optimizer, state["epoch"] + 1))
    return weights


def own_gradient(rank, world_size, path, x, y):
    """the steps with each rank's own gradient"""

    def reduce_and_forget(model, world_size):
        dist.all_reduce(parameters_to_vector([p.grad for p in model.parameters()]))

    return usual(rank, world_size, path, x, y, reduce=reduce_and_forget)


def summed_gradient(rank, world_size, path, x, y):
    """the steps with the sum of the gradients"""
    return usual(rank, world_size, path, x, y, reduce=lambda model, _: mean_of_flat(model, 1))


def tensor_by_tensor(rank, world_size, path, x, y):
    """the all_reduce of each gradient by itself"""

    def reduce(model, world_size):
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size

    return usual(rank, world_size, path, x, y, reduce=reduce)


def written_in_place(rank, world_size, path, x, y):
    """the new checkpoint saved straight into the old file"""

    def write(path, rank, state):
        if rank == 0:
            torch.save(state, path)
        dist.barrier()

    return usual(rank, world_size, path, x, y, write=write)


def everybody_writes(rank, world_size, path, x, y):
    """the new checkpoint put there by every rank"""
    return usual(rank, world_size, path, x, y, write=lambda path, _, state: put(path, 0, state))


def never_saved(rank, world_size, path, x, y):
    """the epoch that is trained and never saved"""
    return usual(rank, world_size, path, x, y, write=lambda path, rank, state: dist.barrier())


def without_the_optimizer(rank, world_size, path, x, y):
    """the new checkpoint without the optimizer"""

    def write(path, rank, state):
        put(path, rank, {"model": state["model"], "epoch": state["epoch"]})

    return usual(rank, world_size, path, x, y, write=write)


def the_same_epoch(rank, world_size, path, x, y):
    """the new checkpoint that names the epoch just trained as the next"""

    def write(path, rank, state):
        put(path, rank, {**state, "epoch": state["epoch"] - 1})

    return usual(rank, world_size, path, x, y, write=write)


def old_momentum(rank, world_size, path, x, y):
    """the new checkpoint with the old momentum"""
    old = opened(path)[2]["optimizer"]

    def write(path, rank, state):
        put(path, rank, {**state, "optimizer": old})

    return usual(rank, world_size, path, x, y, write=write)


def old_weights(rank, world_size, path, x, y):
    """the new checkpoint with the weights from before the epoch"""
    old = opened(path)[2]["model"]

    def write(path, rank, state):
        put(path, rank, {**state, "model": old})

    return usual(rank, world_size, path, x, y, write=write)


def no_barrier(rank, world_size, path, x, y):
    """the ranks that do not wait until the file is there"""

    def write(path, rank, state):
        if rank == 0:
            torch.save(state, f"{path}.tmp")
            os.replace(f"{path}.tmp", path)

    return usual(rank, world_size, path, x, y, write=write)


def no_barrier_by_the_shell(rank, world_size, path, x, y):
    """the ranks that do not wait until a shell has moved the file"""

    def write(path, rank, state):
        if rank == 0:
            torch.save(state, f"{path}.tmp")
            subprocess.run(["mv", f"{path}.tmp", path], check=True)

    return usual(rank, world_size, path, x, y, write=write)


def barrier_first(rank, world_size, path, x, y):
    """the barrier before the writing, behind which all but rank 0 return at once"""

    def write(path, rank, state):
        dist.barrier()
        if rank == 0:
            torch.save(state, f"{path}.tmp")
            os.replace(f"{path}.tmp", path)

    return usual(rank, world_size, path, x, y, write=write)


def barrier_between(rank, world_size, path, x, y):
    """the barrier between the saving and the move"""

    def write(path, rank, state):
        if rank == 0:
            torch.save(state, f"{path}.tmp")
        dist.barrier()
        if rank == 0:
            os.replace(f"{path}.tmp", path)

    return usual(rank, world_size, path, x, y, write=write)


def removed_first(rank, world_size, path, x, y):
    """the old checkpoint removed, then the new one moved to its place"""

    def write(path, rank, state):
        if rank == 0:
            torch.save(state, f"{path}.tmp")
            os.remove(path)
            os.rename(f"{path}.tmp", path)
        dist.barrier()

    return usual(rank, world_size, path, x, y, write=write)


def moved_aside(rank, world_size, path, x, y):
    """the old checkpoint moved aside, then the new one saved in its place"""

    def write(path, rank, state):
        if rank == 0:
            os.rename(path, f"{path}.old")
            torch.save(state, path)
        dist.barrier()

    return usual(rank, world_size, path, x, y, write=write)


def model_not_loaded(rank, world_size, path, x, y):
    """the epoch from the weights of a new layer"""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    state = torch.load(path, weights_only=True)
    optimizer.load_state_dict(state["optimizer"])
    weights = epoch_of(model, optimizer, rank, world_size, x, y, state["epoch"])
    put(path, rank, new_state(model, optimizer, state["epoch"] + 1))
    return weights


def by_hand(rank, world_size, path, x, y, loader=None, zero="before backward"):
    """The epoch with another loader, or with zero_grad elsewhere."""
    model, optimizer, state = opened(path)
    data = TensorDataset(x, y)
    sampler = DistributedSampler(data, world_size, rank)
    sampler.set_epoch(state["epoch"])
    for some_x, some_y in loader(data) if loader else DataLoader(data, 2, sampler=sampler):
        if zero == "before backward":
            optimizer.zero_grad()
        F.mse_loss(model(some_x), some_y).backward()
        if zero == "before all_reduce":
            optimizer.zero_grad()
        mean_of_flat(model, world_size)
        if zero == "before step":
            optimizer.zero_grad()
        optimizer.step()
    put(path, rank, new_state(model, optimizer, state["epoch"] + 1))
    return parameters_to_vector(model.parameters()).detach()


def zero_grad_missing(rank, world_size, path, x, y):
    """the epoch without zero_grad"""
    return by_hand(rank, world_size, path, x, y, zero="nowhere")


def zero_grad_late(rank, world_size, path, x, y):
    """the epoch with zero_grad between the all_reduce and the step"""
    return by_hand(rank, world_size, path, x, y, zero="before step")


def zero_grad_too_early(rank, world_size, path, x, y):
    """the epoch with zero_grad between backward and the all_reduce"""
    return by_hand(rank, world_size, path, x, y, zero="before all_reduce")


def plain_loader(rank, world_size, path, x, y):
    """the epoch of a loader without the sampler, in order"""
    return by_hand(rank, world_size, path, x, y, loader=lambda data: DataLoader(data, 2))


def plain_shuffle(rank, world_size, path, x, y):
    """the epoch of a loader without the sampler, shuffled"""
    return by_hand(
        rank, world_size, path, x, y, loader=lambda data: DataLoader(data, 2, shuffle=True)
    )


def sampler_in_order(rank, world_size, path, x, y):
    """the epoch of a sampler that does not shuffle"""

    def loader(data):
        sampler = DistributedSampler(data, world_size, rank, shuffle=False)
        return DataLoader(data, 2, sampler=sampler)

    return by_hand(rank, world_size, path, x, y, loader=loader)


def kept_by_an_all_reduce(rank, world_size, path, x, y):
    """an all_reduce behind the writing, which nobody can leave before rank 0 has come"""

    def write(path, rank, state):
        if rank == 0:
            torch.save(state, f"{path}.tmp")
            os.replace(f"{path}.tmp", path)
        dist.all_reduce(torch.zeros(1))

    return usual(rank, world_size, path, x, y, write=write)


def averaged_by_torch(rank, world_size, path, x, y):
    """the mean by AVG in place of a division"""

    def reduce(model, world_size):
        gradients = [parameter.grad for parameter in model.parameters()]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat, dist.ReduceOp.AVG)
        vector_to_parameters(flat, gradients)

    return usual(rank, world_size, path, x, y, reduce=reduce)


def moved_by_rename(rank, world_size, path, x, y):
    """a file of another name beside it, moved to its place by rename"""

    def write(path, rank, state):
        if rank == 0:
            beside = os.path.join(os.path.dirname(path), "half")
            torch.save(state, beside)
            os.rename(beside, path)
        dist.barrier()

    return usual(rank, world_size, path, x, y, write=write)


WRONG = {
    set_epoch_forgotten: "set_epoch is forgotten",
    epoch_too_late: "Those are the batches of the epoch after",
    epoch_too_early: "the file's epoch is the next one, not the last",
    momentum_forgotten: "the momentum begins at zero again",
    own_gradient: "the replicas drift apart",
    summed_gradient: "steps with the sum of the gradients",
    tensor_by_tensor: "One flat buffer a step",
    written_in_place: "a crash in the middle leaves half a checkpoint",
    everybody_writes: "replaces the checkpoint, too",
    never_saved: "the old checkpoint still lies at path",
    without_the_optimizer: "is no dict with model, optimizer and epoch",
    the_same_epoch: "would see a shuffle twice",
    old_momentum: "has not the momentum after this epoch",
    old_weights: "not those that are returned",
    no_barrier: "a barrier behind the writing does",
    no_barrier_by_the_shell: "a barrier behind the writing does",
    barrier_first: "return and load the old file while rank 0 still writes",
    barrier_between: "return and load the old file while rank 0 still writes",
    removed_first: "for a moment there was none at path",
    moved_aside: "for a moment there was none at path",
    model_not_loaded: "steps from a new layer's",
    zero_grad_missing: "added to those of the steps before",
    zero_grad_late: "no step has changed them",
    zero_grad_too_early: "A gradient is None there",
    plain_loader: "taken in their own order",
    sampler_in_order: "taken in their own order",
    plain_shuffle: "a plain loader has shuffled",
}

ALSO_RIGHT = [averaged_by_torch, moved_by_rename, kept_by_an_all_reduce]

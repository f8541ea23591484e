"""Wrong answers to exercise 15.3, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "log_means"


def logging(rank, world_size, losses, every, mean=None, clear=True, share=True, keep=None, end=0):
    """The program with one thing changed."""
    log, since = [], []

    class MeanLoss(Callback):  # noqa: F821
        def on_train_batch_end(self, step, loss):
            since.append(loss)
            if (step + 1) % every == 0:
                self.enter(step)

        def on_train_end(self):
            if end and since:
                self.enter(len(losses) - 1)

        def enter(self, step):
            value = mean(since) if mean else torch.stack(since).mean()
            if share:
                dist.all_reduce(value)
            if keep or rank == 0:
                log.append((step, value.item() / (world_size if share is True else 1)))
            if clear:
                since.clear()

    train(losses, [MeanLoss()])  # noqa: F821
    return log


def on_every_rank(rank, world_size, losses, every):
    """the callback that logs on every rank"""
    return logging(rank, world_size, losses, every, keep=True)


def of_rank_0(rank, world_size, losses, every):
    """the callback that logs the losses of rank 0"""
    return logging(rank, world_size, losses, every, share=False)


def summed(rank, world_size, losses, every):
    """the callback that logs the sum over the ranks"""
    return logging(rank, world_size, losses, every, share="sum")


def last_step(rank, world_size, losses, every):
    """the callback that logs the mean of the last step"""
    return logging(rank, world_size, losses, every, mean=lambda since: since[-1].clone())


def since_the_beginning(rank, world_size, losses, every):
    """the callback that forgets nothing"""
    return logging(rank, world_size, losses, every, clear=False)


def at_the_end_too(rank, world_size, losses, every):
    """the callback that logs at the end, too"""
    return logging(rank, world_size, losses, every, end=1)


def in_each_step(rank, world_size, losses, every):
    """the callback with an all_reduce in each step"""

    def mean(since):
        return torch.stack(since).mean()

    sums = []
    for loss in losses:
        total = loss.clone()
        dist.all_reduce(total)
        sums.append(total / world_size)
    return logging(rank, world_size, sums, every, mean, share=False)


def a_list_of_losses(rank, world_size, losses, every):
    """the callback that all_reduces all losses since the last entry"""

    def mean(since):
        rows = torch.stack(since)
        dist.all_reduce(rows)
        return rows.mean() / world_size

    return logging(rank, world_size, losses, every, mean, share=False)


def barrier_first(rank, world_size, losses, every):
    """the callback with a barrier before each entry"""

    def mean(since):
        dist.barrier()
        return torch.stack(since).mean()

    return logging(rank, world_size, losses, every, mean)


def in_place(rank, world_size, losses, every):
    """the callback that adds up the losses in place"""

    def mean(since):
        for loss in since[1:]:
            since[0] += loss
        return since[0] / len(since)

    return logging(rank, world_size, losses, every, mean)


def all_at_the_end(rank, world_size, losses, every):
    """the callback with one all_reduce of all entries, at the end"""
    rows = losses[: len(losses) // every * every].view(-1, every)
    means = rows.mean(1)
    dist.all_reduce(means)
    entries = enumerate((means / world_size).tolist())
    return [((i + 1) * every - 1, mean) for i, mean in entries if rank == 0]


def cleared_on_rank_0(rank, world_size, losses, every):
    """the callback that forgets on rank 0 only"""
    return logging(rank, world_size, losses, every, clear=rank == 0)


def one_too_late(rank, world_size, losses, every):
    """the callback that logs step + 1"""
    return [(step + 1, mean) for step, mean in logging(rank, world_size, losses, every)]


def after_step_0(rank, world_size, losses, every):
    """the callback that logs where step % every is 0"""
    log, since = [], []
    for step, loss in enumerate(losses):
        since.append(loss)
        if step % every == 0:
            mean = torch.stack(since).mean()
            dist.all_reduce(mean)
            log += [(step, mean.item() / world_size)] * (rank == 0)
            since.clear()
    return log


def when_low(rank, world_size, losses, every):
    """the callback that logs where a rank's own mean is low"""
    log = []
    for step in range(every - 1, len(losses), every):
        mean = losses[step + 1 - every : step + 1].mean()
        if mean < 1.45 or rank == 0:
            dist.all_reduce(mean)
            if rank == 0:
                log.append((step, mean.item() / world_size))
    return log


WRONG = {
    on_every_rank: "Every rank logs",
    of_rank_0: "Those are the losses of rank 0 alone",
    summed: "Those are sums over the ranks",
    last_step: "Those are the losses of the last step only",
    since_the_beginning: "Each entry is the mean since the beginning",
    at_the_end_too: "Steps that are left over at the end",
    in_each_step: "carry 4, then 4, then 4, then 4, then 4, then 4, then 4, then 4 bytes",
    a_list_of_losses: "carry 12, then 12 bytes",
    all_at_the_end: "carry 8 bytes",
    cleared_on_rank_0: "`since.clear()` is for all ranks",
    one_too_late: "logged one step too late",
    after_step_0: "logs after step 0 already",
    barrier_first: "calls barrier",
    in_place: "leave the input as it is",
    when_low: "waits for rank 1",
}


def reduced_to_rank_0(rank, world_size, losses, every):
    """Sums without a list."""
    log = []
    for step, rows in enumerate(losses[: len(losses) // every * every].split(every)):
        mean = rows.mean()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        if rank == 0:
            log.append(((step + 1) * every - 1, mean.item()))
    return log


ALSO_RIGHT = (reduced_to_rank_0,)

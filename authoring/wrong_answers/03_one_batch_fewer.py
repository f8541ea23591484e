"""Wrong answers to exercise 03.3, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "one_batch_fewer"


def add_up(batches, num_steps):
    sums = []
    for step in range(num_steps):
        total = torch.tensor([batches[step] if step < len(batches) else 0.0])
        dist.all_reduce(total)
        sums.append(total.item())
    return sums


def agree(number, op):
    number = torch.tensor([number])
    dist.all_reduce(number, op=op)
    return number.item()


def stops_with_the_shortest(rank, world_size, batches):
    """the loop that ends for all with the shortest list"""
    return add_up(batches, agree(len(batches), dist.ReduceOp.MIN))


def meets_at_a_barrier(rank, world_size, batches):
    """the loop over the rank's own batches, with a barrier after it"""
    sums = add_up(batches, len(batches))
    dist.barrier()
    return sums


def trusts_rank_0(rank, world_size, batches):
    """the loop of as many steps as rank 0 has batches"""
    num_steps = torch.tensor([len(batches)])
    dist.broadcast(num_steps, src=0)
    return add_up(batches, num_steps.item())


def asks_before_every_step(rank, world_size, batches):
    """the loop that asks again before every step, with twice the calls"""
    step, sums = 0, []
    while agree(int(step < len(batches)), dist.ReduceOp.MAX):
        total = torch.tensor([batches[step] if step < len(batches) else 0.0])
        dist.all_reduce(total)
        sums.append(total.item())
        step += 1
    return sums


def only_rank_0_returns(rank, world_size, batches):
    """the right list of sums, which only rank 0 returns"""
    sums = add_up(batches, agree(len(batches), dist.ReduceOp.MAX))
    return sums if rank == 0 else None


def all_steps_at_once(rank, world_size, batches):
    """the one long all_reduce for all steps at once"""
    totals = torch.zeros(agree(len(batches), dist.ReduceOp.MAX))
    totals[: len(batches)] = torch.tensor(batches)
    dist.all_reduce(totals)
    return totals.tolist()


def as_it_was_but_longer(rank, world_size, batches):
    """the loop over the rank's own batches, with a zero put after its sums"""
    return add_up(batches, len(batches)) + [0.0]


def by_a_table_of_worlds(rank, world_size, batches):
    """the loop whose number of steps comes from a table by world size"""
    return add_up(batches, [3, 5, 5, 5, 5][world_size - 1])


def stays_away_when_done(rank, world_size, batches):
    """the right number of steps, where a rank without a batch leaves out the call"""
    sums = []
    for step in range(agree(len(batches), dist.ReduceOp.MAX)):
        total = torch.tensor([0.0])
        if step < len(batches):
            total[0] = batches[step]
            dist.all_reduce(total)
        sums.append(total.item())
    return sums


def skips_zeros(rank, world_size, batches):
    """the loop in which a rank leaves out the call for a batch of zero"""
    sums = []
    for step in range(agree(len(batches), dist.ReduceOp.MAX)):
        total = torch.tensor([batches[step] if step < len(batches) else 0.0])
        if total or step >= len(batches):
            dist.all_reduce(total)
        sums.append(total.item())
    return sums


WRONG = {
    stops_with_the_shortest: "Those are the steps that every rank has a batch for",
    meets_at_a_barrier: "Rank 0 calls barrier",
    trusts_rank_0: "calls broadcast",
    asks_before_every_step: "One question, then the steps",
    only_rank_0_returns: "Rank 1 returns None",
    all_steps_at_once: "brings 12 bytes into a collective",
    as_it_was_but_longer: "has a list of length 4, but length 3 is expected",
    by_a_table_of_worlds: "has a list of length 3, but length 4 is expected",
    stays_away_when_done: "rank 0 waits for rank 1, which has finished",
    skips_zeros: "A rank left out a call in the middle",
}


def padded_first(rank, world_size, batches):
    longest = torch.tensor(len(batches))
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    padded = [*batches, *[0.0] * (int(longest) - len(batches))]
    sums = [torch.tensor([value]) for value in padded]
    for total in sums:
        dist.all_reduce(total)
    return [float(total) for total in sums]


ALSO_RIGHT = [padded_first]

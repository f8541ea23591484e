"""Wrong answers to exercise 17.2, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

import simlib

QUESTION = "plan"


def planned(
    job, tp_most=None, memory=None, in_flight=min, ahead=lambda pp: pp - 1, tp_bytes=None,
    between=None, itemsize=2, state=16, failing=None, saved=14, of_work=False, paid=None,
    formula="young", best=min, divides=True, by_tp=True, whole=False, once=None, minute=1,
    hour=3600, logits=lambda L, tp, pp: (0, L / tp),
):  # fmt: skip
    """The plan; of a mistake, as it counts."""
    P, ranks, found = job["P"], job["ranks"], []
    for tp in (2**k for k in range(13)):
        for pp in (2**k for k in range(13)):
            if tp > (tp_most or job["ranks_per_node"]) or ranks % (tp * pp) or job["layers"] % pp:
                continue
            dp = ranks // (tp * pp)
            M, left = divmod(job["batch"], dp)
            held = in_flight(M, pp) * job["activation_bytes"] * (1 if by_tp else tp)
            kept = (state * P + held) / (tp * pp)
            if not M or left and divides or kept > (memory or job["memory_bytes"]):
                continue
            sent = 2 * (tp - 1) / tp * (job["tp_bytes"] if tp_bytes is None else tp_bytes) / pp
            turn_s = job["work_s"] / (tp * pp) + sent / job["inside_Bps"]
            nbytes = itemsize * P / (1 if whole else tp * pp)
            sums_s = 2 * (dp - 1) / dp * nbytes / (between or job["between_Bps"])
            ordinary_s, last_s = (turn_s + more for more in logits(job["logits_s"], tp, pp))
            found.append((ahead(pp) * ordinary_s + M * last_s + sums_s, tp, pp, kept))
    if not found:
        return None
    step_s, tp, pp, kept = best(found)
    C, mtbf_s, work_s = saved * P / job["disk_Bps"], job["mtbf_s"], job["steps"] * step_s
    every_s = simlib.scale.checkpoint_interval(C, mtbf_s, failing or ranks, formula=formula)
    whole_s = simlib.scale.time_with_failures(work_s, every_s, C, mtbf_s, once or ranks)
    hours = (work_s if of_work else whole_s) / hour
    interval = {"interval_s": every_s / minute}
    chosen = {"tp": tp, "pp": pp, "memory_bytes": kept, "step_s": step_s} | interval
    return chosen | {"hours": hours, "cost": hours * job["price"] * (paid or ranks)}


def over_nodes(rank, world_size, job):
    """the plan whose tp may reach over all nodes"""
    return planned(job, tp_most=job["ranks"])


def whether_it_fits_or_not(rank, world_size, job):
    """the fastest plan, whether it fits or not"""
    return planned(job, memory=float("inf"))


def one_in_flight(rank, world_size, job):
    """the plan that holds the activations of one micro-batch"""
    return planned(job, in_flight=lambda M, pp: 1)


def all_stages_in_flight(rank, world_size, job):
    """the plan that holds pp micro-batches, were there ever so few"""
    return planned(job, in_flight=lambda M, pp: pp)


def all_in_flight(rank, world_size, job):
    """the plan that holds all M micro-batches, as GPipe"""
    return planned(job, in_flight=lambda M, pp: M)


def activations_uncut(rank, world_size, job):
    """activations that tp does not divide"""
    return planned(job, by_tp=False)


def any_batch(rank, world_size, job):
    """the plan whose dp need not divide the batch"""
    return planned(job, divides=False)


def a_turn_too_many(rank, world_size, job):
    """the plan with pp turns before the M of the last stage"""
    return planned(job, ahead=lambda pp: pp)


def all_gradients(rank, world_size, job):
    """an all_reduce of all parameters' gradients over dp"""
    return planned(job, whole=True)


def nowhere_ranks(rank, world_size, job):
    """an interval and hours of one rank's failures"""
    return planned(job, failing=1, once=1)


def hours_of_one(rank, world_size, job):
    """the interval of all ranks, hours with one rank's failures"""
    return planned(job, once=1)


def in_minutes(rank, world_size, job):
    """the interval in minutes"""
    return planned(job, minute=60)


def in_seconds(rank, world_size, job):
    """hours in seconds"""
    return planned(job, hour=1)


def gradients_saved(rank, world_size, job):
    """checkpoints with gradients, 16 bytes for each parameter"""
    return planned(job, saved=16)


def no_bubble(rank, world_size, job):
    """the plan whose pipeline has no bubble"""
    return planned(job, ahead=lambda pp: 0)


def logits_everywhere_a_part(rank, world_size, job):
    """the logits spread evenly over the stages"""
    return planned(job, logits=lambda L, tp, pp: (L / (tp * pp), L / (tp * pp)))


def logits_on_all(rank, world_size, job):
    """all logits on every stage"""
    return planned(job, logits=lambda L, tp, pp: (L / tp, L / tp))


def no_logits(rank, world_size, job):
    """a step without logits"""
    return planned(job, logits=lambda L, tp, pp: (0, 0))


def logits_uncut(rank, world_size, job):
    """logits that tp does not divide"""
    return planned(job, logits=lambda L, tp, pp: (0, L))


def tp_is_free(rank, world_size, job):
    """the plan whose tensor parallelism sends nothing"""
    return planned(job, tp_bytes=0)


def dp_is_free(rank, world_size, job):
    """the plan without an all_reduce over dp"""
    return planned(job, between=float("inf"))


def four_bytes(rank, world_size, job):
    """the plan whose gradients take four bytes on their way"""
    return planned(job, itemsize=4)


def parameters_and_gradients(rank, world_size, job):
    """the plan that forgets the optimizer's state"""
    return planned(job, state=4)


def one_rank_fails(rank, world_size, job):
    """the checkpoint interval of a single rank"""
    return planned(job, failing=1)


def parameters_alone(rank, world_size, job):
    """checkpoints of parameters alone"""
    return planned(job, saved=2)


def nothing_fails(rank, world_size, job):
    """hours and cost of the steps alone"""
    return planned(job, of_work=True)


def one_is_paid(rank, world_size, job):
    """the cost of one rank"""
    return planned(job, paid=1)


def slowest(rank, world_size, job):
    """the slowest plan that fits"""
    return planned(job, best=max)


def no_plan_is_an_error(rank, world_size, job):
    """a plan that is taken from an empty list where none fits"""
    found = planned(job)
    return {name: found[name] for name in ("tp", "pp")} | found


def a_tuple(rank, world_size, job):
    """the values of the plan without their names"""
    found = planned(job)
    return found and tuple(found.values())


def asks_everybody(rank, world_size, job):
    """the right plan, after a barrier of all ranks"""
    dist.barrier()
    return planned(job)


def tells_the_next(rank, world_size, job):
    """the right plan, sent on to the next rank"""
    request = dist.isend(torch.ones(1), dst=(rank + 1) % world_size)
    dist.recv(torch.ones(1), src=(rank - 1) % world_size)
    request.wait()
    return planned(job)


def by_daly(rank, world_size, job):
    """the plan with Daly's interval"""
    return planned(job, formula="daly")


def exactly(rank, world_size, job):
    """the plan with the exact interval"""
    return planned(job, formula="exact")


WRONG = {
    over_nodes: "tp reaches beyond a node",
    whether_it_fits_or_not: "but it does not fit",
    one_in_flight: "A pipeline holds the activations of several",
    all_stages_in_flight: "fewer micro-batches than stages",
    all_in_flight: "not all M as GPipe does",
    activations_uncut: "tp divides the activations",
    any_batch: "dp has to divide the batch",
    a_turn_too_many: "a turn too many",
    all_gradients: "not all P",
    nowhere_ranks: "to the interval and to time_with_failures",
    hours_of_one: "hours are those of one rank's failures",
    in_minutes: "yours is in minutes",
    in_seconds: "yours are seconds",
    gradients_saved: "not 16",
    no_bubble: "Where is the bubble?",
    logits_everywhere_a_part: "You spread the logits over all stages",
    logits_on_all: "You have logits on every stage",
    no_logits: "Where are the logits?",
    logits_uncut: "tp divides the logits",
    tp_is_free: "tp is free in your sum",
    dp_is_free: "dp is free in your sum",
    four_bytes: "A gradient takes 2 bytes on its way here",
    parameters_and_gradients: "Adam's 12 bytes",
    one_rank_fails: "Any of the ranks may fail",
    parameters_alone: "gradients are not saved",
    nothing_fails: "The hours are those of the steps alone",
    one_is_paid: "The cost is that of one rank",
    slowest: "That is the slowest plan",
    no_plan_is_an_error: "TypeError",
    a_tuple: "but a dict with tp, pp",
    asks_everybody: "1 collective takes place where 0 would be enough",
    tells_the_next: "the ranks send 6 messages where",
}
ALSO_RIGHT = [by_daly, exactly]

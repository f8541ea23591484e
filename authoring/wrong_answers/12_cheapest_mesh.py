"""Wrong answers to exercise 12.4, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "cheapest_mesh"


def plans(
    job,
    tp_most=None,
    activations=True,
    of_stage_3=3,
    between=None,
    last=False,
    itemsize=4,
    stages=(0, 1, 3),
    both=sum,
    whole=False,
    of_stage_1=8,
    share=lambda dp, tp: dp * tp,
    per_dp=True,
):
    """Every plan that fits, cheapest first; of a mistake, as it counts."""
    found = []
    for tp in range(1, (tp_most or job["ranks_per_node"]) + 1):
        if job["ranks"] % tp == 0:
            dp = job["ranks"] // tp
            once = of_stage_1 + (16 - of_stage_1) / dp
            for stage, each in ((0, 16), (1, once), (3, 16 / dp)):
                kept = each * job["P"] / (1 if whole else tp)
                kept += activations * job["activation_bytes"] / share(dp, tp)
                tp_bytes = job["tp_bytes"] / (dp if per_dp else 1)
                inside_s = (tp - 1) / tp * tp_bytes / job["inside_Bps"]
                times = of_stage_3 if stage == 3 else 2
                sent = times * (dp - 1) / dp * itemsize * job["P"] / tp
                seconds = both((inside_s, sent / (between or job["between_Bps"])))
                if kept <= job["memory_bytes"] and stage in stages:
                    found.append((seconds, tp, -stage if last else stage, dp))
    return sorted(found)


def first(found):
    return (found[0][3], found[0][1], abs(found[0][2])) if found else None


def over_nodes(rank, world_size, job):
    """the plan whose tp may reach over all nodes"""
    return first(plans(job, tp_most=job["ranks"]))


def whether_it_fits_or_not(rank, world_size, job):
    """the cheapest plan, whether it fits or not"""
    return first(plans(job | {"memory_bytes": float("inf")}))


def no_activations(rank, world_size, job):
    """the plan that forgets the activations"""
    return first(plans(job, activations=False))


def stage_3_as_the_others(rank, world_size, job):
    """the plan for which stage 3 sends no more than the others"""
    return first(plans(job, of_stage_3=2))


def one_bandwidth(rank, world_size, job):
    """the plan for which all links are as fast as those in a node"""
    return first(plans(job, between=job["inside_Bps"]))


def largest_stage(rank, world_size, job):
    """the plan with the largest of equally cheap stages"""
    return first(plans(job, last=True))


def tp_is_free(rank, world_size, job):
    """the plan for which tensor parallelism sends nothing"""
    return first(plans(job | {"tp_bytes": 0}))


def numbers_not_bytes(rank, world_size, job):
    """the plan for which a parameter is sent as one byte"""
    return first(plans(job, itemsize=1))


def no_stage_1(rank, world_size, job):
    """the plan that tries stages 0 and 3 only"""
    return first(plans(job, stages=(0, 3)))


def asks_rank_0(rank, world_size, job):
    """the plan after a barrier of all ranks"""
    dist.barrier()
    return first(plans(job))


def no_stage_3(rank, world_size, job):
    """the cheapest plan of stages 0 and 1"""
    return first(plans(job, stages=(0, 1)))


def the_longer_axis(rank, world_size, job):
    """the plan whose longer axis takes least"""
    return first(plans(job, both=max))


def all_reduce_along_tp(rank, world_size, job):
    """the plan if tp_bytes went twice around, as in an all_reduce"""
    return first(plans(job | {"tp_bytes": 2 * job["tp_bytes"]}))


def tells_the_next(rank, world_size, job):
    """the plan that is sent on to the next rank"""
    if world_size > 1:
        request = dist.isend(torch.ones(1), dst=(rank + 1) % world_size)
        dist.recv(torch.ones(1), src=(rank - 1) % world_size)
        request.wait()
    return first(plans(job))


def axes_exchanged(rank, world_size, job):
    """the plan that names tp before dp"""
    plan = first(plans(job))
    return plan and (plan[1], plan[0], plan[2])


def activations_by_dp(rank, world_size, job):
    """the plan that divides the activations by dp only"""
    return first(plans(job, share=lambda dp, tp: dp))


def parameters_undivided(rank, world_size, job):
    """the plan for which tp divides no parameters"""
    return first(plans(job, whole=True))


def gradients_divided(rank, world_size, job):
    """the plan whose stage 1 divides the gradients, too"""
    return first(plans(job, of_stage_1=4))


def all_along_tp(rank, world_size, job):
    """the plan for which each replica sends all of tp_bytes"""
    return first(plans(job, per_dp=False))


def no_plan_is_an_error(rank, world_size, job):
    """the plan that is taken from an empty list where none fits"""
    seconds, tp, stage, dp = plans(job)[0]
    return dp, tp, stage


WRONG = {
    over_nodes: "tp reaches beyond a node",
    whether_it_fits_or_not: "but it does not fit",
    no_activations: "Are the activations counted in?",
    stage_3_as_the_others: "it gathers them twice",
    one_bandwidth: "Both axes have the same bandwidth",
    largest_stage: "but where both fit, take the smaller stage",
    tp_is_free: "its all_reduces cost time, too",
    numbers_not_bytes: "you count parameters, not their bytes",
    no_stage_1: "You did not try stage 1",
    no_stage_3: "You did not try stage 3",
    the_longer_axis: "The times of both axes add up",
    all_reduce_along_tp: "not twice that",
    axes_exchanged: "dp stands first, then tp",
    activations_by_dp: "A rank keeps job['activation_bytes'] / (dp * tp)",
    parameters_undivided: "Along tp the parameters are divided, too",
    gradients_divided: "You count too few bytes for stage 1",
    all_along_tp: "a replica sends a dp-th of them",
    asks_rank_0: "but 1 collective takes place where 0 would be enough",
    tells_the_next: "the ranks send 5 messages where",
    no_plan_is_an_error: "IndexError",
}

# %% [markdown]
# # Exercises 09: when does it pay?
#
# Three tasks that go with [lesson 09](../notebooks/09_when_does_it_pay.ipynb). A check calls your
# function on worlds of 1 to 5 real ranks, **one** included, with uneven numbers, and looks at the value
# on every rank and at what was sent. Tasks 2 and 3 then go to a modelled network with a virtual clock,
# which shows the same on every machine, and must keep within a budget of time.
#
# The outputs stored below the checks are those of a good answer; they change when you run the check.
# Each task has folded hints. A step of work is `simlib.compute(seconds)`. `linear` and `ring`, given
# here, add up `x` in place over the ranks **0 to R - 1** only; call them on just these. By lesson 09
# they take
#
# $$2(R-1)\Big(\alpha + \frac N\beta\Big) \qquad\text{and}\qquad 2(R-1)\Big(\alpha + \frac{N}{R\beta}\Big)$$
#
# seconds for N bytes, with latency $\alpha$ and bandwidth $\beta$ (if R divides the length).

# %% role="setup"
import math

import torch
import torch.distributed as dist

import simlib
from simlib.checks import Timed, check, collective_nbytes, collectives, measure, only


def linear(rank, R, x):
    other = torch.empty_like(x)
    for peer in range(1, R):
        if rank == 0:
            dist.recv(other, src=peer)
            x += other
        elif rank == peer:
            dist.send(x, dst=0)
    for peer in range(1, R):
        if rank == 0:
            dist.send(x, dst=peer)
        elif rank == peer:
            dist.recv(x, src=0)


def ring(rank, R, x):
    chunks = x.tensor_split(R)
    for step in range(2 * (R - 1)):
        chunk = chunks[(rank - step - 1) % R]
        incoming = torch.empty_like(chunk)
        request = dist.isend(chunks[(rank - step) % R], dst=(rank + 1) % R)
        dist.recv(incoming, src=(rank - 1) % R)
        request.wait()
        chunk.copy_(chunk + incoming if step < R - 1 else incoming)


# %% [markdown]
# ## 1. From how many ranks on? (★★, 20 minutes, 3 points)
#
# Every rank measured its own `compute_s`; they differ. With a ring, what is the smallest number of
# ranks R ≥ 2 that trains faster than one rank (weak scaling; in every step all wait for the slowest
# `compute_s` of the world)? Return the same int on every rank, or 0 where no R up to 4,096 pays. One rank
# alone computes as slowly as the slowest. Allowed: one `all_reduce` of a single number.


# %% role="answer" question="break_even_ranks" points=3
def break_even_ranks(rank, world_size, compute_s, nbytes, latency_s, bandwidth_Bps):
    """Return the smallest R >= 2 (int) for which a ring pays, 0 where none up to 4,096 does.

    compute_s is a float, different on every rank; the rest is the same on all.
    """
    ### BEGIN SOLUTION
    slowest = torch.tensor([compute_s], dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    for R in range(2, 4097):
        sync_s = 2 * (R - 1) * (latency_s + nbytes / R / bandwidth_Bps)
        if sync_s < (R - 1) * slowest.item():
            return R
    return 0
    ### END SOLUTION


# %% role="check" question="break_even_ranks" points=3
CASES = {  # world size: seconds of the fastest, bytes, latency, bandwidth
    1: (0.5, 1e6, 1e-3, 1e6),  # R > 4.02
    2: (0.25, 1e6, 1e-3, 1e6),
    3: (1.0, 1e6, 1e-3, 1e6),
    4: (0.001, 1e6, 0.01, 1e6),  # 2 latencies are too many
    5: (0.001, 1e5, 1e-4, 1e6),
}


def cases(rank, world_size):
    compute_s, *network = CASES[world_size]
    return compute_s * (1 + 0.2 * ((rank + 1) % world_size)), *network


def first_that_pays(compute_s, nbytes, latency_s, bandwidth_Bps, pays=None):
    pays = pays or (lambda R, sync_s: sync_s < (R - 1) * compute_s)
    for R in range(2, 4097):
        if pays(R, 2 * (R - 1) * (latency_s + nbytes / R / bandwidth_Bps)):
            return R
    return 0


def of_all(seconds, network):
    return [first_that_pays(seconds, *network)] * 5


def same(compute_s, network, **how):
    return lambda xs, *rest: [
        first_that_pays(compute_s(xs), *(one[0] for one in rest), **how)
    ] * len(xs)


verdict = check(
    "break_even_ranks",
    break_even_ranks,
    cases,
    same(max, None),
    only("all_reduce"),
    collectives(lambda *given: {"all_reduce": 1}),
    points=3,
)
verdict

"""What the checks of this exercise expect: it gives the answers away.

Built from authoring/exercises/02_send_and_recv.py, which is what grading reads; nobody edits this file.
"""

from simlib.checks import check, measure, messages, nbytes, only, somebody_sends


# %% 02.1 running_total
verdict = check(
    "running_total",
    running_total,
    # the x of one rank, in two draws; `xs` below holds the x of every rank
    [
        lambda rank, world_size: (torch.arange(3) + 10 * rank,),
        lambda rank, world_size: (torch.arange(4) * (rank + 2),),
    ],
    # what each rank must return
    lambda xs: [sum(xs[: rank + 1]) for rank in range(len(xs))],
    only("send", "recv"),
    somebody_sends(),
    messages(lambda xs: len(xs) - 1, hint="Each rank needs one tensor from one neighbour."),
    nbytes(lambda xs: sum(x.nbytes for x in xs[1:])),
    mistakes={
        "That is the sum of the ranks before this one: its own x is missing.": (
            lambda xs: [sum(xs[:rank], 0 * xs[0]) for rank in range(len(xs))]
        ),
        "That is only this rank's x and its left neighbour's: pass the sum on, not x.": (
            lambda xs: [sum(xs[max(0, rank - 1) : rank + 1]) for rank in range(len(xs))]
        ),
    },
    points=2,
)
verdict


# %% 02.2 shift_right
verdict = check(
    "shift_right",
    shift_right,
    [
        lambda rank, world_size: (torch.arange(world_size + 1) + 10 * rank,),
        lambda rank, world_size: (torch.arange(3) + 7 * rank,),
    ],
    lambda xs: [xs[rank - 1] for rank in range(len(xs))],
    only("send", "recv"),
    somebody_sends(),
    messages(
        lambda xs: len(xs) if len(xs) > 1 else 0,
        hint="No rank should have to pass on what is meant for others.",
    ),
    nbytes(lambda xs: sum(x.nbytes for x in xs) if len(xs) > 1 else 0),
    mistakes={
        "That is a swap of 0 with 1, of 2 with 3: in a ring left and right are two ranks.": (
            lambda xs: [xs[rank ^ 1] if rank ^ 1 < len(xs) else xs[rank] for rank in range(len(xs))]
        ),
    },
    points=2,
)
verdict


# %% 02.3 collect
def uneven(seed):
    def inputs(rank, world_size):
        draw = torch.Generator().manual_seed(100 * seed + 10 * world_size + rank)
        length = torch.randint(0, 7, (1,), generator=draw).item()
        return (torch.randint(0, 100, (length,), generator=draw).float(),)

    return inputs


verdict = check(
    "collect",
    collect,
    [uneven(2), uneven(3)],  # two draws: every world is tried with both
    lambda xs: [list(xs)] + [None] * (len(xs) - 1),
    only("send", "recv"),
    somebody_sends(),
    messages(lambda xs: 2 * (len(xs) - 1), hint="One message can carry all the numbers of a rank."),
    nbytes(
        lambda xs: sum(8 + x.nbytes for x in xs[1:]),
        hint="A holder that is large enough for everybody is paid for by everybody.",
    ),
    mistakes={
        "The tensors without a number are missing: a rank that has none is still a rank.": (
            lambda xs: [[x for x in xs if len(x)]] + [None] * (len(xs) - 1)
        ),
    },
    points=3,
)
verdict

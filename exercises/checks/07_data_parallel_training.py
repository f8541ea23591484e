"""What the checks of this exercise expect: it gives the answers away.

Built from authoring/exercises/07_data_parallel_training.py, which is what grading reads; nobody edits this file.
"""

from simlib.checks import OneOf, Rule, check, collective_nbytes, collectives, measure, only


DISK = tempfile.TemporaryDirectory()  # here lie the checkpoints of task 4


# %% 07.1 sync_gradients
def of_a_small_net(rank, world_size):
    shapes = (2, 3), (3,), (1, 3), ()
    return ([torch.full(shape, float(3 * rank + place)) for place, shape in enumerate(shapes)],)


def means(by_rank):
    return [[torch.stack(tensors).mean(0) for tensors in zip(*by_rank, strict=True)]] * len(by_rank)


verdict = check(
    "sync_gradients",
    sync_gradients,
    of_a_small_net,
    means,
    only("all_reduce"),
    collectives(lambda by_rank: 1, hint="Join the tensors first, cut the result up after."),
    collective_nbytes(lambda by_rank: sum(g.nbytes for g in by_rank[0])),
    in_place=True,
    mistakes={
        "That is the sum: with mean losses the step would be world_size times too large.": (
            lambda by_rank: [[g * len(by_rank) for g in mean] for mean in means(by_rank)]
        ),
    },
    points=2,
)
verdict


# %% 07.2 held_out_accuracy
def padded_shares(rank, world_size):
    n = {2: 12, 5: 2}.get(world_size, 11)  # with 12 no padding, with 2 some ranks have nothing else
    answers = torch.tensor([1.0, 0, 0, 1, 1, 0, 1, 0, 0, 1, 1, 1])
    share = [(rank + i * world_size) % n for i in range(-(-n // world_size))]
    return answers[share], n


def share_of_right(rights, ns, keep=lambda example, place, n, world_size: example < n):
    """The accuracy when the elements that keep allows are counted."""
    world_size, n = len(rights), ns[0]
    kept = [
        right[place].item()
        for rank, right in enumerate(rights)
        for place in range(len(right))
        if keep(rank + place * world_size, place, n, world_size)
    ]
    return [sum(kept) / n] * world_size


def in_a_fixed_world(rights, ns):
    """What comes out where rank r is taken to hold examples r, r + fixed, r + 2 fixed, ..."""
    places = [(place, rank, r) for rank, mine in enumerate(rights) for place, r in enumerate(mine)]
    sums = [
        sum(r.item() for place, rank, r in places if rank + place * fixed < ns[0])
        for fixed in range(2, 17)
        if fixed != len(rights)
    ]
    return OneOf([[total / ns[0]] * len(rights) for total in sums])


def mean_of_means(rights, ns):
    world_size = len(rights)
    real = [r[: len(range(rank, ns[0], world_size))] for rank, r in enumerate(rights)]
    return [torch.stack([r.mean() for r in real]).mean().item()] * world_size


verdict = check(
    "held_out_accuracy",
    held_out_accuracy,
    padded_shares,
    share_of_right,
    only("all_reduce"),
    collectives(lambda rights, ns: 1, hint="n is known everywhere: only one number is not."),
    collective_nbytes(
        lambda rights, ns: 8,
        hint="A rank has one number to tell, the sum over its own share. (Two counts would do in "
        "float32; in int64 they are 16 bytes.)",
    ),
    mistakes={
        "The padding is counted: some examples are in there twice.": (
            lambda rights, ns: [torch.cat(rights).mean().item()] * len(rights)
        ),
        "The padding is among the right answers, though not in what you divide by.": (
            lambda rights, ns: [torch.cat(rights).sum().item() / ns[0]] * len(rights)
        ),
        "Only whole rounds of the sampler are counted: the last examples before n are missing.": (
            lambda rights, ns: share_of_right(
                rights, ns, lambda example, place, n, world_size: place < n // world_size
            )
        ),
        "Real examples are left out: where world_size divides n, nothing is padded.": (
            lambda rights, ns: share_of_right(
                rights,
                ns,
                lambda example, place, n, world_size: (
                    example % world_size < n % world_size or place < -(-n // world_size) - 1
                ),
            )
        ),
        "A mean of means: the ranks have different numbers of real examples, so add up counts.": (
            mean_of_means
        ),
        "A fixed world_size is written into the answer: use the one that the rank is given.": (
            in_a_fixed_world
        ),
    },
    points=2,
)
verdict


# %% 07.3 batch_statistics
def uneven_batches(rank, world_size, seed=0):
    examples = (4, 1, 0, 8, 2)[rank]  # a power of two: the rank's own mean is then not rounded
    draw = torch.Generator().manual_seed(100 * seed + 10 * world_size + rank)
    steps = torch.randint(-11, 12, (examples, 3), generator=draw)
    return (steps / torch.tensor([4.0, 8.0, 128.0]) + torch.tensor([0.0, 2.0, 1000.0]),)


def statistics(xs, correction=0):
    whole = torch.cat(xs).double()
    return whole.mean(0).float(), whole.var(0, correction=correction).float()


def from_squares(xs):
    """What E[x^2] - mean^2 may give in float32: its large channel is a multiple of 1/16."""
    mean, variance = statistics(xs)
    wrong = (torch.cat([variance[:2], torch.tensor([k / 16])]) for k in range(-64, 65))
    return OneOf([[(mean, one)] * len(xs) for one in wrong])


def averaged(xs):
    """The mean over the ranks of what each makes of its own examples."""
    each = [statistics([x]) for x in xs if len(x)]
    return tuple(torch.stack(one).mean(0) for one in zip(*each, strict=True))


def combined(xs, between):
    """(mean, variance) where between(n, mean of a rank, mean of all) is added to M2."""
    mean, filled = statistics(xs)[0], [x for x in xs if len(x)]
    m2 = [((x - x.mean(0)) ** 2).sum(0) + between(len(x), x.mean(0), mean) for x in filled]
    return [(mean, sum(m2) / len(torch.cat(xs)))] * len(xs)


def about_the_plain_mean(xs):
    mean = averaged(xs)[0]
    return mean, ((torch.cat(xs).double() - mean.double()) ** 2).mean(0).float()


verdict = check(
    "batch_statistics",
    batch_statistics,
    uneven_batches,
    lambda xs: [statistics(xs)] * len(xs),
    only("all_gather", "all_reduce"),
    collectives(
        lambda xs: 1,
        hint="One tensor holds count, mean and M2; each rank makes its own before it knows the "
        "mean of all.",
    ),
    collective_nbytes(
        lambda xs: 4 * (2 * xs[0].shape[1] + 1),
        hint="The count is one number for all channels, and float32 is enough for M2.",
    ),
    mistakes={
        "E[x^2] - mean^2: where the mean is 1000, both are a million, and float32 keeps seven "
        "digits of a million; the variance is lost, or below 0. Combine count, mean and M2.": (
            from_squares
        ),
        "The variance divides by n - 1; batch norm divides by n here.": (
            lambda xs: [statistics(xs, correction=1)] * len(xs)
        ),
        "That is the mean of squares, about 0: take them about the mean.": (
            lambda xs: [(statistics(xs)[0], (torch.cat(xs) ** 2).mean(0))] * len(xs)
        ),
        "The ranks' own means and variances are averaged: they have different numbers of examples, "
        "and differ from each other, too.": (lambda xs: [averaged(xs)] * len(xs)),
        "The mean is the plain mean of the ranks' means: weigh each by its number of examples.": (
            lambda xs: [about_the_plain_mean(xs)] * len(xs)
        ),
        "The ranks' M2 are added up, but how far their means lie apart is lost.": (
            lambda xs: combined(xs, lambda n, own, mean: 0)
        ),
        "How far a rank's mean lies off counts once for each of its examples: n times.": (
            lambda xs: combined(xs, lambda n, own, mean: (own - mean) ** 2)
        ),
        "That is M2 of all: the sum of squares has still to be divided by n.": (
            lambda xs: [(statistics(xs)[0], statistics(xs)[1] * len(torch.cat(xs)))] * len(xs)
        ),
        "That is the standard deviation, the root of the variance.": (
            lambda xs: [(statistics(xs)[0], statistics(xs)[1].sqrt())] * len(xs)
        ),
    },
    points=3,
)
verdict


# %% 07.4 resume
def a_checkpoint(rank, world_size, seed=0):
    """Every rank has a name of its own for it, so that one sees who writes."""
    draw = torch.Generator().manual_seed(10 * seed + world_size)
    x, y = torch.randn(9, 2, generator=draw), torch.randn(9, 1, generator=draw)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=draw)
        parameter.grad = torch.randn(parameter.shape, generator=draw)
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    state["epoch"] = int(torch.randint(2, 9, (), generator=draw))
    path = Path(DISK.name) / f"{seed}_{world_size}_{rank}" / "last.pt"
    shutil.rmtree(path.parent, ignore_errors=True)
    (path.parent / "kept").mkdir(parents=True)
    torch.save(state, path)
    shutil.copy(path, path.parent / "kept" / "copy")
    os.link(path, path.parent / "kept" / "link")  # the old file, also when path leads to another
    return str(path), x, y


def kept(path, name):
    return Path(path).parent / "kept" / name


def steps_of(world_size, length=9):
    return math.ceil(math.ceil(length / world_size) / 2)


def epoch_from(paths, xs, ys, later=0, epoch=None, momentum=True, own=False, total=False):
    """The weights of every rank after one epoch, by one process that takes the ranks' turns."""
    state = torch.load(kept(paths[0], "copy"), weights_only=True)
    world_size, found, data = len(paths), [], TensorDataset(xs[0], ys[0])
    shares = [DistributedSampler(data, world_size, rank) for rank in range(world_size)]
    for share in shares:
        share.set_epoch(state["epoch"] + later if epoch is None else epoch)
    shares = [list(share) for share in shares]
    for rank in range(world_size if own else 1):
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        model.load_state_dict(state["model"])
        if momentum:
            optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        for step in range(steps_of(world_size)):
            optimizer.zero_grad()
            for share in [shares[rank]] if own else shares:
                some_x, some_y = data[share[2 * step : 2 * step + 2]]
                loss = F.mse_loss(model(some_x), some_y)
                (loss / (1 if own or total else world_size)).backward()
            optimizer.step()
        found.append(parameters_to_vector(model.parameters()).detach())
    return found if own else found * world_size


def state_complaint(state, weights, before):
    """A sentence about what stands in the new checkpoint, or None."""
    if not isinstance(state, dict) or not {"model", "optimizer", "epoch"} <= set(state):
        return "The new checkpoint is no dict with model, optimizer and epoch."
    flat = torch.cat([one.flatten() for one in state["model"].values()])
    if not torch.allclose(flat, weights):
        return "The weights in the new checkpoint are not those that are returned."
    velocity = [one.get("momentum_buffer") for one in state["optimizer"].get("state", {}).values()]
    old = [one["momentum_buffer"] for one in before["optimizer"]["state"].values()]
    if len(velocity) < 2 or any(map(torch.equal, velocity, old)):
        return "The optimizer in the new checkpoint has not the momentum after this epoch."
    if state["epoch"] != before["epoch"] + 1:
        return (
            f"The new checkpoint says epoch {state['epoch']}, and the next one is "
            f"{before['epoch'] + 1}: who loads it would see a shuffle twice, or miss one."
        )
    return None


def file_complaint(run, given):
    for rank, path in enumerate(given[0]):
        copied, link = kept(path, "copy"), kept(path, "link")
        if copied.read_bytes() != link.read_bytes():
            return (
                f"The weights are right, but rank {rank} writes into the old file itself: a crash "
                "in the middle leaves half a checkpoint and no old one. Save beside it, then "
                "os.replace."
            )
        new = not os.path.exists(path) or not os.path.samefile(path, link)
        if rank and new:
            return f"Rank {rank} replaces the checkpoint, too: one rank writes, all load."
        if not rank and not new:
            return "The weights are right, but the old checkpoint still lies at path."
    before = torch.load(kept(given[0][0], "copy"), weights_only=True)
    said = state_complaint(torch.load(given[0][0], weights_only=True), run.results[0], before)
    last = [run.trace.of_rank(rank)[-1:] for rank in range(run.world_size)]
    early = [rank for rank, ops in enumerate(last) if ops and ops[0].kind != "barrier"]
    if early and run.world_size > 1 and not said:
        return (
            f"Nothing keeps rank {early[-1]} from returning, and loading the old file, before "
            "rank 0 has written the new one: a barrier behind the writing does."
        )
    return said


verdict = check(
    "resume",
    resume,
    a_checkpoint,
    epoch_from,
    only("all_reduce", "barrier"),
    collectives(
        lambda paths, xs, ys: steps_of(len(paths)) + 1,
        hint="One flat buffer a step, and one barrier.",
    ),
    Rule(file_complaint),
    mistakes={
        "set_epoch is forgotten: those are the batches of epoch 0, again.": (
            lambda *given: epoch_from(*given, epoch=0)
        ),
        "Those are the batches of the epoch after: the file's epoch is the one to train now.": (
            lambda *given: epoch_from(*given, later=1)
        ),
        "Those are the batches of the epoch before: the file's epoch is the next one, not the "
        "last.": (lambda *given: epoch_from(*given, later=-1)),
        "The weights come from the file, but the momentum begins at zero again.": (
            lambda *given: epoch_from(*given, momentum=False)
        ),
        "Each rank steps with its own gradient, so the replicas drift apart.": (
            lambda *given: epoch_from(*given, own=True)
        ),
        "Those are steps with the sum of the gradients, not with their mean.": (
            lambda *given: epoch_from(*given, total=True)
        ),
    },
    points=3,
)
verdict

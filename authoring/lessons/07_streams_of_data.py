# %% [markdown]
# # 07 Streams of data
#
# This is the second part of lesson 07. In [the first part](07_data_parallel_training.ipynb) a sampler dealt out
# examples by number. But many large data sets are **streams**. A stream is read from front to back. It has no length
# and no sampler. In this part (60 minutes) you will
#
# - deal out a stream to ranks and their workers,
# - let ranks agree on the end,
# - continue on another number of ranks, and check every sample,
# - compare runs bit by bit, and see what changes bits although nothing is wrong.
#
# **R** is the number of ranks. A **shard** is one file of a stream here. (In the first part it was a rank's share.)

# %%
import itertools
from collections import Counter

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import simlib

# %% [markdown]
# ## One reader for each shard
#
# Our stream has 48 samples in 12 shards. The ranks do not know the shards' sizes. They can only `read` a shard from its
# front. Sample 304 is at place 4 of shard 3, counted from 0.
#
# In torch a stream is an `IterableDataset`. A `DataLoader` refuses a sampler for it, so each rank must choose its own
# shards. Here rank r takes shards r, r + R, r + 2R, ... Two ranks read the stream. Each loader has two workers, which
# are processes that read ahead. How many samples do both ranks get together?

# %%
samples = None  # on both ranks together, with two workers each
SIZES = [5, 3, 4, 6, 2, 5, 4, 3, 6, 4, 2, 4]
SHARDS = len(SIZES)


def read(shard):
    yield from range(100 * shard, 100 * shard + SIZES[shard])


class Stream(IterableDataset):
    def __init__(self, shards):
        self.shards = shards

    def __iter__(self):
        return itertools.chain(*map(read, self.shards))


def loader_of(stream, batch_size, workers=0):
    context = "fork" if workers else None
    return DataLoader(stream, batch_size, num_workers=workers, multiprocessing_context=context)


def by_rank(rank, world_size, workers):
    return list(loader_of(Stream(range(rank, SHARDS, world_size)), None, workers))  # no batches


for workers in (0, 2):
    mine = simlib.run(by_rank, 2, args=(workers,)).results
    print(f"{workers} workers: {len(sum(mine, []))} samples; rank 0 has {mine[0][:8]} ...")
simlib.guess(samples, len(sum(mine, [])))

# %% [markdown]
# With workers every sample comes twice, and nothing warns you. Each worker gets a **copy** of the data set, and reads
# all shards of its rank. Inside a worker, `get_worker_info()` returns its number (`id`) and the number of workers
# (`num_workers`). So R ranks with W workers are R x W readers.
#
# **Now you write it:** `share` returns the shards of one reader. Each shard must have exactly one reader. The readers'
# numbers of shards may differ by at most one.


# %%
def share(rank, world_size, worker, workers):
    return range(rank, SHARDS, world_size)  # yours: the shards of this reader


for R, W in ((2, 2), (3, 2), (5, 3)):
    readers = [list(share(rank, R, worker, W)) for rank in range(R) for worker in range(W)]
    once = sorted(sum(readers, [])) == list(range(SHARDS))
    even = max(map(len, readers)) - min(map(len, readers)) <= 1
    print(f"{R} ranks with {W} workers:", "right" if once and even else "not yet")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `return range(rank * workers + worker, SHARDS, world_size * workers)`
#
# </details>
#
# The lesson continues with its own function, `dealt`. It counts worker 0 of all ranks first, then worker 1. So each rank
# gets a shard if there are at least R shards. In the picture a box is a shard.


# %%
def dealt(rank, world_size, worker, workers):
    return range(worker * world_size + rank, SHARDS, world_size * workers)


def draw(axes, share, title):
    names = [f"rank {rank}, worker {worker}" for rank in range(2) for worker in range(2)]
    for row, name in enumerate(names):
        shards, color = share(row // 2, 2, row % 2, 2), ("#56B4E9", "#E69F00")[row // 2]
        lefts = [0, *itertools.accumulate(SIZES[shard] for shard in shards)]
        for shard, left in zip(shards, lefts, strict=False):
            axes.barh(name, SIZES[shard], left=left, color=color, ec="#777777", alpha=0.5)
            axes.text(left + SIZES[shard] / 2, name, shard, ha="center", va="center")
    axes.set(title=title, xlabel="samples")


figure, axes = plt.subplots(1, 2, figsize=(9, 2.4), sharex=True, sharey=True, layout="constrained")
draw(axes[0], lambda rank, R, *_: range(rank, SHARDS, R), "by rank: each shard has two readers")
draw(axes[1], dealt, "dealt: each shard has one reader")
axes[0].invert_yaxis()
plt.show()

# %% [markdown]
# ## The ends are uneven
#
# The rows on the right are not equally long. A sampler hides such differences by padding (first part), but a stream
# does not. Four ranks without workers take two samples per step, and all_reduce the sum and the count. Ranks 0 to 3
# have 13, 12, 10 and 13 samples. In which step does the run hang, and which rank is missing?


# %% tags=["raises-exception"]
def batches_of(rank, world_size):
    return iter(loader_of(Stream(dealt(rank, world_size, 0, 1)), 2))


def uneven(rank, world_size):
    for batch in batches_of(rank, world_size):
        total = torch.tensor([batch.sum(), len(batch)])
        dist.all_reduce(total)


simlib.run(uneven, 4)

# %% [markdown]
# Rank 2 takes its last batch in step 5. In step 6 the other ranks wait for it. No rank knows the length of its stream.
# So in each step, a rank sets a flag to 1 if it has a batch, and else to 0. The ranks all_reduce the flag, and stop if
# the result is 0. With MIN, all ranks stop when the *first* stream has ended. With MAX, they stop when the *last* stream
# has ended, and a rank without a batch brings zeros. How many of the 48 samples does the run with MIN use?

# %%
used = None  # of 48, with MIN


def agreed(rank, world_size, op):
    batches, counts = batches_of(rank, world_size), []
    while True:
        batch = next(batches, torch.tensor([], dtype=torch.int64))
        flag = torch.tensor([min(len(batch), 1)])
        dist.all_reduce(flag, op=op)
        if flag == 0:
            return counts
        total = torch.tensor([batch.sum(), len(batch)])
        dist.all_reduce(total)
        counts.append(total[1].item())


for op in (dist.ReduceOp.MAX, dist.ReduceOp.MIN):
    run = simlib.run(agreed, 4, args=(op,))
    counts = run.results[0]
    print(f"{counts} = {sum(counts)} samples, {len(run.trace.collectives)} all_reduces")
simlib.guess(used, sum(counts))

# %% [markdown]
# MIN loses 8 samples, and the same ones in every epoch. MAX uses all 48, but its last batches are smaller, so divide
# by the total count. Both make two all_reduces per step, and one more for the last flag. With MAX you need no flag: if
# the total count is 0, all streams have ended (exercise 6).
#
# ## Continue on another number of ranks
#
# In the first part, a resumed run skipped the batches that were done. Now four ranks train on 6 samples each, and the
# job continues on three ranks. 24 samples are done, so each rank skips the first 8 of its share. Does every sample
# still come once?


# %%
def part(rank, world_size, first, end):
    samples = itertools.chain(*map(read, dealt(rank, world_size, 0, 1)))
    return list(itertools.islice(samples, first, end))


before = simlib.run(part, 4, args=(0, 6)).results
for R, skipped in ((4, 6), (3, 8)):
    after = simlib.run(part, R, args=(skipped, None)).results
    times = Counter(sum(before + after, []))
    print(f"4 ranks, then {R}: {times.total()} samples, {len(times)} different ones")

# %% [markdown]
# With three ranks, each rank has other shards. So 5 samples are lost, and 5 come twice. The total of 48 hides this.
#
# A position that fits any number of ranks says **how many samples of each shard are done**. Each rank counts a batch
# when it has trained on it (`trained`). `__iter__` must not count. It runs in workers, and each worker reads two
# batches ahead (`prefetch_factor`).
#
# **Now you write it:** two methods of `Resumable`.
#
# - `__iter__` yields pairs `(shard, sample)`, for the shards in `self.shards()`. It skips the samples that are done:
#   `itertools.islice(read(shard), n, None)`.
# - `state_dict` returns the same dict `{shard: done}` on every rank. First make a list `found` of R elements, for
#   example `[None] * R`. `dist.all_gather_object(found, self.done)` puts the dicts of all ranks into the list. After a
#   resume, each rank starts with the numbers of all shards. For shards that other ranks read now, its numbers soon are
#   old.


# %%
class Resumable(IterableDataset):
    def __init__(self, rank, world_size, done):
        self.rank, self.world_size, self.done = rank, world_size, dict(done)

    def shards(self):
        info = get_worker_info()  # None in the rank's own process
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        return dealt(self.rank, self.world_size, worker, workers)

    def trained(self, shards):
        for shard in shards:
            self.done[shard] = self.done.get(shard, 0) + 1

    def __iter__(self):
        yield from ()  # yours

    def state_dict(self):
        return {}  # yours


# %% [markdown]
# The check trains for three steps in each world, and in the last world to the end. Each sample must come once.


# %%
def piece(rank, world_size, done, steps, workers):
    stream, seen = Resumable(rank, world_size, done), []
    for shards, samples in itertools.islice(loader_of(stream, 2, workers), steps):
        seen += samples.tolist()
        stream.trained(shards.tolist())
    return seen, stream.state_dict()


for engine, workers, *worlds in (
    (simlib.run, 0, 4, 3),
    (simlib.run, 2, 4, 6),
    (simlib.simulate, 0, 4, 3, 6),
):
    done, times = {}, Counter()
    for R, steps in zip(worlds, [3, 3, None][-len(worlds) :], strict=True):
        results = engine(piece, R, args=(done, steps, workers)).results
        times.update(sum((seen for seen, _ in results), []))
        done = results[0][1]
    ok = "right" if len(times) == 48 == times.total() else "not yet"
    found = f"{times.total()} samples, {len(times)} different ones"
    print(f"{worlds} ranks, {workers} workers: {ok}, {found}")

# %% [markdown]
# <details><summary>Answer</summary>
#
#     def __iter__(self):
#         for shard in self.shards():
#             for sample in itertools.islice(read(shard), self.done.get(shard, 0), None):
#                 yield shard, sample
#
#     def state_dict(self):
#         found = [None] * self.world_size
#         dist.all_gather_object(found, self.done)
#         return {s: max(done.get(s, 0) for done in found) for s in range(SHARDS)}
#
# Counts only grow, so the largest one is the newest.
#
# </details>
#
# [torchdata](https://docs.pytorch.org/data/0.11/torchdata.stateful_dataloader.html) collects the states of a rank's
# workers, but not those of all ranks. To shuffle a stream, a reader keeps some samples in a buffer, and yields a random
# one of them each time. Then the samples in the buffer are state, too.
#
# ## The same bits after a stop
#
# If a run continues on **equally many** ranks, all weights can be equal to the last bit. For that you must save weights,
# the optimizer's state, the position in the stream, and the state of torch's generator, from which dropout draws.
#
# The program makes 6 steps in one go. Then it makes 3 steps, and another 3 from the saved states. In each
# run named `all but`, one part is as at the start instead. If both ranks load rank 0's state, which parts are wrong for
# rank 1?


# %%
def steps_from(rank, world_size, states, steps):
    torch.manual_seed(rank)
    weights, position = torch.nn.Parameter(torch.linspace(-1, 1, 64)), 0
    optimizer = torch.optim.SGD([weights], lr=1e-3, momentum=0.9)
    if states:
        position = states[rank]["position"]
        weights.data = states[rank]["weights"].clone()
        optimizer.load_state_dict(states[rank]["optimizer"])
        torch.set_rng_state(states[rank]["generator"])
    for sample in part(rank, world_size, position, position + steps):
        x = torch.randn(64, generator=torch.Generator().manual_seed(sample))
        loss = (torch.dropout(x, 0.5, train=True) @ weights - 1) ** 2
        (weights.grad,) = torch.autograd.grad(loss, [weights])
        dist.all_reduce(weights.grad)
        optimizer.step()
    state = {"weights": weights.detach(), "optimizer": optimizer.state_dict()}
    return state | {"position": position + steps, "generator": torch.get_rng_state()}


start, half, one_go = (simlib.run(steps_from, 2, args=(None, n)).results for n in (0, 3, 6))
saved = {"everything": half, "rank 0's state": [half[0], half[0]]}
for name in ("optimizer", "position", "generator"):
    saved[f"all but {name}"] = [half[rank] | {name: start[rank][name]} for rank in (0, 1)]
for name, states in saved.items():
    resumed = simlib.run(steps_from, 2, args=(states, 3)).results
    print(f"{name:18} equal bits: {torch.equal(one_go[0]['weights'], resumed[0]['weights'])}")

# %% [markdown]
# Only the run with everything has the same bits. Rank 0's weights and optimizer's state are right for rank 1, too. Here
# even its position is right, because both ranks have had 3 samples. But each rank needs its own generator.
#
# ## Other bits, and nothing is wrong
#
# Each addition of floats is rounded, so another order of adding gives other bits (lesson 05). Each row of `x` is the
# gradient of one sample. Four ranks sum 48 rows by one all_reduce. Five other runs compute the same sum:
#
# - `again`: the same program with the same ranks,
# - `two ranks`: 24 rows on each rank,
# - `two buckets`: two all_reduces, each of half the numbers,
# - `two pieces`: each rank sums each half of its rows by itself, then adds the two sums (gradient
#   accumulation),
# - `gather`: an all_gather, then each rank sums four tensors in the order of ranks.
#
# How many of the five have the same bits? And how many have them if `x` contains whole numbers?

# %%
random, whole = None, None  # how many of five?


def summed(rank, world_size, x, way):
    mine = x.chunk(world_size)[rank]
    mine = sum(half.sum(0) for half in mine.chunk(2 if way == "two pieces" else 1))
    if way == "gather":
        found = [torch.empty_like(mine) for _ in range(world_size)]
        dist.all_gather(found, mine)
        return sum(found)
    for bucket in mine.chunk(2 if way == "two buckets" else 1):
        dist.all_reduce(bucket)
    return mine


torch.manual_seed(0)
x = torch.randn(48, 1000)
for numbers, yours in ((x, random), ((10 * x).round(), whole)):
    first, same = simlib.run(summed, 4, args=(numbers, "first")).results[0], {}
    for way in ("again", "two ranks", "two buckets", "two pieces", "gather"):
        other = simlib.run(summed, 2 if way == "two ranks" else 4, args=(numbers, way)).results[0]
        same[way] = torch.equal(first, other)
    print(same)
    simlib.guess(yours, sum(same.values()))

# %% [markdown]
# All five sums are right, but only `again` has the same bits. Two buckets have other bits because a ring adds
# each chunk in another order of ranks, and a number is now in another chunk. Small whole numbers are not rounded, so
# their order does not matter. If sums of whole numbers differ, the program is wrong.
#
# ## The same bits on every number of ranks
#
# You can fix the order: every rank gathers all 48 rows, and sums them as one rank does. **Now you write it:** `ordered`
# sums the list of all ranks' rows. Rank 0 has the first 48 / R rows. The stub first sums the rows of each rank, so its
# order depends on R.


# %%
def ordered(found):
    return sum(rows.sum(0) for rows in found)  # yours


def on_any_world(rank, world_size, x):
    rows = x.chunk(world_size)[rank].contiguous()
    found = [torch.empty_like(rows) for _ in range(world_size)]
    dist.all_gather(found, rows)
    return ordered(found)


for R in (2, 3, 4):
    one, many = (simlib.run(on_any_world, n, args=(x,)).results[0] for n in (1, R))
    ok = torch.equal(one, many) and torch.allclose(many, x.sum(0), atol=1e-4)
    print(f"{R} ranks and one rank:", "right" if ok else "not yet")
for program, args in ((summed, (x, "first")), (on_any_world, (x,))):
    wire = simlib.simulate(program, 4, args, expand=True, all_reduce="ring", all_gather="ring").wire
    print(f"{program.__name__}: rank 0 sends {sum(m.nbytes for m in wire if m.src == 0):,} bytes")

# %% [markdown]
# <details><summary>Answer</summary>
#
# `return torch.cat(found).sum(0)`
#
# </details>
#
# The price is 24 times the bytes. So most runs accept other bits on another R.
#
# ## A row alone, and a row in a batch
#
# A product is **batch invariant** if a row's result does not depend on the other rows in the batch. The cell cuts 64
# rows into batches of n, and compares with all 64 at once. `@` chooses its method by the shape. `fixed` always adds in
# the order of k.


# %% tags=["nbval-ignore-output"]
def matmul(rows):
    return rows @ W


def fixed(rows):
    return sum(rows[:, k, None] * W[k] for k in range(512))


rows, W = torch.randn(64, 512), torch.randn(512, 512)
for product in (matmul, fixed):
    cut = {n: torch.cat(list(map(product, rows.split(n)))) for n in (1, 2, 8, 32)}
    same = {n: torch.equal(result, product(rows)) for n, result in cut.items()}
    print(f"{product.__name__}: {same}")

# %% [markdown]
# On our machine, batches of 1 and 2 rows have other bits. If a server computes requests in batches, an
# answer can depend on the other requests in its batch.
# [He et al. (2025)](https://thinkingmachines.ai/blog/defeating-nondeterminism-in-llm-inference/) sent one prompt to a
# model 1,000 times, without random choices. They got 80 different answers. With batch-invariant kernels, all answers
# were equal.
#
# | change | bits | why |
# |---|---|---|
# | again, or resumed with the whole state | equal | the order is the same |
# | again on a GPU | may differ | [some kernels](https://docs.pytorch.org/docs/stable/notes/randomness.html) add in any order |
# | another R, algorithm or buckets | differ | the ranks are added in another order |
# | a stream on another R | differ | each step has other samples |
# | gradient accumulation | differ | the samples are added in another order |
# | a row in another batch | may differ | the kernel may choose another order |
#
# ## Your turn
#
# [Exercises 07](../exercises/07_data_parallel_training.ipynb), tasks 5 to 7.
#
# ## Exit ticket
#
# 1. Eight ranks with four workers each read 24 shards. What is wrong?
# 2. Why must `__iter__` not count the samples that are done?
# 3. Runs on 4 and on 6 ranks end with different weights. How do you find out whether that is a mistake?
#
# <details><summary>Answers</summary>
#
# 1. There are 32 readers, so 8 of them have no shard.
# 2. It runs in workers. They have copies of the data set, and read ahead.
# 3. Compare the samples of each step. If they differ, the weights must differ, too. If they are equal, repeat both runs
#    in float64. Differences by rounding nearly vanish, but a mistake stays (first part).
#
# </details>
#
# **Next:** [lesson 08](08_from_loops_to_ddp.ipynb), which sends the first gradients before the last one is ready.

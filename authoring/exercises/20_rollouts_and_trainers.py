# %% [markdown]
# # Exercises 20: rollouts and trainers
#
# This sheet has four tasks for [lesson 20](../notebooks/20_rollouts_and_trainers.ipynb). In the first task
# you choose the best split of ranks for given lengths of rollouts. In the second task you count which
# weights wrote which tokens. In the third task you move weights from trainers to generators with the
# fewest bytes. In the fourth task generators die, and no prompt may be lost.

# %% role="setup"
import heapq

import torch
import torch.distributed as dist

import simlib
from simlib.checks import Rule, check, measure, messages, nbytes, only, somebody_sends

# %% [markdown]
# ## 1. The best split (★★★, 30 minutes, 3 points)
#
# T of R ranks learn, and the others write. Rollout n is in batch n // B. Rollouts begin in order. Rollout
# n begins as soon as a generator is free and the version is at least n // B - k. At time 0 all generators
# are free, and the version is 0. Writing takes `write_s` per token. When all rollouts of batch i are
# written and batch i - 1 is learned, the trainers learn batch i, in `learn_s` / T per token. Then the
# version is i + 1. Try T = 1 to R - 1. Return `(T, seconds)`: the T whose last batch is
# learned earliest, and that time. Send nothing.


# %% role="answer" question="best_split" points=3
def best_split(rank, world_size, tokens, B, R, k, write_s, learn_s):
    """Return (T, seconds), an int and a float.

    tokens is a list of ints, one for each rollout; its length is a multiple of B.
    """
    ### BEGIN SOLUTION
    found = []
    for T in range(1, R):
        free, version_at = [0.0] * (R - T), [0.0]
        for first in range(0, len(tokens), B):
            batch, i = tokens[first : first + B], first // B
            complete = 0.0
            for each in batch:
                start = max(heapq.heappop(free), version_at[max(0, i - k)])
                heapq.heappush(free, start + write_s * each)
                complete = max(complete, start + write_s * each)
            version_at.append(max(complete, version_at[-1]) + learn_s * sum(batch) / T)
        found.append((version_at[-1], T))
    seconds, T = min(found)
    return T, seconds
    ### END SOLUTION


# %% role="check" question="best_split" points=3
LENGTHS = [
    [300, 120, 900, 80, 450, 2000, 150, 600, 90, 330, 700, 240],
    [10, 20, 30, 40, 50, 60, 70, 800, 90, 100, 110, 120],
    [500, 100, 100, 100, 700, 100, 100, 100, 900, 100, 100, 100],
    [64, 32, 128, 512, 16, 1024, 256, 32, 64, 2048, 96, 48],
    [400, 380, 420, 390, 410, 405, 395, 400, 3000, 390, 410, 400],
]


def a_job(rank, world_size):
    B, R, k = [(2, 6, 0), (2, 8, 1), (4, 5, 2), (6, 12, 0), (3, 10, 1)][rank]
    return LENGTHS[rank], B, R, k, 0.01, [0.01, 0.004, 0.02, 0.005, 0.03][rank]


def seconds_of(
    T, tokens, B, R, k, write_s, learn_s, dealt=False, shared=True, overlaps=True, all_end=True
):
    """When all batches are learned; of a mistake, as somebody else counts."""
    G = R - T
    free, version_at = [0.0] * G, [0.0]
    for n, each in enumerate(tokens):
        i, who = n // B, n % G if dealt else free.index(min(free))
        complete = 0.0 if n % B == 0 else complete  # noqa: F821
        free[who] = max(free[who], version_at[max(0, i - k)]) + write_s * each
        complete = max(complete, free[who]) if all_end else free[who]
        if n % B == B - 1:
            begun = max(complete, version_at[-1]) if overlaps else complete
            learned = learn_s * sum(tokens[n + 1 - B : n + 1]) / (T if shared else 1)
            version_at.append(begun + learned)
    return version_at[-1]


def best_by(which=min, of_k=lambda k: k, last=False, seconds=seconds_of, **how):
    def expected(*given):
        found = []
        for tokens, B, R, k, write_s, learn_s in zip(*given, strict=True):
            job = tokens, B, R, of_k(k), write_s, learn_s
            all_s = {T: seconds(T, *job, **how) for T in range(1, R)}
            best_s = which(all_s.values())
            equal = [T for T in all_s if all_s[T] == best_s]
            found.append((equal[-1 if last else 0], best_s))
        return found

    return expected


def by_formula(T, tokens, B, R, k, write_s, learn_s):
    """No rollout is ever waited for."""
    total = sum(tokens)
    parts = write_s * total / (R - T), learn_s * total / T
    return max(parts) if k else sum(parts)


def the_other_way(*given):
    return [(R - T, s) for (T, s), R in zip(best_by()(*given), given[2], strict=True)]


verdict = check(
    "best_split",
    best_split,
    a_job,
    best_by(),
    messages(lambda *given: 0, hint="Each rank can work this out for itself."),
    mistakes={
        "That is the formula of the lesson: it leaves out that a batch waits for its longest rollout.": (
            best_by(seconds=by_formula)
        ),
        "Rollouts are not dealt out in turn: the generator that is free first begins the next one.": (
            best_by(dealt=True)
        ),
        "The trainers share the tokens of a batch: learning takes learn_s / T per token.": (
            best_by(shared=False)
        ),
        "That is synchronous training, k = 0: rollout n may begin when the version is n // B - k.": (
            best_by(of_k=lambda k: 0)
        ),
        "You let rollouts begin at any version: the bound k keeps some generators waiting.": (
            best_by(of_k=lambda k: 99)
        ),
        "With your bound rollouts may be one version older than k.": best_by(of_k=lambda k: k + 1),
        "A batch is learned when it is complete *and* the trainers are free.": (
            best_by(overlaps=False)
        ),
        "A batch is complete when *all* its rollouts are written, not only the last one.": (
            best_by(all_end=False)
        ),
        "You return the number of generators: T is the number of trainers.": the_other_way,
        "That is the slowest split.": best_by(which=max),
    },
    worlds=(5,),  # each rank has a job of its own: all five are looked at together
    within=1e-6,
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Keep two lists: when each generator is free again, and when each version exists. `version_at[0]` is 0.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Rollout n of batch i begins at `max(earliest free, version_at[max(0, i - k)])`. All of these versions
# are known when you come to rollout n, because k is at least 0.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `heapq.heappop(free)` removes the earliest time, and `heapq.heappush` adds the new time. After each batch,
# append `max(complete, version_at[-1]) + learn_s * sum(batch) / T` to `version_at`.
#
# </details>

# %% role="hidden" question="best_split"
seed = 1


def drawn_split(rank, world_size):
    draw = torch.Generator().manual_seed(seed + rank)
    B = 2 + (seed + rank) % 4
    tokens = (300 * torch.randn(4 * B, generator=draw).exp()).int() + 1
    k = int(torch.randint(0, 3, (), generator=draw))
    return tokens.tolist(), B, 4 + (seed + rank) % 9, k, 0.01, 0.002 * (1 + (seed + rank) % 7)


print(measure(best_split, drawn_split, worlds=(5,)))

# %% [markdown]
# ## 2. Partial rollouts (★★, 20 minutes, 2 points)
#
# A generator writes rollouts one after the other, from time 0, and a token takes `token_ms`. New weights
# arrive at the times `arrives_ms`. The i-th weights, counted from 1, are version i. The generator begins
# with version 0. After each token, it takes the newest weights. In the middle of a rollout, it must then
# read the tokens of this rollout again, which takes `again_ms` for each. If weights arrive during this
# reading, the generator takes them after the next token. Between rollouts, taking weights is free.
# Return a list with a dict for each rollout: `{version: tokens written with it}`. Send nothing.


# %% role="answer" question="parts" points=2
def parts(rank, world_size, tokens, arrives_ms, token_ms, again_ms):
    """Return a list with one dict for each rollout; all numbers are ints.

    tokens lists the number of tokens of each rollout. arrives_ms is a sorted list. Weights that arrive at the very end of a token are taken.
    """
    ### BEGIN SOLUTION
    now, found = 0, []
    for count in tokens:
        written, version = {}, None
        for done in range(count):
            newest = sum(at <= now for at in arrives_ms)
            if version is not None and newest > version:
                now += again_ms * done
            version = newest
            now += token_ms
            written[version] = written.get(version, 0) + 1
        found.append(written)
    return found
    ### END SOLUTION


# %% role="check" question="parts" points=2
def a_generator(rank, world_size):
    return (
        [[5, 3, 8], [1, 1, 12, 2], [20], [4, 9, 2, 6], [7, 7, 7]][rank],
        [[20, 60], [25, 28, 93], [30, 31, 150], [15, 100, 101], [70, 75, 140, 210]][rank],
        10,
        [1, 2, 3, 0, 5][rank],
    )


def told(
    tokens,
    arrives_ms,
    token_ms,
    again_ms,
    reads=True,
    early=False,
    waits=False,
    between=False,
    each=False,
):
    """The parts; of a mistake, as somebody else counts."""
    now, found = 0, []
    for count in tokens:
        written, version = {}, None
        for done in range(count):
            newest = sum(at < now if early else at <= now for at in arrives_ms)
            newest = version if waits and done else newest
            while version is not None and newest > version and reads:
                times = newest - version if each else 1
                now += again_ms * times * (count if reads == "all" else done)
                version = newest
                newest = sum(at <= now for at in arrives_ms) if between else newest
                if between != "again":
                    break
            version, now = newest, now + token_ms
            written[version] = written.get(version, 0) + 1
        found.append(written)
    return found


def telling(**how):
    return lambda *given: [told(*one, **how) for one in zip(*given, strict=True)]


def at_its_end(*given):
    """All tokens under the newest version of the rollout."""
    return [[{max(one): sum(one.values())} for one in each] for each in telling()(*given)]


verdict = check(
    "parts",
    parts,
    a_generator,
    telling(),
    messages(lambda *given: 0, hint="A generator knows all this itself."),
    mistakes={
        "A rollout must take new weights in its middle, too, not only when it begins.": telling(
            waits=True
        ),
        "After new weights, the tokens of this rollout are read again: that takes time, too.": (
            telling(reads=False)
        ),
        "Only the tokens that are there have to be read again, not those to come.": (
            telling(reads="all")
        ),
        "Weights that arrive at the very end of a token are taken before the next one.": (
            telling(early=True)
        ),
        "If weights arrive while the generator reads, it must take them after the next token.": (
            telling(between=True)
        ),
        "After reading again, first write a token. Then look for newer weights.": (
            telling(between="again")
        ),
        "Several weights may arrive during one token: the tokens are then read again only once.": (
            telling(each=True)
        ),
        "Look for new weights only when a token is done. If there are several, read again once.": (
            telling(between="again", each=True)
        ),
        "Each token counts for the version that wrote it, not for the last one.": at_its_end,
    },
    worlds=(5,),
    points=2,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Go through the tokens one by one. Before each token, count the weight updates that have arrived so far.
# This count is the version.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `version = None` at the start of a rollout says that nothing has to be read again. Later, if the
# version has grown, add `again_ms` for each token that is done.
#
# </details>

# %% role="hidden" question="parts"
seed = 1


def drawn_parts(rank, world_size):
    draw = torch.Generator().manual_seed(seed + rank)
    tokens = torch.randint(1, 15, (3 + seed % 3,), generator=draw).tolist()
    arrives = torch.randint(1, 250, (4,), generator=draw).sort()[0].tolist()
    return tokens, arrives, 7 + seed % 6, (seed + rank) % 5


print(measure(parts, drawn_parts, worlds=(5,)))

# %% [markdown]
# ## 3. From rows to columns (★★★, 30 minutes, 4 points)
#
# Ranks 0 to S - 1 are trainers. Trainer r has `shard`: the rows `rows[r]` to `rows[r + 1] - 1` of a
# matrix. All other ranks are generators, and their `shard` is empty. Generator S + g needs the columns
# `columns[g]` to `columns[g + 1] - 1` of the whole matrix, and returns them. Trainers return None. Send
# each number that a generator needs once, and no other number. Send at most one message between two
# ranks, and no empty message. You get 2 points for the value and 2 for the traffic.


# %% role="answer" question="rows_to_columns" points={"value": 2, "traffic": 2}
def rows_to_columns(rank, world_size, S, rows, columns, shard):
    """Return this generator's columns, a float32 tensor of shape (rows[-1], its columns), or None.

    rows has S + 1 ints, columns has world_size - S + 1. A shard may have no rows.
    """
    ### BEGIN SOLUTION
    if rank < S:
        for g in range(world_size - S):
            part = shard[:, columns[g] : columns[g + 1]].contiguous()
            if part.numel():
                dist.send(part, dst=S + g)
        return None
    wide = columns[rank - S + 1] - columns[rank - S]
    mine = torch.empty(rows[-1], wide)
    for r in range(S):
        part = mine[rows[r] : rows[r + 1]]
        if part.numel():
            dist.recv(part, src=r)
    return mine
    ### END SOLUTION


# %% role="check" question="rows_to_columns" points={"value": 2, "traffic": 2}
CUTS = {
    1: (1, [0, 4], [0]),
    2: (1, [0, 3], [0, 5]),
    3: (1, [0, 4], [0, 2, 5]),
    4: (2, [0, 3, 4], [0, 1, 6]),
    5: (3, [0, 2, 2, 7], [0, 4, 6]),
}


def whole_matrix(seed, rows, columns):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def a_cut(rank, world_size):
    S, rows, columns = CUTS[world_size]
    whole = whole_matrix(world_size, rows[-1], max(columns[-1], 1))
    part = whole[rows[rank] : rows[rank + 1]] if rank < S else whole[:0]
    return S, rows, columns, part.clone()


def of_generators(choose):
    """What all ranks return: None on trainers, `choose(whole, first, last)` on generators."""

    def expected(Ss, rows, columns, shards):
        whole, S = torch.cat(shards[: Ss[0]]), Ss[0]
        borders = list(zip(columns[0], columns[0][1:], strict=False))
        return [None] * S + [choose(whole, *border).clone() for border in borders]

    return expected


def bytes_needed(Ss, rows, columns, shards):
    return sum(shard.nbytes for shard in shards[: Ss[0]]) if len(shards) > Ss[0] else 0


def pairs(Ss, rows, columns, shards):
    with_rows = sum(len(shard) > 0 for shard in shards[: Ss[0]])
    return with_rows * (len(shards) - Ss[0])


verdict = check(
    "rows_to_columns",
    rows_to_columns,
    a_cut,
    of_generators(lambda whole, first, last: whole[:, first:last]),
    only("send", "recv"),
    somebody_sends(),
    messages(pairs, hint="One message for each trainer with rows and each generator."),
    nbytes(bytes_needed, hint="A generator needs its own columns of a shard only."),
    mistakes={
        "That is the whole matrix: a generator returns its own columns.": (
            of_generators(lambda whole, first, last: whole)
        ),
        "The rows are in the wrong order: the rows of trainer 0 come first.": (
            of_generators(lambda whole, first, last: whole.flip(0)[:, first:last])
        ),
        "Those are the rows with these numbers: the generators are cut by columns.": (
            of_generators(lambda whole, first, last: whole[first:last])
        ),
        "That is transposed: the result has all rows, and some columns.": (
            of_generators(lambda whole, first, last: whole[:, first:last].T)
        ),
    },
    points={"value": 2, "traffic": 2},
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# A trainer cuts its own shard by the columns of the generators, and sends one piece to each of them.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Some columns of a matrix do not lie one after the other in memory: send `part.contiguous()`. Rows do, so
# a generator can receive straight into `mine[rows[r] : rows[r + 1]]`.
#
# </details>

# %% role="hidden" question="rows_to_columns"
seed = 1


def drawn_cut(rank, world_size):
    draw = torch.Generator().manual_seed(seed + world_size)
    S = 1 + seed % max(1, world_size - 1)
    high, wide = (torch.randint(1, 5, (9,), generator=draw) for _ in range(2))
    rows = [0, *high[:S].cumsum(0).tolist()]
    columns = [0, *wide[: world_size - S].cumsum(0).tolist()]
    whole = whole_matrix(seed, rows[-1], max(columns[-1], 1))
    part = whole[rows[rank] : rows[rank + 1]] if rank < S else whole[:0]
    return S, rows, columns, part.clone()


print(measure(rows_to_columns, drawn_cut))

# %% [markdown]
# Task 4 needs `generate`. It is the whole program of a generator.


# %% role="setup"
def generate(rank, answers, lives):
    """Answer prompts of rank 0 until it says -1; die after `lives` answers, in the next prompt.

    Each message to rank 0 has two numbers: (-1, 0) at first, (prompt, answer) later, and (-2, 0) when
    this rank dies. In a real cluster the system would send this last message.
    """
    said, prompt = torch.tensor([-1.0, 0.0]), torch.zeros(1)
    while said[0] != -2:
        dist.send(said, dst=0)
        dist.recv(prompt, src=0)
        number = int(prompt)
        if number < 0:
            return
        simlib.compute(seconds=1e-3 if lives else 20e-3)
        said = torch.tensor([prompt.item(), answers[number].item()]) if lives else said.fill_(-2)
        lives -= 1
    dist.send(said, dst=0)


# %% [markdown]
# ## 4. No prompt is lost (★★★, 30 minutes, 3 points)
#
# Rank 0 has prompts 0 to N - 1, and needs an answer to each. All other ranks run `generate`: they ask,
# answer one prompt at a time, and some of them die. Write the program of rank 0. If a generator dies, its
# prompt goes to another generator. You may need an idle generator later, so do not stop it too early. At
# the end, send -1 to every generator that lives. Give a prompt to a second rank only if the first one has
# died. At least one generator lives to the end. Rank 0 returns the answers, a list of N floats. All
# others return None.


# %% role="answer" question="no_prompt_lost" points=3
def no_prompt_lost(rank, world_size, N, answers, lives):
    """Return the answers on rank 0, in the order of the prompts; None on the others.

    answers is a tensor of N numbers on generators; rank 0 has an empty one.
    """
    if rank > 0:
        return generate(rank, answers, lives)
    ### BEGIN SOLUTION
    left, idle, at_work, found = list(range(N)), [], {}, {}
    alive = world_size - 1
    while len(found) < N or len(idle) < alive:
        said = torch.zeros(2)
        src = dist.recv(said)
        prompt = at_work.pop(src, None)
        if said[0] == -2:
            alive -= 1
            left.append(prompt)
        else:
            idle.append(src)
            if said[0] >= 0:
                found[prompt] = said[1].item()
        while idle and left:
            dst = idle.pop(0)
            at_work[dst] = left.pop(0)
            dist.send(torch.tensor([float(at_work[dst])]), dst=dst)
    for dst in idle:
        dist.send(torch.tensor([-1.0]), dst=dst)
    return [found[prompt] for prompt in range(N)]
    ### END SOLUTION


# %% role="check" question="no_prompt_lost" points=3
LIVES = {2: [99], 3: [1, 99], 4: [0, 99, 2], 5: [99, 0, 0, 1]}


def some_die(rank, world_size):
    N = 2 * world_size + 1
    numbers = torch.randint(1, 1000, (N,), generator=torch.Generator().manual_seed(world_size))
    answers = numbers.float() if rank else torch.zeros(0)
    return N, answers, LIVES[world_size][rank - 1] if rank else 0


def the_last_dies(rank, world_size):
    """As many prompts as generators, and the last one dies: the others have none left by then."""
    N, answers, _ = some_die(rank, world_size)
    N = world_size - 1
    return N, answers[:N], 0 if rank > 1 and rank == world_size - 1 else 99


def by_rank_0(change=lambda answers: answers):
    def expected(Ns, answers, lives):
        return [change(answers[1].tolist()), *[None] * (len(Ns) - 1)]

    return expected


def needed(Ns, answers, lives):
    """Generators ask; prompts and answers; a death, and its prompt once more; the ends."""
    workers, deaths = len(Ns) - 1, sum(each < 90 for each in lives[1:])
    return workers + 2 * Ns[0] + 2 * deaths + workers - deaths


def lost_with_a_rank(run, given):
    """A sentence where a rank died with its prompt, and the prompt did not go out again."""
    of_rank = [run.trace.of_rank(rank) for rank in range(run.world_size)]
    died = [rank for rank in range(1, run.world_size) if of_rank[rank][-1].kind == "send"]
    out = sum(op.kind == "send" for op in of_rank[0]) - (run.world_size - 1 - len(died))
    if out >= given[0][0] + len(died):
        return None
    who = f"Rank {died[0]}" if len(died) == 1 else f"{len(died)} ranks"
    return (
        f"{who} died with a prompt, and this prompt went to no other generator: its answer is lost."
    )


verdict = check(
    "no_prompt_lost",
    no_prompt_lost,
    [some_die, the_last_dies],
    by_rank_0(),
    only("send", "recv"),
    Rule(lost_with_a_rank, before_values=True),
    somebody_sends(),
    Rule(messages(needed, hint="A prompt goes out again only if its generator has died.").broken),
    mistakes={
        "The answers are in the order in which they came: return them by prompt.": (
            by_rank_0(lambda answers: answers[::-1])
        ),
        "Rank 0 waits, but no generator is left. Did you stop one too early? Another generator may "
        "die later, and then its prompt needs one that lives.": "rank 0 waits for rank",
    },
    worlds=range(2, 6),  # rank 0 and a generator at least
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Rank 0 needs to know three things: which prompts nobody has, which generators wait for a prompt, and
# which generator has which prompt.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The loop ends when all answers are there *and* all living generators wait. Until then, rank 0 receives
# from any source: `src = dist.recv(said)`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# After each message, give prompts to waiting generators as long as there are both. After a generator's
# death, put its prompt back to the others, and count one living generator less.
#
# </details>

# %% role="hidden" question="no_prompt_lost"
seed = 1


def others_die(rank, world_size):
    N = 3 + seed % 5
    numbers = torch.randint(1, 9999, (N,), generator=torch.Generator().manual_seed(seed))
    lives = 99 if rank <= 1 else (seed + rank) % 4
    return N, numbers.float() if rank else torch.zeros(0), lives if rank else 0


print(measure(no_prompt_lost, others_die, worlds=range(2, 6)))

# %% [markdown]
# # Exercises 18: long sequences and experts
#
# This sheet has four tasks for lesson 18. In the first task you merge results of attention. This task
# needs the [first part](../notebooks/18_long_sequences_and_experts.ipynb) of the lesson. In the second
# task you send tokens to experts and back. This task needs the
# [third part](../notebooks/18_tokens_to_experts.ipynb). In the last two tasks you drop choices of full
# experts, and sum gradients on a mesh. These tasks need the
# [fourth part](../notebooks/18_top_choices_of_experts.ipynb).
#
# A check calls your function on worlds of 1 to 5 ranks, in task 4 on 6 ranks. The check looks at the value on every rank, at
# the messages or collectives, and at their bytes. Each task has folded hints.

# %% role="setup"
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from simlib.checks import Rule, check, collectives, measure, messages, nbytes, only


def double_precision(run, given):
    """A sentence where a message carries float64; for all tasks."""
    if any(op.dtype == "float64" for op in run.trace):
        return (
            "The values are right, but float64 travels, twice the bytes: send the float32 you have."
        )
    return None


def brings_at_most(most, hint):
    """A rule on the bytes that each rank brings into its collectives; for tasks 3 and 4."""

    def found(run):
        return [sum(op.nbytes for op in run.trace.of_rank(r)) for r in range(run.world_size)]

    def broken(run, given):
        for rank, (mine, enough) in enumerate(zip(found(run), most(*given), strict=True)):
            if mine > enough:
                return (
                    f"The values are right, but rank {rank} brings {mine} bytes into its "
                    f"collectives where {enough} are enough. {hint}"
                )
        return None

    def tally(run, given):
        return f"bytes brought by rank: {found(run)} (at most {most(*given)})"

    return Rule(broken, tally, part="traffic")


# %% [markdown]
# ## 1. One query, many keys (★★, 25 minutes, 3 points)
#
# A long text is cut over the ranks. `keys` and `values` have the shape (number of keys, d). Each rank
# has at least one key, and the ranks have different numbers of keys. All ranks have the same query `q`,
# of shape (d). Every rank returns the attention of `q` over the keys of **all** ranks: this is
# softmax($q \cdot k / \sqrt d$) times values. Scores may be in the hundreds. Use send and recv, with at
# most 2 (world_size - 1) messages. Send no keys.


# %% role="answer" question="attend" points=3
def attend(rank, world_size, q, keys, values):
    """Return the attention of q over the keys of all ranks, a tensor of shape (d).

    All are float32. Your function must not change them.
    """
    ### BEGIN SOLUTION
    d = len(q)
    scores = keys @ q / d**0.5
    m = scores.max()
    e = (scores - m).exp()
    mine = torch.cat([e @ values, e.sum()[None], m[None]])
    if rank > 0:  # merge with what the ranks on the left have
        other = torch.empty(d + 2)
        dist.recv(other, src=rank - 1)
        m = torch.maximum(mine[-1], other[-1])
        mine = (mine[-1] - m).exp() * mine + (other[-1] - m).exp() * other
        mine[-1] = m
    result = mine[:d] / mine[d]
    if rank < world_size - 1:
        dist.send(mine, dst=rank + 1)
        dist.recv(result, src=rank + 1)
    if rank > 0:
        dist.send(result, dst=rank - 1)
    return result
    ### END SOLUTION


# %% role="check" question="attend" points=3
def parts_of_a_text(rank, world_size):
    """Large scores that differ little, but those of rank 3; quarters, so that they are exact."""
    torch.manual_seed(rank)
    keys, values = torch.randn(2, [3, 1, 5, 2, 4][rank], 4)
    keys = (4 * keys).round() / 4
    keys[:, 0] = 4 if rank == 3 else 1
    return torch.tensor([200.0, 3.0, -2.0, 1.0]), keys, values


def softmax_of_all(qs, keys, values):
    q, k, v = qs[0].double(), torch.cat(keys).double(), torch.cat(values).double()
    return [((k @ q / len(q) ** 0.5).softmax(0) @ v).float()] * len(qs)


def of_each(qs, keys, values):
    """What each rank gets of its own keys."""
    return [
        (k @ q / len(q) ** 0.5).softmax(0) @ v for q, k, v in zip(qs, keys, values, strict=True)
    ]


def weighed(weights_of):
    """The mean of what the ranks get of their own keys, with these weights."""

    def candidate(qs, keys, values):
        weights = torch.tensor([weights_of(q, k) for q, k in zip(qs, keys, strict=True)])
        return [(weights / weights.sum()) @ torch.stack(of_each(qs, keys, values))] * len(qs)

    return candidate


def own_sum(q, k):
    """z of the part, with the part's own maximum."""
    scores = k @ q / len(q) ** 0.5
    return (scores - scores.max()).exp().sum().item()


def factors_swapped(qs, keys, values):
    """Merged along the ranks, each part multiplied by the factor of the other."""
    whole = None
    for q, k, v in zip(qs, keys, values, strict=True):
        scores = k.double() @ q.double() / len(q) ** 0.5
        m = scores.max()
        e = (scores - m).exp()
        part = torch.cat([e @ v.double(), e.sum()[None], m[None]])
        if whole is not None:
            m = torch.maximum(whole[-1], m)
            part = (part[-1] - m).exp() * whole + (whole[-1] - m).exp() * part
            part[-1] = m
        whole = part
    return [(whole[:-2] / whole[-2]).float()] * len(qs)


def none_is_a_number(qs, fits):
    return [torch.full_like(q, torch.nan if fits else torch.inf) for q in qs]


def running(qs, keys, values):
    """What each rank has when only the ranks up to itself are merged."""
    upto = [slice(0, rank + 1) for rank in range(len(qs))]
    return [softmax_of_all(qs[u], keys[u], values[u])[0] for u in upto]


verdict = check(
    "attend",
    attend,
    parts_of_a_text,
    softmax_of_all,
    only("send", "recv"),
    messages(
        lambda qs, *_: 2 * (len(qs) - 1),
        hint="One message can carry all that a rank knows: m, z and u; and one the result.",
    ),
    Rule(double_precision),
    nbytes(
        lambda qs, *_: 2 * (len(qs) - 1) * 4 * (len(qs[0]) + 2),
        hint="Keys and values need not travel: d + 2 numbers say all about a part.",
    ),
    mistakes={
        "Those are the attentions over each rank's own keys: nothing was merged.": of_each,
        "Only the ranks up to this one are merged: the result must come back, too.": running,
        "That is the mean of the parts' results. Parts count by their sum of exponentials.": (
            weighed(lambda q, k: 1.0)
        ),
        "That is a mean weighted by the numbers of keys. Parts count by their sum of exponentials.": (
            weighed(lambda q, k: float(len(k)))
        ),
        "The sums are added up as if all parts had the same maximum: bring them to a common one "
        "first.": weighed(own_sum),
        "The factors are swapped, or their exponents have the other sign: multiply each part by "
        "exp(its own maximum - the common one).": factors_swapped,
        "The exponential of a large score is infinite: subtract the maximum before.": (
            lambda qs, *_: none_is_a_number(qs, len(qs) < 4)
        ),
        "A part with a far larger maximum makes the others' exponentials infinite: bring both "
        "parts to the larger maximum.": lambda qs, *_: none_is_a_number(qs, len(qs) > 3),
        "The scores are not divided by the root of d.": (
            lambda qs, keys, values: softmax_of_all([q * len(q) ** 0.5 for q in qs], keys, values)
        ),
    },
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# You need only `merge` of the lesson. For one query, m and z are single numbers, and u has d numbers.
#
# </details>
# <details><summary>Hint 2</summary>
#
# Pass a result along the ranks. Each rank receives the merged result of all ranks before it. The rank
# merges this result with its own, and sends the new result to the next rank. The last rank then has the
# result for all keys. This rank sends it back the same way.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `torch.cat([u, z[None], m[None]])` is one tensor of d + 2 numbers, so you need only one message for it.
# A merge multiplies u and z by the same factor.
#
# </details>

# %% role="hidden" question="attend"
seed = 1


def drawn_parts(rank, world_size):
    generator = torch.Generator().manual_seed(100 * seed + rank)
    keys, values = torch.randn(2, 1 + (seed + 3 * rank) % 5, 4, generator=generator)
    keys = (4 * keys).round() / 4  # and sixty-fourths: scores are exact
    keys[:, 0] = 1 + (rank + seed) % 3 / 64
    return torch.tensor([100.0 + seed % 97, 2.0, -1.0, -3.0]), keys, values


print(measure(attend, drawn_parts))

# %% [markdown]
# ## 2. To the experts and back (★★★, 30 minutes, 4 points)
#
# Rank r holds expert r. The expert computes `torch.tanh(t @ w)` for rows t, with its own matrix `w`.
# Each rank has tokens `x`, of shape (tokens, d). `choice` has the number of the expert for each token.
# Ranks have different numbers of tokens. A rank or an expert may have no tokens. Return the experts'
# results for your own tokens, in the order of the tokens. Use at most three all_to_alls
# (`dist.all_to_all_single`). Send the counts with the first one. Send each token only once to its
# expert, and only once back.


# %% role="answer" question="through_experts" points=4
def through_experts(rank, world_size, x, choice, w):
    """Return a tensor of x's shape: row i is torch.tanh(x[i] @ w of rank choice[i]).

    x and w are float32, and choice is int64. Your function must not change them.
    """
    ### BEGIN SOLUTION
    order = choice.argsort(stable=True)
    sent = choice.bincount(minlength=world_size)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    sent, received = sent.tolist(), received.tolist()
    arrived = x.new_empty(sum(received), x.shape[1])
    dist.all_to_all_single(arrived, x[order], received, sent)
    back = torch.empty_like(x)
    dist.all_to_all_single(back, torch.tanh(arrived @ w), sent, received)
    result = torch.empty_like(x)
    result[order] = back
    return result
    ### END SOLUTION


# %% role="check" question="through_experts" points=4
def tokens_and_expert(rank, world_size):
    torch.manual_seed(rank)
    n = [5, 3, 0, 6, 4][rank]
    choice = (torch.arange(n) ** 2 + 2 * rank + 1) % world_size
    return torch.randn(n, 3), choice, torch.randn(3, 3)


def each_by_its_expert(xs, choices, ws):
    """Row by row, in one process."""
    found = [
        [torch.tanh(t @ ws[e]) for t, e in zip(x, choice.tolist(), strict=True)]
        for x, choice in zip(xs, choices, strict=True)
    ]
    return [
        torch.stack(rows) if rows else torch.empty_like(x)
        for rows, x in zip(found, xs, strict=True)
    ]


def reordered(permutation):
    """The right rows, of each rank in another order."""

    def candidate(xs, choices, ws):
        right = each_by_its_expert(xs, choices, ws)
        return [y[permutation(choice)] for y, choice in zip(right, choices, strict=True)]

    return candidate


def sorted_by_expert(choice):
    return choice.argsort(stable=True)


def permuted_twice(choice):
    order = choice.argsort(stable=True)
    return order[order]


def what_came(xs, choices, ws):
    """The results of the tokens that came to each rank."""
    right = torch.cat(each_by_its_expert(xs, choices, ws))
    return [right[torch.cat(choices) == rank] for rank in range(len(ws))]


def cut_unsorted(xs, choices, ws):
    """The rows in their own order, the experts sorted."""
    return each_by_its_expert(xs, [choice.sort().values for choice in choices], ws)


def budget(xs, choices, ws):
    """Bytes that each rank has to bring into its collectives: counts, tokens, results."""
    came = torch.cat(choices).bincount(minlength=len(ws)).tolist()
    d = xs[0].shape[1]
    return [8 * len(ws) + 4 * d * (len(x) + n) for x, n in zip(xs, came, strict=True)]


def too_many_bytes(run, given):
    most, d = budget(*given), given[0][0].shape[1]
    for rank in range(run.world_size):
        ops = run.trace.of_rank(rank)
        found = sum(op.nbytes for op in ops)
        if found <= most[rank]:
            continue
        what = (
            f"rank {rank} brings {found} bytes into its collectives where {most[rank]} are enough"
        )
        wide = [op.shapes[0][1] for op in ops if len(op.shapes[0]) == 2 and op.shapes[0][1] > d]
        if wide:
            what += f": rows of {wide[0]} numbers travel, and a token has {d}"
        return (
            f"The values are right, but {what}. A token goes to its own expert only, its result "
            "comes back, and the counts come on top of that."
        )
    return None


def bytes_brought(run, given):
    found = [sum(op.nbytes for op in run.trace.of_rank(rank)) for rank in range(run.world_size)]
    return f"bytes brought by rank: {found} (at most {budget(*given)})"


verdict = check(
    "through_experts",
    through_experts,
    tokens_and_expert,
    each_by_its_expert,
    only("all_to_all"),
    collectives(lambda *_: 3, hint="One for the counts, one for the tokens, one for the results."),
    Rule(double_precision),
    Rule(too_many_bytes, bytes_brought),
    mistakes={
        "Each rank puts its tokens through its own expert: they have to travel.": (
            lambda xs, choices, ws: [torch.tanh(x @ w) for x, w in zip(xs, ws, strict=True)]
        ),
        "The rows are right, but sorted by expert: bring them back into the order of x.": (
            reordered(sorted_by_expert)
        ),
        "The rows are right, but permuted twice. If `order` sorts, `result[order] = back` undoes "
        "it; `back[order]` sorts once more.": reordered(permuted_twice),
        "The tokens were cut by the counts, but not sorted before: each met the expert of another "
        "one.": cut_unsorted,
        "Those are the results of the tokens that came to this rank: send them back.": what_came,
    },
    points=4,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# Sort the tokens by expert: `order = choice.argsort(stable=True)`. Then the rows for rank 0 come first
# in `x[order]`, and the rows for rank 1 follow. `choice.bincount(minlength=world_size)` gives the number
# of rows for each rank.
#
# </details>
# <details><summary>Hint 2</summary>
#
# A rank cannot know how many tokens will come. So exchange the counts first, with an all_to_all. Then
# call `dist.all_to_all_single(output, input, output_split_sizes, input_split_sizes)`. Both `split_sizes`
# are lists. The input sizes say how many rows go to each rank, and the output sizes say how many rows
# come from each rank.
#
# </details>
# <details><summary>Hint 3</summary>
#
# For the way back, make the same call and swap the two lists. The results come back in the order of
# `x[order]`.
#
# </details>

# %% role="hidden" question="through_experts"
seed = 1


def drawn_tokens(rank, world_size):
    generator = torch.Generator().manual_seed(100 * seed + rank)
    n = [3 + seed % 3, (seed + 1) % 5, 4, 1 + seed % 4, 2][rank]
    choice = torch.randint(world_size, (n,), generator=generator)
    x = torch.randn(n, 3, generator=generator)
    return x, choice, torch.randn(3, 3, generator=generator)


print(measure(through_experts, drawn_tokens))

# %% [markdown]
# ## 3. Which choices are kept (★★★, 30 minutes, 3 points)
#
# Rank e holds expert e. Row t of `chosen` has the experts of your token t, and `weights` has their
# weights. All weights differ. An expert keeps at most `C` choices of **all** ranks together: those with
# the largest weights. Return which of your choices are kept: a tensor of bool, of the shape of `chosen`.
# A rank may have no tokens, and an expert may get fewer than C choices. Use at most three all_to_alls
# (`dist.all_to_all_single`). Send the counts first. Then send each weight once, to its expert only. The
# expert decides, and answers with at most 4 bytes for each weight. Leave the inputs as they are.


# %% role="answer" question="kept_choices" points=3
def kept_choices(rank, world_size, weights, chosen, C):
    """Return a tensor of bool of shape (tokens, k): whether the expert keeps the choice.

    weights is float32 and chosen is int64, both of shape (tokens, k). C is the same on all ranks.
    """
    ### BEGIN SOLUTION
    order = chosen.flatten().argsort(stable=True)
    counts = chosen.flatten().bincount(minlength=world_size)
    theirs = torch.empty_like(counts)
    dist.all_to_all_single(theirs, counts)
    sent, received = counts.tolist(), theirs.tolist()
    arrived = weights.new_empty(sum(received))
    dist.all_to_all_single(arrived, weights.flatten()[order], received, sent)
    stays = torch.zeros(len(arrived), dtype=torch.uint8)
    stays[arrived.argsort(descending=True)[:C]] = 1
    back = torch.empty(len(order), dtype=torch.uint8)
    dist.all_to_all_single(back, stays, sent, received)
    kept = torch.empty(len(order), dtype=torch.bool)
    kept[order] = back.bool()
    return kept.view(chosen.shape)
    ### END SOLUTION


# %% role="check" question="kept_choices" points=3
def choices_of(rank, world_size):
    """Top-2 (top-1 in a world of one rank); in a world of five, two experts get fewer than C."""
    torch.manual_seed(10 * world_size + rank)
    n, k = [4, 3, 0, 6, 5][rank], min(2, world_size)
    chosen = torch.stack([torch.randperm(world_size)[:k] for _ in range(n)] or [torch.zeros(k)])
    weights = 0.1 + torch.randperm(20)[: n * k].view(n, k) / 30 + rank / 1000
    return weights, chosen[:n].long(), 7 if world_size == 5 else 3


def decided(key, most=lambda C, n: C, among=lambda rank: 0):
    """Each expert keeps the first ones by `key(weight, rank, place)`, `most` among equal ranks."""

    def candidate(weights, chosen, Cs):
        kept = [torch.zeros(c.numel(), dtype=torch.bool) for c in chosen]
        wanted = {}
        for rank, (w, c) in enumerate(zip(weights, chosen, strict=True)):
            for place, (one, e) in enumerate(zip(w.flatten(), c.flatten().tolist(), strict=True)):
                wanted.setdefault((e, among(rank)), []).append((one.item(), rank, place))
        for rows in wanted.values():
            for _, rank, place in sorted(rows, key=lambda row: key(*row))[: most(Cs[0], len(Cs))]:
                kept[rank][place] = True
        return [mine.view(c.shape) for mine, c in zip(kept, chosen, strict=True)]

    return candidate


by_weight = decided(lambda weight, rank, place: -weight)


def of_each_rank(most):
    return decided(lambda weight, rank, place: -weight, most, lambda rank: rank)


def changed(change):
    """The right choices, of each rank changed."""

    def candidate(weights, chosen, Cs):
        right = by_weight(weights, chosen, Cs)
        return [change(mine, c) for mine, c in zip(right, chosen, strict=True)]

    return candidate


def in_order_of_experts(kept, chosen):
    return kept.flatten()[chosen.flatten().argsort(stable=True)].view(kept.shape)


def sorted_twice(kept, chosen):
    return in_order_of_experts(in_order_of_experts(kept, chosen), chosen)


def enough_for_weights(weights, chosen, Cs):
    """Counts; weights sent, and the answers to those that came."""
    came = torch.cat([c.flatten() for c in chosen]).bincount(minlength=len(Cs)).tolist()
    return [8 * len(Cs) + 4 * (w.numel() + n) for w, n in zip(weights, came, strict=True)]


verdict = check(
    "kept_choices",
    kept_choices,
    choices_of,
    by_weight,
    only("all_to_all"),
    collectives(lambda *_: 3, hint="One for the counts, one for the weights, one for the answers."),
    Rule(double_precision),
    brings_at_most(
        enough_for_weights,
        "A weight goes to its own expert only, and its answer needs no more bytes than the weight.",
    ),
    mistakes={
        "Those are the choices that are dropped: return the others.": changed(
            lambda kept, _: ~kept
        ),
        "The experts keep the smallest weights: sort them in descending order.": (
            decided(lambda weight, rank, place: weight)
        ),
        "The experts keep the choices that come first, without a look at their weights.": (
            decided(lambda weight, rank, place: (rank, place))
        ),
        "Each rank decides for itself, as if an expert kept C choices of every rank: C counts "
        "those of all ranks.": of_each_rank(lambda C, n: C),
        "Each rank gets an equal part of C: an expert keeps the largest weights, from any rank.": (
            of_each_rank(lambda C, n: C // n)
        ),
        "The answers are in the order of the experts: bring them back into the order of `chosen`.": (
            changed(in_order_of_experts)
        ),
        "The answers are sorted once more: `kept[order] = back` undoes the sort, and `back[order]` does "
        "not.": changed(sorted_twice),
        "Here all choices of a token are dropped if one is: its others may stay.": (
            changed(lambda kept, _: kept.all(1, keepdim=True).expand(kept.shape).clone())
        ),
        "Nothing is dropped: an expert keeps at most C choices.": (
            changed(lambda kept, _: torch.ones_like(kept))
        ),
    },
    points=3,
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# This is task 2 with weights instead of tokens: sort the choices by expert, exchange the counts, and send
# the weights with split sizes. `weights.flatten()` and `chosen.flatten()` have one entry for each choice.
#
# </details>
# <details><summary>Hint 2</summary>
#
# The expert sorts what has arrived: `arrived.argsort(descending=True)[:C]` are the places of the choices
# that it keeps. Make a tensor of zeros for all that arrived, and put ones into these places.
#
# </details>
# <details><summary>Hint 3</summary>
#
# Send this tensor back with the split sizes swapped. `kept[order] = back.bool()` brings the answers into
# the order of the choices. With `dtype=torch.uint8` an answer has one byte.
#
# </details>

# %% role="hidden" question="kept_choices"
seed = 1


def drawn_choices(rank, world_size):
    generator = torch.Generator().manual_seed(100 * seed + rank)
    n, k = [3 + seed % 4, 1 + seed % 3, seed % 2 * 4, 5, 2][rank], min(2, world_size)
    weights = torch.randperm(60, generator=generator)[: n * k].view(n, k) / 70 + (rank + 1) / 1000
    first = torch.randint(world_size, (n, 1), generator=generator)
    return weights, (first + torch.arange(k)) % world_size, 2 + seed % 3


print(measure(kept_choices, drawn_choices))

# %% [markdown]
# ## 4. Gradients on a mesh (★★, 20 minutes, 3 points)
#
# Make a mesh of the ranks, with `ep` neighbouring ranks in each row. A row holds each expert once, and
# the ranks of a column hold the same experts. A rank has two gradients: `dense` for a layer that all
# ranks hold, and `experts` for its own experts. Each rank's loss is the mean over its own tokens, and all
# ranks have equally many tokens. Return both gradients for the mean over all tokens. Each rank calls at
# most two all_reduces, and brings only as many bytes as its two gradients have. Leave the inputs as they
# are. You get 2 points for the value and 1 for the traffic.


# %% role="answer" question="on_a_mesh" points={"value": 2, "traffic": 1}
def on_a_mesh(rank, world_size, dense, experts, ep):
    """Return (dense, experts): the gradients of the mean over all tokens, as new tensors.

    dense and experts are float32. world_size is a multiple of ep.
    """
    ### BEGIN SOLUTION
    mesh = init_device_mesh("cpu", (world_size // ep, ep), mesh_dim_names=("edp", "ep"))
    dense, experts = dense.clone(), experts.clone()
    dist.all_reduce(dense)
    dist.all_reduce(experts, group=mesh["edp"].get_group())
    return dense / world_size, experts / world_size
    ### END SOLUTION


# %% role="check" question="on_a_mesh" points={"value": 2, "traffic": 1}
def backward_with(ep):
    """Inputs after a backward pass."""

    def inputs(rank, world_size):
        torch.manual_seed(10 * ep + rank)
        return torch.randn(3), torch.randn(2, 2), ep

    return inputs


def averaged(columns=lambda r, ep, n: r % ep, by=lambda ep, n: n, dense_by=lambda n: n):
    """Experts summed over the ranks with the same `columns(rank, ep, n)`, and divided."""

    def candidate(denses, experts, eps):
        n, ep = len(eps), eps[0]
        dense = sum(denses) / dense_by(n)
        column = [columns(rank, ep, n) for rank in range(n)]
        sums = [
            sum(g for g, c in zip(experts, column, strict=True) if c == mine) for mine in column
        ]
        return [(dense, one / by(ep, n)) for one in sums]

    return candidate


def dense_alone(denses, experts, eps):
    return [(g, e) for (_, e), g in zip(averaged()(denses, experts, eps), denses, strict=True)]


def dense_in_columns(denses, experts, eps):
    n, ep = len(eps), eps[0]
    sums = [sum(denses[place::ep]) / n for place in range(ep)]
    return [(sums[rank % ep], e) for rank, (_, e) in enumerate(averaged()(denses, experts, eps))]


def both_gradients(denses, experts, eps):
    return [4 * (d.numel() + e.numel()) for d, e in zip(denses, experts, strict=True)]


verdict = check(
    "on_a_mesh",
    on_a_mesh,
    [backward_with(2), backward_with(3)],
    averaged(),
    only("all_reduce"),
    Rule(double_precision),
    collectives(
        lambda denses, experts, eps: 1 + eps[0],
        hint="One for the dense gradient, and one in each column for its experts.",
    ),
    brings_at_most(both_gradients, "The gradient of an expert goes only to its replicas."),
    mistakes={
        "The experts' gradients are summed in the column and divided by its size: an expert has seen "
        "the tokens of its whole row, so divide by the number of all ranks.": (
            averaged(by=lambda ep, n: n // ep)
        ),
        "The experts' gradients are summed in the column, but not divided: the losses of all ranks "
        "are in this sum.": averaged(by=lambda ep, n: 1),
        "The experts' gradients are summed in the column and divided by ep: this is right after AVG, but a "
        "sum must be divided by the number of all ranks.": averaged(by=lambda ep, n: ep),
        "The experts' gradients are divided twice by the size of the column: AVG divides by this size, so "
        "divide by ep after AVG.": averaged(by=lambda ep, n: (n // ep) ** 2),
        "The experts' gradients are divided by the size of the column and by the number of all ranks: "
        "after AVG, divide only by ep.": averaged(by=lambda ep, n: n // ep * n),
        "The experts' gradients are summed over neighbouring ranks: those are in a row, so ep is the last "
        "dimension of the mesh.": averaged(columns=lambda r, ep, n: r // (n // ep)),
        "The experts' gradients are summed over ranks that hold different experts: a row has ep ranks, so "
        "the mesh has the shape (world_size // ep, ep).": averaged(
            columns=lambda r, ep, n: r % (n // ep)
        ),
        "The experts' gradients are those of this rank: their replicas have seen other tokens.": (
            averaged(columns=lambda r, ep, n: r, by=lambda ep, n: 1)
        ),
        "The experts' gradients are divided, but the sum over the column is missing.": (
            averaged(columns=lambda r, ep, n: r)
        ),
        "The experts' gradients are averaged over all ranks: those are different experts.": (
            averaged(columns=lambda r, ep, n: 0)
        ),
        "The experts' gradients are summed in the row: the replicas of an expert are in a column.": (
            averaged(columns=lambda r, ep, n: r // ep)
        ),
        "The dense gradient is the sum over all ranks: divide it.": averaged(dense_by=lambda n: 1),
        "The dense gradient is that of this rank alone.": dense_alone,
        "The dense gradient is summed only in the column: all ranks hold this layer.": dense_in_columns,
    },
    worlds=(6,),  # columns of three and rows of two, and the other way round
    points={"value": 2, "traffic": 1},
)
verdict

# %% [markdown]
# <details><summary>Hint 1</summary>
#
# The sum of an expert's gradients over its column contains the losses of all ranks. Each loss is a mean
# over one of `world_size` equal parts of the tokens.
#
# </details>
# <details><summary>Hint 2</summary>
#
# `init_device_mesh("cpu", (world_size // ep, ep), mesh_dim_names=("edp", "ep"))` makes the mesh. The
# column of this rank is `mesh["edp"].get_group()`. Give it to `all_reduce` as `group=`.
#
# </details>
# <details><summary>Hint 3</summary>
#
# `all_reduce` writes into its tensor, so reduce a `clone()` of each gradient.
#
# </details>

# %% role="hidden" question="on_a_mesh"
seed = 1


def drawn_gradients(rank, world_size):
    generator = torch.Generator().manual_seed(100 * seed + rank)
    dense = torch.randn(2 + seed % 3, generator=generator)
    return dense, torch.randn(1 + seed % 4, 2, generator=generator), 2 + seed % 2


print(measure(on_a_mesh, drawn_gradients, worlds=(6,)))

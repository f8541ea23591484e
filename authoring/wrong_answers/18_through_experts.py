"""Wrong answers to exercise 18.2, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "through_experts"


def counts_of(choice, world_size):
    """Tokens for each rank, and tokens from each."""
    sent = choice.bincount(minlength=world_size)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    return sent.tolist(), received.tolist()


def exchange(rows, sent, received):
    arrived = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(arrived, rows.contiguous(), received, sent)
    return arrived


def in_order(order, back):
    result = torch.empty_like(back)
    result[order] = back
    return result


def right(
    rank, world_size, x, choice, w, put_back=in_order, counted=counts_of, pack=None, unpack=None
):
    """The solution, unless something else is asked for."""
    order = choice.argsort(stable=True)
    sent, received = counted(choice, world_size)
    rows = x[order]
    arrived = exchange(pack(rows) if pack else rows, sent, received)
    y = torch.tanh((unpack(arrived) if unpack else arrived) @ w)
    back = exchange(pack(y) if pack else y, received, sent)
    return put_back(order, unpack(back) if unpack else back)


def lists_of_tensors(rank, world_size, x, choice, w):
    """the all_to_all of lists of tensors"""
    sent, received = counts_of(choice, world_size)
    arrived = [x.new_empty(n, x.shape[1]) for n in received]
    dist.all_to_all(arrived, [x[choice == e] for e in range(world_size)])
    back = [x.new_empty(n, x.shape[1]) for n in sent]
    dist.all_to_all(back, [torch.tanh(part @ w) for part in arrived])
    result = torch.empty_like(x)
    for e, part in enumerate(back):
        result[choice == e] = part
    return result


def small_counts(rank, world_size, x, choice, w):
    """The counts in 32 bits, the order undone by a second argsort."""
    sent = choice.bincount(minlength=world_size).int()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    return right(
        rank,
        world_size,
        x,
        choice,
        w,
        put_back=lambda order, back: back[order.argsort()],
        counted=lambda *_: (sent.tolist(), received.tolist()),
    )


def own_expert(rank, world_size, x, choice, w):
    """the rank's own expert for all of its tokens"""
    return torch.tanh(x @ w)


def still_sorted(rank, world_size, x, choice, w):
    """the results in the order of the experts"""
    return right(rank, world_size, x, choice, w, put_back=lambda order, back: back)


def sorted_once_more(rank, world_size, x, choice, w):
    """the results sorted once more in place of back"""
    return right(rank, world_size, x, choice, w, put_back=lambda order, back: back[order])


def not_sent_back(rank, world_size, x, choice, w):
    """the results of the tokens that came, not sent back"""
    order = choice.argsort(stable=True)
    sent, received = counts_of(choice, world_size)
    return torch.tanh(exchange(x[order], sent, received) @ w)


def not_sorted(rank, world_size, x, choice, w):
    """the tokens sent in their own order, cut by the counts"""
    sent, received = counts_of(choice, world_size)
    return exchange(torch.tanh(exchange(x, sent, received) @ w), received, sent)


def equal_splits(rank, world_size, x, choice, w):
    """the all_to_all that cuts into equal parts"""
    order = choice.argsort(stable=True)
    arrived, back = torch.empty_like(x), torch.empty_like(x)
    dist.all_to_all_single(arrived, x[order])
    dist.all_to_all_single(back, torch.tanh(arrived @ w))
    return in_order(order, back)


def as_many_come_as_go(rank, world_size, x, choice, w):
    """the exchange without counts, as if as many came as go"""

    def counted(choice, world_size):
        sent = choice.bincount(minlength=world_size).tolist()
        return sent, sent

    return right(rank, world_size, x, choice, w, counted=counted)


def splits_not_swapped(rank, world_size, x, choice, w):
    """the way back with the splits of the way there"""
    order = choice.argsort(stable=True)
    sent, received = counts_of(choice, world_size)
    y = torch.tanh(exchange(x[order], sent, received) @ w)
    back = torch.empty_like(x)
    dist.all_to_all_single(back, y, received, sent)
    return in_order(order, back)


def all_tokens_to_all(rank, world_size, x, choice, w):
    """every token sent to every expert"""
    sent = torch.full((world_size,), len(x))
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    sent, received = sent.tolist(), received.tolist()
    y = torch.tanh(exchange(x.repeat(world_size, 1), sent, received) @ w)
    back = exchange(y, received, sent).view(world_size, *x.shape)
    return back[choice, torch.arange(len(x))]


def filled_up(rank, world_size, x, choice, w):
    """the parts filled up with zeros to equal size"""
    room = torch.zeros(world_size, 6, x.shape[1])  # nobody has more than 6 tokens
    order = choice.argsort(stable=True)
    counts = choice.bincount(minlength=world_size)
    place = torch.arange(len(x)) - (counts.cumsum(0) - counts)[choice[order]]
    room[choice[order], place] = x[order]
    arrived, back = torch.empty_like(room), torch.empty_like(room)
    dist.all_to_all_single(arrived, room)
    dist.all_to_all_single(back, torch.tanh(arrived @ w))
    return in_order(order, back[choice[order], place])


def in_double(rank, world_size, x, choice, w):
    """the tokens sent in double precision"""
    return right(
        rank, world_size, x, choice, w, pack=lambda t: t.double(), unpack=lambda t: t.float()
    )


def with_numbers(rank, world_size, x, choice, w):
    """the tokens sent with a column of their numbers"""

    def pack(rows):
        return torch.cat([rows, torch.arange(float(len(rows)))[:, None]], dim=1)

    return right(rank, world_size, x, choice, w, pack=pack, unpack=lambda rows: rows[:, :-1])


def counts_twice(rank, world_size, x, choice, w):
    """the counts sent on the way back, too"""

    def counted(choice, world_size):
        sent, received = counts_of(choice, world_size)
        again = torch.empty(world_size, dtype=torch.int64)
        dist.all_to_all_single(again, torch.tensor(received))
        return sent, received

    return right(rank, world_size, x, choice, w, counted=counted)


def experts_gathered(rank, world_size, x, choice, w):
    """the experts gathered on every rank, in place of tokens sent"""
    ws = [torch.empty_like(w) for _ in range(world_size)]
    dist.all_gather(ws, w)
    result = torch.empty_like(x)
    for e in range(world_size):
        result[choice == e] = torch.tanh(x[choice == e] @ ws[e])
    return result


def experts_sent(rank, world_size, x, choice, w):
    """the experts sent to all ranks by an all_to_all, in place of tokens"""
    ws = w.new_empty(world_size, *w.shape)
    dist.all_to_all_single(ws, w.expand(world_size, *w.shape).contiguous())
    return torch.tanh((x[:, None] @ ws[choice])[:, 0])


ALSO_RIGHT = [right, small_counts]

WRONG = {
    own_expert: "they have to travel",
    still_sorted: "but sorted by expert",
    sorted_once_more: "but permuted twice",
    lists_of_tensors: "use all_to_all_single with split sizes",
    not_sent_back: "the tokens that came to this rank: send them back",
    not_sorted: "cut by the counts, but not sorted before",
    equal_splits: "cannot share evenly",
    as_many_come_as_go: "a rank must send as many elements as the other expects",
    splits_not_swapped: "but the output has 5 rows",
    all_tokens_to_all: "brings 232 bytes",
    filled_up: "brings 144 bytes",
    in_double: "float64 travels",
    with_numbers: "rows of 4 numbers travel",
    counts_twice: "One for the counts, one for the tokens",
    experts_gathered: "this question allows only",
    experts_sent: "brings 108 bytes",
}

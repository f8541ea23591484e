"""Wrong answers to exercise 21.1, each with the words its refusal must hold."""

import torch.distributed as dist

QUESTION = "largest_batch"


def batch(
    model, tp, length, memory_bytes, kv_heads=None, weights=None, numbers=2, itemsize=2, low=0
):
    """The largest batch; of a mistake, as it counts."""
    kv_heads = max(1, model["kv_heads"] / tp) if kv_heads is None else kv_heads
    weights = model["weights_bytes"] / tp if weights is None else weights
    request = numbers * itemsize * model["layers"] * kv_heads * model["head"] * length
    return max(low, int((memory_bytes - weights) // request))


def heads_of_queries(rank, world_size, model, tp, length, memory_bytes):
    """the batch whose cache has a head for each head of the queries"""
    return batch(model, tp, length, memory_bytes, kv_heads=model["heads"] / tp)


def whole_cache(rank, world_size, model, tp, length, memory_bytes):
    """the batch whose cache is whole on each GPU"""
    return batch(model, tp, length, memory_bytes, kv_heads=model["kv_heads"])


def half_a_head(rank, world_size, model, tp, length, memory_bytes):
    """the batch for which GPUs divide a head of keys"""
    return batch(model, tp, length, memory_bytes, kv_heads=model["kv_heads"] / tp)


def whole_weights(rank, world_size, model, tp, length, memory_bytes):
    """the batch beside the weights of all GPUs"""
    return batch(model, tp, length, memory_bytes, weights=model["weights_bytes"])


def no_weights(rank, world_size, model, tp, length, memory_bytes):
    """the batch of a GPU without weights"""
    return batch(model, tp, length, memory_bytes, weights=0)


def keys_alone(rank, world_size, model, tp, length, memory_bytes):
    """the batch whose cache has keys and no values"""
    return batch(model, tp, length, memory_bytes, numbers=1)


def four_bytes(rank, world_size, model, tp, length, memory_bytes):
    """the batch whose cache is in float32"""
    return batch(model, tp, length, memory_bytes, itemsize=4)


def below_zero(rank, world_size, model, tp, length, memory_bytes):
    """the batch that is negative where the weights do not fit"""
    return batch(model, tp, length, memory_bytes, low=-(10**9))


def without_two_cases(rank, world_size, model, tp, length, memory_bytes):
    """the batch of a half head, negative where the weights do not fit"""
    kv_heads = model["kv_heads"] / tp
    return batch(model, tp, length, memory_bytes, kv_heads=kv_heads, low=-(10**9))


def to_the_nearest(rank, world_size, model, tp, length, memory_bytes):
    """the batch that is rounded up where most of a request fits"""
    request = 4 * model["layers"] * max(1, model["kv_heads"] / tp) * model["head"] * length
    return max(0, round((memory_bytes - model["weights_bytes"] / tp) / request))


def one_token_each(rank, world_size, model, tp, length, memory_bytes):
    """the batch of requests with one token"""
    return batch(model, tp, 1, memory_bytes)


def after_a_barrier(rank, world_size, *given):
    """the largest batch after a barrier of all ranks"""
    dist.barrier()
    return batch(*given)


WRONG = {
    heads_of_queries: "not those of the queries",
    whole_cache: "tp divides the cache, too",
    half_a_head: "a GPU still keeps one whole head",
    whole_weights: "not all of them",
    no_weights: "subtract them first",
    keys_alone: "each number in 2 bytes",
    four_bytes: "2 bytes, not 4",
    below_zero: "not a negative number",
    without_two_cases: "Two cases are missing",
    to_the_nearest: "does not fit: round down",
    one_token_each: "not for one",
    after_a_barrier: "but 1 collective takes place where 0 would be enough",
}


def one_by_one(rank, world_size, model, tp, length, memory_bytes):
    heads = -(-model["kv_heads"] // tp)
    of_token = 4 * model["layers"] * heads * model["head"]
    held, count = model["weights_bytes"] / tp, 0
    while held + of_token * length <= memory_bytes:
        held, count = held + of_token * length, count + 1
    return count


ALSO_RIGHT = (one_by_one,)

"""Wrong answers to exercise 06.4, each with the words its refusal must hold."""

import zlib

import torch
import torch.distributed as dist

QUESTION = "out_of_step"


def gathered(world_size, tensor):
    found = [torch.empty_like(tensor) for _ in range(world_size)]
    dist.all_gather(found, tensor)
    return found


def unlike_the_first(world_size, tensor):
    found = gathered(world_size, tensor)
    return [other for other in range(world_size) if not torch.equal(found[other], found[0])]


def crc(theta):
    return torch.tensor([zlib.crc32(theta.numpy().tobytes())])


def by_the_sum(rank, world_size, theta):
    """the fingerprint that does not see the order of the weights"""
    return unlike_the_first(world_size, theta.double().sum().reshape(1))


def rounded(rank, world_size, theta):
    """the fingerprint that misses a difference in the last bit"""
    text = ",".join(f"{x:.4f}" for x in theta.tolist())
    return unlike_the_first(world_size, torch.tensor([zlib.crc32(text.encode())]))


def those_in_step(rank, world_size, theta):
    """the list of the ranks that are in step"""
    found = gathered(world_size, crc(theta))
    return [other for other in range(world_size) if torch.equal(found[other], found[0])]


def of_the_object(rank, world_size, theta):
    """the fingerprint that depends on more than the weights"""
    text = f"{rank} {theta.tolist()}"  # depends on more than the numbers
    return unlike_the_first(world_size, torch.tensor([zlib.crc32(text.encode())]))


def all_weights(rank, world_size, theta):
    """the all_gather of all weights"""
    return unlike_the_first(world_size, theta)


def unlike_their_neighbour(rank, world_size, theta):
    """the comparison of each rank with its left neighbour"""
    found = gathered(world_size, crc(theta))
    return [r for r in range(1, world_size) if found[r] != found[r - 1]]


def unlike_me(rank, world_size, theta):
    """the comparison with each rank's own weights, not with rank 0's"""
    found = gathered(world_size, crc(theta))
    return [other for other in range(world_size) if found[other] != found[rank]]


def only_rank_0_tells(rank, world_size, theta):
    """the list that only rank 0 returns"""
    found = unlike_the_first(world_size, crc(theta))
    return found if rank == 0 else None


def broadcasts_rank_0(rank, world_size, theta):
    """the comparison by a broadcast from rank 0"""
    first = theta.clone()
    dist.broadcast(first, src=0)
    return unlike_the_first(world_size, torch.tensor([float(torch.equal(first, theta))]))


def weighted_by_places(rank, world_size, theta):
    """the fingerprint that is a sum weighted by places"""
    weights = torch.arange(1, len(theta) + 1)
    return unlike_the_first(world_size, (theta.double() * weights).sum().reshape(1))


def by_adler32(rank, world_size, theta):
    """the fingerprint by adler32, a sum weighted by places"""
    return unlike_the_first(world_size, torch.tensor([zlib.adler32(theta.numpy().tobytes())]))


def hash_of_the_numbers(rank, world_size, theta):
    """the fingerprint that takes -0.0 for 0.0"""
    return unlike_the_first(world_size, torch.tensor([hash(tuple(theta.tolist()))]))


def crc_in_a_float(rank, world_size, theta):
    """the checksum that a float32 rounds"""
    return unlike_the_first(world_size, crc(theta).float())


def salted(rank, world_size, theta):
    """the fingerprint by Python's hash of the bytes, which is salted"""
    return unlike_the_first(world_size, torch.tensor([hash(theta.numpy().tobytes())]))


def out_of_a_table(rank, world_size, theta):
    """the list out of a table, which nothing is sent for"""
    return [other for other in (2, 4, 5, 6) if other < world_size]


def hash_of_whole_numbers(rank, world_size, theta):
    whole = tuple(theta.view(torch.int32).tolist())  # Python salts bytes and text alone
    return unlike_the_first(world_size, torch.tensor([hash(whole)]))


def crc_in_a_double(rank, world_size, theta):
    return unlike_the_first(world_size, crc(theta).double())


def crc_as_bytes(rank, world_size, theta):
    word = zlib.crc32(theta.numpy().tobytes()).to_bytes(4, "little")
    return unlike_the_first(world_size, torch.tensor(list(word), dtype=torch.uint8))


ALSO_RIGHT = [hash_of_whole_numbers, crc_in_a_double, crc_as_bytes]

WRONG = {
    by_the_sum: "does not see who stands where",
    rounded: "compare bits",
    those_in_step: "the ranks that agree with rank 0",
    of_the_object: "must depend on the numbers alone",
    all_weights: "Send a fingerprint",
    unlike_their_neighbour: "compared with its left neighbour",
    unlike_me: "Compare with rank 0, not with yourself",
    only_rank_0_tells: "does the function always reach a `return`",
    broadcasts_rank_0: "calls broadcast",
    weighted_by_places: "weighted by places",
    by_adler32: "weighted by places",
    hash_of_the_numbers: "equal as numbers",
    crc_in_a_float: "a float32 keeps 24 bits",
    salted: "is salted, with new salt in each program",
    out_of_a_table: "No rank sends anything",
}

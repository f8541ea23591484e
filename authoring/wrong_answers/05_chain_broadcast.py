"""Wrong answers to exercise 05.3, each with the words its refusal must hold."""

import math

import torch.distributed as dist

QUESTION = "chain_broadcast"


def best_number(world_size, nbytes, latency_s, bandwidth_Bps):
    hops = max(0, world_size - 2)
    return max(1, round(math.sqrt(nbytes * hops / (latency_s * bandwidth_Bps))))


def pipeline(rank, world_size, x, num_chunks):
    requests = []
    for chunk in x.tensor_split(num_chunks):
        if rank > 0:
            dist.recv(chunk, src=rank - 1)
        if rank < world_size - 1:
            requests.append(dist.isend(chunk, dst=rank + 1))
    for request in requests:
        request.wait()


def in_one_piece(rank, world_size, x, latency_s, bandwidth_Bps):
    """the chain that passes the whole tensor on in one piece"""
    pipeline(rank, world_size, x, 1)


def always_ten_chunks(rank, world_size, x, latency_s, bandwidth_Bps):
    """the pipeline of ten chunks, however short the tensor is"""
    pipeline(rank, world_size, x, 10)


def always_twenty_chunks(rank, world_size, x, latency_s, bandwidth_Bps):
    """the pipeline of twenty chunks, whatever the tensor and the network"""
    pipeline(rank, world_size, x, 20)


def by_the_network_of_the_lesson(rank, world_size, x, latency_s, bandwidth_Bps):
    """the best number of chunks for one network, whatever the network is"""
    pipeline(rank, world_size, x, best_number(world_size, x.nbytes, 50e-6, 1e9 / 8))


def in_tiny_chunks(rank, world_size, x, latency_s, bandwidth_Bps):
    """the pipeline of tiny chunks, each of which pays the latency"""
    pipeline(rank, world_size, x, max(1, len(x) // 100))


def counts_elements_for_bytes(rank, world_size, x, latency_s, bandwidth_Bps):
    """the number of chunks worked out from elements, not from bytes"""
    pipeline(rank, world_size, x, best_number(world_size, len(x), latency_s, bandwidth_Bps))


def without_the_bandwidth(rank, world_size, x, latency_s, bandwidth_Bps):
    """the number of chunks worked out without the bandwidth"""
    pipeline(rank, world_size, x, best_number(world_size, x.nbytes, latency_s, 1.0))


def receives_or_sends_but_not_both(rank, world_size, x, latency_s, bandwidth_Bps):
    """the pipeline whose ranks do not receive while they send"""
    num_chunks = best_number(world_size, x.nbytes, latency_s, bandwidth_Bps)
    for chunk in x.tensor_split(num_chunks):
        if rank > 0:
            dist.recv(chunk, src=rank - 1)
        if rank < world_size - 1:
            dist.send(chunk, dst=rank + 1)


def straight_from_the_root(rank, world_size, x, latency_s, bandwidth_Bps):
    """the broadcast in which the root sends straight to every rank"""
    if rank > 0:
        dist.recv(x, src=0)
    else:
        for dst in range(1, world_size):
            dist.send(x, dst=dst)


def no_chunk_for_two_ranks(rank, world_size, x, latency_s, bandwidth_Bps):
    """the number of chunks that can be 0, as in a world of two"""
    best = math.sqrt(x.nbytes * abs(world_size - 2) / (latency_s * bandwidth_Bps))
    pipeline(rank, world_size, x, round(best))


def root_of_a_negative_number(rank, world_size, x, latency_s, bandwidth_Bps):
    """the square root of a negative number in a world of one"""
    best = math.sqrt(x.nbytes * (world_size - 2) / (latency_s * bandwidth_Bps))
    pipeline(rank, world_size, x, max(1, round(best)))


def never_waits(rank, world_size, x, latency_s, bandwidth_Bps):
    """the pipeline that never waits for its isends"""
    for chunk in x.tensor_split(best_number(world_size, x.nbytes, latency_s, bandwidth_Bps)):
        if rank > 0:
            dist.recv(chunk, src=rank - 1)
        if rank < world_size - 1:
            dist.isend(chunk, dst=rank + 1)


def all_receives_first(rank, world_size, x, latency_s, bandwidth_Bps):
    """right: all chunks are asked for at once, each is passed on when it has come"""
    chunks = x.tensor_split(best_number(world_size, x.nbytes, latency_s, bandwidth_Bps))
    receives = [dist.irecv(chunk, src=rank - 1) for chunk in chunks] if rank else []
    sends = []
    for number, chunk in enumerate(chunks):
        if rank:
            receives[number].wait()
        if rank < world_size - 1:
            sends.append(dist.isend(chunk, dst=rank + 1))
    for request in sends:
        request.wait()


def double_buffering(rank, world_size, x, latency_s, bandwidth_Bps):
    """right: the next chunk is asked for before the one that has come is passed on"""
    chunks = x.tensor_split(best_number(world_size, x.nbytes, latency_s, bandwidth_Bps))
    coming = dist.irecv(chunks[0], src=rank - 1) if rank else None
    sends = []
    for number, chunk in enumerate(chunks):
        if rank:
            coming.wait()
            if number + 1 < len(chunks):
                coming = dist.irecv(chunks[number + 1], src=rank - 1)
        if rank < world_size - 1:
            sends.append(dist.isend(chunk, dst=rank + 1))
    for request in sends:
        request.wait()


ALSO_RIGHT = (all_receives_first, double_buffering)

WRONG = {
    in_one_piece: "done after 5.95 ms where 2.18 ms are enough",
    always_ten_chunks: "A short tensor is best in fewer chunks",
    always_twenty_chunks: "done after 2.34 ms",
    by_the_network_of_the_lesson: "This is another network",
    in_tiny_chunks: "done after 13.6 ms",
    counts_elements_for_bytes: "done after 2.31 ms",
    receives_or_sends_but_not_both: "done after 3.25 ms",
    without_the_bandwidth: "too many chunks",
    straight_from_the_root: "rank 0 sends to rank 2, which is not one of its neighbours",
    no_chunk_for_two_ranks: "number of sections must be larger than 0",
    root_of_a_negative_number: "math domain error",
    never_waits: "simlib found a problem (unfinished",
}

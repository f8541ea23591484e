"""Wrong answers to exercise 05.1, each with the words its refusal must hold."""

import time

import torch
import torch.distributed as dist

QUESTION = "ring_reduce_scatter"


def exchange(outgoing, incoming, dst, src):
    request = dist.isend(outgoing, dst=dst)
    dist.recv(incoming, src=src)
    request.wait()


def neighbours(rank, world_size):
    return (rank + 1) % world_size, (rank - 1) % world_size


def adds_the_wrong_buffer(rank, world_size, x):
    """the ring that adds its own chunk to itself, not to what came"""
    chunks = x.tensor_split(world_size)
    passing = chunks[(rank - 1) % world_size].clone()
    for step in range(world_size - 1):
        mine = chunks[(rank - step - 2) % world_size]
        incoming = torch.empty_like(mine)
        exchange(passing, incoming, *neighbours(rank, world_size))
        passing = mine + mine
    return passing


def passes_whole_tensors(rank, world_size, x):
    """the ring that passes whole tensors"""
    total, passing = x.clone(), x.clone()
    for _ in range(world_size - 1):
        incoming = torch.empty_like(x)
        exchange(passing, incoming, *neighbours(rank, world_size))
        total += incoming
        passing = incoming
    return total.tensor_split(world_size)[rank]


def returns_the_whole_sum(rank, world_size, x):
    """the ring that returns the sum of all chunks, not of one"""
    total, passing = x.clone(), x.clone()
    for _ in range(world_size - 1):
        incoming = torch.empty_like(x)
        exchange(passing, incoming, *neighbours(rank, world_size))
        total += incoming
        passing = incoming
    return total


def begins_one_place_further(rank, world_size, x):
    """the ring that begins one chunk too late and ends with chunk rank + 1"""
    chunks = x.tensor_split(world_size)
    passing = chunks[rank].clone()
    for step in range(world_size - 1):
        mine = chunks[(rank - step - 1) % world_size]
        incoming = torch.empty_like(mine)
        exchange(passing, incoming, *neighbours(rank, world_size))
        passing = incoming + mine
    return passing


def ring_of_the_lesson(rank, chunks, steps):
    n = len(chunks)
    for step in range(steps):
        chunk = chunks[(rank - step - 1) % n]
        incoming = torch.empty_like(chunk)
        exchange(chunks[(rank - step) % n], incoming, *neighbours(rank, n))
        chunk.copy_(chunk + incoming if step < n - 1 else incoming)


def half_the_ring_of_the_lesson(rank, world_size, x):
    """the ring that returns the rank's own chunk with nothing added to it"""
    chunks = x.clone().tensor_split(world_size)
    ring_of_the_lesson(rank, chunks, world_size - 1)
    return chunks[rank]


def the_whole_ring_and_then_a_chunk(rank, world_size, x):
    """the whole ring all_reduce, of which one chunk is returned"""
    chunks = x.clone().tensor_split(world_size)
    ring_of_the_lesson(rank, chunks, 2 * (world_size - 1))
    return chunks[rank]


def adds_into_x(rank, world_size, x):
    """the ring that writes into x itself"""
    chunks = x.tensor_split(world_size)
    for step in range(world_size - 1):
        mine = chunks[(rank - step - 2) % world_size]
        incoming = torch.empty_like(mine)
        exchange(chunks[(rank - step - 1) % world_size], incoming, *neighbours(rank, world_size))
        mine += incoming
    return chunks[rank].clone()


def straight_to_its_owner(rank, world_size, x):
    """the reduce_scatter that sends each chunk straight to its owner"""
    chunks = x.tensor_split(world_size)
    total = chunks[rank].clone()
    for step in range(1, world_size):
        incoming = torch.empty_like(total)
        exchange(
            chunks[(rank + step) % world_size],
            incoming,
            (rank + step) % world_size,
            (rank - step) % world_size,
        )
        total += incoming
    return total


def sends_before_it_receives(rank, world_size, x):
    """the ring in which everyone sends before anyone receives"""
    chunks = x.tensor_split(world_size)
    passing = chunks[(rank - 1) % world_size].clone()
    for step in range(world_size - 1):
        mine = chunks[(rank - step - 2) % world_size]
        incoming = torch.empty_like(mine)
        dist.send(passing, dst=(rank + 1) % world_size)
        dist.recv(incoming, src=(rank - 1) % world_size)
        passing = incoming + mine
    return passing


def one_chunk_at_a_time(rank, world_size, x):
    """the ring whose chunks travel one after the other, not all at once"""
    found, chunks = x.clone(), x.tensor_split(world_size)
    for index, chunk in enumerate(chunks):
        place = (rank - index - 1) % world_size  # 0 begins, the chunk's own rank is last
        passing = chunk.clone()
        if place > 0:
            dist.recv(passing, src=(rank - 1) % world_size)
            passing += chunk
        if place < world_size - 1:
            dist.send(passing, dst=(rank + 1) % world_size)
        else:
            found = passing
    return found


def one_chunk_at_a_time_by_alias(rank, world_size, x):
    """the ring of one chunk at a time that looks into buffers before it waits"""
    found, requests, chunks = x.clone(), [], x.tensor_split(world_size)
    for index, chunk in enumerate(chunks):
        place = (rank - index - 1) % world_size
        passing = chunk.clone()
        if place > 0:
            holder = torch.full_like(chunk, -1.0)
            request, seen = dist.irecv(holder, src=(rank - 1) % world_size), holder.numpy()
            for _ in range(500):
                if -1.0 not in seen:
                    requests.append(request)
                    break
                time.sleep(0.001)
            else:
                request.wait()
            passing += torch.from_numpy(seen.copy())
        if place < world_size - 1:
            dist.send(passing, dst=(rank + 1) % world_size)
        else:
            found = passing
    for request in requests:
        request.wait()
    return found


def all_reduces(rank, world_size, x):
    """the all_reduce of torch, of which a chunk is returned"""
    total = x.clone()
    dist.all_reduce(total)
    return total.tensor_split(world_size)[rank]


def to_the_left(rank, world_size, x):
    """the ring that sends everything to the left"""
    chunks = x.tensor_split(world_size)
    passing = chunks[(rank + 1) % world_size].clone()
    for step in range(world_size - 1):
        mine = chunks[(rank + step + 2) % world_size]
        incoming = torch.empty_like(mine)
        right, left = neighbours(rank, world_size)
        exchange(passing, incoming, left, right)
        passing = incoming + mine
    return passing


def adds_nothing(rank, world_size, x):
    """the ring that passes on what comes and adds nothing"""
    chunks = x.tensor_split(world_size)
    passing = chunks[(rank - 1) % world_size].clone()
    for step in range(world_size - 1):
        incoming = torch.empty_like(chunks[(rank - step - 2) % world_size])
        exchange(passing, incoming, *neighbours(rank, world_size))
        passing = incoming
    return passing


def forgets_its_own(rank, world_size, x):
    """the ring that does not add its own chunk to the last that comes"""
    chunks = x.tensor_split(world_size)
    passing = chunks[(rank - 1) % world_size].clone()
    for step in range(world_size - 1):
        mine = chunks[(rank - step - 2) % world_size]
        incoming = torch.empty_like(mine)
        exchange(passing, incoming, *neighbours(rank, world_size))
        passing = incoming + mine if step < world_size - 2 else incoming
    return passing


def gives_the_mean(rank, world_size, x):
    """the ring that gives the mean over the ranks"""
    chunks = x.tensor_split(world_size)
    passing = chunks[(rank - 1) % world_size].clone()
    for step in range(world_size - 1):
        mine = chunks[(rank - step - 2) % world_size]
        incoming = torch.empty_like(mine)
        exchange(passing, incoming, *neighbours(rank, world_size))
        passing = incoming + mine
    return passing / world_size


def receives_into_what_it_sends(rank, world_size, x):
    """the ring whose buffer is as long as the chunk that is sent"""
    chunks = x.tensor_split(world_size)
    passing = chunks[(rank - 1) % world_size].clone()
    for step in range(world_size - 1):
        incoming = torch.empty_like(passing)
        exchange(passing, incoming, *neighbours(rank, world_size))
        passing = incoming + chunks[(rank - step - 2) % world_size]
    return passing


WRONG = {
    one_chunk_at_a_time_by_alias: "the messages take 21 rounds where 7 are enough",
    to_the_left: "That is to the left",
    adds_nothing: "without what this rank has of it",
    forgets_its_own: "without what this rank has of it",
    gives_the_mean: "That is the mean over the ranks",
    receives_into_what_it_sends: "be as long as the chunk that comes",
    adds_the_wrong_buffer: "add what came, not what was there already",
    passes_whole_tensors: "rank 0 sends 28 bytes where 16 are enough for any rank",
    returns_the_whole_sum: "but only chunk `rank` is asked for",
    begins_one_place_further: "That is the sum of chunk rank + 1",
    half_the_ring_of_the_lesson: "That is the rank's own chunk, nothing added",
    the_whole_ring_and_then_a_chunk: "the busiest rank sends 2 messages. All chunks travel at once",
    adds_into_x: "but the input has changed. Rank 0 changed the tensor it was given",
    straight_to_its_owner: "rank 0 sends to rank 2, which is not one of its neighbours",
    sends_before_it_receives: "The ranks never finish: ranks 0 and 1 wait for each other",
    one_chunk_at_a_time: "where 1 is enough; the busiest rank sends 1 message",
    all_reduces: "Rank 0 calls all_reduce",
}


def in_a_list(rank, world_size, x):
    sums = [chunk.clone() for chunk in x.tensor_split(world_size)]
    for step in range(world_size - 1):
        sent, came = ((rank - step - k) % world_size for k in (1, 2))
        holder = torch.zeros_like(sums[came])
        ops = [
            dist.P2POp(dist.isend, sums[sent], (rank + 1) % world_size),
            dist.P2POp(dist.irecv, holder, (rank - 1) % world_size),
        ]
        for request in dist.batch_isend_irecv(ops):
            request.wait()
        sums[came] += holder
    return sums[rank]


ALSO_RIGHT = [in_a_list]

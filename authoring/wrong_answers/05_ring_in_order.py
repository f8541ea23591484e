"""Wrong answers to exercise 05.2, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "ring_in_order"


def exchange(outgoing, incoming, dst, src):
    request = dist.isend(outgoing, dst=dst)
    dist.recv(incoming, src=src)
    request.wait()


def neighbours(rank, order):
    place = order.index(rank)
    return order[(place + 1) % len(order)], order[place - 1]


def passes_whole_tensors(rank, world_size, x, order):
    """the ring that passes whole tensors"""
    passing = x.clone()
    for _ in range(world_size - 1):
        incoming = torch.empty_like(x)
        exchange(passing, incoming, *neighbours(rank, order))
        x += incoming
        passing = incoming


def adds_the_wrong_buffer(rank, world_size, x, order):
    """the ring that adds the buffer it sent, not the one that came"""
    passing = x.clone()
    for _ in range(world_size - 1):
        incoming = torch.empty_like(x)
        exchange(passing, incoming, *neighbours(rank, order))
        x += passing
        passing = incoming


def ring_of_chunks(rank, place, chunks, following, before, steps, adding=None):
    n = len(chunks)
    adding = n - 1 if adding is None else adding
    for step in range(steps):
        chunk = chunks[(place - step - 1) % n]
        incoming = torch.empty_like(chunk)
        exchange(chunks[(place - step) % n], incoming, following, before)
        chunk.copy_(chunk + incoming if step < adding else incoming)


def takes_no_heed_of_order(rank, world_size, x, order):
    """the ring that goes by ranks and takes no heed of the order"""
    chunks, steps = x.tensor_split(world_size), 2 * (world_size - 1)
    following, before = (rank + 1) % world_size, (rank - 1) % world_size
    ring_of_chunks(rank, rank, chunks, following, before, steps)


def stops_half_way(rank, world_size, x, order):
    """the ring that stops half way, with only one chunk complete on each rank"""
    chunks, place = x.tensor_split(world_size), order.index(rank)
    ring_of_chunks(rank, place, chunks, *neighbours(rank, order), world_size - 1)


def forgets_the_tail(rank, world_size, x, order):
    """the ring that forgets the last numbers"""
    each, place = len(x) // world_size, order.index(rank)
    chunks = [x[index * each : (index + 1) * each] for index in range(world_size)]
    ring_of_chunks(rank, place, chunks, *neighbours(rank, order), 2 * (world_size - 1))


def chunks_by_rank_and_not_by_place(rank, world_size, x, order):
    """the ring whose chunks go by rank and not by place"""
    chunks = x.tensor_split(world_size)
    ring_of_chunks(rank, rank, chunks, *neighbours(rank, order), 2 * (world_size - 1))


def chunks_by_who_stands_there(rank, world_size, x, order):
    """the ring whose chunks go by order[rank], which is another rank"""
    chunks = x.tensor_split(world_size)
    ring_of_chunks(rank, order[rank], chunks, *neighbours(rank, order), 2 * (world_size - 1))


def place_by_order_of_rank(rank, world_size, x, order):
    """the ring that takes order[rank] for this rank's own place"""
    place = order[rank]
    following, before = order[(place + 1) % world_size], order[place - 1]
    ring_of_chunks(rank, place, x.tensor_split(world_size), following, before, 2 * (world_size - 1))


def one_chunk_after_the_other(rank, world_size, x, order):
    """the ring whose chunks travel one after the other, not all at once"""
    place, (following, before) = order.index(rank), neighbours(rank, order)
    for index, chunk in enumerate(x.tensor_split(world_size) if world_size > 1 else ()):
        distance, other = (place - index) % world_size, torch.empty_like(chunk)
        if distance > 0:
            dist.recv(other, src=before)
            chunk += other
        if distance < world_size - 1:
            dist.send(chunk, dst=following)
            dist.recv(chunk, src=before)
        if distance != world_size - 2:
            dist.send(chunk, dst=following)


def leaves_x_alone(rank, world_size, x, order):
    """the ring that returns the sum and leaves x alone"""
    total = x.clone()
    chunks, place = total.tensor_split(world_size), order.index(rank)
    ring_of_chunks(rank, place, chunks, *neighbours(rank, order), 2 * (world_size - 1))
    return total


def sends_before_it_receives(rank, world_size, x, order):
    """the ring in which everyone sends before anyone receives"""
    chunks, place = x.tensor_split(world_size), order.index(rank)
    following, before = neighbours(rank, order)
    for step in range(2 * (world_size - 1)):
        chunk = chunks[(place - step - 1) % world_size]
        incoming = torch.empty_like(chunk)
        dist.send(chunks[(place - step) % world_size], dst=following)
        dist.recv(incoming, src=before)
        chunk.copy_(chunk + incoming if step < world_size - 1 else incoming)


def adds_all_the_way(rank, world_size, x, order):
    """the ring that adds in its second half, too"""
    chunks, place, steps = x.tensor_split(world_size), order.index(rank), 2 * (world_size - 1)
    ring_of_chunks(rank, place, chunks, *neighbours(rank, order), steps, adding=steps)


def copies_too_soon(rank, world_size, x, order):
    """the ring that begins to copy one step too soon"""
    chunks, place, steps = x.tensor_split(world_size), order.index(rank), 2 * (world_size - 1)
    ring_of_chunks(rank, place, chunks, *neighbours(rank, order), steps, adding=world_size - 2)


def neighbours_by_rank_chunks_by_place(rank, world_size, x, order):
    """the ring whose neighbours go by rank, and its chunks by place"""
    chunks, place = x.tensor_split(world_size), order.index(rank)
    following, before = (rank + 1) % world_size, (rank - 1) % world_size
    ring_of_chunks(rank, place, chunks, following, before, 2 * (world_size - 1))


def backwards(rank, world_size, x, order):
    """the ring that runs through the order backwards"""
    chunks, place = x.tensor_split(world_size), order.index(rank)
    following, before = neighbours(rank, order)
    ring_of_chunks(rank, place, chunks, before, following, 2 * (world_size - 1))


WRONG = {
    adds_all_the_way: "What comes in the second half is added, too",
    copies_too_soon: "begins to copy too soon",
    neighbours_by_rank_chunks_by_place: "Either the neighbours go by number",
    backwards: "Either the neighbours go by number",
    passes_whole_tensors: "rank 0 sends 48 bytes where 32 are enough for any rank",
    adds_the_wrong_buffer: "add the buffer that came, not the one that was sent",
    takes_no_heed_of_order: "Either the neighbours go by number",
    stops_half_way: "n - 1 more steps pass the complete",
    forgets_the_tail: "The last numbers are not summed",
    leaves_x_alone: "The returned value is right, but the tensor x itself must",
    one_chunk_after_the_other: "take 4 rounds where 2 are enough",
    chunks_by_rank_and_not_by_place: "let the chunks go by places, too",
    chunks_by_who_stands_there: "but the chunks by order[rank]",
    place_by_order_of_rank: "Is `order[rank]` in your program?",
    sends_before_it_receives: "The ranks never finish",
}


def on_a_list_of_copies(rank, world_size, x, order):
    at = order.index(rank)
    right, left = order[(at + 1) % world_size], order[(at - 1) % world_size]
    chunks = [chunk.clone() for chunk in x.tensor_split(world_size)]
    for adds in (True, False):
        for step in range(world_size - 1):
            sent = (at - step + (not adds)) % world_size
            came = (sent - 1) % world_size
            holder = torch.empty_like(chunks[came])
            requests = [dist.isend(chunks[sent], right), dist.irecv(holder, left)]
            for request in requests:
                request.wait()
            chunks[came] = chunks[came] + holder if adds else holder
    x.copy_(torch.cat(chunks))


ALSO_RIGHT = [on_a_list_of_copies]

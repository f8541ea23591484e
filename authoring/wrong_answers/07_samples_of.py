"""Wrong answers to exercise 07.5, each with the words its refusal must hold."""

import torch
import torch.distributed as dist

QUESTION = "samples_of"


def in_order(sizes):
    return [(shard, place) for shard, size in enumerate(sizes) for place in range(size)]


def dealt(reader, readers, sizes, whole):
    stream = in_order(sizes)
    return (
        [one for one in stream if one[0] % readers == reader] if whole else stream[reader::readers]
    )


def workers_forgotten(rank, world_size, worker, workers, sizes):
    """the same samples for all workers of a rank"""
    return dealt(rank, world_size, sizes, len(sizes) >= world_size * workers)


def ranks_forgotten(rank, world_size, worker, workers, sizes):
    """the same samples for all ranks"""
    return dealt(worker, workers, sizes, len(sizes) >= world_size * workers)


def counted_by_worker(rank, world_size, worker, workers, sizes):
    """the readers counted with worker 0 of all ranks first"""
    readers = world_size * workers
    return dealt(worker * world_size + rank, readers, sizes, len(sizes) >= readers)


def always_shards(rank, world_size, worker, workers, sizes):
    """the whole shards, also if there are too few"""
    return dealt(rank * workers + worker, world_size * workers, sizes, True)


def always_samples(rank, world_size, worker, workers, sizes):
    """the samples of all shards in turn, also if there are enough shards"""
    return dealt(rank * workers + worker, world_size * workers, sizes, False)


def one_shard_each_split(rank, world_size, worker, workers, sizes):
    """the shards split, although each reader could have one"""
    readers = world_size * workers
    return dealt(rank * workers + worker, readers, sizes, len(sizes) > readers)


def in_each_shard(rank, world_size, worker, workers, sizes):
    """the samples counted anew in each shard"""
    reader, readers = rank * workers + worker, world_size * workers
    if len(sizes) >= readers:
        return dealt(reader, readers, sizes, True)
    return [(s, place) for s, size in enumerate(sizes) for place in range(reader, size, readers)]


def asked(rank, world_size, worker, workers, sizes):
    """the right samples, after the ranks have told each other their workers"""
    found = [torch.empty(1) for _ in range(world_size)]
    dist.all_gather(found, torch.tensor([float(worker)]))
    readers = world_size * workers
    return dealt(rank * workers + worker, readers, sizes, len(sizes) >= readers)


def by_a_counter(rank, world_size, worker, workers, sizes):
    """one pass over the stream, with a counter"""
    reader, readers = rank * workers + worker, world_size * workers
    found, count = [], 0
    for shard, size in enumerate(sizes):
        for place in range(size):
            if (shard if len(sizes) >= readers else count) % readers == reader:
                found.append((shard, place))
            count += 1
    return found


WRONG = {
    workers_forgotten: "a reader is a worker of a rank, not a rank",
    ranks_forgotten: "depends on the rank, too",
    counted_by_worker: "the workers of rank 0 come first",
    always_shards: "some readers have nothing to do",
    always_samples: "every reader opens every file",
    one_shard_each_split: "each reader has one whole shard",
    in_each_shard: "Counting begins again in each shard",
    asked: "Each reader can work this out for itself",
}

ALSO_RIGHT = [by_a_counter]

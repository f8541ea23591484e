"""Classes of equal ranks: what they are told to have done is what they do."""

import dataclasses
import datetime
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import fully_shard

import simlib
from simlib.core.clockwork.alike import Classes, sisters, twins
from simlib.core.model.errors import InvalidCallError
from tests.dataless_programs import PROGRAMS

WAITING = simlib.Cluster(
    2, 2, simlib.Link(5e-6, 1e10), simlib.Link(1e-6, 1e11), simlib.Device(1e12, 1e12)
)
DEVICE = simlib.Device(
    rates={"float32": 5e10, "bfloat16": 1e11}, memory_Bps=1e10, launch_s=1e-6, asynchronous=True
)
STREAMS = dataclasses.replace(WAITING, device=DEVICE)
UNLIKE = {"fsdp1", "zero1", "saved"}
"""Their ranks hold shards of different sizes, or tell each other what only they know."""


def simulated(main, ranks, cluster, alike=None, **how):
    return simlib.simulate(
        main, ranks, cluster=cluster, algorithms="nccl", data=False, alike=alike, **how
    )


def of_rank(run, rank):
    return [
        (op.kind, op.group.ranks, op.peer, op.shapes, op.nbytes, str(op.site))
        for op in run.trace.of_rank(rank)
    ]


def times(run, rank):
    moments = [run.trace.spans[rank][1]]
    for op in run.trace.of_rank(rank):
        moments += [one for one in (op.post_s, op.wait_s, op.end_s) if one is not None]
    for piece in run.trace.pieces:
        if piece.rank == rank:
            moments += [piece.start_s, piece.end_s]
            moments += [piece.work.start_s, piece.work.end_s] if piece.work else []
    return [moment for moment in moments if moment is not None]


def check_equal(one, all_):
    ran = sorted({each for ranks in one.classes for each in (ranks[0], ranks[-1])})
    for rank in ran:
        assert of_rank(one, rank) == of_rank(all_, rank)
        assert times(one, rank) == pytest.approx(times(all_, rank), abs=1e-12, rel=0)
    ends = [[left_s for _, left_s in run.trace.spans] for run in (one, all_)]
    assert ends[0] == pytest.approx(ends[1], abs=1e-12, rel=0)
    held = [[(own.peak_bytes, own.reserved_bytes) for own in run.memory] for run in (one, all_)]
    assert held[0] == held[1]
    assert one.flops == all_.flops
    if one.profile is not None:
        exposed = [run.exposed().exposed_s[ran] for run in (one, all_)]
        assert exposed[0] == pytest.approx(exposed[1], abs=1e-12, rel=0)


QUICK = {"ddp", "hsdp", "fsdp2_and_tensor_parallel", "pipeline_of_fsdp2"}


@pytest.mark.parametrize("cluster", [WAITING, STREAMS], ids=["waiting", "streams"])
@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)
        for name in PROGRAMS
        if name not in UNLIKE
    ],
)
def test_ranks_that_did_not_run_are_timed_as_if_they_had(name, cluster):
    one, all_ = (simulated(PROGRAMS[name], 4, cluster, alike) for alike in ("auto", None))
    check_equal(one, all_)


def sharded(rank, world_size, steps=2):
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for number in range(steps):
        with simlib.span("step", number=number):
            model(torch.rand(4, 64)).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return world_size


def nodes_of_eight(nodes):
    links = simlib.Link(5e-6, 5e8), simlib.Link(3e-6, 4.5e9)
    return simlib.Cluster(nodes, 8, *links, DEVICE, rails=8)


@pytest.mark.parametrize("nodes", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_places_in_a_node_have_times_of_their_own(nodes):
    one, all_ = (
        simulated(sharded, 8 * nodes, nodes_of_eight(nodes), alike) for alike in ("auto", None)
    )
    check_equal(one, all_)
    assert one.classes == [list(range(8 * nodes))]
    assert one.results == [8 * nodes, *[None] * (8 * nodes - 2), 8 * nodes]
    assert len({op.end_s for op in all_.trace if op.kind == "all_gather" and not op.seq}) > 1


def averaged(rank, world_size):
    groups = dist.init_device_mesh("cpu", (world_size // 8, 8), mesh_dim_names=("dp", "tp"))
    x = torch.rand(1024)
    dist.all_reduce(x, group=groups.get_group("tp"))
    dist.all_reduce(x, group=groups.get_group("dp"))


def test_of_many_ranks_one_stands_for_its_place_in_the_node():
    many = simulated(averaged, 2048, nodes_of_eight(256), "auto", all_reduce="ring")
    few = simulated(averaged, 512, nodes_of_eight(64), "auto", all_reduce="ring")
    assert [len(ranks) for ranks in many.classes] == [2048]
    added_s = 8e-6 * 2 * (256 - 64)  # a latency for each round of the rings over nodes
    assert many.time_s == pytest.approx(few.time_s + added_s, rel=0.01)


def test_many_ranks_whose_places_differ_are_refused():
    def main(rank, world_size):
        dist.all_reduce(torch.rand(1_000_000))

    with pytest.raises(InvalidCallError, match="end all_reduce of .* at different moments"):
        simulated(main, 1032, nodes_of_eight(129), "auto", all_reduce="ring")


def test_of_ranks_that_did_not_run_nothing_is_made_up(tmp_path):
    run = simulated(averaged, 16, nodes_of_eight(2), "auto")
    others = list(range(1, 15))
    assert run.ran == [0, 15]
    assert np.isnan(run.states.computing_s[others]).all()
    assert not np.isnan(run.states.computing_s[run.ran]).any()
    row = run.table().splitlines()[4].split()
    assert row == ["1", "None", "-", "-", "0", "-", "-", "-"]
    assert "without" not in run.table() and "no profile" not in run.table()
    loaded = simlib.load(run.save(tmp_path / "run.json"))
    assert (loaded.classes, loaded.ran) == (run.classes, run.ran)
    assert repr(loaded) == repr(run)


def test_a_run_of_which_few_ranks_ran_is_not_replayed():
    run = simulated(averaged, 8, simlib.Cluster(2, 4, WAITING.inter, WAITING.intra), "auto")
    with pytest.raises(InvalidCallError, match="only ranks 0 and 7 ran, but a replay needs"):
        run.replay(WAITING)


def more_work(rank, world_size):
    a = torch.rand(64 if rank else 128, 64)
    a @ a.T
    dist.barrier()


def more_memory(rank, world_size):
    kept = torch.empty(1000 * (rank + 1))
    dist.barrier()
    return len(kept)


def one_barrier_more(rank, world_size):
    dist.barrier()
    if rank:
        dist.barrier()


def alone_in_a_group(rank, world_size):
    group = dist.new_group([0, 3])
    if rank in (0, 3):
        dist.all_reduce(torch.rand(4), group=group)


REFUSED = {
    more_work: "treats ranks 0 and 3 as equal, but they compute for .* s and .* s before rank 0",
    more_memory: "treats ranks 0 and 3 as equal, but they held .* and .* bytes at their peaks",
    one_barrier_more: "differ here: rank 0 has finished, but rank 3 reaches barrier",
    alone_in_a_group: "treats rank 1 as equal to a rank in .*, but rank 1 is in no group that corr",
}


@pytest.mark.parametrize("main", REFUSED, ids=lambda main: main.__name__)
def test_ranks_that_are_not_equal_are_refused_with_the_first_difference(main):
    with pytest.raises(InvalidCallError, match=REFUSED[main]):
        simulated(main, 4, WAITING, "auto", timeout_s=60)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"data": True}, "not possible with data=True"),
        ({"data": False, "expand": True}, "not possible with expand=True"),
        ({"data": False, "seed": 1}, "not possible with a number as seed="),
        ({"data": False, "kill": {0: 1.0}}, "not possible with slow= or kill="),
        ({"data": False, "alike": "yes"}, 'must be "auto", or a function'),
    ],
)
def test_what_equal_ranks_do_not_go_with_is_refused(how, words):
    with pytest.raises(InvalidCallError, match=words):
        simlib.simulate(sharded, 4, **{"alike": "auto", **how})


def tells_its_own(rank, world_size):
    told = [None] * world_size
    dist.all_gather_object(told, rank)
    if told != list(range(world_size)):
        raise ValueError(f"{told}")


def test_who_misses_what_others_have_to_tell_is_told_why():
    words = r"ranks 0 and 3 raised ValueError: \[0, 0, 0, 3\] .* leave alike= out"
    with pytest.raises(simlib.RankError, match=words):
        simulated(tells_its_own, 4, WAITING, "auto")


def test_a_function_names_the_classes():
    run = simulated(more_work, 4, WAITING, lambda rank: rank > 0)
    assert run.classes == [[0], [1, 2, 3]]


def test_groups_that_were_made_together_are_sisters():
    lists = [(0, 1), (2, 3), (0, 2), (1, 3), (0, 1, 2, 3)]
    assert sisters(lists, (0, 2)) == [(0, 2), (1, 3)]
    assert sisters(lists, (2, 3)) == [(2, 3), (0, 1)]
    assert sisters(lists, (0, 3)) == [(0, 3)]


def test_a_member_stands_for_those_of_its_class():
    assert twins((4, 5, 6, 7), {4, 6}, [0, 0, 0, 0, 0, 0, 1, 1]) == {0: [1], 2: [3]}
    with pytest.raises(InvalidCallError, match="as equal to a rank outside the group"):
        twins((0, 1), {0}, [0, 1])


def test_classes_split_by_places():
    assert Classes((0, 0, 0, 0)).split([0, 1, 0, 1]).members == {0: [0, 2], 1: [1, 3]}


def sleeps_before_it_waits(rank, world_size):
    event = torch.cpu.Event()
    event.record()
    simlib.compute(1e-3)
    time.sleep(1.0)
    event.synchronize()


def waits_twice(rank, world_size):
    event = torch.cpu.Event()
    event.record()
    event.synchronize()
    event.synchronize()
    time.sleep(1.0)


def waits_for_a_kernel_after_an_event(rank, world_size):
    x = torch.rand(512, 512)
    event = torch.cpu.Event()
    event.record()
    x @ x
    event.synchronize()
    torch.cpu.synchronize()
    time.sleep(1.0)


@pytest.mark.parametrize(
    "main",
    [sleeps_before_it_waits, waits_twice, waits_for_a_kernel_after_an_event],
    ids=lambda main: main.__name__,
)
def test_waiting_for_events_takes_the_time_that_it_takes(main):
    one, all_ = (simulated(main, 4, STREAMS, alike) for alike in ("auto", None))
    check_equal(one, all_)
    assert one.time_s >= 1.0


def one_root_that_is_neither_first_nor_last(rank, world_size):
    x = torch.rand(512, 512)
    if rank == 1:
        x = x @ x
    dist.broadcast(x, src=1)
    dist.gather(x, [torch.empty(512, 512) for _ in range(world_size)] if rank == 1 else None, dst=1)


def test_a_root_that_did_not_run_is_told_from_others():
    main = one_root_that_is_neither_first_nor_last
    one, all_ = (simulated(main, 4, WAITING, alike) for alike in ("auto", None))
    check_equal(one, all_)
    assert one.classes == [[0, 2, 3], [1]]


def objects_from(root):
    def main(rank, world_size):
        names = [{"a": 1}, "x"] if rank == root else [None, None]
        dist.broadcast_object_list(names, src=root)
        part, parts = [None], list(range(world_size)) if rank == root else None
        dist.scatter_object_list(part, parts, src=root)
        return names, part

    return main


@pytest.mark.parametrize("root", [0, 1])
def test_objects_come_from_a_root_that_is_told_from_others(root):
    one, all_ = (simulated(objects_from(root), 4, WAITING, alike) for alike in ("auto", None))
    check_equal(one, all_)
    assert one.classes == ([[0], [1, 2, 3]] if root == 0 else [[0, 2, 3], [1]])
    for rank in (0, 1, 3):
        assert one.results[rank] == ([{"a": 1}, "x"], [rank])


def to_each_other(rank, world_size):
    for first in range(0, world_size, 2):
        pair = dist.new_group([first, first + 1])
        if rank in (first, first + 1):
            own = pair
    x, place = torch.rand(512, 512), rank % 2
    x = x @ x if place else x
    request = dist.isend(x, group=own, group_dst=1 - place)
    dist.recv(x, group=own, group_src=1 - place)
    request.wait()


@pytest.mark.parametrize("ranks", [2, 4])
def test_two_that_run_and_send_to_each_other_are_told_apart(ranks):
    one, all_ = (simulated(to_each_other, ranks, WAITING, alike) for alike in ("auto", None))
    check_equal(one, all_)
    assert one.classes == [list(range(0, ranks, 2)), list(range(1, ranks, 2))]


def down_the_line(rank, world_size):
    half = world_size // 2
    if rank < half:
        dist.send(torch.rand(4), rank + half)
    else:
        dist.recv(torch.rand(4), rank - half)


def test_senders_to_different_ranks_are_told_apart():
    one, all_ = (
        simulated(down_the_line, 4, WAITING, alike) for alike in (lambda rank: rank // 2, None)
    )
    check_equal(one, all_)
    assert one.classes == [[0], [1], [2], [3]]


def polls(rank, world_size):
    work = dist.all_reduce(torch.rand(1000), async_op=True)
    while not work.is_completed():
        simlib.compute(1e-6)


def waits_for_so_long(rank, world_size):
    work = dist.all_reduce(torch.rand(1000), async_op=True)
    work.wait(datetime.timedelta(seconds=1))


def asks_an_event(rank, world_size):
    event = torch.cpu.Event()
    event.record()
    event.query()


def asks_for_elapsed_time(rank, world_size):
    event = torch.cpu.Event()
    event.record()
    event.synchronize()
    event.elapsed_time(event)


@pytest.mark.parametrize(
    ("main", "cluster", "words"),
    [
        (polls, WAITING, r"is_completed\(\)"),
        (waits_for_so_long, WAITING, "a time limit"),
        (asks_an_event, STREAMS, r"query\(\)"),
        (asks_for_elapsed_time, STREAMS, r"elapsed_time\(\)"),
    ],
)
def test_what_depends_on_the_time_of_communication_is_refused(main, cluster, words):
    with pytest.raises(InvalidCallError, match=f"{words} depends on the time of"):
        simulated(main, 4, cluster, "auto")


def averaged_between_two_nodes(rank, world_size):
    for first in range(0, world_size, 16):
        for place in range(first, first + 8):
            group = dist.new_group([place, place + 8])
            if rank in (place, place + 8):
                own = group
    dist.all_reduce(torch.rand(100_000), group=own)


def test_many_ranks_share_the_backbone():
    shared = dataclasses.replace(nodes_of_eight(130), backbone=simlib.Link(0, 1e10))
    run = simulated(averaged_between_two_nodes, 1040, shared, "auto", all_reduce="ring")
    assert run.time_s == pytest.approx(1040 * 400_000 / 1e10, rel=0.01)


def test_many_ranks_share_an_uplink():
    """Those of one rail and one group of nodes: a ring of two nodes for each of their places."""
    leaves = dict(nodes_per_leaf=65, uplink=simlib.Link(0, 1e9))
    cluster = dataclasses.replace(nodes_of_eight(130), **leaves)
    run = simulated(averaged_with_the_other_half, 1040, cluster, "auto", all_reduce="ring")
    assert run.time_s == pytest.approx(65 * 400_000 / 1e9, rel=0.01)


def averaged_with_the_other_half(rank, world_size):
    for low in range(world_size // 2):
        group = dist.new_group([low, low + world_size // 2])
        if rank in (low, low + world_size // 2):
            own = group
    dist.all_reduce(torch.rand(100_000), group=own)

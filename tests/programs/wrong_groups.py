"""Process groups made or used differently, and waits that go round through several groups."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from .registry import wrong


@wrong("unfinished")
class Unfinished:
    def new_group_by_its_members_only(rank, n=4):
        if rank < 2:
            dist.new_group([0, 1])  # <- ranks 0, 1


@wrong("deadlock")
class Deadlocks:
    def new_group_by_all_but_one(rank, n=3):
        if rank:
            dist.new_group([0, 1, 2])  # <- ranks 1, 2

    def local_new_group_without_a_member(rank, n=3):
        if rank == 0:
            dist.new_group([0, 1], use_local_synchronization=True)  # <- rank 0

    def new_group_awaited_by_a_recv(rank, n=2):
        if rank == 0:
            dist.new_group([0, 1])  # <- rank 0
            dist.send(torch.ones(1), 1)
        else:
            dist.recv(torch.zeros(1), 0)  # <- rank 1
            dist.new_group([0, 1])

    def device_mesh_on_half_of_the_ranks(rank, n=4):
        if rank < 2:
            init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))  # <- ranks 0, 1

    def three_groups_in_a_circle(rank, n=3):
        groups = [dist.new_group([r, (r + 1) % n]) for r in range(n)]
        mine, previous = groups[rank], groups[(rank - 1) % n]
        dist.all_reduce(torch.ones(1), group=mine)  # <- every rank
        dist.all_reduce(torch.ones(1), group=previous)

    def rows_first_or_columns_first(rank, n=4):
        rows = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
        columns = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
        mine = [rows[rank // 2], columns[rank % 2]]
        for group in mine if rank in (0, 3) else mine[::-1]:
            dist.all_reduce(torch.ones(1), group=group)  # <- every rank

    def two_groups_of_the_same_ranks_swapped(rank, n=2):
        one, two = dist.new_group([0, 1]), dist.new_group([0, 1])
        for group in (one, two) if rank == 0 else (two, one):
            dist.all_reduce(torch.ones(1), group=group)  # <- every rank

    def world_against_group(rank, n=2):
        pair = dist.new_group([0, 1])
        dist.all_reduce(torch.ones(1), group=pair if rank == 0 else None)  # <- every rank

    def world_collective_inside_a_group_branch(rank, n=3):
        pair = dist.new_group([0, 1])
        if rank < 2:
            dist.all_reduce(torch.ones(1), group=pair)
            dist.barrier()  # <- ranks 0, 1

    def group_member_goes_to_the_world_first(rank, n=3):
        pair = dist.new_group([0, 1])
        if rank == 0:
            dist.all_reduce(torch.ones(1), group=pair)  # <- rank 0
        dist.all_reduce(torch.ones(1))  # <- ranks 1, 2
        if rank == 1:
            dist.all_reduce(torch.ones(1), group=pair)

    def send_in_a_group_recv_in_the_world(rank, n=2):
        pair = dist.new_group([0, 1])
        if rank == 0:
            dist.send(torch.ones(1), 1, group=pair)  # <- rank 0
        else:
            dist.recv(torch.zeros(1), 0)  # <- rank 1

    def circle_of_a_group_and_messages(rank, n=3):
        pair = dist.new_group([0, 1])
        if rank == 0:
            dist.barrier(group=pair)  # <- rank 0
            dist.send(torch.ones(1), 2)
        elif rank == 1:
            dist.recv(torch.zeros(1), 2)  # <- rank 1
            dist.barrier(group=pair)
        else:
            dist.recv(torch.zeros(1), 0)  # <- rank 2
            dist.send(torch.ones(1), 1)

    def pair_waits_for_a_member_that_has_finished(rank, n=4):
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        if rank != 3:
            dist.all_reduce(torch.ones(1), group=pairs[rank // 2])  # <- rank 2


@wrong("mismatch")
class Mismatches:
    def new_group_of_other_ranks(rank, n=2):
        dist.new_group([0, 1] if rank == 0 else [1])  # <- every rank

    def new_groups_made_in_another_order(rank, n=4):
        for ranks in ([0, 1], [2, 3]) if rank == 0 else ([2, 3], [0, 1]):
            dist.new_group(ranks)  # <- every rank

    def everybody_makes_its_own_pair(rank, n=4):
        first = rank - rank % 2
        pair = dist.new_group([first, first + 1])  # <- two ranks
        dist.all_reduce(torch.ones(1), group=pair)

    def lengths_differ_in_a_group(rank, n=3):
        pair = dist.new_group([1, 2])
        if rank:
            dist.all_reduce(torch.ones(rank), group=pair)  # <- ranks 1, 2

    def roots_differ_in_a_group(rank, n=4):
        high = dist.new_group([2, 3])
        if rank >= 2:
            dist.broadcast(torch.ones(1), src=rank, group=high)  # <- ranks 2, 3

    def order_differs_in_a_group(rank, n=3):
        pair = dist.new_group([0, 2])
        x = torch.ones(2)
        if rank == 0:
            dist.reduce(x, dst=0, group=pair)  # <- rank 0
            dist.broadcast(x, src=0, group=pair)
        elif rank == 2:
            dist.broadcast(x, src=0, group=pair)  # <- rank 2
            dist.reduce(x, dst=0, group=pair)


@wrong("invalid")
class Invalid:
    def root_is_counted_within_the_group(rank, n=4):
        high = dist.new_group([2, 3])
        if rank >= 2:
            dist.broadcast(torch.ones(1), src=1, group=high)  # <- ranks 2, 3

    def dst_is_no_member_of_the_group(rank, n=4):
        high = dist.new_group([2, 3])
        if rank == 2:
            dist.send(torch.ones(1), 0, group=high)  # <- rank 2

    def new_group_of_ranks_that_do_not_exist(rank, n=2):
        dist.new_group([0, 5])  # <- every rank

    def subgroups_that_do_not_divide_the_world(rank, n=3):
        dist.new_subgroups(2)  # <- every rank

"""Right programs with process groups that a careless checker flags."""

import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from .registry import right, wait_all


@right
class Programs:
    def overlapping_groups(rank, n=4):
        groups = [dist.new_group([0, 1, 2]), dist.new_group([1, 2, 3]), dist.new_group([0, 3])]
        x = torch.ones(1)
        for group, members in zip(groups, ([0, 1, 2], [1, 2, 3], [0, 3]), strict=True):
            if rank in members:
                dist.all_reduce(x, group=group)

    def chain_of_groups(rank, n=4):
        groups = [dist.new_group([r, r + 1]) for r in range(n - 1)]
        x = torch.ones(1)
        if rank > 0:
            dist.all_reduce(x, group=groups[rank - 1])
        if rank < n - 1:
            dist.all_reduce(x, group=groups[rank])

    def rows_and_columns(rank, n=4):
        rows = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
        columns = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
        mine = [rows[rank // 2], columns[rank % 2]]
        for group in mine if rank == 0 else mine[::-1]:
            dist.all_reduce(torch.ones(1), group=group)

    def other_order_of_groups_on_each_rank(rank, n=3):
        groups = [dist.new_group([r, (r + 1) % n]) for r in range(n)]
        xs = [torch.ones(2), torch.ones(2)]
        mine = [groups[rank], groups[(rank - 1) % n]]
        wait_all([dist.all_reduce(xs[i], group=mine[i], async_op=True) for i in (0, 1)])
        assert all(x.tolist() == [2, 2] for x in xs)

    def async_in_two_groups_of_the_same_ranks(rank, n=2):
        groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
        xs = [torch.ones(1), torch.ones(3)]
        requests = [None, None]
        for i in (0, 1) if rank == 0 else (1, 0):
            requests[i] = dist.all_reduce(xs[i], group=groups[i], async_op=True)
        wait_all(requests)

    def groups_do_other_things_at_the_same_time(rank, n=4):
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        x = torch.ones(1 + rank // 2)
        for _ in range(1 + 50 * (rank // 2)):
            if rank < 2:
                dist.broadcast(x, src=1, group=groups[0])
            else:
                dist.all_reduce(x, op=dist.ReduceOp.MAX, group=groups[1])

    def one_group_sleeps_while_the_other_works(rank, n=4):
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        time.sleep(0.7 if rank == 0 else 0)
        for _ in range(20):
            dist.barrier(group=groups[rank // 2])
        dist.barrier()

    def group_made_by_its_members_only(rank, n=4):
        if rank >= 2:
            pair = dist.new_group([2, 3], use_local_synchronization=True)
            dist.all_reduce(torch.ones(1), group=pair)
        dist.barrier()

    def everybody_makes_its_own_pair_locally(rank, n=4):
        first = rank - rank % 2
        pair = dist.new_group([first, first + 1], use_local_synchronization=True)
        x = torch.ones(1)
        dist.all_reduce(x, group=pair)
        assert x.item() == 2

    def ranks_of_a_group_in_another_order(rank, n=4):
        group = dist.new_group([3, 1] if rank % 2 else [1, 3])
        x = torch.tensor([float(rank)])
        if rank % 2:
            dist.broadcast(x, src=3, group=group)
            assert x.item() == 3

    def straggler_before_new_group(rank, n=3):
        time.sleep(0.3 * rank)
        groups = [dist.new_group([0, 1]), dist.new_group([1, 2])]
        if rank == 1:
            for group in groups:
                dist.barrier(group=group)
        else:
            dist.barrier(group=groups[rank // 2])

    def many_groups(rank, n=4):
        for first in range(3):
            for last in range(first + 1, 4):
                group = dist.new_group([first, last])
                if rank in (first, last):
                    dist.all_reduce(torch.ones(1), group=group)

    def group_destroyed_and_another_made(rank, n=4):
        for _ in range(3):
            group = dist.new_group([0, 3])
            if rank in (0, 3):
                dist.all_reduce(torch.ones(1), group=group)
                dist.destroy_process_group(group)

    def subgroups_and_mesh(rank, n=4):
        pair, _ = dist.new_subgroups(2)
        dist.all_reduce(torch.ones(1), group=pair)
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        groups = [mesh.get_group(name) for name in ("dp", "tp")]
        mine = groups if rank in (0, 3) else groups[::-1]
        wait_all([dist.all_reduce(torch.ones(1), group=group, async_op=True) for group in mine])

    def same_tag_in_two_groups(rank, n=4):
        pair = dist.new_group([0, 3])
        x, y = torch.zeros(1), torch.zeros(1)
        if rank == 0:
            requests = [dist.isend(x + 1, 3), dist.isend(x + 2, 3, group=pair)]
            wait_all(requests)
        elif rank == 3:
            dist.recv(y, 0, group=pair)
            dist.recv(x, 0)
            assert (x.item(), y.item()) == (1, 2)

    def ranks_counted_within_the_group(rank, n=4):
        high = dist.new_group([2, 3])
        x = torch.tensor([float(rank)])
        if rank >= 2:
            dist.broadcast(x, group=high, group_src=1)
            dist.send(x, group=high, group_dst=1) if rank == 2 else dist.recv(
                x, group=high, group_src=0
            )
            assert x.item() == 3

    def collective_of_a_group_one_is_not_in(rank, n=3):
        pair = dist.new_group([0, 1])
        x = torch.ones(1)
        dist.all_reduce(x, group=pair)
        assert x.item() == (1 if rank == 2 else 2)

    def any_source_in_a_group(rank, n=4):
        odd = dist.new_group([1, 2, 3])
        x = torch.tensor([float(rank)])
        if rank == 1:
            assert sorted(dist.recv(x, group=odd) for _ in range(2)) == [2, 3]
        elif rank:
            dist.send(x, 1, group=odd)
        dist.barrier()

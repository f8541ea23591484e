"""Right programs of collectives that a careless checker flags."""

import time

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as funcol
from torch.distributed.nn import functional as differentiable

from .registry import right, wait_all


@right
class Programs:
    def straggler_before_an_all_reduce(rank, n=3):
        x = torch.ones(1)
        time.sleep(0.5 * rank)
        dist.all_reduce(x)
        assert x.item() == n

    def same_collective_on_another_line(rank, n=3):
        x = torch.ones(1)
        if rank == 0:
            x += 1
            dist.all_reduce(x)
        else:
            dist.all_reduce(x)
        assert x.item() == 4

    def root_on_a_line_of_its_own(rank, n=3):
        x = torch.tensor([float(rank)])
        if rank == 0:
            parts = [torch.zeros(1) for _ in range(n)]
            dist.gather(x, parts, dst=0)
            dist.scatter(x, parts[::-1], src=0)
        else:
            dist.gather(x, dst=0)
            dist.scatter(x, src=0)
        assert x.item() == n - 1 - rank

    def early_return_of_all(rank, n=2):
        x = torch.tensor([float(rank)])
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
        if x.item() > 0:
            return
        dist.barrier()

    def finishers_after_the_last_collective(rank, n=4):
        dist.barrier()
        time.sleep(0.2 * rank)

    def three_thousand_all_reduces(rank, n=2):
        x = torch.ones(1)
        for _ in range(3000):
            dist.all_reduce(x, op=dist.ReduceOp.MAX)

    def async_collectives_waited_in_reverse(rank, n=3):
        xs = [torch.full((4,), float(i)) for i in range(10)]
        requests = [dist.all_reduce(x, async_op=True) for x in xs]
        wait_all(requests[::-1])
        assert [x[0].item() for x in xs] == [3 * i for i in range(10)]

    def async_collectives_waited_in_another_order_on_each_rank(rank, n=3):
        xs = [torch.ones(2) for _ in range(n)]
        requests = [dist.broadcast(x, src=0, async_op=True) for x in xs]
        for i in range(n):
            requests[(i + rank) % n].wait()

    def blocking_and_async_collective_meet(rank, n=3):
        x = torch.ones(1)
        if rank == 1:
            request = dist.all_reduce(x, async_op=True)
            time.sleep(0.2)
            request.wait()
        else:
            dist.all_reduce(x)
        assert x.item() == 3

    def messages_while_a_collective_is_pending(rank, n=2):
        x, y = torch.ones(8), torch.zeros(1)
        request = dist.all_reduce(x, async_op=True)
        dist.send(torch.ones(1), 1) if rank == 0 else dist.recv(y, 0)
        request.wait()

    def collective_joined_late_beside_messages(rank, n=2):
        x, y = torch.ones(1), torch.ones(1)
        if rank == 0:
            request = dist.all_reduce(x, async_op=True)
            dist.send(y, 1)
            request.wait()
        else:
            dist.recv(y, 0)
            dist.all_reduce(x)

    def same_number_of_elements_in_another_shape(rank, n=2):
        x = torch.ones(2, 3) if rank == 0 else torch.ones(6)
        dist.all_reduce(x)
        dist.broadcast(x, src=1)
        assert x.sum().item() == 12

    def tensors_of_no_elements(rank, n=3):
        x = torch.ones(0, 4)
        dist.all_reduce(x)
        dist.broadcast(x, src=0)
        dist.all_gather([torch.zeros(0) for _ in range(n)], torch.zeros(0))

    def tensor_without_dimensions(rank, n=2):
        x = torch.tensor(2.0)
        dist.all_reduce(x)
        dist.broadcast(x, src=1)
        assert x.item() == 4

    def columns_and_transposes(rank, n=2):
        x = torch.arange(12.0).reshape(3, 4)
        column = x[:, 1].contiguous()
        dist.all_reduce(column)
        dist.all_reduce(x[1])
        assert x[1].tolist() == [8, 10, 12, 14] and column.tolist() == [2, 10, 18]

    def many_dtypes(rank, n=3):
        for name in "uint8 int8 int32 int64 float16 bfloat16 float32 float64".split():
            x = torch.ones(3, dtype=getattr(torch, name))
            dist.all_reduce(x)
            assert x.tolist() == [3, 3, 3]

    def many_reductions(rank, n=3):
        for name, expected in (("SUM", 6), ("PRODUCT", 6), ("MIN", 1), ("MAX", 3)):
            x = torch.tensor([rank + 1])
            dist.all_reduce(x, op=getattr(dist.ReduceOp, name))
            assert x.item() == expected

    def large_all_reduce(rank, n=2):
        x = torch.ones(4_000_000)
        dist.all_reduce(x)
        assert x[-1].item() == 2

    def objects_of_other_sizes(rank, n=4):
        everyones = [None] * n
        dist.all_gather_object(everyones, "x" * 10**rank)
        assert [len(text) for text in everyones] == [1, 10, 100, 1000]

    def objects_gathered_broadcast_and_scattered(rank, n=3):
        everyones = [None] * n if rank == 1 else None
        dist.gather_object({"rank": rank}, everyones, dst=1)
        told = ["from 0", 7] if rank == 0 else [None, None]
        dist.broadcast_object_list(told, src=0)
        part = [None]
        dist.scatter_object_list(part, list(range(n)) if rank == 2 else [None] * n, src=2)
        assert told == ["from 0", 7] and part == [rank]

    def uneven_splits(rank, n=2):
        give, take = ([1, 3], [1, 2]) if rank == 0 else ([2, 4], [3, 4])
        out = torch.empty(sum(take))
        dist.all_to_all_single(out, torch.ones(sum(give)) * rank, take, give)
        assert out.tolist() == [0.0] * take[0] + [1.0] * take[1]

    def splits_of_zero(rank, n=3):
        give = [0] * n
        give[(rank + 1) % n] = 2
        take = [0] * n
        take[(rank - 1) % n] = 2
        out = torch.empty(2)
        dist.all_to_all_single(out, torch.full((2,), float(rank)), take, give)
        assert out.tolist() == [(rank - 1) % n] * 2

    def async_collective_polled(rank, n=2):
        x = torch.ones(1)
        time.sleep(0.3 * rank)
        request = dist.all_reduce(x, async_op=True)
        while not request.is_completed():
            pass
        request.wait()
        assert x.item() == 2

    def async_collective_waited_twice(rank, n=2):
        x = torch.ones(1)
        request = dist.all_reduce(x, async_op=True)
        request.wait()
        request.wait()
        assert x.item() == 2

    def every_collective_once(rank, n=4):
        x, whole = torch.ones(2), torch.empty(2 * n)
        parts = [torch.ones(2) for _ in range(n)]
        dist.broadcast(x, src=3)
        dist.reduce(x, dst=2)
        dist.all_gather(parts, x)
        dist.all_gather_into_tensor(whole, x)
        dist.reduce_scatter(x, parts)
        dist.reduce_scatter_tensor(x, whole)
        dist.all_to_all([torch.empty(2) for _ in range(n)], parts)
        dist.barrier()

    def monitored_barriers(rank, n=3):
        for _ in range(3):
            time.sleep(0.05 * rank)
            dist.monitored_barrier()

    def async_barrier(rank, n=3):
        request = dist.barrier(async_op=True)
        time.sleep(0.1 * rank)
        request.wait()

    def functional_collectives(rank, n=3):
        x = torch.arange(6.0) + rank
        summed = funcol.all_reduce(x, "sum", dist.group.WORLD)
        gathered = funcol.all_gather_tensor(x, 0, dist.group.WORLD)
        scattered = funcol.reduce_scatter_tensor(x, "sum", 0, dist.group.WORLD)
        x += 1
        assert scattered.shape == (2,) and gathered.shape == (18,)
        assert summed.tolist() == [3.0 * i + 3 for i in range(6)]

    def functional_collective_whose_result_is_not_used(rank, n=3):
        x = torch.ones(4)
        funcol.all_reduce(x, "sum", dist.group.WORLD)
        dist.barrier()

    def differentiable_collectives(rank, n=3):
        x = torch.ones(3, requires_grad=True)
        differentiable.all_reduce(x * rank).sum().backward()
        assert x.grad.tolist() == [3.0 * rank] * 3

    def one_rank_prints_and_others_wait(rank, n=4):
        for step in range(5):
            if rank == 0:
                print("step", step)
                time.sleep(0.05)
            dist.barrier()

    def collective_after_a_handled_exception(rank, n=2):
        x = torch.ones(1)
        try:
            x.reshape(2) if rank == 0 else x
        except RuntimeError:
            pass
        dist.all_reduce(x)

    def world_of_one(rank, n=1):
        x = torch.ones(2)
        dist.all_reduce(x)
        dist.barrier()
        dist.broadcast(x, src=0)
        dist.gather(x, [torch.zeros(2)], dst=0)

    def buffer_written_after_the_wait(rank, n=2):
        x = torch.ones(4)
        for _ in range(10):
            request = dist.all_reduce(x, async_op=True)
            request.wait()
            x /= n
        assert x.tolist() == [1, 1, 1, 1]

    def other_tensors_written_while_one_is_reduced(rank, n=2):
        x, y = torch.ones(100), torch.zeros(100)
        request = dist.all_reduce(x, async_op=True)
        y.add_(1)
        y.mul_(2)
        request.wait()
        assert (x + y).sum().item() == 400

    def halves_of_one_tensor_reduced_at_once(rank, n=2):
        x = torch.ones(10)
        wait_all([dist.all_reduce(half, async_op=True) for half in x.chunk(2)])
        assert x.sum().item() == 20

    def sparse_gradients(rank, n=2):
        x = torch.sparse_coo_tensor([[rank]], [1.0], (4,))
        dist.all_reduce(x)
        assert x.to_dense().tolist() == [1, 1, 0, 0]

    def init_process_group_by_the_program(rank, n=2):
        dist.init_process_group("gloo", rank=rank, world_size=n)
        dist.barrier()
        dist.destroy_process_group()

    def async_collective_looked_at_between_naps(rank, n=2):
        x = torch.ones(1)
        time.sleep(0.2 * rank)
        request = dist.all_reduce(x, async_op=True)
        while not request.is_completed():
            time.sleep(0.02)
        request.wait()
        assert x.item() == 2

    def a_gather_waited_for_after_a_later_scatter(rank, n=3):
        part, whole = torch.full((2,), float(rank)), torch.empty(2 * n)
        gather = dist.all_gather_into_tensor(whole, part.clone(), async_op=True)
        out = torch.empty(2)
        scatter = dist.reduce_scatter_tensor(out, torch.ones(2 * n), async_op=True)
        scatter.wait()
        gather.wait()
        assert out.tolist() == [n, n] and whole.tolist() == [0, 0, 1, 1, 2, 2]

    def lists_gathered_beside_other_collectives(rank, n=3):
        parts, mine = [torch.empty(1) for _ in range(n)], torch.ones(1)
        requests = [
            dist.all_gather(parts, torch.tensor([float(rank)]), async_op=True),
            dist.all_reduce(mine, async_op=True),
        ]
        wait_all(reversed(requests))
        assert torch.cat(parts).tolist() == [0, 1, 2] and mine.item() == n

    def swapped_parts_waited_for_late(rank, n=3):
        give = [torch.tensor([float(10 * rank + dst)]) for dst in range(n)]
        take = [torch.empty(1) for _ in range(n)]
        request = dist.all_to_all(take, give, async_op=True)
        time.sleep(0.05)
        request.wait()
        assert torch.cat(take).tolist() == [10.0 * src + rank for src in range(n)]

    def interleaved_slices_gathered_at_once(rank, n=2):
        x = torch.zeros(8)
        requests = [
            dist.all_gather([x[i::4], x[i + 1 :: 4]], torch.full((2,), rank + 1.0), async_op=True)
            for i in (0, 2)
        ]
        wait_all(requests)
        assert x.tolist() == [1, 2, 1, 2] * 2

    def columns_of_one_matrix_gathered_at_once(rank, n=3):
        x = torch.zeros(5, 4 * n)
        requests = [
            dist.all_gather(
                list(x[:, i * n : (i + 1) * n].t()), torch.full((5,), float(rank)), async_op=True
            )
            for i in range(4)
        ]
        wait_all(requests)
        assert x.tolist() == [[0, 1, 2] * 4] * 5

    def transposed_blocks_reduced_at_once(rank, n=2):
        x = torch.ones(4, 3)
        wait_all([dist.all_reduce(block.t(), async_op=True) for block in x.split(2)])
        assert x.eq(n).all()

    def one_tensor_gathered_twice_at_once(rank, n=2):
        x, whole = torch.full((2,), float(rank)), torch.zeros(4)
        parts = [torch.zeros(2), torch.zeros(2)]
        requests = [
            dist.all_gather_into_tensor(whole, x, async_op=True),
            dist.all_gather(parts, x, async_op=True),
            dist.isend(x, 1 - rank),
        ]
        dist.recv(torch.zeros(2), 1 - rank)
        wait_all(requests)
        assert whole.tolist() == torch.cat(parts).tolist() == [0, 0, 1, 1]

    def one_tensor_broadcast_in_two_groups_at_once(rank, n=3):
        groups = [dist.new_group([0, other]) for other in (1, 2)]
        x = torch.full((4,), 5.0 if rank == 0 else 0.0)
        mine = groups if rank == 0 else [groups[rank - 1]]
        wait_all([dist.broadcast(x, src=0, group=group, async_op=True) for group in mine])
        assert x.tolist() == [5.0] * 4

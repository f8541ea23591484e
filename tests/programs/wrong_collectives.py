"""Collectives that some ranks do not call, or that their ranks call differently."""

import torch
import torch.distributed as dist

from .registry import wait_all, wrong


@wrong("deadlock")
class Deadlocks:
    def rank_0_alone(rank, n=4):
        x = torch.ones(1)
        if rank == 0:
            dist.all_reduce(x)  # <- rank 0

    def all_but_rank_0(rank, n=4):
        x = torch.ones(1)
        if rank != 0:
            dist.all_reduce(x)  # <- ranks 1, 2, 3

    def rank_0_alone_meets_a_barrier(rank, n=3):
        dist.barrier()
        if rank == 0:
            dist.barrier()  # <- rank 0

    def early_return(rank, n=2):
        x = torch.tensor([float(rank)])
        if x.item() > 0:
            return
        dist.broadcast(x, src=0)  # <- rank 0

    def loops_of_different_lengths(rank, n=3):
        x = torch.ones(1)
        for _ in range(3 + rank):
            dist.all_reduce(x)  # <- ranks 1, 2

    def own_exception_handled_instead_of_joining(rank, n=2):
        x = torch.ones(1)
        try:
            x = x / 0 if rank == 0 else x.reshape(7)
            dist.all_reduce(x)  # <- rank 0
        except RuntimeError:
            pass

    def broadcast_root_is_expected_to_go_on(rank, n=2):
        x, y = torch.ones(1), torch.ones(1)
        if rank == 0:
            dist.broadcast(x, src=0)  # <- rank 0
            dist.send(y, 1)
        else:
            dist.recv(y, 0)  # <- rank 1
            dist.broadcast(x, src=0)

    def gather_leaf_is_expected_to_go_on(rank, n=2):
        x, y = torch.ones(1), torch.ones(1)
        if rank == 1:
            dist.gather(x, dst=0)  # <- rank 1
            dist.send(y, 0)
        else:
            dist.recv(y, 1)  # <- rank 0
            dist.gather(x, [torch.zeros(1), torch.zeros(1)], dst=0)

    def reduce_leaf_is_expected_to_go_on(rank, n=2):
        x, y = torch.ones(1), torch.ones(1)
        if rank == 1:
            dist.reduce(x, dst=0)  # <- rank 1
            dist.send(y, 0)
        else:
            dist.recv(y, 1)  # <- rank 0
            dist.reduce(x, dst=0)

    def scatter_root_is_expected_to_go_on(rank, n=2):
        x, y = torch.ones(1), torch.ones(1)
        if rank == 0:
            dist.scatter(x, [torch.ones(1), torch.ones(1)], src=0)  # <- rank 0
            dist.send(y, 1)
        else:
            dist.recv(y, 0)  # <- rank 1
            dist.scatter(x, src=0)

    def async_collective_waited_before_the_other_joins(rank, n=2):
        x, y = torch.ones(1), torch.ones(1)
        if rank == 0:
            request = dist.all_reduce(x, async_op=True)  # <- rank 0
            request.wait()
            dist.send(y, 1)
        else:
            dist.recv(y, 0)  # <- rank 1
            dist.all_reduce(x)

    def second_of_two_async_collectives_is_missing(rank, n=2):
        x, y = torch.ones(1), torch.ones(1)
        requests = [dist.all_reduce(x, async_op=True)]
        if rank == 0:
            requests.append(dist.all_reduce(y, async_op=True))  # <- rank 0
        wait_all(requests)

    def object_gather_on_one_rank(rank, n=3):
        if rank == 2:
            dist.all_gather_object([None] * n, "me")  # <- rank 2

    def checkpoint_gathers_on_rank_0(rank, n=3):
        weights = torch.ones(4)
        dist.all_reduce(weights)
        if rank == 0:
            parts = [torch.empty(4) for _ in range(n)]
            dist.all_gather(parts, weights)  # <- rank 0

    def monitored_barrier_without_rank_2(rank, n=3):
        if rank < 2:
            dist.monitored_barrier()  # <- ranks 0, 1


@wrong("mismatch")
class Mismatches:
    def one_reduces_the_other_broadcasts(rank, n=2):
        x = torch.ones(1)
        if rank == 0:
            dist.all_reduce(x)  # <- rank 0
        else:
            dist.broadcast(x, src=0)  # <- rank 1

    def one_of_four_calls_reduce(rank, n=4):
        x = torch.ones(1)
        if rank == 2:
            dist.reduce(x, dst=0)  # <- rank 2
        else:
            dist.all_reduce(x)

    def barrier_and_all_reduce_swapped(rank, n=2):
        x = torch.ones(1)
        if rank == 0:
            dist.barrier()  # <- rank 0
            dist.all_reduce(x)
        else:
            dist.all_reduce(x)  # <- rank 1
            dist.barrier()

    def two_all_reduces_swapped(rank, n=2):
        weight, bias = torch.ones(6), torch.ones(2)
        first, second = (weight, bias) if rank == 0 else (bias, weight)
        dist.all_reduce(first)  # <- every rank
        dist.all_reduce(second)

    def async_broadcasts_swapped(rank, n=2):
        x, y = torch.ones(1), torch.ones(1)
        roots = (0, 1) if rank == 0 else (1, 0)
        first = dist.broadcast(x, src=roots[0], async_op=True)  # <- every rank
        second = dist.broadcast(y, src=roots[1], async_op=True)
        first.wait()
        second.wait()

    def rank_0_makes_an_extra_broadcast(rank, n=2):
        x = torch.ones(3)
        if rank == 0:
            dist.broadcast(x, src=0)  # <- rank 0
        dist.all_reduce(x)  # <- rank 1

    def everybody_is_root_of_the_broadcast(rank, n=3):
        dist.broadcast(torch.ones(1), src=rank)  # <- two ranks

    def two_roots_of_a_broadcast(rank, n=2):
        dist.broadcast(torch.ones(1), src=rank)  # <- every rank

    def two_roots_of_a_reduce(rank, n=2):
        dist.reduce(torch.ones(1), dst=1 - rank)  # <- every rank

    def two_roots_of_a_gather(rank, n=2):
        dist.gather(torch.ones(1), [torch.zeros(1) for _ in range(n)], dst=rank)  # <- every rank

    def two_roots_of_a_scatter(rank, n=2):
        dist.scatter(torch.zeros(1), [torch.ones(1) for _ in range(n)], src=rank)  # <- every rank

    def nobody_is_root_of_the_scatter(rank, n=2):
        dist.scatter(torch.zeros(1), src=1 - rank)  # <- every rank

    def sum_against_max(rank, n=2):
        op = dist.ReduceOp.SUM if rank == 0 else dist.ReduceOp.MAX
        dist.all_reduce(torch.ones(1), op=op)  # <- every rank

    def one_of_four_takes_the_product(rank, n=4):
        op = dist.ReduceOp.PRODUCT if rank == 3 else dist.ReduceOp.SUM
        dist.all_reduce(torch.ones(1), op=op)  # <- rank 3

    def reduce_with_min_and_max(rank, n=2):
        op = dist.ReduceOp.MIN if rank == 0 else dist.ReduceOp.MAX
        dist.reduce(torch.ones(1), dst=0, op=op)  # <- every rank

    def float_against_int(rank, n=2):
        dtype = torch.float32 if rank == 0 else torch.int32
        dist.all_reduce(torch.ones(1, dtype=dtype))  # <- every rank

    def broadcast_of_double_into_float(rank, n=2):
        dtype = torch.float64 if rank == 0 else torch.float32
        dist.broadcast(torch.ones(4, dtype=dtype), src=0)  # <- every rank

    def all_gather_of_half_and_float(rank, n=2):
        x = torch.ones(2, dtype=torch.float16 if rank == 0 else torch.float32)
        dist.all_gather([torch.empty_like(x) for _ in range(n)], x)  # <- every rank

    def all_reduce_of_other_lengths(rank, n=2):
        dist.all_reduce(torch.ones(4 + rank))  # <- every rank

    def one_of_four_has_one_element_more(rank, n=4):
        dist.all_reduce(torch.ones(5 if rank == 1 else 4))  # <- rank 1

    def long_all_reduce_of_other_lengths(rank, n=2):
        dist.all_reduce(torch.ones(200_000 + rank))  # <- every rank

    def broadcast_of_other_lengths(rank, n=2):
        dist.broadcast(torch.ones(4 - rank), src=0)  # <- every rank

    def last_batch_is_smaller(rank, n=2):
        data = torch.arange(5.0)
        mine = data[:3] if rank == 0 else data[3:]
        dist.all_gather([torch.empty_like(mine) for _ in range(n)], mine)  # <- every rank

    def all_gather_into_tensor_of_other_lengths(rank, n=2):
        mine = torch.ones(2 + rank)
        dist.all_gather_into_tensor(torch.empty(n * len(mine)), mine)  # <- every rank

    def reduce_scatter_of_other_lengths(rank, n=2):
        mine = torch.empty(2 + rank)
        dist.reduce_scatter_tensor(mine, torch.ones(n * len(mine)))  # <- every rank

    def gather_of_other_lengths(rank, n=2):
        parts = [torch.empty(2) for _ in range(n)] if rank == 0 else None
        dist.gather(torch.ones(2 + rank), parts, dst=0)  # <- every rank

    def scatter_into_another_length(rank, n=2):
        parts = [torch.ones(2) for _ in range(n)] if rank == 0 else None
        dist.scatter(torch.empty(2 + rank), parts, src=0)  # <- every rank

    def all_to_all_of_other_lengths(rank, n=2):
        mine = [torch.ones(1 + rank) for _ in range(n)]
        dist.all_to_all([torch.empty(1 + rank) for _ in range(n)], mine)  # <- every rank

    def splits_that_do_not_meet(rank, n=2):
        give = [1, 3]
        take = [2, 2]
        dist.all_to_all_single(torch.empty(4), torch.ones(4), take, give)  # <- every rank

    def input_and_output_splits_exchanged(rank, n=2):
        give, take = ([1, 3], [1, 2]) if rank == 0 else ([3, 4], [2, 4])
        out = torch.empty(sum(take))
        dist.all_to_all_single(out, torch.ones(sum(give)), take, give)  # <- every rank

    def object_lists_broadcast_with_other_lengths(rank, n=2):
        objects = ["a", "b"] if rank == 0 else [None]
        dist.broadcast_object_list(objects, src=0)  # <- every rank

    def object_against_tensor(rank, n=2):
        if rank == 0:
            dist.all_gather_object([None] * n, "me")  # <- rank 0
        else:
            dist.all_reduce(torch.ones(1))  # <- rank 1

    def object_broadcast_from_two_roots(rank, n=2):
        dist.broadcast_object_list(["mine"], src=rank)  # <- every rank

    def mismatch_after_a_thousand_matches(rank, n=2):
        x = torch.ones(1)
        for step in range(1001):
            op = dist.ReduceOp.MIN if (rank, step) == (1, 1000) else dist.ReduceOp.MAX
            dist.all_reduce(x, op=op)  # <- every rank

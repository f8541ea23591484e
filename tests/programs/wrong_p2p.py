"""Sends and receives that never meet, or meet and disagree."""

import torch
import torch.distributed as dist

from .registry import wait_all, wrong


@wrong("deadlock")
class Deadlocks:
    def both_send_first(rank, n=2):
        x, y = torch.ones(1), torch.zeros(1)
        dist.send(x, 1 - rank)  # <- every rank
        dist.recv(y, 1 - rank)

    def both_recv_first(rank, n=2):
        x, y = torch.ones(1), torch.zeros(1)
        dist.recv(y, 1 - rank)  # <- every rank
        dist.send(x, 1 - rank)

    def both_send_first_on_different_lines(rank, n=2):
        x = torch.ones(1)
        if rank == 0:
            dist.send(x, 1)  # <- rank 0
            dist.recv(x, 1)
        else:
            dist.send(x, 0)  # <- rank 1
            dist.recv(x, 0)

    def ring_of_sends(rank, n=4):
        x, y = torch.ones(1), torch.zeros(1)
        dist.send(x, (rank + 1) % n)  # <- every rank
        dist.recv(y, (rank - 1) % n)

    def ring_of_recvs(rank, n=4):
        x, y = torch.ones(1), torch.zeros(1)
        dist.recv(y, (rank - 1) % n)  # <- every rank
        dist.send(x, (rank + 1) % n)

    def tag_of_another_message(rank, n=2):
        x = torch.ones(1)
        if rank == 0:
            dist.send(x, 1, tag=1)  # <- rank 0
        else:
            dist.recv(x, 0, tag=2)  # <- rank 1

    def tags_received_in_another_order(rank, n=2):
        x = torch.ones(1)
        if rank == 0:
            dist.send(x, 1, tag=1)  # <- rank 0
            dist.send(x, 1, tag=2)
        else:
            dist.recv(x, 0, tag=2)  # <- rank 1
            dist.recv(x, 0, tag=1)

    def recv_names_another_src(rank, n=3):
        x = torch.ones(1)
        if rank == 0:
            dist.send(x, 1)  # <- rank 0
        if rank == 1:
            dist.recv(x, 2)  # <- rank 1

    def send_names_another_dst(rank, n=3):
        x = torch.ones(1)
        if rank == 0:
            dist.send(x, 2)  # <- rank 0
        if rank == 1:
            dist.recv(x, 0)  # <- rank 1

    def one_recv_too_many(rank, n=2):
        x = torch.ones(1)
        if rank == 0:
            dist.send(x, 1)
        else:
            dist.recv(x, 0)
            dist.recv(x, 0)  # <- rank 1

    def one_send_too_many(rank, n=2):
        x = torch.ones(1)
        if rank == 0:
            dist.send(x, 1)
            dist.send(x, 1)  # <- rank 0
        else:
            dist.recv(x, 0)

    def collector_counts_itself(rank, n=4):
        x = torch.ones(1)
        if rank:
            dist.send(x, 0)
        else:
            for _ in range(n):
                dist.recv(x)  # <- rank 0

    def any_source_and_no_sender(rank, n=2):
        if rank == 0:
            dist.recv(torch.zeros(1))  # <- rank 0

    def any_source_of_another_tag(rank, n=3):
        if rank == 0:
            dist.recv(torch.zeros(1), tag=7)  # <- rank 0
        else:
            dist.send(torch.ones(1), 0, tag=rank)  # <- ranks 1, 2

    def all_receive_from_anybody_first(rank, n=3):
        dist.recv(torch.zeros(1))  # <- every rank
        dist.send(torch.ones(1), (rank + 1) % n)

    def isend_waited_before_the_recv(rank, n=2):
        x, y = torch.ones(1), torch.zeros(1)
        request = dist.isend(x, 1 - rank)  # <- every rank
        request.wait()
        dist.recv(y, 1 - rank)

    def irecv_waited_before_the_send(rank, n=2):
        x, y = torch.ones(1), torch.zeros(1)
        request = dist.irecv(y, 1 - rank)  # <- every rank
        request.wait()
        dist.send(x, 1 - rank)

    def three_wait_in_a_circle(rank, n=3):
        x = torch.ones(1)
        if rank == 0:
            dist.recv(x, 1)  # <- rank 0
        elif rank == 1:
            dist.recv(x, 2)  # <- rank 1
        else:
            dist.recv(x, 0)  # <- rank 2

    def two_are_stuck_and_others_wait_for_them(rank, n=4):
        x = torch.ones(1)
        if rank < 2:
            dist.recv(x, 1 - rank)  # <- ranks 0, 1
        dist.all_reduce(x)

    def stage_forgets_to_pass_on(rank, n=4):
        x = torch.ones(4)
        if rank > 0:
            dist.recv(x, rank - 1)  # <- ranks 2, 3
        if rank in (0, 2):
            dist.send(x, rank + 1)

    def last_worker_gets_no_stop(rank, n=4):
        x = torch.ones(1)
        if rank == 0:
            for worker in range(1, n - 1):
                dist.send(x, worker)
        else:
            dist.recv(x, 0)  # <- rank 3

    def confirmation_awaited_before_the_message(rank, n=2):
        data, ready = torch.ones(4), torch.ones(1)
        if rank == 0:
            dist.recv(ready, 1, tag=9)  # <- rank 0
            dist.send(data, 1)
        else:
            dist.recv(data, 0)  # <- rank 1
            dist.send(ready, 0, tag=9)

    def activation_and_gradient_both_sent_first(rank, n=2):
        activation, gradient = torch.ones(8), torch.ones(8)
        for _ in range(2):
            if rank == 0:
                dist.send(activation, 1)  # <- rank 0
            else:
                dist.recv(activation, 0)
                dist.send(gradient, 0)  # <- rank 1
        dist.recv(gradient, 1) if rank == 0 else None

    def tree_with_a_wrong_parent(rank, n=4):
        x = torch.ones(1)
        if rank > 0:
            dist.recv(x, rank // 2)  # <- rank 2
        for child in (2 * rank + 1, 2 * rank + 2):
            if child < n:
                dist.send(x, child)  # <- rank 0

    def ring_reduction_with_blocking_sends(rank, n=4):
        total, passing = torch.ones(4), torch.ones(4)
        for _ in range(n - 1):
            dist.send(passing, (rank + 1) % n)  # <- every rank
            dist.recv(passing, (rank - 1) % n)
            total += passing

    def ring_with_one_step_too_few_on_one_rank(rank, n=3):
        x, y = torch.ones(1), torch.zeros(1)
        for _ in range(n - 1 if rank else n - 2):
            request = dist.isend(x, (rank + 1) % n)  # <- rank 2
            dist.recv(y, (rank - 1) % n)  # <- rank 1
            request.wait()

    def send_meets_a_collective(rank, n=2):
        x = torch.ones(1)
        if rank == 0:
            dist.send(x, 1)  # <- rank 0
        else:
            dist.all_reduce(x)  # <- rank 1

    def recv_before_a_barrier_send_after_it(rank, n=2):
        x = torch.ones(1)
        if rank == 0:
            dist.barrier()  # <- rank 0
            dist.send(x, 1)
        else:
            dist.recv(x, 0)  # <- rank 1
            dist.barrier()

    def batch_receives_from_the_wrong_side(rank, n=4):
        x, y, right = torch.ones(1), torch.zeros(1), (rank + 1) % n
        ops = [dist.P2POp(dist.irecv, y, right), dist.P2POp(dist.isend, x, right)]
        wait_all(dist.batch_isend_irecv(ops))  # <- every rank

    def batch_of_sends_only(rank, n=2):
        ops = [dist.P2POp(dist.isend, torch.ones(1), 1 - rank)]
        wait_all(dist.batch_isend_irecv(ops))  # <- every rank

    def batch_without_the_wrap_around(rank, n=4):
        x, y = torch.ones(1), torch.zeros(1)
        ops = [dist.P2POp(dist.irecv, y, (rank - 1) % n)]
        if rank < n - 1:
            ops.append(dist.P2POp(dist.isend, x, rank + 1))
        wait_all(dist.batch_isend_irecv(ops))  # <- rank 0

    def object_list_that_nobody_sends(rank, n=2):
        if rank == 0:
            dist.recv_object_list([None], 1)  # <- rank 0


@wrong("mismatch")
class Mismatches:
    def batch_of_other_dtypes(rank, n=2):
        x, y = torch.ones(2), torch.zeros(2, dtype=torch.int32)
        ops = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]
        wait_all(dist.batch_isend_irecv(ops))  # <- every rank

    def recv_is_too_small(rank, n=2):
        if rank == 0:
            dist.send(torch.ones(4), 1)  # <- rank 0
        else:
            dist.recv(torch.zeros(2), 0)  # <- rank 1

    def recv_is_too_large(rank, n=2):
        if rank == 0:
            dist.send(torch.ones(4), 1)  # <- rank 0
        else:
            dist.recv(torch.zeros(8), 0)  # <- rank 1

    def float_received_as_int(rank, n=2):
        if rank == 0:
            dist.send(torch.ones(4), 1)  # <- rank 0
        else:
            dist.recv(torch.zeros(4, dtype=torch.int32), 0)  # <- rank 1

    def double_received_as_float(rank, n=2):
        if rank == 0:
            dist.send(torch.ones(4, dtype=torch.float64), 1)  # <- rank 0
        else:
            dist.recv(torch.zeros(4), 0)  # <- rank 1

    def second_of_three_messages_is_too_large(rank, n=2):
        for size in (1, 2, 3):
            if rank == 0:
                dist.send(torch.ones(size), 1)  # <- rank 0
            else:
                dist.recv(torch.zeros(size + (size == 2)), 0)  # <- rank 1

    def any_source_brings_another_size(rank, n=3):
        if rank == 0:
            dist.recv(torch.zeros(1))  # <- rank 0
            dist.recv(torch.zeros(1))  # <- rank 0
        else:
            dist.send(torch.ones(rank), 0)  # <- rank 2

    def uneven_last_chunk_of_a_ring(rank, n=4):
        chunks = list(torch.ones(10).split(3))
        request = dist.isend(chunks[rank], (rank + 1) % n)  # <- rank 3
        dist.recv(torch.zeros(3), (rank - 1) % n)  # <- rank 0
        request.wait()

    def object_lists_of_other_lengths(rank, n=2):
        if rank == 0:
            dist.send_object_list(["a"], 1)  # <- rank 0
        else:
            dist.recv_object_list([None, None], 0)  # <- rank 1


@wrong("invalid")
class Invalid:
    def receive_waited_for_twice(rank, n=2):
        if rank == 0:
            dist.send(torch.ones(1), 1)
        else:
            request = dist.irecv(torch.zeros(1), 0)
            request.wait()
            request.wait()  # <- rank 1

    def send_waited_for_twice(rank, n=2):
        if rank == 0:
            request = dist.isend(torch.ones(1), 1)
            request.wait()
            request.wait()  # <- rank 0
        else:
            dist.recv(torch.zeros(1), 0)

    def batch_waited_for_in_the_loop_and_after_it(rank, n=2):
        ops = [
            dist.P2POp(dist.isend, torch.ones(1), 1 - rank),
            dist.P2POp(dist.irecv, torch.zeros(1), 1 - rank),
        ]
        requests = dist.batch_isend_irecv(ops)
        wait_all(requests)
        requests[-1].wait()  # <- every rank

    def last_request_of_a_list_waited_for_again(rank, n=3):
        x = [torch.zeros(1) for _ in range(n)]
        if rank:
            dist.send(torch.ones(1), 0)
            return
        for src in range(1, n):
            request = dist.irecv(x[src], src)
            request.wait()
        request.wait()  # <- rank 0

    def send_to_oneself(rank, n=2):
        dist.send(torch.ones(1), rank)  # <- every rank

    def isend_to_oneself(rank, n=2):
        dist.isend(torch.ones(1), rank)  # <- every rank

    def recv_from_oneself(rank, n=2):
        if rank == 1:
            dist.recv(torch.ones(1), 1)  # <- rank 1

    def irecv_from_oneself_in_a_ring_of_one_too_few(rank, n=2):
        dist.irecv(torch.ones(1), (rank + 2) % n)  # <- every rank

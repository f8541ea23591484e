"""Runs that end, and still something is wrong: left over, or written too early."""

import torch
import torch.distributed as dist

from .registry import wait_all, wrong


@wrong("unfinished")
class Unfinished:
    def message_never_received(rank, n=2):
        if rank == 0:
            dist.isend(torch.ones(1), 1)  # <- rank 0

    def second_message_never_received(rank, n=2):
        x = torch.ones(1)
        if rank == 0:
            first = dist.isend(x, 1)
            dist.isend(x, 1)  # <- rank 0
            first.wait()
        else:
            dist.recv(x, 0)

    def message_of_another_tag_never_received(rank, n=2):
        x = torch.ones(1)
        if rank == 0:
            dist.isend(x, 1, tag=1)  # <- rank 0
            dist.send(x, 1, tag=2)
        else:
            dist.recv(x, 0, tag=2)

    def ring_of_isends_without_receives(rank, n=3):
        dist.isend(torch.ones(1), (rank + 1) % n)  # <- every rank
        dist.barrier()

    def receive_never_sent_to(rank, n=2):
        if rank == 0:
            dist.irecv(torch.zeros(1), 1)  # <- rank 0

    def isend_never_waited(rank, n=2):
        x = torch.ones(1)
        if rank == 0:
            dist.isend(x, 1)  # <- rank 0
        else:
            dist.recv(x, 0)
        dist.barrier()

    def irecv_never_waited(rank, n=2):
        x = torch.ones(1)
        if rank == 0:
            dist.send(x, 1)
        else:
            dist.irecv(x, 0)  # <- rank 1
        dist.barrier()

    def async_all_reduce_never_waited(rank, n=3):
        request = dist.all_reduce(torch.ones(1), async_op=True)  # <- rank 2
        if rank != 2:
            request.wait()

    def async_all_reduce_of_one_rank(rank, n=2):
        if rank == 0:
            dist.all_reduce(torch.ones(1), async_op=True)  # <- rank 0

    def async_broadcast_in_a_group_never_waited(rank, n=3):
        pair = dist.new_group([0, 1])
        if rank < 2:
            dist.broadcast(torch.ones(1), src=0, group=pair, async_op=True)  # <- ranks 0, 1
        dist.barrier()

    def requests_of_a_batch_thrown_away(rank, n=2):
        x, y = torch.ones(1), torch.zeros(1)
        ops = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]
        dist.batch_isend_irecv(ops)  # <- every rank
        dist.barrier()

    def only_the_last_request_waited(rank, n=2):
        x = torch.ones(1)
        for tag in range(3):
            if rank == 0:
                request = dist.isend(x, 1, tag=tag)  # <- rank 0
            else:
                request = dist.irecv(torch.zeros(1), 0, tag=tag)  # <- rank 1
        request.wait()
        dist.barrier()


@wrong("race")
class Races:
    def sent_buffer_added_to(rank, n=2):
        x, y = torch.ones(4), torch.zeros(4)
        request = dist.isend(x, 1 - rank)  # <- every rank
        x += 1
        dist.recv(y, 1 - rank)
        request.wait()

    def sent_buffer_overwritten_by_a_receive(rank, n=2):
        x = torch.ones(4)
        requests = [dist.isend(x, 1 - rank), dist.irecv(x, 1 - rank)]  # <- every rank
        wait_all(requests)

    def sent_buffer_refilled_in_a_loop(rank, n=2):
        x, requests = torch.zeros(2), []
        for step in range(3):
            x.fill_(step)
            if rank == 0:
                requests.append(dist.isend(x, 1))  # <- rank 0
            else:
                dist.recv(x, 0)
        wait_all(requests)

    def one_element_of_the_sent_buffer_set(rank, n=2):
        x = torch.ones(4)
        if rank == 0:
            request = dist.isend(x, 1)  # <- rank 0
            x[2] = 5
            request.wait()
        else:
            dist.recv(x, 0)

    def received_buffer_zeroed(rank, n=2):
        x = torch.ones(4)
        if rank == 0:
            dist.send(x, 1)
        else:
            request = dist.irecv(x, 0)  # <- rank 1
            x.zero_()
            request.wait()

    def reduced_buffer_scaled(rank, n=3):
        x = torch.ones(4)
        request = dist.all_reduce(x, async_op=True)  # <- every rank
        x /= n
        request.wait()

    def broadcast_buffer_changed_by_the_root(rank, n=3):
        x = torch.ones(4)
        request = dist.broadcast(x, src=0, async_op=True)  # <- rank 0
        if rank == 0:
            x.mul_(2)
        request.wait()

    def gathered_tensor_cleared(rank, n=2):
        whole = torch.empty(2 * n)
        request = dist.all_gather_into_tensor(whole, torch.ones(2), async_op=True)  # <- rank 1
        if rank == 1:
            whole.fill_(0)
        request.wait()

    def result_written_with_out(rank, n=2):
        x = torch.ones(4)
        request = dist.all_reduce(x, async_op=True)  # <- every rank
        torch.add(torch.ones(4), 1, out=x)
        request.wait()

    def step_of_the_optimizer_on_a_weight_being_sent(rank, n=2):
        weight = torch.ones(4, requires_grad=True)
        weight.grad = torch.ones(4)
        if rank == 0:
            request = dist.isend(weight, 1)  # <- rank 0
            torch.optim.SGD([weight], lr=0.1).step()
            request.wait()
        else:
            dist.recv(torch.zeros(4), 0)

    def gradient_cleared_while_it_is_reduced(rank, n=2):
        weight = torch.ones(4, requires_grad=True)
        weight.sum().backward()
        request = dist.all_reduce(weight.grad, async_op=True)  # <- every rank
        weight.grad.zero_()
        request.wait()

    def two_receives_into_one_buffer(rank, n=3):
        x = torch.zeros(4)
        if rank == 0:
            requests = [dist.irecv(x, src) for src in (1, 2)]  # <- rank 0
            wait_all(requests)
        else:
            dist.send(x, 0)

    def receives_into_overlapping_slices(rank, n=3):
        x = torch.zeros(5)
        if rank == 0:
            wait_all([dist.irecv(x[2 * i : 2 * i + 3], i + 1) for i in (0, 1)])  # <- rank 0
        else:
            dist.send(torch.ones(3), 0)

    def one_tensor_reduced_twice_at_once(rank, n=2):
        x = torch.ones(4)
        requests = [dist.all_reduce(x, async_op=True) for _ in range(2)]  # <- every rank
        wait_all(requests)

    def gathered_slices_with_steps_that_cross(rank, n=2):
        x = torch.zeros(8)
        first = dist.all_gather([x[0::4], x[1::4]], torch.ones(2), async_op=True)
        second = dist.all_reduce(x[4:6], async_op=True)  # <- every rank
        first.wait()
        second.wait()

    def row_reduced_while_columns_are_gathered(rank, n=3):
        x = torch.zeros(4, n)
        gather = dist.all_gather(list(x.t()), torch.ones(4), async_op=True)
        reduction = dist.all_reduce(x[2], async_op=True)  # <- every rank
        gather.wait()
        reduction.wait()

    def transposed_matrix_and_its_row_reduced_at_once(rank, n=2):
        x = torch.ones(3, 2)
        requests = [dist.all_reduce(x.t(), async_op=True)]
        requests.append(dist.all_reduce(x[1], async_op=True))  # <- every rank
        wait_all(requests)

    def windows_made_by_as_strided_overlap(rank, n=2):
        x = torch.zeros(11)
        windows = [x.as_strided((2, 2), (4, 1), start) for start in (0, 2, 3, 5)]
        one = dist.all_gather(windows[:2], torch.ones(2, 2), async_op=True)
        two = dist.all_gather(windows[2:], torch.ones(2, 2), async_op=True)  # <- every rank
        one.wait()
        two.wait()

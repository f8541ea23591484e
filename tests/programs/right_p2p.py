"""Right programs of sends and receives that a careless checker flags."""

import threading
import time

import torch
import torch.distributed as dist

from .registry import right, wait_all


@right
class Programs:
    def even_sends_first(rank, n=2):
        x, y = torch.full((3,), float(rank)), torch.zeros(3)
        if rank == 0:
            dist.send(x, 1)
            dist.recv(y, 1)
        else:
            dist.recv(y, 0)
            dist.send(x, 0)
        assert y.tolist() == [1.0 - rank] * 3

    def odd_even_ring_of_three(rank, n=3):
        x, y = torch.tensor([float(rank)]), torch.zeros(1)
        if rank % 2 == 0:
            dist.send(x, (rank + 1) % n)
            dist.recv(y, (rank - 1) % n)
        else:
            dist.recv(y, (rank - 1) % n)
            dist.send(x, (rank + 1) % n)
        assert y.item() == (rank - 1) % n

    def ring_opened_by_one_rank(rank, n=4):
        x, y = torch.tensor([float(rank)]), torch.zeros(1)
        steps = [lambda: dist.send(x, (rank + 1) % n), lambda: dist.recv(y, (rank - 1) % n)]
        for step in steps if rank else steps[::-1]:
            step()
        assert y.item() == (rank - 1) % n

    def ring_with_isend(rank, n=4):
        x, y = torch.tensor([float(rank)]), torch.zeros(1)
        request = dist.isend(x, (rank + 1) % n)
        dist.recv(y, (rank - 1) % n)
        request.wait()
        assert y.item() == (rank - 1) % n

    def ring_with_irecv(rank, n=4):
        x, y = torch.tensor([float(rank)]), torch.zeros(1)
        request = dist.irecv(y, (rank - 1) % n)
        dist.send(x, (rank + 1) % n)
        request.wait()
        assert y.item() == (rank - 1) % n

    def batched_ring(rank, n=4):
        x, y = torch.tensor([float(rank)]), torch.zeros(1)
        ops = [dist.P2POp(dist.isend, x, (rank + 1) % n), dist.P2POp(dist.irecv, y, (rank - 1) % n)]
        wait_all(dist.batch_isend_irecv(ops if rank % 2 else ops[::-1]))
        assert y.item() == (rank - 1) % n

    def straggling_sender(rank, n=2):
        x = torch.ones(1)
        if rank == 0:
            time.sleep(1)
            dist.send(x, 1)
        else:
            dist.recv(x, 0)

    def straggler_in_a_chain(rank, n=3):
        x = torch.ones(1)
        if rank == 0:
            deadline = time.monotonic() + 0.7
            while time.monotonic() < deadline:
                x = x * 1.0001
        else:
            dist.recv(x, rank - 1)
        if rank < n - 1:
            dist.send(x, rank + 1)

    def early_finishers(rank, n=4):
        x = torch.ones(1)
        if rank == 0:
            dist.send(x, 1)
        elif rank == 1:
            time.sleep(0.5)
            dist.recv(x, 0)

    def sender_finishes_long_before_the_receiver(rank, n=2):
        x = torch.ones(4)
        if rank == 0:
            dist.isend(x, 1).wait()
        else:
            dist.recv(x, 0)
            time.sleep(0.5)

    def any_source(rank, n=4):
        x = torch.tensor([float(rank)])
        if rank:
            dist.send(x, 0)
        else:
            assert sorted(dist.recv(x) for _ in range(n - 1)) == [1, 2, 3]

    def any_source_with_tags(rank, n=4):
        x = torch.tensor([float(rank)])
        if rank:
            for tag in (5, 6):
                dist.send(x, 0, tag=tag)
        else:
            for tag in (5, 6):
                assert sorted(dist.recv(x, tag=tag) for _ in range(n - 1)) == [1, 2, 3]

    def any_source_beside_a_named_one(rank, n=3):
        x, y = torch.zeros(1), torch.zeros(1)
        if rank == 0:
            dist.recv(x, 2, tag=1)
            assert dist.recv(y) == 1
        else:
            dist.send(torch.ones(1), 0, tag=rank - 1)

    def any_source_irecvs_posted_early(rank, n=3):
        if rank:
            dist.barrier()
            dist.send(torch.tensor([float(rank)]), 0)
        else:
            buffers = [torch.zeros(1), torch.zeros(1)]
            requests = [dist.irecv(buffer) for buffer in buffers]
            dist.barrier()
            wait_all(requests)
            assert sorted(buffer.item() for buffer in buffers) == [1, 2]

    def task_farm(rank, n=4):
        task = torch.zeros(1)
        if rank == 0:
            for number in range(1, 13):
                worker = dist.recv(task)
                dist.send(torch.tensor([float(number) if number < 10 else -1.0]), worker)
        else:
            while task.item() >= 0:
                dist.send(task, 0)
                dist.recv(task, 0)

    def requests_waited_out_of_order(rank, n=2):
        xs = [torch.full((2,), float(i)) for i in range(4)]
        make = dist.isend if rank == 0 else dist.irecv
        requests = [make(x, 1 - rank, tag=i) for i, x in enumerate(xs)]
        for i in (2, 0, 3, 1) if rank == 0 else (3, 1, 0, 2):
            requests[i].wait()
            assert xs[i].tolist() == [i, i]

    def isends_received_in_another_order_of_tags(rank, n=2):
        xs = [torch.zeros(1), torch.ones(1)]
        if rank == 0:
            requests = [dist.isend(x, 1, tag=tag) for tag, x in enumerate(xs)]
            wait_all(requests)
        else:
            for tag in (1, 0):
                dist.recv(xs[0], 0, tag=tag)
                assert xs[0].item() == tag

    def both_wait_for_their_sends_first(rank, n=2):
        x, y = torch.ones(1), torch.zeros(1)
        receive = dist.irecv(y, 1 - rank)
        send = dist.isend(x, 1 - rank)
        send.wait()
        receive.wait()

    def two_thousand_messages(rank, n=2):
        x = torch.ones(1)
        for _ in range(1000):
            dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
            dist.recv(x, 1) if rank == 0 else dist.send(x, 0)

    def hundreds_of_pending_requests(rank, n=2):
        xs = torch.arange(300.0).split(1)
        make = dist.isend if rank == 0 else dist.irecv
        wait_all([make(x.clone(), 1 - rank) for x in xs])

    def large_messages_both_ways(rank, n=2):
        x, y = torch.full((4_000_000,), float(rank)), torch.zeros(4_000_000)
        request = dist.isend(x, 1 - rank)
        dist.recv(y, 1 - rank)
        request.wait()
        assert y[-1].item() == 1 - rank

    def message_of_no_elements(rank, n=2):
        x, y = torch.zeros(0), torch.zeros(0)
        request = dist.isend(x, 1 - rank)
        dist.recv(y, 1 - rank)
        request.wait()

    def empty_slice_of_a_buffer_in_flight(rank, n=2):
        x, y = torch.ones(4), torch.zeros(4)
        requests = [dist.isend(x, 1 - rank, tag=1), dist.irecv(x[2:2], 1 - rank, tag=2)]
        dist.send(y[:0], 1, tag=2) if rank == 0 else None
        dist.recv(y, 1 - rank, tag=1)
        dist.send(y[:0], 0, tag=2) if rank == 1 else None
        wait_all(requests)

    def same_elements_in_another_shape(rank, n=2):
        x = torch.arange(6.0)
        if rank == 0:
            dist.send(x, 1)
        else:
            y = torch.zeros(2, 3)
            dist.recv(y, 0)
            assert y.tolist() == [[0, 1, 2], [3, 4, 5]]

    def one_buffer_sent_twice_at_once(rank, n=2):
        x = torch.ones(4)
        if rank == 0:
            wait_all([dist.isend(x, 1, tag=tag) for tag in (0, 1)])
        else:
            dist.recv(x, 0, tag=1)
            dist.recv(x, 0, tag=0)

    def buffer_written_between_requests(rank, n=2):
        x = torch.zeros(4)
        for step in range(20):
            if rank == 0:
                x.fill_(step)
                dist.isend(x, 1).wait()
            else:
                x.zero_()
                dist.irecv(x, 0).wait()
                assert x[0].item() == step

    def buffer_read_while_it_is_sent(rank, n=2):
        x, y = torch.ones(4), torch.zeros(4)
        request = dist.isend(x, 1 - rank)
        total = (2 * x).sum() + x.norm()
        dist.recv(y, 1 - rank)
        request.wait()
        assert total.item() == 10

    def ring_reduction_on_chunk_views(rank, n=4):
        x = torch.full((8,), float(rank))
        chunks, passed = list(x.chunk(n)), torch.zeros(2)
        for step in range(n - 1):
            request = dist.isend(chunks[(rank - step) % n], (rank + 1) % n)
            dist.recv(passed, (rank - 1) % n)
            chunks[(rank - step - 1) % n].add_(passed)
            request.wait()
        assert chunks[(rank + 1) % n].tolist() == [6, 6]

    def ring_gather_into_sibling_chunks(rank, n=4):
        x = torch.zeros(8)
        chunks = list(x.chunk(n))
        chunks[rank] += rank
        for step in range(n - 1):
            send = dist.isend(chunks[(rank - step) % n], (rank + 1) % n)
            receive = dist.irecv(chunks[(rank - step - 1) % n], (rank - 1) % n)
            receive.wait()
            send.wait()
        assert x.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]

    def neighbouring_slices_received_at_once(rank, n=3):
        x = torch.zeros(6)
        if rank == 0:
            wait_all([dist.irecv(x[3 * src - 3 : 3 * src], src) for src in (1, 2)])
            assert x.tolist() == [1, 1, 1, 2, 2, 2]
        else:
            dist.send(torch.full((3,), float(rank)), 0)

    def halo_exchange(rank, n=4):
        field = torch.full((6,), float(rank))
        requests = []
        for peer, inner, outer in ((rank - 1, 1, 0), (rank + 1, 4, 5)):
            if 0 <= peer < n:
                requests.append(dist.isend(field[inner : inner + 1], peer))
                requests.append(dist.irecv(field[outer : outer + 1], peer))
        wait_all(requests)
        assert field[0].item() == max(rank - 1, 0) and field[5].item() == min(rank + 1, n - 1)

    def isend_waited_after_a_barrier(rank, n=2):
        x = torch.ones(4)
        request = dist.isend(x, 1) if rank == 0 else dist.irecv(x, 0)
        dist.barrier()
        request.wait()

    def objects_sent(rank, n=2):
        objects = [{"epoch": 3}, "x" * 1000] if rank == 0 else [None, None]
        dist.send_object_list(objects, 1) if rank == 0 else dist.recv_object_list(objects, 0)
        assert objects[0] == {"epoch": 3}

    def pipeline_of_stages(rank, n=4):
        for microbatch in range(8):
            x = torch.tensor([float(microbatch)])
            if rank > 0:
                dist.recv(x, rank - 1)
            x += 1
            if rank < n - 1:
                dist.send(x, rank + 1)
        assert rank < n - 1 or x.item() == 7 + n

    def receiver_in_a_thread(rank, n=2):
        x, y = torch.ones(1), torch.zeros(1)
        receiver = threading.Thread(target=lambda: dist.recv(y, 1 - rank))
        receiver.start()
        time.sleep(0.2)
        dist.send(x, 1 - rank)
        receiver.join()
        assert y.item() == 1

    def a_request_that_is_looked_at_now_and_then(rank, n=2):
        request = dist.isend(torch.ones(1), 1) if rank == 0 else dist.irecv(torch.ones(1), 0)
        assert [request.is_completed() for _ in range(5)] == [False] * 5  # as Gloo says
        request.wait()
        assert request.is_completed()

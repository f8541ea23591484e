"""Calls that can never be right, exceptions, deaths and endless loops, mostly while others wait."""

import ctypes
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

from .registry import wait_all, wrong


@wrong("invalid")
class Invalid:
    def right_neighbour_of_the_last_rank(rank, n=3):
        dist.send(torch.ones(1), rank + 1) if rank == n - 1 else None  # <- rank 2

    def left_neighbour_of_rank_0(rank, n=2):
        if rank == 0:
            dist.send(torch.ones(1), rank - 1)  # <- rank 0

    def recv_from_a_rank_that_does_not_exist(rank, n=2):
        dist.recv(torch.zeros(1), 2)  # <- every rank

    def send_to_itself_while_others_wait(rank, n=3):
        if rank == 1:
            dist.send(torch.ones(1), 1)  # <- rank 1
        dist.barrier()

    def broadcast_root_does_not_exist(rank, n=2):
        dist.broadcast(torch.ones(1), src=2)  # <- every rank

    def reduce_root_does_not_exist(rank, n=2):
        dist.reduce(torch.ones(1), dst=7)  # <- every rank

    def scatter_list_is_too_short(rank, n=2):
        parts = [torch.ones(1)] if rank == 0 else None
        dist.scatter(torch.zeros(1), parts, src=0)  # <- rank 0

    def scatter_without_a_list(rank, n=2):
        dist.scatter(torch.zeros(1), None, src=0)  # <- rank 0

    def gather_list_is_too_long(rank, n=2):
        parts = [torch.zeros(1) for _ in range(n + 1)] if rank == 0 else None
        dist.gather(torch.ones(1), parts, dst=0)  # <- rank 0

    def gather_without_a_list(rank, n=2):
        dist.gather(torch.ones(1), None, dst=0)  # <- rank 0

    def all_gather_list_is_too_short(rank, n=2):
        dist.all_gather([torch.zeros(1)], torch.ones(1))  # <- every rank

    def all_to_all_list_is_too_long(rank, n=2):
        three = [torch.ones(1) for _ in range(3)]
        dist.all_to_all([torch.zeros(1) for _ in range(3)], three)  # <- every rank

    def all_to_all_of_uneven_parts(rank, n=2):
        outputs = [torch.empty(1 + 2 * rank) for _ in range(n)]
        dist.all_to_all(outputs, [torch.ones(1), torch.ones(3)])  # <- every rank

    def output_of_all_gather_into_tensor_is_too_small(rank, n=2):
        dist.all_gather_into_tensor(torch.zeros(3), torch.ones(2))  # <- every rank

    def splits_do_not_add_up(rank, n=2):
        dist.all_to_all_single(torch.zeros(4), torch.ones(4), [2, 2], [1, 2])  # <- every rank

    def expanded_tensor_reduced_twice_at_once(rank, n=2):
        x = torch.zeros(1).expand(4)
        requests = [dist.all_reduce(x, async_op=True) for _ in range(2)]  # <- every rank
        wait_all(requests)

    def every_second_element_reduced(rank, n=2):
        x = torch.arange(8.0)
        dist.all_reduce(x[::2])  # <- every rank

    def column_broadcast_by_the_root(rank, n=3):
        x = torch.ones(4, 2)
        dist.broadcast(x[:, 0] if rank == 0 else torch.zeros(4), src=0)  # <- rank 0

    def list_instead_of_a_tensor(rank, n=2):
        dist.all_reduce([torch.ones(1)])  # <- every rank

    def backend_for_gpus(rank, n=2):
        dist.init_process_group("nccl", rank=rank, world_size=n)  # <- every rank

    def polling_a_receive_that_no_send_meets(rank, n=2):
        if rank == 0:
            request = dist.irecv(torch.zeros(1), 1)
            while not request.is_completed():  # <- rank 0
                pass

    def polling_a_receive_instead_of_waiting(rank, n=2):
        if rank == 0:
            dist.send(torch.ones(1), 1)
            return
        request = dist.irecv(torch.zeros(1), 0)
        while not request.is_completed():  # <- rank 1
            pass

    def polling_a_send_instead_of_waiting(rank, n=2):
        if rank == 1:
            dist.recv(torch.zeros(1), 0)
            return
        request = dist.isend(torch.ones(1), 1)
        while not request.is_completed():  # <- rank 0
            pass


@wrong("rank_error")
class Errors:
    def exception_while_others_reduce(rank, n=4):
        if rank == 2:
            raise ValueError("no data")  # <- rank 2
        dist.all_reduce(torch.ones(1))

    def exception_while_others_receive(rank, n=3):
        if rank == 0:
            raise KeyError("weights")  # <- rank 0
        dist.recv(torch.zeros(1), 0)

    def exception_after_some_collectives(rank, n=2):
        for step in range(10):
            dist.barrier()
            if (rank, step) == (1, 5):
                torch.ones(2) @ torch.ones(3)  # <- rank 1

    def assertion_of_two_ranks(rank, n=3):
        x = torch.tensor([float(rank)])
        assert x.item() < 1  # <- ranks 1, 2
        dist.all_reduce(x)

    def exception_between_post_and_wait(rank, n=3):
        request = dist.all_reduce(torch.ones(1), async_op=True)
        if rank == 0:
            raise RuntimeError("disk full")  # <- rank 0
        request.wait()
        dist.barrier()

    def exception_in_a_group(rank, n=4):
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        if rank == 3:
            raise OSError("no such file")  # <- rank 3
        dist.all_reduce(torch.ones(1), group=pairs[rank // 2])

    def exception_in_a_chain_of_waits(rank, n=3):
        if rank == 2:
            torch.load("no_such_checkpoint.pt")  # <- rank 2
        x = torch.ones(1)
        dist.recv(x, rank + 1)
        dist.send(x, rank - 1) if rank else None

    def exception_in_a_backward_hook(rank, n=2):
        x = torch.ones(2, requires_grad=True)
        if rank == 0:
            x.register_hook(lambda grad: grad.reshape(5))  # <- rank 0
        x.sum().backward()
        dist.all_reduce(x.grad)

    def exception_with_no_memory_of_the_name(rank, n=2):
        if rank == 1:
            optimiser.step()  # noqa: F821  # <- rank 1
        dist.barrier()


@wrong("rank_died")
class Deaths:
    def exit_while_others_reduce(rank, n=3):
        dist.barrier()
        if rank == 1:
            os._exit(3)
        dist.all_reduce(torch.ones(1000))

    def exit_0_while_others_receive(rank, n=3):
        if rank == 0:
            os._exit(0)
        dist.recv(torch.zeros(1), 0)

    def sys_exit_while_others_wait(rank, n=3):
        if rank == 1:
            sys.exit(2)  # <- rank 1
        dist.barrier()

    def killed_as_if_out_of_memory(rank, n=4):
        dist.barrier()
        if rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(1))

    def segmentation_fault(rank, n=2):
        if rank == 0:
            ctypes.string_at(0)  # <- rank 0
        dist.barrier()

    def death_at_the_end_of_a_chain_of_waits(rank, n=3):
        if rank == 2:
            os.abort()  # <- rank 2
        x = torch.ones(1)
        dist.recv(x, rank + 1)
        dist.send(x, rank - 1) if rank else None

    def death_with_a_message_on_its_way(rank, n=2):
        x = torch.ones(1)
        request = dist.isend(x, 1 - rank)
        if rank == 1:
            os._exit(9)
        dist.recv(x, 1 - rank)
        request.wait()


@wrong("stuck_computing", timeout_s=1)
class Stuck:
    def endless_loop_while_others_wait(rank, n=2):
        loss = 1.0
        while rank == 1 and loss > 0:  # <- rank 1
            loss = loss + 1  # <- rank 1
        dist.barrier()

    def endless_sleep(rank, n=2):
        if rank == 0:
            time.sleep(10**6)  # <- rank 0
        dist.barrier()

    def store_key_that_nobody_sets(rank, n=2):
        store = dist.distributed_c10d._get_default_store()
        if rank == 1:
            store.wait(["the weights are there"])  # <- rank 1
        dist.barrier()

    def both_wait_in_the_store(rank, n=2):
        store = dist.distributed_c10d._get_default_store()
        store.get(f"from {1 - rank}")  # <- every rank
        store.set(f"from {rank}", "here")

    def polling_a_flag_that_nobody_sets(rank, n=2):
        flag = torch.zeros(1)
        while rank == 0 and not flag.item():  # <- rank 0
            pass

    def lock_taken_twice(rank, n=2):
        lock = threading.Lock()
        lock.acquire()
        if rank == 0:
            lock.acquire()  # <- rank 0
        dist.barrier()


@wrong("deadlock")
class Deadlocks:
    def two_are_stuck_beside_an_endless_loop(rank, n=3):
        while rank == 2:
            pass
        dist.recv(torch.zeros(1), 1 - rank)  # <- ranks 0, 1

    def two_are_stuck_beside_an_endless_chatter(rank, n=3):
        while rank == 2:
            print("still working")
            time.sleep(0.1)
        dist.recv(torch.zeros(1), 1 - rank)  # <- ranks 0, 1

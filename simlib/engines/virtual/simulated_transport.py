"""One rank's side of one group in a simulation: the methods that torch calls."""

from __future__ import annotations

import functools
import os
import sys

import torch.distributed as dist

from ...clockwork.group_collectives import Call
from ...clockwork.mailbox import Post
from ...clockwork.simulated_request import Request
from ...clockwork.tensors import rows
from ...record.recorder import count_bytes
from ...record.requests import FOREVER
from .ddp import SharedOutputs


class SimulatedTransport:
    """The transport of a `RecordingGroup`: has the methods of `dist.ProcessGroup`.

    Parameters
    ----------
    simulation : Simulation
    channel : Channel
        The group's collectives.
    position : int
        This rank's place in the group.
    log : OpLogWriter
        Where the rank's calls have just been written down.
    """

    copies_results = False
    limit_s = None
    """Virtual seconds after which a wait is given up, where survivors go on; None: never."""

    def __init__(self, simulation, channel, position, log):
        self._simulation = simulation
        self._channel = channel
        self._group = channel.group
        self._position = position
        self._rank = channel.members[position]
        self._log = log
        self._mailboxes = {}  # (dst, tag) -> Mailbox

    # Messages

    def send(self, tensors, dst, tag=0):
        simulation = self._simulation
        clock = simulation.scheduler.clocks[self._rank]
        request = Request(simulation, self._rank, self._log.last, tensors)
        (tensor,) = tensors
        nbytes = count_bytes(tensor)
        content = simulation.uncounted(self._rank, _copy, tensor)
        is_eager = nbytes <= simulation.options.eager_limit_bytes
        post = Post(
            self._position, dst, tensor.dtype, nbytes, request, content, clock, is_eager=is_eager
        )
        return self._posted(request, self._mailbox(dst, tag), "send", post)

    def recv(self, tensors, src, tag=0):
        simulation = self._simulation
        clock = simulation.scheduler.clocks[self._rank]
        request = Request(simulation, self._rank, self._log.last, tensors)
        (tensor,) = tensors
        nbytes = count_bytes(tensor)
        post = Post(src, self._position, tensor.dtype, nbytes, request, tensor, clock)
        return self._posted(request, self._mailbox(self._position, tag), "receive", post)

    def _posted(self, request, mailbox, method, post):
        if self.limit_s is not None:
            request.limit_s = self.limit_s
            request.give_up = functools.partial(mailbox.withdraw, post)
        getattr(mailbox, method)(post)
        return request

    def _mailbox(self, dst, tag):
        key = dst, tag
        mailbox = self._mailboxes.get(key)
        if mailbox is None:
            mailbox = self._mailboxes[key] = self._simulation.mailbox(self._group, dst, tag)
        return mailbox

    def recv_anysource(self, tensors, tag=0):
        return self.recv(tensors, None, tag)

    # Collectives

    def _collective(self, kind, brings, takes, opts, payload, splits=None):
        """Post one; ``payload`` are the tensors that count as this rank's bytes."""
        simulation = self._simulation
        request = Request(simulation, self._rank, self._log.last, takes)
        root = getattr(opts, "rootRank", None)
        reduce_op = getattr(opts, "reduceOp", None)
        call = Call(
            kind=kind,
            rank=self._rank,
            group=self._group,
            peer=None if root is None else self._group.ranks[root],
            reduce_op=hash(reduce_op) if kind in _REDUCING else None,
            dtype=payload[0].dtype if payload else None,
            shapes=tuple(tensor.shape for tensor in payload),
            splits=splits,
            brings=brings,
            takes=takes,
            opts=opts,
            nbytes=sum(map(count_bytes, payload)),
            itemsize=payload[0].element_size() if payload else 1,
            request=request,
        )
        request.limit_s = self.limit_s
        meeting = self._channel.post(self._position, call)
        request.meeting = meeting, self._position
        return request

    def broadcast(self, tensors, opts):
        return self._collective("broadcast", tensors, tensors, opts, tensors)

    def allreduce(self, tensors, opts=None):
        opts = dist.AllreduceOptions() if opts is None else opts
        return self._collective("all_reduce", tensors, tensors, opts, tensors)

    allreduce_coalesced = allreduce

    def reduce(self, tensors, opts):
        return self._collective("reduce", tensors, tensors, opts, tensors)

    def gather(self, outputs, inputs, opts):
        takes = outputs[0] if outputs else []
        return self._collective("gather", inputs, takes, opts, inputs)

    def scatter(self, outputs, inputs, opts):
        is_root = opts.rootRank == self._position
        brings = inputs[0] if is_root else []
        return self._collective("scatter", brings, outputs, opts, brings or outputs)

    def allgather(self, outputs, inputs, opts=None):
        if isinstance(outputs[0], SharedOutputs):
            return self._collective("all_gather", inputs, outputs[0], opts, inputs)
        takes = [outputs[i][r] for r in range(len(self._group)) for i in range(len(inputs))]
        return self._collective("all_gather", inputs, takes, opts, inputs)

    def allgather_coalesced(self, output_lists, inputs, opts=None):
        takes = [tensor for tensors in output_lists for tensor in tensors]
        return self._collective("all_gather", inputs, takes, opts, inputs)

    def all_gather_single(self, output, tensor, opts=None):
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        n = len(self._group)
        cut = [rows(output, None, n) for output in outputs]
        takes = [parts[r] for r in range(n) for parts in cut]
        return self._collective("all_gather", inputs, takes, opts, inputs)

    def reduce_scatter(self, outputs, input_lists, opts=None):
        opts = dist.ReduceScatterOptions() if opts is None else opts
        n = len(self._group)
        brings = [tensors[r] for r in range(n) for tensors in input_lists]
        return self._collective("reduce_scatter", brings, outputs, opts, brings)

    def reduce_scatter_single(self, output, tensor, opts=None):
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None):
        opts = dist.ReduceScatterOptions() if opts is None else opts
        n = len(self._group)
        cut = [rows(tensor, None, n) for tensor in inputs]
        brings = [parts[r] for r in range(n) for parts in cut]
        return self._collective("reduce_scatter", brings, outputs, opts, inputs)

    def alltoall(self, outputs, inputs, opts=None):
        sizes = tuple(t.numel() for t in inputs), tuple(t.numel() for t in outputs)
        return self._collective("all_to_all", inputs, outputs, opts, inputs, sizes)

    def all_to_all_single(self, output, tensor, output_splits, input_splits, opts=None):
        n = len(self._group)
        brings, takes = rows(tensor, input_splits, n), rows(output, output_splits, n)
        sizes = tuple(t.numel() for t in brings), tuple(t.numel() for t in takes)
        return self._collective("all_to_all", brings, takes, opts, [tensor], sizes)

    def barrier(self, opts=None):
        return self._collective("barrier", [], [], opts, [])

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        self.barrier().wait(timeout if timeout < FOREVER else None)

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def _copy(tensor):
    return tensor.detach().clone()


_REDUCING = frozenset({"all_reduce", "reduce", "reduce_scatter"})


def stand_in_backend():
    """A Gloo backend of one rank, for torch's own C++ code to ask for names and options.

    DDP's logger takes whatever is called "gloo" for one of these. It never moves a byte.
    """
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    return dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timeout=FOREVER)

"""What groups of our own have in common: torch's collectives, each as one plain call."""

from __future__ import annotations

import os
import sys

import torch.distributed as dist

from ..recorder import FOREVER

REDUCING = frozenset({"all_reduce", "reduce", "reduce_scatter"})
"""Collectives whose options name a reduction."""


class PlainGroup:
    """The methods of `dist.ProcessGroup` for collectives, in terms of `_collective`.

    A subclass has ``_group`` (whose length is the number of members), ``_position``, ``send``,
    ``recv``, and ``_collective(kind, brings, takes, opts, payload, splits=None)``, which posts one:
    the tensors that the rank brings and takes, and those that count as its bytes.
    """

    copies_results = False
    limit_s = None
    """Seconds after which a wait is given up, where survivors go on; None: never."""

    def recv_anysource(self, tensors, tag=0):
        return self.recv(tensors, None, tag)

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


def rows(tensor, splits, n):
    """A tensor cut along its first dimension, evenly where no sizes are given."""
    sizes = list(splits) if splits else [tensor.shape[0] // n] * n
    return list(tensor.split(sizes))


class SharedOutputs:
    """Takes what an all_gather brings as it is: the tensors are those of all ranks, to be read."""

    def __init__(self, size):
        self._size = size
        self.tensors = ()

    def __len__(self):
        return self._size

    def __iter__(self):
        return iter(())


def stand_in_backend():
    """A Gloo backend of one rank, for torch's own C++ code to ask for names and options.

    DDP's logger takes whatever is called "gloo" for one of these. It never moves a byte.
    """
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    return dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timeout=FOREVER)

"""`MpiGroup` carries out the calls of torch.distributed through an mpi4py communicator.

pip's torch has no MPI backend. MPI moves a tensor's bytes from its own memory, without a copy. It
reduces tensors with its own data type for each dtype. Two kinds of tensors are copied first:
tensors that are not contiguous, and tensors of float16 and bfloat16. MPI cannot add these two
dtypes, so it reduces such tensors as float32.
"""

from __future__ import annotations

import itertools
import math
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.futures import Future

from ..core.record.torch_inside import FakeProcessGroup

CUSTOM = dist.ProcessGroup.BackendType.CUSTOM
MPI_TYPES = {
    torch.float32: MPI.FLOAT,
    torch.float64: MPI.DOUBLE,
    torch.complex64: MPI.C_FLOAT_COMPLEX,
    torch.complex128: MPI.C_DOUBLE_COMPLEX,
    torch.uint8: MPI.UINT8_T,
    torch.int8: MPI.INT8_T,
    torch.int16: MPI.INT16_T,
    torch.int32: MPI.INT32_T,
    torch.int64: MPI.INT64_T,
    torch.bool: MPI.UINT8_T,
}
MPI_OPS = {
    dist.ReduceOp.SUM: MPI.SUM,
    dist.ReduceOp.AVG: MPI.SUM,
    dist.ReduceOp.PRODUCT: MPI.PROD,
    dist.ReduceOp.MIN: MPI.MIN,
    dist.ReduceOp.MAX: MPI.MAX,
    dist.ReduceOp.BAND: MPI.BAND,
    dist.ReduceOp.BOR: MPI.BOR,
    dist.ReduceOp.BXOR: MPI.BXOR,
}
BOOL_OPS = {dist.ReduceOp.SUM: MPI.MAX, dist.ReduceOp.PRODUCT: MPI.MIN}
"""The reduce ops for booleans. A sum is true if one value is true. A product is true if all values
are."""
BITWISE = (MPI.BAND, MPI.BOR, MPI.BXOR)
HALVES = (torch.float16, torch.bfloat16)


class MpiGroup(dist.ProcessGroup):
    """A process group whose ranks are the processes of an MPI communicator.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        The communicator of the group's ranks. The group owns it from now on.
    timeout : datetime.timedelta, optional
        The longest time of a wait. MPI's own waits have no limit. So a group with a timeout asks
        MPI again and again whether an op is done. This costs some latency. `set_timeout` changes
        the timeout.
    """

    copies_results = False
    """The group's own writes of results do not count as writes by the program, see
    `mpi_buffers`."""

    def __init__(self, comm, timeout=None):
        super().__init__(comm.rank, comm.size)
        # What torch's own C++ code asks for names and options; no call of a rank goes there.
        self.stand_in = FakeProcessGroup._create_internal(comm.rank, comm.size)
        self._register_backend(torch.device("cpu"), CUSTOM, self.stand_in)
        self._set_default_backend(CUSTOM)
        self._comm = comm
        self._timeout = timeout
        self._open = []
        self._sequence = 0

    def getBackendName(self):  # noqa: N802 (torch's name)
        return "mpi4py"

    def set_timeout(self, timeout):
        """Set the longest time of all later waits, as a timedelta."""
        self._timeout = timeout

    def __repr__(self):
        return f"the MPI group of {self.size()} ranks, here rank {self.rank()}"

    # Messages

    def send(self, tensors, dst, tag=0):
        (tensor,) = tensors
        request = self._comm.Isend(as_bytes(tensor.contiguous()), dst, tag)
        return self._keep([request], tensors)

    def recv(self, tensors, src, tag=0):
        (tensor,) = tensors
        after = []
        request = self._comm.Irecv(receive_buffer(tensor, after), src, tag)
        return self._keep([request], tensors, after)

    def recv_anysource(self, tensors, tag=0):
        return self.recv(tensors, MPI.ANY_SOURCE, tag)

    # Collectives that move

    def broadcast(self, tensors, opts=None):
        opts = opts or dist.BroadcastOptions()
        after, calls = [], []
        for tensor in tensors:
            calls.append(("Bcast", receive_buffer(tensor, after), opts.rootRank))
        return self._perform(calls, tensors, after)

    def allgather(self, outputs, inputs, opts=None):
        after, calls = [], []
        for parts, tensor in zip(outputs, inputs, strict=True):
            calls.append(
                ("Allgather", as_bytes(tensor.contiguous()), receive_buffers(parts, after))
            )
        return self._perform(calls, outputs, after)

    def allgather_coalesced(self, outputs, inputs, opts=None):
        # torch hands out one list per rank here, and one tensor in it per input.
        columns = [list(column) for column in zip(*outputs, strict=True)]
        return self.allgather(columns, inputs, opts)

    def all_gather_single(self, output, tensor, opts=None):
        return self.allgather_into_tensor_coalesced([output], [tensor], opts)

    _allgather_base = all_gather_single

    def allgather_into_tensor_coalesced(self, outputs, inputs, opts=None):
        after, calls = [], []
        for output, tensor in zip(outputs, inputs, strict=True):
            whole = as_bytes(without_overlap(tensor, output))
            calls.append(("Allgather", whole, receive_buffer(output, after)))
        return self._perform(calls, outputs, after)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def gather(self, outputs, inputs, opts=None):
        opts = opts or dist.GatherOptions()
        (tensor,), after = inputs, []
        rooms = receive_buffers(outputs[0], after) if self.rank() == opts.rootRank else None
        call = ("Gather", as_bytes(tensor.contiguous()), rooms, opts.rootRank)
        return self._perform([call], outputs, after)

    def scatter(self, outputs, inputs, opts=None):
        opts = opts or dist.ScatterOptions()
        (output,), after = outputs, []
        whole = joined(inputs[0]) if self.rank() == opts.rootRank else None
        call = ("Scatter", whole, receive_buffer(output, after), opts.rootRank)
        return self._perform([call], outputs, after)

    def alltoall(self, outputs, inputs, opts=None):
        after = []
        sent = (joined(inputs), nbytes_of(inputs))
        call = (
            "Alltoallv",
            with_type(*sent),
            with_type(receive_buffers(outputs, after), nbytes_of(outputs)),
        )
        return self._perform([call], outputs, after)

    def alltoall_base(self, output, tensor, output_rows=(), input_rows=(), opts=None):
        after = []
        sent = with_type(as_bytes(without_overlap(tensor, output)), self._parts(tensor, input_rows))
        got = with_type(receive_buffer(output, after), self._parts(output, output_rows))
        return self._perform([("Alltoallv", sent, got)], [output], after)

    all_to_all_single = alltoall_base

    def _parts(self, tensor, rows):
        """Return how many bytes of a tensor belong to each rank. torch's empty list means even
        parts."""
        nbytes = tensor.numel() * tensor.element_size()
        if not rows:
            if nbytes % self.size():
                raise ValueError(
                    f"a tensor of shape {tuple(tensor.shape)} cannot be split evenly over "
                    f"{self.size()} ranks: give the split sizes"
                )
            return [nbytes // self.size()] * self.size()
        row = nbytes // max(1, tensor.shape[0])
        return [count * row for count in rows]

    # Collectives that reduce

    def allreduce(self, tensors, opts=None):
        opts = opts or dist.AllreduceOptions()
        if any(tensor.layout == torch.sparse_coo for tensor in tensors):
            return self._allreduce_sparse(tensors, opts)
        after, calls = [], []
        for tensor in tensors:
            calls.append(("Allreduce", MPI.IN_PLACE, *self._reduced(tensor, opts, after)))
        return self._perform(calls, tensors, after)

    allreduce_coalesced = allreduce

    def _allreduce_sparse(self, tensors, opts):
        if opts.reduceOp != dist.ReduceOp.SUM:
            raise ValueError(f"sparse tensors can only be summed, not reduced with {opts.reduceOp}")
        for tensor in tensors:
            _add_up(self, tensor)
        return MpiWork([], tensors)

    def reduce(self, tensors, opts=None):
        opts = opts or dist.ReduceOptions()
        (tensor,), after = tensors, []
        if self.rank() == opts.rootRank:
            buffer, op = self._reduced(tensor, opts, after)
            call = ("Reduce", MPI.IN_PLACE, buffer, op, opts.rootRank)
        else:
            buffer, op = self._reduced(tensor, opts, [])  # this rank's tensor stays as it is
            call = ("Reduce", buffer, None, op, opts.rootRank)
        return self._perform([call], tensors, after)

    def reduce_scatter(self, outputs, inputs, opts=None):
        wholes = [torch.cat([part.reshape(-1) for part in parts]) for parts in inputs]
        return self.reduce_scatter_tensor_coalesced(outputs, wholes, opts)

    def reduce_scatter_single(self, output, tensor, opts=None):
        return self.reduce_scatter_tensor_coalesced([output], [tensor], opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_tensor_coalesced(self, outputs, inputs, opts=None):
        opts = opts or dist.ReduceScatterOptions()
        after, calls = [], []
        for output, tensor in zip(outputs, inputs, strict=True):
            sent, op = self._reduced(without_overlap(tensor, output), opts, [])
            got, _ = self._reduced(output, opts, after)
            calls.append(("Reduce_scatter_block", sent, got, op))
        return self._perform(calls, outputs, after)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def _reduced(self, tensor, opts, after):
        """Return MPI's ``(buffer, op)`` for a tensor. Append to ``after`` what to call when the op
        is done."""
        reduce_op = opts.reduceOp
        ops = MPI_OPS | BOOL_OPS if tensor.dtype == torch.bool else MPI_OPS
        op = next((op for name, op in ops.items() if reduce_op == name), None)
        if op is None:
            raise ValueError(
                f"MPI has no {reduce_op}: use SUM, AVG, PRODUCT, MIN, MAX or a bitwise"
            )
        if tensor.layout != torch.strided:
            raise ValueError("MPI cannot reduce a sparse tensor this way: call to_dense() first")
        if tensor.dtype not in MPI_TYPES and tensor.dtype not in HALVES:
            raise ValueError(
                f"MPI cannot reduce {tensor.dtype}: convert the tensor before the call"
            )
        if op in BITWISE and (tensor.is_floating_point() or tensor.is_complex()):
            raise ValueError(f"a bitwise reduction needs whole numbers, not {tensor.dtype}")
        buffer = tensor.data
        if tensor.dtype in HALVES or not tensor.is_contiguous():
            buffer = buffer.to(torch.float32 if tensor.dtype in HALVES else tensor.dtype, copy=True)
            buffer = buffer.contiguous()
            after.append(lambda: tensor.data.copy_(buffer))
        if reduce_op == dist.ReduceOp.AVG:
            after.insert(0, lambda: buffer.div_(self.size()))
        numbers = buffer.reshape(-1)
        numbers = numbers.view(torch.uint8) if buffer.dtype == torch.bool else numbers
        return [numbers.numpy(), MPI_TYPES[buffer.dtype]], op

    # The rest

    def barrier(self, opts=None):
        return self._perform([("Barrier",)], [], [])

    def _perform(self, calls, outputs, after):
        """Use MPI's non-blocking calls, even if torch waits at once.

        In MPI, a blocking collective on one rank does not match a non-blocking one on another rank.
        In torch, one rank may block in a call that another rank makes with ``async_op=True``, as in
        DDP's `join`.
        """
        self._sequence += 1
        requests = [
            getattr(self._comm, f"I{name.lower()}")(*arguments) for name, *arguments in calls
        ]
        return self._keep(requests, outputs, after, calls)

    def _keep(self, requests, outputs, after=(), calls=()):
        """Keep requests and their memory until they are done, even if nobody waits for them.

        MPI uses the memory until then. mpi4py 4.1 keeps this memory itself, except in calls that
        reduce.
        """
        work = MpiWork(requests, outputs, after, self._timeout, calls)
        self._open = [other for other in self._open if not other.is_completed()]
        self._open.append(work)
        return work

    def _set_sequence_number_for_group(self):
        self._sequence = 0

    def _get_sequence_number_for_group(self):
        return self._sequence


LOOKS_AT_ONCE = 50
"""A wait first looks this many times without a pause. This takes about 30 us, as long as a short
send. Then it yields the processor between looks."""


class MpiWork(dist.Work):
    """Some MPI requests, and the functions to call when all of these requests are done.

    Parameters
    ----------
    requests : list of mpi4py.MPI.Request
    outputs : list
        The value of the call's future.
    after : list of callable
        The functions to call, once and in this order, when all requests are done.
    timeout : datetime.timedelta, optional
        The longest time of `wait`, if the call gives no other limit.
    held : object
        The memory that MPI reads and writes. The object keeps it until the requests are done.
    """

    def __init__(self, requests, outputs, after=(), timeout=None, held=None):
        super().__init__()
        self._requests = requests
        self._outputs = outputs
        self._after = after
        self._timeout = timeout
        self._held = held
        self._status = MPI.Status()
        self._done = False
        if not requests:
            self._finish()

    def _finish(self):
        if not self._done:
            self._done, self._held = True, None
            for step in self._after:
                step()

    def is_completed(self):
        if not self._done and self._test():
            self._finish()
        return self._done

    def _test(self):
        if len(self._requests) == 1:
            return self._requests[0].Test(self._status)
        return MPI.Request.Testall(self._requests)

    def wait(self, timeout=timedelta(0)):  # noqa: B008 (torch's own signature; immutable)
        if self._done:
            return True
        timeout = timeout or self._timeout
        end = time.monotonic() + timeout.total_seconds() if timeout else math.inf
        for look in itertools.count():
            if self._test():
                break
            if look < LOOKS_AT_ONCE:
                continue
            if time.monotonic() > end:
                raise dist.DistBackendError(
                    f"MPI: the timeout of {timeout.total_seconds():g} s has passed"
                )
            time.sleep(0)  # MPI's own wait keeps the processor, which other ranks may need
        self._finish()
        return True

    def is_success(self):
        return self.is_completed()

    def exception(self):
        return None

    def result(self):
        return self._outputs

    def synchronize(self):
        self.wait()

    def _source_rank(self):
        return self._status.source

    source_rank = _source_rank

    def get_future(self):
        """Return a future that already has its value, because C++ code would wait for it without
        asking MPI."""
        self.wait()
        future = Future()
        future.set_result(self._outputs)
        return future


def as_bytes(tensor):
    """Return the memory of a contiguous tensor as a flat array of bytes."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def with_type(array, counts):
    """Return the form in which MPI takes parts of different sizes. Each size is a number of
    bytes."""
    return [array, counts, MPI.BYTE]


def nbytes_of(tensors):
    """Return a list with the number of bytes of each tensor."""
    return [tensor.numel() * tensor.element_size() for tensor in tensors]


def joined(tensors):
    """Return a new array with the bytes of all tensors, one after the other."""
    return as_bytes(torch.cat([tensor.detach().reshape(-1) for tensor in tensors]))


def without_overlap(tensor, output):
    """Return a contiguous tensor that shares no memory with the output, because MPI permits no
    overlap."""
    same = tensor.untyped_storage().data_ptr() == output.untyped_storage().data_ptr()
    return tensor.clone().contiguous() if same else tensor.contiguous()


def receive_buffer(tensor, after):
    """Return memory into which MPI can receive a tensor: the tensor's own memory, if it is
    contiguous."""
    if tensor.is_contiguous():
        return as_bytes(tensor)
    buffer = tensor.data.contiguous()
    after.append(lambda: tensor.data.copy_(buffer))
    return as_bytes(buffer)


def receive_buffers(tensors, after):
    """Return memory into which MPI can receive several tensors, one after the other."""
    sizes = [tensor.numel() for tensor in tensors]
    buffer = torch.empty(sum(sizes), dtype=tensors[0].dtype)
    parts = buffer.split(sizes)

    def hand_out():
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.data.copy_(part.view_as(tensor))

    after.append(hand_out)
    return as_bytes(buffer)


def _add_up(group, tensor):
    """Give every rank the sum of all ranks' sparse tensors, in place.

    Ranks may have different numbers of values at different places. So all values are gathered, as
    in Gloo.

    Parameters
    ----------
    group : MpiGroup
    tensor : torch.Tensor
        Its layout is ``torch.sparse_coo``. Its shape and dtype are the same on every rank.

    Notes
    -----
    **Cost** three all_gathers, of a number and of the largest rank's indices and values, padded.
    """
    own = tensor.detach().coalesce()
    counts = _gathered(group, torch.tensor([own._nnz()]))
    most = max(count.item() for count in counts)
    indices = own.indices().new_zeros((most, own.sparse_dim()))
    indices[: own._nnz()] = own.indices().T
    values = own.values().new_zeros((most, *own.values().shape[1:]))
    values[: own._nnz()] = own.values()
    everyones = [
        torch.cat([part[: count.item()] for part, count in zip(parts, counts, strict=True)])
        for parts in (_gathered(group, indices), _gathered(group, values))
    ]
    total = torch.sparse_coo_tensor(
        everyones[0].T, everyones[1], own.shape, check_invariants=False
    ).coalesce()
    with torch.no_grad():  # tensor.detach() would have indices of its own
        tensor.copy_(total)


def _gathered(group, tensor):
    parts = [torch.empty_like(tensor) for _ in range(group.size())]
    group.allgather([parts], [tensor]).wait()
    return parts

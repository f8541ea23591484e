"""Make torch use the recording group wherever a program names a backend.

`install` wraps torch's one constructor of groups. So groups made by `new_group`, device meshes or
FSDP2 record too, while `dist.get_backend()` still returns ``gloo``, or the run's own name.
`torch_inside` has the parts of this that touch torch's internals.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed import distributed_c10d as c10d

from ..model.errors import InvalidCallError, RefusedCall, RefusedValue
from . import torch_inside
from .arguments import check_peer, refuse_what_is_lacking
from .group import RecordingGroup
from .recorder import Recorder
from .store_keys import name_awaited_keys
from .this_rank import span
from .torch_inside import when_imported
from .transports import FOREVER
from .transports.backends import BACKENDS, Backend

BACKEND = "simlib"
_torch_new_group = torch_inside.constructor_of_groups()
_torch_new_group_call = torch_inside.new_group_call()
_torch_init = c10d.init_process_group
_torch_spawn = torch.multiprocessing.spawn
_torch_destroy = c10d.destroy_process_group
_torch_monitored_barrier = c10d.monitored_barrier
_torch_batch = c10d.batch_isend_irecv


def member(recorder: Recorder, backend: Backend) -> Callable:
    """A function for `install` that makes a real rank a member of a group. Uses a `Backend`."""

    def create(options, ranks, name):
        transport = backend.open(options, ranks)
        rank, size = options.group_rank, options.group_size
        return RecordingGroup(recorder, transport, rank, size, name, ranks)

    return create


def install(
    create: Callable[[Any, tuple[int, ...], str], RecordingGroup],
    backend: Backend = BACKENDS["gloo"],
) -> None:  # noqa: B008 (an entry of a table)
    """Make the names of a `Backend` mean the recording group in this process.

    ``create(options, ranks, name)`` makes the calling rank's `RecordingGroup`.
    """
    spoken, devices = backend, list(backend.capabilities)

    def create_from_options(options, _):
        ranks = tuple(options.global_ranks_in_group)
        name = str(options.group_id) if ranks else ""
        return create(options, ranks or tuple(range(options.group_size)), name)

    def new_recording_group(size, rank, ranks, backend, store, *args, **kwargs):
        if not _is_ours(backend, spoken):
            return _torch_new_group(size, rank, ranks, backend, store, *args, **kwargs)
        backend = dist.Backend(BACKEND)
        group, store = _torch_new_group(size, rank, ranks, backend, store, *args, **kwargs)
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            torch_inside.name_backend(group, group.transport.name, group.transport.config, store)
        return group, store

    def new_group_call(ranks=None, *args, **kwargs):
        world = dist.group.WORLD
        recorder = world._recorder
        start = world.post_new_group(ranks, kwargs.get("use_local_synchronization", False))
        timeout = args[0] if args else kwargs.get("timeout")
        recorder.log.wait_begin(start, recorder.is_alone())
        try:
            group = _torch_new_group_call(ranks, *args, **kwargs)
        except BaseException:
            recorder.log.wait_failed()
            raise
        recorder.log.wait_end(start)
        if timeout is not None and isinstance(group, RecordingGroup):
            group.set_timeout(timeout)
        return group

    dist.Backend.register_backend(BACKEND, create_from_options, extended_api=True, devices=devices)
    torch_inside.use_constructor_of_groups(new_recording_group)
    torch_inside.use_new_group_call(new_group_call)
    torch_inside.use_check_not_self(_check_not_self)
    name_pieces()
    name_awaited_keys()
    for module in (dist, c10d):
        module.init_process_group = _checking_init_process_group(spoken)
        module.destroy_process_group = _destroy_process_group
        module.monitored_barrier = _monitored_barrier
        module.batch_isend_irecv = _batch_isend_irecv
    torch.multiprocessing.spawn = _spawn


def _check_not_self(group, rank, role):
    """Refuse `send` and `recv` to oneself like `isend` and `irecv`. torch calls it for those
    two."""
    if group.rank() == rank:
        try:
            check_peer(rank, group.size(), rank, "dst" if role == "destination" else "src")
        except RefusedCall as error:
            raise RefusedValue(str(error)) from None


def _is_ours(backend, spoken):
    """Whether a backend's name, in torch's form, means the run's backend, or torch's choice."""
    name = str(backend or "undefined").lower()
    cpu = [part.partition(":")[2] for part in name.split(",") if part.startswith("cpu:")]
    return (cpu[0] if cpu else name) in (*spoken.names, BACKEND, "undefined")


def join_world(store: dist.Store, rank: int, world_size: int) -> None:
    """Make the default group of this rank. The learner's own call will find it."""
    _torch_init(BACKEND, store=store, rank=rank, world_size=world_size, timeout=FOREVER)


def _spawn(fn, args=(), nprocs=1, join=True, *others, **options):
    """`torch.multiprocessing.spawn` for a program that starts its own ranks. Its ranks exist
    already.

    Each rank does the work of the process with its number. If the calling rank has already called
    torch.distributed, the new processes are its helpers.
    """
    world = dist.group.WORLD
    if world._recorder.has_joined or world._recorder.log.posted:
        return _torch_spawn(fn, args, nprocs, join, *others, **options)
    if nprocs != world.size() or not join:
        raise InvalidCallError(
            f"mp.spawn asks for {nprocs} processes, but this run has {world.size()} ranks. simlib "
            f"has already started them, and each calls the function once: run {nprocs} ranks"
            + ("" if join else ", and leave join=False out")
        )
    fn(world.rank(), *args)
    return None


def _checking_init_process_group(spoken):
    """`init_process_group` for the learner. The world exists already, so the function only checks
    the arguments."""

    def init_process_group(backend=None, init_method=None, timeout=None, *args, **kwargs):
        world = dist.group.WORLD
        told = dict(zip(("world_size", "rank"), args, strict=False)) | kwargs
        _check_init(spoken, backend, told, {"world_size": world.size(), "rank": world.rank()})
        world._recorder.has_joined = True
        if timeout is not None:
            world.set_timeout(timeout)

    return init_process_group


def _destroy_process_group(group=None):
    """`destroy_process_group` for the learner. The engine itself removes the default group."""
    if group is not None and group is not dist.group.WORLD:
        _torch_destroy(group)


def _monitored_barrier(group=dist.GroupMember.WORLD, *args, **kwargs):
    """`monitored_barrier`, which torch itself refuses without naming an alternative."""
    ours = group if group is not None else dist.group.WORLD
    if isinstance(ours, RecordingGroup):
        refuse_what_is_lacking("monitored_barrier", ours.transport.default_capabilities)
    return _torch_monitored_barrier(group, *args, **kwargs)


def _batch_isend_irecv(p2p_op_list):
    """`batch_isend_irecv`. Its messages begin together if the backend can do that, as NCCL can.

    torch does this only for its own class of groups. If messages began one after the other, two
    ranks that both send first would wait for each other.
    """
    first = p2p_op_list[0] if p2p_op_list else None
    if isinstance(first, dist.P2POp):
        group = first.group if first.group is not None else dist.group.WORLD
        if isinstance(group, RecordingGroup):
            with group.together(first.tensor.device) as works:
                works += _torch_batch(p2p_op_list)
            return works
    return _torch_batch(p2p_op_list)


def _check_init(spoken, backend, told, true):
    """Refuse an `init_process_group` that contradicts the run."""
    if backend is not None and not _is_ours(backend, spoken):
        first = spoken.names[0]
        raise InvalidCallError(
            f"init_process_group asks for the backend {str(backend)!r}, but the ranks of this run "
            f"use {first!r}: pass {' or '.join(map(repr, spoken.names))}, or leave the backend out"
        )
    for name, truth in true.items():
        value = told.get(name, -1)
        if value not in (-1, None, truth):
            raise InvalidCallError(
                f"init_process_group says {name}={value}, but here {name} is {truth}: pass the "
                f"{name} that the rank function received"
            )


class Membership:
    """This rank's place in the world. It restores what a run may have changed."""

    def __init__(self, store: dist.Store) -> None:
        self._store = store

    def begin(self, run_number: int) -> None:
        """A run begins. Count groups from the start, and let them meet under names of this run
        only.

        ``run_number`` must be the same on all ranks.
        """
        store = dist.PrefixStore(f"run {run_number}/", self._store)
        world = dist.group.WORLD
        torch_inside.count_groups_anew(world, world.transport.name, store)

    def end(self) -> None:
        """Remove every group except the default one, which gets its own timeout back."""
        default = dist.group.WORLD
        default.forget_timeout()
        for group in torch_inside.groups_here():
            if group is not default:
                _torch_destroy(group)


STAGES = "torch.distributed.pipelining.stage"


def name_pieces() -> None:
    """Put a `span` around all computing of torch's pipeline stages. Call it once in a process."""
    when_imported(STAGES, _name_pieces_of)


def _name_pieces_of(module):
    def name_of_backward(*_, full_backward=True, **__):
        return "B" if full_backward else "I"

    stage = module._PipelineStageBase
    stage.forward_one_chunk = _named(stage.forward_one_chunk, lambda *_, **__: "F")
    stage.backward_one_chunk = _named(stage.backward_one_chunk, name_of_backward)
    stage.backward_weight_one_chunk = _named(stage.backward_weight_one_chunk, lambda *_, **__: "W")


def _named(method, name_of):
    @functools.wraps(method)
    def named(stage, micro, *args, **kwargs):
        has_several = stage.num_stages > stage.group_size  # this rank has several of them
        numbers = {"stage": stage.stage_index} if has_several else {}
        with span(name_of(*args, **kwargs), **numbers, micro=micro):
            return method(stage, micro, *args, **kwargs)

    return named

"""One rank's side of one group in a simulation: the methods that torch calls."""

from __future__ import annotations

import functools

from ...clockwork.group_collectives import Call
from ...clockwork.mailbox import Post
from ...clockwork.simulated_request import Request
from ...record.recorder import count_bytes
from ...record.transports.plain_group import REDUCING, PlainGroup


class SimulatedGroup(PlainGroup):
    """The group that a `RecordingGroup` passes its calls on to.

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
            reduce_op=hash(reduce_op) if kind in REDUCING else None,
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


def _copy(tensor):
    return tensor.detach().clone()

"""Messages between two ranks: which send matches which receive, and when their transfer starts."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..record.transports.plain_group import hand_over_copy


@dataclass(slots=True)
class Post:
    """One send or receive that has been posted.

    ``src`` and ``dst`` are positions in the group. ``src`` is None for a receive from any source.
    ``content`` is a copy of the sent tensor, or the tensor that receives. ``arrived_s`` is the time
    at which an eager send's message arrived, or None before. ``met`` is the matching send or
    receive, or None before they match. A send ``is_lost`` if its sender died before any rank had
    posted a receive for it. ``is_here`` means that the stream of the op has reached the op.
    """

    src: int | None
    dst: int
    dtype: object
    nbytes: int
    request: Any
    content: Any
    posted_s: float
    is_eager: bool = False
    arrived_s: float | None = None
    met: Post | None = None
    is_lost: bool = False
    is_here: bool = True


class Mailbox:
    """Messages of one group to one rank, with one tag."""

    def __init__(self, simulation: Any, members: tuple[int, ...], dst: int) -> None:
        self._simulation = simulation
        self.members = members
        self._dst = dst
        self._crossing: set[tuple] = set()  # pairs of Requests, sender's and receiver's, under way
        self._sends: dict[int | None, deque[Post]] = defaultdict(
            deque
        )  # src -> deque of Posts not met yet, in order
        self._receives: deque[Post] = deque()  # of any and of named sources, in order
        self._is_held = False
        if simulation.scheduler.random is not None:
            simulation.scheduler.at_rest(self._choose)

    def send(self, post: Post) -> None:
        """A rank offers a message."""
        self._sends[post.src].append(post)
        if post.is_eager and post.is_here:
            self._begin_eager(post)
        if self._receives:
            self._match()
        if self._simulation.deaths:
            self._fail_if_dead(post, self._dst, self._sends[post.src])

    def _begin_eager(self, post):
        request, post.request = post.request, None  # it has the tensor, and the sender is done
        request.finish(post.posted_s)
        self._start(post, partial(self._has_arrived, post))

    def send_is_here(self, post: Post, time_s: float) -> None:
        """The stream of a send has reached the send."""
        post.is_here, post.posted_s = True, time_s
        if post.is_eager:
            self._begin_eager(post)
        elif post.met is not None:
            self._go_on(post, post.met)

    def receive_is_here(self, post: Post, time_s: float) -> None:
        """The stream of a receive has reached the receive."""
        post.is_here, post.posted_s = True, time_s
        if post.met is not None:
            self._go_on(post.met, post)

    def receive(self, post: Post) -> None:
        """A rank asks for a message."""
        self._receives.append(post)
        if len(self._receives) > 1 or post.src is None or self._sends.get(post.src):
            self._match()
        if self._simulation.deaths and post.src is not None:
            self._fail_if_dead(post, post.src, self._receives)

    def _fail_if_dead(self, post, peer, queue):
        """Let a post fail if it has no partner and its peer is dead."""
        rank = self.members[peer]
        if rank in self._simulation.deaths and post in queue:
            queue.remove(post)
            if post.request is not None:
                self._fail(post.request, rank, post.posted_s)

    def _fail(self, request, dead, time_s):
        self._simulation.when_seen(dead, time_s, partial(request.fail, closed_by(dead)))

    def withdraw(self, post: Post) -> None:
        """Withdraw a post, because its rank has waited too long for it."""
        for queue in (self._receives, self._sends[post.src]):
            if post in queue:
                queue.remove(post)

    def member_died(self, position: int, time_s: float) -> None:
        """Posts that wait for a dead member fail at this moment.

        The member's eager messages have already left it, so they arrive. Messages that it has only
        offered stay, as with Gloo. A receive from any source that takes such a message fails, and
        so does the next receive.
        """
        if position == self._dst:
            lost = [send for queue in self._sends.values() for send in queue]
            self._sends.clear()
            self._receives.clear()
        else:
            for send in self._sends.get(position, ()):
                send.is_lost = not send.is_eager
            lost = [receive for receive in self._receives if receive.src == position]
            self._receives = deque(one for one in self._receives if one.src != position)
        rank = self.members[position]
        requests = [post.request for post in lost if post.request is not None]
        for pair in [pair for pair in self._crossing if rank in (pair[0].rank, pair[1].rank)]:
            self._crossing.remove(pair)
            requests += pair
        for request in requests:
            self._fail(request, rank, time_s)
        self._match()

    def _match(self):
        """Match sends and receives, in the order of the receives."""
        if self._is_held or not self._receives:
            return
        if len(self._receives) == 1 and self._receives[0].src is not None:
            queue = self._sends.get(self._receives[0].src)
            if queue:
                self._meet(queue[0], self._receives[0])
            return
        closed = set()
        for receive in list(self._receives):
            send = None
            if receive.src is None:
                if self._simulation.scheduler.random is None:
                    send = self._first_come(closed)
                if send is None:
                    break  # nobody knows which of the later messages it will take
            elif receive.src not in closed:
                queue = self._sends.get(receive.src)
                send = queue[0] if queue else None
            if send is None:
                closed.add(receive.src)
            else:
                self._meet(send, receive)
                if self._is_held:
                    return

    def _first_come(self, closed):
        """The message that a receive from any source takes: the first message offered or
        arrived."""
        there = [queue[0] for src, queue in self._sends.items() if queue and src not in closed]
        there = [send for send in there if not send.is_eager or send.arrived_s is not None]
        return min(there, key=self._order, default=None)

    @staticmethod
    def _order(send):
        return (send.arrived_s if send.is_eager else send.posted_s), send.src

    def _choose(self):
        """Let a receive take a random present message. With a seed, this happens when all else
        waits.

        Returns whether a receive of any source has got its message.
        """
        there = [queue[0] for queue in self._sends.values() if queue]
        if self._is_held or not (there and self._receives and self._receives[0].src is None):
            return False
        self._meet(self._simulation.scheduler.random.choice(there), self._receives[0])
        self._match()
        return True

    def _meet(self, send, receive):
        if send.is_lost:
            self._receives.remove(receive)
            dead = self.members[send.src]
            seen_s = max(receive.posted_s, self._simulation.deaths[dead])
            self._fail(receive.request, dead, seen_s)
            return
        if send.nbytes != receive.nbytes or (send.nbytes and send.dtype != receive.dtype):
            self._is_held = True
            return
        self._sends[send.src].popleft()
        self._receives.remove(receive)
        receive.request.source = send.src
        receive.request.deliver = partial(hand_over_copy, send.content, send.dtype, receive.content)
        if self._simulation.unmet:
            self._simulation.have_met(receive.request)
        self._go_on(send, receive)

    def _go_on(self, send, receive):
        """Start a message whose two ends have met, when both are ready."""
        if not (send.is_here and receive.is_here):
            send.met, receive.met = receive, send
        elif not send.is_eager:
            send.met = receive.met = None
            pair = send.request, receive.request
            self._crossing.add(pair)
            self._start(send, partial(self._is_through, pair))
        elif send.arrived_s is None:
            send.met = receive
        elif receive.request.moment is not None:
            receive.request.finish(max(send.arrived_s, receive.posted_s))
        else:
            clock = self._simulation.scheduler.clocks[receive.request.rank]
            receive.request.finish(max(send.arrived_s, clock))

    def _start(self, send, on_end):
        src, dst = self.members[send.src], self.members[send.dst]
        self._simulation.transfers.send(
            self._simulation.scheduler.now_s, src, dst, send.nbytes, on_end
        )

    def _has_arrived(self, send, transfer):
        send.arrived_s = transfer.end_s
        if send.met is not None and send.met.is_here:
            send.met.request.finish(transfer.end_s)
        else:
            self._match()

    def _is_through(self, pair, transfer):
        if pair in self._crossing:
            self._crossing.remove(pair)
            for request in pair:
                request.finish(transfer.end_s)


def closed_by(rank: int) -> str:
    """The error of an op with a dead rank."""
    return (
        f"Connection closed by peer: rank {rank} has died. This is typically caused by a remote "
        "worker crashing."
    )

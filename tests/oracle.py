"""What can become of an abstract program: every interleaving, every choice of an any-source recv.

It shares no code with `simlib.core.diagnose.matching`. A rank is a list of steps: it posts a call,
and it waits for one. Posting never blocks; a wait ends when

* every member of the group has posted its k-th collective of that group, for a collective;
* every member to be has posted its k-th `new_group`, for that (those who are none pass through);
* the recv it meets is posted, or it is small enough to be eager, for a send;
* a send was matched to it, for a recv.

Sends from one rank to another with one tag are received in the order they were posted. A message
goes to the recv posted first among those that accept it (MPI), or to the first that names its
source (Gloo), and it may arrive late: a recv of any source may get a later sender's message first.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import permutations
from math import inf
from typing import NamedTuple

ITEM_SIZE = {"": 0, "float32": 4, "int32": 4, "float64": 8}
ROOT_MATTERS = {"broadcast", "scatter", "gather", "reduce"}


class State(NamedTuple):
    """Steps done by each rank; (recv, send) pairs made where recvs of any source play a part."""

    positions: tuple
    matched: frozenset


class Fate(NamedTuple):
    """How a program ended. Calls are named (rank, name); nothing is wrong where all are empty.

    ``stuck`` calls that their ranks wait for in vain, ``left`` sends and recvs that met nobody,
    ``absent`` collectives that a member never called, ``disagree`` sets of calls that met and do
    not fit, ``unwaited`` requests that a rank which finished never waited for.
    """

    stuck: frozenset = frozenset()
    left: frozenset = frozenset()
    absent: frozenset = frozenset()
    disagree: frozenset = frozenset()
    unwaited: frozenset = frozenset()


RIGHT = Fate()


class Oracle:
    """A program (a tuple of `schedules.Call` and `schedules.Wait` per rank) as a set of states.

    ``has_rivals``: recvs of any source and later ones that name it compete for a message.
    """

    def __init__(self, program, eager_limit_bytes=-1):
        self.eager_limit_bytes = eager_limit_bytes
        self.calls = {}
        self.steps = []
        self.post_step = {}
        for rank, actions in enumerate(program):
            steps = []
            for action in actions:
                call = rank, action.name
                if action.is_call:
                    self.calls[call] = action
                    self.post_step[call] = len(steps)
                    steps.append(("post", call))
                if not action.is_call or action.blocking:
                    steps.append(("wait", call))
            self.steps.append(steps)
        self.start = State((0,) * len(program), frozenset())
        self._pair_messages()
        self._gather_collectives()
        self.has_rivals = self._has_rivals()

    def _pair_messages(self):
        """Where no recv names any source the k-th send meets the k-th recv, whatever the timing."""
        self.open_doors = defaultdict(list)
        channels = defaultdict(lambda: ([], []))
        for (rank, name), call in self.calls.items():
            if call.kind == "send":
                channels[call.group, rank, call.peer, call.tag][0].append((rank, name))
            elif call.kind == "recv":
                channels[call.group, call.peer, rank, call.tag][1].append((rank, name))
        has_any = {(group, dst, tag) for group, src, dst, tag in channels if src is None}
        self.partner = {}
        for (group, _, dst, tag), (sends, recvs) in channels.items():
            if (group, dst, tag) in has_any:
                self.open_doors[group, dst, tag] += sends + recvs
            else:
                for send, recv in zip(sends, recvs, strict=False):
                    self.partner[send], self.partner[recv] = recv, send

    def _gather_collectives(self):
        """The calls that belong together."""
        self.meeting = {}
        count = defaultdict(int)
        together = defaultdict(list)
        for (rank, name), call in self.calls.items():
            if call.kind in ("send", "recv"):
                continue
            sort = call.group, call.kind == "new_group"
            together[sort, count[sort, rank]].append((rank, name))
            count[sort, rank] += 1
        for calls in together.values():
            self.meeting.update(dict.fromkeys(calls, tuple(calls)))

    def _has_rivals(self):
        """Whether a rank posts a recv from a source while one of any source may still be open."""
        waits = [
            (c, i) for steps in self.steps for i, (what, c) in enumerate(steps) if what == "wait"
        ]
        wait_step = dict(waits)
        return any(
            one[0] == other[0]
            and self.calls[one].kind == self.calls[other].kind == "recv"
            and self.calls[one].peer is None
            and self.calls[other].peer is not None
            and self.post_step[one] < self.post_step[other] < wait_step.get(one, inf)
            for calls in self.open_doors.values()
            for one, other in permutations(calls, 2)
        )

    def is_posted(self, call, state):
        """Whether its rank has come past the call's post."""
        return state.positions[call[0]] > self.post_step[call]

    def partner_of(self, call, state):
        """The send or recv that this posted recv or send has met so far, or None."""
        if call in self.partner:
            other = self.partner[call]
            return other if self.is_posted(other, state) else None
        for pair in state.matched:
            if call in pair:
                return pair[1] if call == pair[0] else pair[0]
        return None

    def is_complete(self, call, state):
        """Whether a wait for this posted call ends."""
        what = self.calls[call]
        if what.kind not in ("send", "recv"):
            come = {other[0] for other in self.meeting[call] if self.is_posted(other, state)}
            if what.kind == "new_group":
                return call[0] not in what.splits or come.issuperset(what.splits)
            return come.issuperset(what.group.ranks)
        if what.kind == "send" and nbytes(what) <= self.eager_limit_bytes:
            return True
        return self.partner_of(call, state) is not None

    def moves(self, state):
        """Everything that can happen next: (what, call or pair, state after it)."""
        found = []
        for rank, steps in enumerate(self.steps):
            position = state.positions[rank]
            if position == len(steps):
                continue
            what, call = steps[position]
            if what == "post" or self.is_complete(call, state):
                after = (*state.positions[:rank], position + 1, *state.positions[rank + 1 :])
                found.append((what, call, state._replace(positions=after)))
        for pair in self.matches(state):
            found.append(("match", pair, state._replace(matched=state.matched | {pair})))
        return found

    def matches(self, state):
        """(recv, send) pairs that can meet next, where recvs of any source play a part."""
        taken = {call for pair in state.matched for call in pair}
        found = []
        for calls in self.open_doors.values():
            free = [call for call in calls if call not in taken and self.is_posted(call, state)]
            free.sort(key=self.post_step.get)
            heads = {}
            for call in free:
                if self.calls[call].kind == "send":
                    heads.setdefault(call[0], call)
            recvs = [call for call in free if self.calls[call].kind == "recv"]
            for src, send in heads.items():
                accept = [recv for recv in recvs if self.calls[recv].peer in (None, src)]
                naming = [recv for recv in accept if self.calls[recv].peer == src]
                found += [(recv, send) for recv in {*accept[:1], *naming[:1]}]
        return found

    def fates(self):
        """The `Fate` of every run there can be."""
        seen, todo, found = {self.start}, [self.start], set()
        while todo:
            state = todo.pop()
            after = [then for _, _, then in self.moves(state)]
            if not after:
                found.add(self.fate(state))
            for then in after:
                if then not in seen:
                    seen.add(then)
                    todo.append(then)
        return found

    def fate(self, state):
        """How things stand in a state after which nothing can happen."""
        ends = [
            None if position == len(steps) else steps[position][1]
            for position, steps in zip(state.positions, self.steps, strict=True)
        ]
        waited = {call for steps in self.steps for what, call in steps if what == "wait"}
        left, absent, disagree = set(), set(), set()
        for call in self.calls:
            if not self.is_posted(call, state):
                continue
            if self.calls[call].kind in ("send", "recv"):
                other = self.partner_of(call, state)
                if other is None:
                    left.add(call)
                elif not fits_message(self.calls[call], self.calls[other]):
                    disagree.add(frozenset({call, other}))
                continue
            come = [other for other in self.meeting[call] if self.is_posted(other, state)]
            if len(come) < len(self.calls[call].group):
                absent.add(call)
            if not all(fits(self.calls, *pair) for pair in permutations(come, 2)):
                disagree.add(frozenset(come))
        return Fate(
            frozenset(call for call in ends if call),
            frozenset(left),
            frozenset(absent),
            frozenset(disagree),
            frozenset(c for c in self.calls if ends[c[0]] is None and c not in waited),
        )


def nbytes(call):
    """Bytes of all the tensors a call brings."""
    return sum(call.sizes) * ITEM_SIZE[call.dtype]


def fits_message(one, other):
    """Whether a send and its recv have the same dtype and number of elements."""
    return one.dtype == other.dtype and sum(one.sizes) == sum(other.sizes)


def fits(calls, mine, theirs):
    """Whether two calls of one collective can be the same collective, as the first one sees it."""
    one, other = calls[mine], calls[theirs]
    if (one.kind, one.reduce_op, one.dtype) != (other.kind, other.reduce_op, other.dtype):
        return False
    if one.kind in ROOT_MATTERS and one.peer != other.peer:
        return False
    my_place, their_place = one.group.ranks.index(mine[0]), one.group.ranks.index(theirs[0])
    if one.kind == "new_group":
        # Groups of other ranks made in one go do no harm where one of the two is a single rank.
        apart = set(one.splits).isdisjoint(other.splits)
        return one.splits == other.splits or (apart and 1 in (len(one.splits), len(other.splits)))
    if one.kind == "all_to_all":
        return one.splits[0][their_place] == other.splits[1][my_place]
    if one.kind == "scatter":
        wanted = [
            call.sizes[place] if rank == call.peer else sum(call.sizes)
            for (rank, _), call, place in ((mine, one, their_place), (theirs, other, my_place))
        ]
        return wanted[0] == wanted[1]
    return sum(one.sizes) == sum(other.sizes)

"""Abstract programs: drawn at random, made wrong on purpose, and run in front of a `Matcher`.

A program is a tuple of actions per rank: a `Call` (send, recv or a collective) and, for a call that
does not block, a `Wait` for it later.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import strategies as st
from oracle import Oracle, nbytes

from simlib.core.diagnose.matching import Matcher
from simlib.core.model.trace import Group, Op, Site, describe_call

REDUCING = ("all_reduce", "reduce", "reduce_scatter")
ROOTED = ("broadcast", "scatter", "gather", "reduce")
COLLECTIVES = (
    *("all_reduce", "broadcast", "barrier", "all_gather", "reduce", "gather", "reduce_scatter"),
    *("scatter", "all_to_all", "new_group"),
)


@dataclass(frozen=True)
class Call:
    """A rank calls; ``name`` is its own within the rank. ``sizes``: elements of each tensor."""

    name: int
    kind: str
    group: Group
    peer: int | None = None
    tag: int | None = None
    sizes: tuple = (1,)
    dtype: str = "float32"
    reduce_op: str | None = None
    splits: tuple | None = None
    blocking: bool = True
    is_call = True

    def __repr__(self):
        given = self.peer, self.tag, self.dtype, self.sizes, self.reduce_op, self.splits
        words = [self.group.name, *map(str, filter(lambda value: value is not None, given))]
        kind = self.kind if self.blocking else f"later {self.kind}"
        return f"{self.name}: {kind}({', '.join(words)})"


@dataclass(frozen=True)
class Wait:
    """A rank waits for its call of that name."""

    name: int
    is_call = False

    def __repr__(self):
        return f"wait {self.name}"


def world(size):
    """The group of all ranks."""
    return Group("world", tuple(range(size)))


def make_op(rank, seq, call):
    """The `Op` that an engine would write down for a call."""
    is_async, any_source = not call.blocking, call.kind == "recv" and call.peer is None
    words = describe_call(call.kind, call.peer, call.tag, call.reduce_op, is_async, any_source)
    same = "kind", "group", "peer", "tag", "dtype", "reduce_op", "splits"
    given = {name: getattr(call, name) for name in same}
    given |= {
        "async_op": is_async,
        "any_source": any_source,
        "site": Site(words, "<cell>", seq + 1),
    }
    given |= {"nbytes": nbytes(call), "shapes": tuple((size,) for size in call.sizes)}
    return Op(rank=rank, seq=seq, post_s=float(seq), wait_s=None, end_s=None, **given)


# ---- running a program in front of a matcher


@dataclass
class Walk:
    """One interleaving of a program, with a `Matcher` that is told of every post.

    ``choose(n)`` gives a number below n: which of n possible moves is next. A recv of any source
    is resolved when it meets its message, or, where ``late``, only when its rank has waited for it,
    as on real ranks. `AssertionError` where the matcher holds a rank for blocked that goes on, or
    does not see that one is stuck; the latter where the run is ``exact``.
    """

    program: tuple
    choose: object
    late: bool = False
    eager_limit_bytes: int = -1
    ops: dict = field(default_factory=dict)
    reported: dict = field(default_factory=dict)

    def run(self):
        """Go on until nothing can happen any more; returns the `Fate` of this run."""
        self.oracle = Oracle(self.program, self.eager_limit_bytes)
        self.matcher = Matcher(len(self.program), self.eager_limit_bytes)
        self.state = self.oracle.start
        while moves := self.oracle.moves(self.state):
            what, about, self.state = moves[self.choose(len(moves))]
            getattr(self, f"_{what}")(about)
            self._check_waits()
            self._check_blocked()
        fate = self.oracle.fate(self.state)
        blocked = self._blocked()
        stuck = {rank: self.ops[rank, name].seq for rank, name in fate.stuck}
        found = {rank: wait.op.seq for rank, wait in blocked.waits.items()} if blocked else {}
        assert found.items() <= stuck.items(), f"{found} (rank: op) may go on; stuck are {stuck}"
        assert not self.exact or found == stuck, f"blocked: {found} (rank: op); stuck are {stuck}"
        assert self.reported.items() <= stuck.items(), f"{self.reported} went on"
        return fate

    @property
    def exact(self):
        """Whether the matcher knows all by now.

        It does not where a recv of any source has a message and its rank has not said so, and
        where such recvs compete with others: nobody tells the matcher who was first.
        """
        told = all(self.ops[recv].peer is not None for recv, _ in self.state.matched)
        return told and not self.oracle.has_rivals

    def _post(self, call):
        rank, _ = call
        seq = sum(1 for other in self.ops if other[0] == rank)
        op = self.ops[call] = make_op(rank, seq, self.oracle.calls[call])
        self.matcher.post(op)

    def _match(self, pair):
        if not self.late:
            self._resolve(*pair)

    def _resolve(self, recv, send):
        if self.ops[recv].any_source:
            self.ops[recv].peer = send[0]
            self.matcher.resolve(self.ops[recv])

    def _wait(self, call):
        self.ops[call].end_s = 1.0
        if self.late and self.ops[call].any_source:
            self._resolve(call, self.oracle.partner_of(call, self.state))

    def _check_waits(self):
        exact = self.exact and not self.oracle.matches(self.state)
        for call, op in self.ops.items():
            is_complete = self.oracle.is_complete(call, self.state)
            is_satisfied = self.matcher.is_satisfied(op)
            assert is_satisfied or not is_complete, f"{call} is complete, not so for the matcher"
            assert not exact or is_satisfied == is_complete, f"{call} is held for complete"

    def _blocked(self):
        waiting, gone = {}, set()
        for rank, steps in enumerate(self.oracle.steps):
            position = self.state.positions[rank]
            if position == len(steps):
                gone.add(rank)
            elif steps[position][0] == "wait":
                waiting[rank] = self.ops[steps[position][1]]
        blocked = self.matcher.blocked(waiting, gone, lambda op: op.done)
        if blocked:
            check_ring(blocked, gone)
        return blocked

    def _check_blocked(self):
        blocked = self._blocked()
        for rank, wait in blocked.waits.items() if blocked else ():
            seq = self.reported.setdefault(rank, wait.op.seq)
            assert seq == wait.op.seq, f"rank {rank} was held for blocked in op {seq} and went on"


def check_ring(blocked, gone):
    """The cycle of a `Blocked` is one and none is shorter; without one somebody needed is gone."""
    arrows = {rank: set(wait.needs) & set(blocked.waits) for rank, wait in blocked.waits.items()}
    reach, length = {rank: {rank} for rank in arrows}, None
    for steps in range(1, len(arrows) + 1):
        reach = {rank: {b for a in ends for b in arrows[a]} for rank, ends in reach.items()}
        if any(rank in ends for rank, ends in reach.items()):
            length = steps
            break
    assert len(blocked.cycle) == (length or 0), f"{blocked.cycle}, but the shortest has {length}"
    for rank, after in zip(blocked.cycle, blocked.cycle[1:] + blocked.cycle[:1], strict=True):
        assert after in arrows[rank]
    needed = {other for wait in blocked.waits.values() for other in wait.needs}
    assert set(blocked.gone) == needed & gone
    assert blocked.cycle or blocked.gone


def is_flagged(walk):
    """Whether the matcher has anything to say against a program that was walked to its end."""
    matcher = walk.matcher
    return bool(
        matcher.mismatches or walk.reported or matcher.unfinished() or matcher.absent()
        or walk._blocked()
    )  # fmt: skip


# ---- programs that are right by construction


@dataclass(frozen=True)
class _Event:
    """A message or a collective: the call of each rank that takes part."""

    calls: dict
    channels: dict  # rank -> what its calls are counted on


@st.composite
def messages(draw, groups, number, any_source=False):
    """One message between two members of a group; with ``any_source`` most go to rank 0."""
    group = draw(st.sampled_from([group for group in groups if len(group) > 1]))
    src, dst = draw(st.permutations(group.ranks))[:2]
    tag = draw(st.sampled_from([0, 0, 0, 1]))
    if any_source and draw(st.integers(0, 3)):
        group, dst, tag = groups[0], 0, 0
        src = draw(st.sampled_from(group.ranks[1:]))
    like = {
        "name": number,
        "group": group,
        "tag": tag,
        "sizes": (draw(st.integers(1, 3)),),
        "dtype": draw(st.sampled_from(["float32", "int32", "float64"])),
    }
    source = None if any_source and draw(st.booleans()) else src
    calls = {src: Call(kind="send", peer=dst, **like), dst: Call(kind="recv", peer=source, **like)}
    return _Event(calls, dict.fromkeys((src, dst), (group, src, dst, tag)))


@st.composite
def collectives(draw, groups, number):
    """One collective of a group."""
    kind = draw(st.sampled_from(COLLECTIVES))
    group = groups[0] if kind == "new_group" else draw(st.sampled_from(groups))
    size, numel = len(group), draw(st.integers(1, 3))
    root = draw(st.sampled_from(group.ranks)) if kind in ROOTED else None
    like = {
        "name": number,
        "group": group,
        "peer": root,
        "dtype": draw(st.sampled_from(["float32", "int32"])),
        "reduce_op": draw(st.sampled_from(["SUM", "MAX"])) if kind in REDUCING else None,
    }
    sizes = dict.fromkeys(group.ranks, (numel,))
    splits = dict.fromkeys(group.ranks)
    if kind in ("barrier", "new_group"):
        sizes, like["dtype"] = dict.fromkeys(group.ranks, ()), ""
    if kind == "new_group":
        asked = tuple(sorted(draw(st.sets(st.sampled_from(group.ranks), min_size=1))))
        splits = dict.fromkeys(group.ranks, asked)
    if kind == "scatter":
        sizes[root] = (numel,) * size
    if kind == "all_to_all":
        row = st.lists(st.integers(0, 2), min_size=size, max_size=size)
        even = [numel] * size
        sent = [draw(row) for _ in group.ranks] if draw(st.booleans()) else [even] * size
        for place, rank in enumerate(group.ranks):
            sizes[rank] = (sum(sent[place]),)
            splits[rank] = tuple(sent[place]), tuple(row[place] for row in sent)
    calls = {r: Call(kind=kind, sizes=sizes[r], splits=splits[r], **like) for r in group.ranks}
    channel = group, kind == "new_group"
    return _Event(calls, dict.fromkeys(group.ranks, channel))


@st.composite
def right_programs(draw, any_source=False, max_events=6):
    """A program whose calls, in one global order that is drawn too, all find their partners.

    With ``any_source`` some recvs name no source; then another order of matching may go wrong.
    """
    size = draw(st.integers(2, 4))
    subsets = st.sets(st.integers(0, size - 1), min_size=1).map(lambda s: tuple(sorted(s)))
    more = draw(st.lists(subsets, max_size=2))
    groups = [world(size), *(Group(f"group {i + 1}", ranks) for i, ranks in enumerate(more))]
    events = []
    for number in range(draw(st.integers(1, max_events))):
        if draw(st.integers(0, 3 if any_source else 1)):
            events.append(draw(messages(groups, number, any_source)))
        else:
            events.append(draw(collectives(groups, number)))
    order = []
    for number, event in enumerate(events):
        ranks = draw(st.permutations(list(event.calls)))
        order += [(what, rank, number) for what in ("post", "wait") for rank in ranks]
    place = st.integers(0, len(order) - 1)
    least = draw(st.sampled_from([0, 0, 6]))
    for source, target in draw(st.lists(st.tuples(place, place), min_size=least, max_size=12)):
        moved = [*order[:source], *order[source + 1 :]]
        moved.insert(target, order[source])
        if _is_right(moved, events):
            order = moved
    return tuple(_actions_of(rank, order, events) for rank in range(size))


def _is_right(order, events):
    """Whether each wait comes after all posts of its event, and channels keep their order."""
    posts, last = [0] * len(events), {}
    for what, rank, number in order:
        event = events[number]
        if what == "wait" and posts[number] < len(event.calls):
            return False
        if what == "post":
            posts[number] += 1
            channel = event.channels[rank], rank
            if last.get(channel, -1) > number:
                return False
            last[channel] = number
    return True


def _actions_of(rank, order, events):
    """A rank's part of a global order; a post with its wait right behind it is a blocking call."""
    mine = [(what, number) for what, where, number in order if where == rank]
    actions = []
    for i, (what, number) in enumerate(mine):
        call = events[number].calls[rank]
        blocking = mine[i + 1 : i + 2] == [("wait", number)]
        if what == "post":
            actions.append(replace(call, blocking=blocking))
        elif mine[i - 1] != ("post", number):
            actions.append(Wait(number))
    return tuple(actions)


# ---- the same programs, made wrong


@st.composite
def wrong_programs(draw, any_source=True, max_events=6):
    """A right program with one call removed, two swapped, or one re-addressed; once or twice."""
    program = draw(right_programs(any_source, max_events))
    for _ in range(draw(st.sampled_from([1, 1, 2]))):
        ranks = [rank for rank, actions in enumerate(program) if actions]
        if not ranks:
            break
        rank = draw(st.sampled_from(ranks))
        change = draw(st.sampled_from([remove, forget, swap, readdress, readdress]))
        actions = draw(change(program, rank, any_source))
        program = (*program[:rank], actions, *program[rank + 1 :])
    return program


@st.composite
def remove(draw, program, rank, _):
    """Without one call and the wait for it."""
    gone = draw(st.sampled_from(program[rank])).name
    return tuple(action for action in program[rank] if action.name != gone)


@st.composite
def forget(draw, program, rank, _):
    """Without one wait."""
    waits = [action for action in program[rank] if not action.is_call]
    gone = draw(st.sampled_from(waits)) if waits else None
    return tuple(action for action in program[rank] if action is not gone)


@st.composite
def swap(draw, program, rank, _):
    """Two actions have changed places; waits stay behind their calls."""
    actions = list(program[rank])
    place = st.integers(0, len(actions) - 1)
    i, j = draw(place), draw(place)
    actions[i], actions[j] = actions[j], actions[i]
    called = set()
    for action in actions:
        if not action.is_call and action.name not in called:
            return program[rank]
        called.add(action.name)
    return tuple(actions)


@st.composite
def readdress(draw, program, rank, any_source):
    """One call goes to another rank, group, tag or root, or brings other data."""
    calls = [action for action in program[rank] if action.is_call]
    if not calls:
        return program[rank]
    call = draw(st.sampled_from(calls))
    changed = replace(call, **draw(_changes(call, rank, program, any_source)))
    return tuple(changed if action is call else action for action in program[rank])


@st.composite
def _changes(draw, call, rank, program, any_source):
    others = [member for member in call.group.ranks if member != rank]
    choices = []
    if call.kind in ("send", "recv"):
        choices += [{"peer": peer} for peer in others if peer != call.peer]
        choices += [{"tag": 1 - call.tag}, {"tag": 1 - call.tag}, {"sizes": (call.sizes[0] + 1,)}]
        if call.kind == "recv" and any_source:
            choices += [{"peer": None}] * 2
        if call.peer is not None:
            choices.append({"kind": "recv" if call.kind == "send" else "send"})
        choices.append({"dtype": "int32" if call.dtype == "float32" else "float32"})
        groups = {a.group for actions in program for a in actions if a.is_call}
        choices += [
            {"group": group}
            for group in sorted(groups, key=lambda group: group.name)
            if rank in group.ranks and call.peer in (None, *group.ranks) and len(group) > 1
        ]
        return draw(st.sampled_from(choices))
    if call.kind in ROOTED:
        choices += [{"peer": peer} for peer in call.group.ranks if call.kind != "scatter"]
    if call.kind in REDUCING:
        choices.append({"reduce_op": "MIN"})
    if call.kind in ("all_reduce", "all_gather", "broadcast", "gather", "reduce"):
        choices.append({"sizes": (call.sizes[0] + 1,)})
        choices.append({"dtype": "float64"})
    if call.kind == "new_group":
        choices.append({"splits": (rank,)})
    if call.kind == "all_to_all":
        size = len(call.group)
        choices.append({"splits": ((4,) * size,) * 2, "sizes": (4 * size,)})
    nothing = {"sizes": (), "dtype": "", "peer": None, "reduce_op": None, "splits": None}
    choices.append({"kind": "barrier", **nothing})
    return draw(st.sampled_from(choices))

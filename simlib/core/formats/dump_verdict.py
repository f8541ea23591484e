"""What the calls in a job's dumps say: who differs, who waits for whom, who does not come."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ..diagnose import verdicts
from ..diagnose.matching import Blocked, Matcher, Mismatch
from ..model.errors import DeadlockError, SimlibError
from ..model.trace import Group, Op
from ..model.words import ranks_in_words, seconds_text
from .dump_hints import Lateness, lateness_of, name_by_size
from .flight_recorder import Recorded

MOST_TIMES_LATER = 3
"""A rank that came late before is lost once it is so many times later than that."""
MOSTLY = 0.5
"""A rank that comes last to a larger share of its collectives is named."""


@dataclass(slots=True)
class Found:
    """A verdict: see `simlib.JobDiagnosis`."""

    kind: str
    message: str
    ranks: tuple[int, ...] = ()
    notes: list[str] = field(default_factory=list)
    error: SimlibError | None = None


class Judge:
    """Matches the calls of a job, and says what is wrong with them.

    Parameters
    ----------
    recorded : Recorded
    written_ns : int
        The date of the newest dump, in nanoseconds since 1970.

    Notes
    -----
    A device does what a rank has called in the order of the calls. So a rank *waits* in the first
    of its calls that is not over, its head. What it has called after that has not begun.
    """

    def __init__(self, recorded: Recorded, written_ns: int = 0) -> None:
        self.recorded = recorded
        self.written_s = max(0, written_ns - recorded.origin_ns) / 1e9
        self.gone: dict[int, str] = dict.fromkeys(recorded.trace.missing, "left no dump")
        self.heads: dict[int, list[Op]] = {}
        for rank, ops in recorded.by_rank.items():
            self._find_head(rank, ops)
        name_by_size(recorded, [op for ops in self.heads.values() for op in ops])
        self.notes: list[str] = []
        self.matcher = self._matched()

    def _find_head(self, rank: int, ops: list[Op]) -> None:
        head = next((op for op in ops if not op.done), None)
        if head is not None:
            self.heads[rank] = self.recorded.together.get((rank, head.seq), [head])
        elif ops:
            last = ops[-1].site
            self.gone[rank] = f"made no further call after {last.op} ({last.place})"
        else:
            self.gone[rank] = "made no call that was recorded"

    def _matched(self) -> Matcher:
        """A matcher that knows all calls that are over, and the heads."""
        matcher = Matcher(self.recorded.trace.world_size)
        begins: dict[Group, int] = {}
        for (group, _), number in self.recorded.first.items():
            begins[group] = max(begins.get(group, 0), number)
        lossy = {rank for _, rank in self.recorded.first}
        heads = {(op.rank, op.seq) for ops in self.heads.values() for op in ops}
        dropped = 0
        for op in self.recorded.trace:
            if (op.rank, op.seq) in heads:
                matcher.post(op)
                self._post_lost(op, matcher)
            elif op.done:
                lost = op.number is not None and op.number < begins.get(op.group, 0)
                if lost or (op.is_p2p and lossy.intersection((op.rank, op.peer))):
                    dropped += 1
                else:
                    matcher.post(op)
        if dropped:
            self.notes.append(
                f"{dropped:,} calls at the beginning were not compared: the recorders of other "
                "ranks hold their last calls only, and have lost what these met"
            )
        return matcher

    def _post_lost(self, head: Op, matcher: Matcher) -> None:
        """Post the calls that a head has met, and that rings of other ranks have lost since."""
        for rank in head.group.ranks if head.number is not None else ():
            if head.number < self.recorded.first.get((head.group, rank), 0):
                matcher.post(replace(head, rank=rank, seq=-1 - head.number))

    def verdict(self) -> Found:
        """The verdict on the job, with what else there is to say."""
        found = self._verdict()
        found.notes += self.notes
        left_out = "roots, reduce ops, tags and splits"
        if self.recorded.backend == "gloo":
            left_out += ", and of Gloo no send and no recv"
        found.notes.append(f"dumps do not hold {left_out}: nothing is known of these")
        return found

    def _verdict(self) -> Found:
        waiting = {rank: self._unmet(ops) for rank, ops in self.heads.items()}
        met = {rank: op for rank, op in waiting.items() if not self.matcher.wait_of(op).needs}
        how = "has called what all of its group have called"
        gone = self.gone | dict.fromkeys(met, how)
        rest = {rank: op for rank, op in waiting.items() if rank not in met}
        blocked = self.matcher.blocked(rest, gone) if rest else None
        mismatch = next(filter(_is_certain, self.matcher.mismatches), None)
        if mismatch is not None:
            return self._of_mismatch(mismatch, blocked, gone)
        if blocked is not None and (blocked.cycle or not met.keys() >= set(blocked.gone)):
            return self._of_deadlock(blocked, gone)
        if met:
            return self._of_stuck(met, rest)
        return self._of_healthy()

    def _unmet(self, ops: list[Op]) -> Op:
        """Of calls made as one the first whose other side is not there."""
        return next((op for op in ops if self.matcher.wait_of(op).needs), ops[0])

    def _of_mismatch(self, mismatch: Mismatch, blocked: Blocked | None, gone: dict) -> Found:
        error = verdicts.mismatch(mismatch)
        is_message = any(op.is_p2p for op in mismatch.ops.values())
        ranks = tuple(sorted(mismatch.ops if is_message else verdicts.sides(mismatch)[0][1]))
        notes = []
        if blocked is not None and blocked.gone:
            away = [rank for rank in blocked.gone if rank in self.gone]
            notes = [f"rank {rank} {gone[rank]}" for rank in away[:3]]
        return Found("mismatch", str(error), ranks, notes, error)

    def _of_deadlock(self, blocked: Blocked, gone: dict) -> Found:
        error = verdicts.deadlock(blocked, gone, self.matcher)
        ranks = blocked.cycle or self._suspects(blocked.gone)
        late = self._is_slow(blocked)
        if late is None:
            return Found("deadlock", str(error), tuple(sorted(ranks)), [], error)
        words = (
            f"{ranks_in_words(ranks)} may be slow, and not lost: the others had waited for "
            f"{seconds_text(self._waited_s(blocked))} when the dumps were written, and "
            f"{'it' if len(ranks) == 1 else 'they'} came up to {seconds_text(late.most_s)} after "
            "the first before"
        )
        return Found("slow", f"{words}\n{error}", tuple(sorted(ranks)), [], error)

    def _suspects(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """Of ranks that do not come those of which a dump says so, where there are any."""
        with_dump = tuple(rank for rank in ranks if self.gone.get(rank) != "left no dump")
        return with_dump or tuple(ranks)

    def _waited_s(self, blocked: Blocked) -> float:
        first_s = min(wait.op.post_s for wait in blocked.waits.values())
        return max(self.written_s, self.recorded.trace.end_s) - first_s

    def _is_slow(self, blocked: Blocked) -> Lateness | None:
        """How late the awaited ranks were before, if they are not much later now."""
        ops = [wait.op for wait in blocked.waits.values()]
        timed_out = any((op.rank, op.seq) in self.recorded.timed_out for op in ops)
        if blocked.cycle or timed_out or not self.written_s:
            return None
        known = lateness_of(self.recorded, blocked.gone)
        late = [known.get(rank) for rank in blocked.gone]
        if not late or None in late:
            return None
        least = min((one for one in late if one is not None), key=lambda one: one.most_s)
        return least if self._waited_s(blocked) <= MOST_TIMES_LATER * least.most_s else None

    def _of_stuck(self, met: dict[int, Op], rest: dict[int, Op]) -> Found:
        """All of a group have made a call and it does not end: the program is right so far."""
        first = min(met.values(), key=lambda op: (op.post_s, op.rank))
        ranks = [rank for rank, op in met.items() if op.group == first.group]
        unstarted = [r for r in ranks if (r, met[r].seq) in self.recorded.unstarted]
        words = [
            f"{ranks_in_words(ranks)} have all called {first.site.op} ({first.site.where}), and it "
            "does not end, though calls agree as far as dumps tell. Look at the network and the "
            "devices, and whether all name the same root, reduce op or tag"
        ]
        if unstarted and len(unstarted) < len(ranks):
            words.append(
                f"Of them {ranks_in_words(unstarted)} had not begun it: a device is still at work "
                "on what was launched before"
            )
            ranks = unstarted
        if rest:
            words.append(f"{ranks_in_words(rest)} wait behind these")
        error = DeadlockError("\n".join(words), {rank: met[rank].site for rank in met})
        return Found("stuck", str(error), tuple(sorted(ranks)), [], error)

    def _of_healthy(self) -> Found:
        trace = self.recorded.trace
        words = (
            f"Nobody waits: all {len(trace):,} calls that are recorded of "
            f"{len(self.recorded.by_rank):,} ranks are over, and those that met agree"
        )
        notes = []
        if trace.missing:
            notes.append(f"{ranks_in_words(trace.missing)} left no dump")
        late = lateness_of(self.recorded, self.recorded.by_rank)
        rank = max(late, key=lambda one: late[one].share, default=None)
        if rank is not None and late[rank].share > MOSTLY:
            notes.append(f"rank {rank} {late[rank]}")
        return Found("healthy", words, (), notes)


def _is_certain(mismatch: Mismatch) -> bool:
    """Messages that have arrived may have met otherwise: nobody knows their tags."""
    return not all(op.is_p2p and op.done for op in mismatch.ops.values())

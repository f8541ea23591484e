"""The verdict on a job's dumps: which ranks differ, wait for each other, or do not call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from ..diagnose import verdicts
from ..diagnose.matching import Blocked, Matcher, Mismatch
from ..diagnose.stragglers import stragglers_of
from ..model.errors import DeadlockError, SimlibError
from ..model.trace import Group, Op
from ..model.words import ranks_in_words, seconds_text
from .dump_files import Moves
from .dump_hints import name_by_size
from .flight_recorder import Recorded

MOST_TIMES_LATER = 3
"""A rank that was late before counts as lost if it is now this many times later than before."""


@dataclass(slots=True)
class Found:
    """A verdict: see `simlib.JobDiagnosis`."""

    kind: str
    message: str
    ranks: tuple[int, ...] = ()
    notes: list[str] = field(default_factory=list)
    error: SimlibError | None = None


class Judge:
    """Matches the calls of a job, and finds what is wrong with them.

    Parameters
    ----------
    recorded : Recorded
    written_ns : int
        The date of the newest dump, in nanoseconds since 1970.
    moves : Moves
        The progress of ranks, for a job that still runs. Its dumps are from different moments.

    Notes ----- A device runs the calls of a rank in their order. So a rank *waits* in its first
    call that has not completed. This call is the *head* of the rank. Later calls of the rank have
    not begun.
    """

    def __init__(self, recorded: Recorded, written_ns: int = 0, moves: Moves | None = None) -> None:
        self.recorded = recorded
        self.moves = moves or Moves()
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
            self.gone[rank] = "made no recorded call"

    def _matched(self) -> Matcher:
        """A matcher that has got all completed calls, and the heads."""
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
                "ranks keep only their last calls, and have lost the matching calls"
            )
        return matcher

    def _post_lost(self, head: Op, matcher: Matcher) -> None:
        """Post calls that belong to a head, but that the rings of other ranks have lost
        meanwhile."""
        for rank in head.group.ranks if head.number is not None else ():
            if head.number < self.recorded.first.get((head.group, rank), 0):
                matcher.post(replace(head, rank=rank, seq=-1 - head.number))

    def verdict(self) -> Found:
        """The verdict on the job, with notes."""
        found = self._verdict()
        if self.moves.ranks and str(self.moves) not in found.message:
            found.notes.insert(0, str(self.moves))
        found.notes += [*self.notes, *self._silent(found)]
        words = "dumps do not contain roots, reduce ops, tags or splits. "
        if self.recorded.backend == "gloo":
            words += "Dumps of Gloo also lack sends and recvs. "
        found.notes.append(f"{words}So simlib did not compare these")
        return found

    def _silent(self, found: Found) -> Iterable[str]:
        """Add a note on ranks without a dump for which no rank is known to wait."""
        graph = getattr(found.error, "graph", None)
        awaited = graph.gone if graph else ()
        silent = [rank for rank in self.recorded.trace.missing if rank not in awaited]
        if silent:
            yield f"the calls of {ranks_in_words(silent)} are unknown: there is no dump"

    def _verdict(self) -> Found:
        waiting = {rank: self._unmet(ops) for rank, ops in self.heads.items()}
        met = {rank: op for rank, op in waiting.items() if not self.matcher.wait_of(op).needs}
        how = "has made the same calls as all ranks of its group"
        gone = self.gone | dict.fromkeys(met, how)
        rest = {rank: op for rank, op in waiting.items() if rank not in met}
        blocked = self.matcher.blocked(rest, gone) if rest else None
        mismatch = next(filter(_is_certain, self.matcher.mismatches), None)
        if mismatch is not None:
            return self._of_mismatch(mismatch, blocked, gone)
        if self.moves.is_all:
            return Found("healthy", f"The job still runs: {self.moves}")
        if blocked is not None and (blocked.cycle or not met.keys() >= set(blocked.gone)):
            return self._of_deadlock(blocked, gone)
        if met:
            return self._of_stuck(met, rest)
        return self._of_healthy()

    def _unmet(self, ops: list[Op]) -> Op:
        """Of several calls made as one, the first call whose partner has not called."""
        return next((op for op in ops if self.matcher.wait_of(op).needs), ops[0])

    def _of_mismatch(self, mismatch: Mismatch, blocked: Blocked | None, gone: dict) -> Found:
        error = verdicts.mismatch(mismatch)
        is_message = any(op.is_p2p for op in mismatch.ops.values())
        ranks = tuple(sorted(mismatch.ops if is_message else verdicts.sides(mismatch)[0][1]))
        notes = []
        if blocked is not None and blocked.gone:
            away = [rank for rank in blocked.gone if rank in self.recorded.by_rank]
            notes = [f"rank {rank} {gone[rank]}" for rank in away[:3]]
        return Found("mismatch", str(error), ranks, notes, error)

    def _of_deadlock(self, blocked: Blocked, gone: dict) -> Found:
        error = verdicts.deadlock(blocked, gone, self.matcher)
        ranks = blocked.cycle or self._suspects(blocked.gone)
        waited_s = self._waited_s(blocked)
        # No rank was later than the calls go back.
        is_long = waited_s > MOST_TIMES_LATER * self.recorded.trace.ops[-1].post_s
        late_s = 0.0 if is_long else self._late_before_s(blocked)
        if waited_s > MOST_TIMES_LATER * late_s:
            return Found("deadlock", str(error), tuple(sorted(ranks)), [], error)
        words = (
            f"{ranks_in_words(ranks)} may only be slow. The other ranks had waited for "
            f"{seconds_text(waited_s)} when the dumps were written. In earlier calls, "
            f"{ranks_in_words(ranks)} arrived up to {seconds_text(late_s)} after most other ranks"
        )
        return Found("slow", f"{words}\n{error}", tuple(sorted(ranks)), [], error)

    def _suspects(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """The missing ranks that have a dump; all missing ranks if none has a dump."""
        with_dump = tuple(rank for rank in ranks if self.gone.get(rank) != "left no dump")
        return with_dump or tuple(ranks)

    def _waited_s(self, blocked: Blocked) -> float:
        calls_s = [wait.op.post_s for wait in blocked.waits.values()]
        return max(self.written_s, *calls_s) - min(calls_s)

    def _late_before_s(self, blocked: Blocked) -> float:
        """The smallest of the awaited ranks' longest earlier delays, or 0 if delays do not
        matter."""
        ops = [wait.op for wait in blocked.waits.values()]
        timed_out = any((op.rank, op.seq) in self.recorded.timed_out for op in ops)
        if blocked.cycle or timed_out or not self.written_s or not blocked.gone:
            return 0.0
        trace, own = self.recorded.trace, self.recorded.by_rank
        groups = {op.group for rank in blocked.gone for op in own.get(rank, ())}
        met = replace(trace, ops=[op for op in trace if op.group in groups])
        longest_s = stragglers_of(met).longest_s
        return float(np.nan_to_num(longest_s[list(blocked.gone)]).min())

    def _of_stuck(self, met: dict[int, Op], rest: dict[int, Op]) -> Found:
        """The verdict if all members of a group have made the same call, and it does not end."""
        first = min(met.values(), key=lambda op: (op.post_s, op.rank))
        ranks = [rank for rank, op in met.items() if op.group == first.group]
        unstarted = [r for r in ranks if (r, met[r].seq) in self.recorded.unstarted]
        words = [
            f"{ranks_in_words(ranks)} have all called {first.site.op} ({first.site.where}), but "
            "the call does not end. As far as dumps show, the calls agree. Check the network and "
            "the devices, and whether all ranks give the same root, reduce op or tag"
        ]
        if unstarted and len(unstarted) < len(ranks):
            words.append(
                f"But the devices of {ranks_in_words(unstarted)} had not begun the call, because "
                "they were still running earlier kernels"
            )
            ranks = unstarted
        if rest:
            verb = "waits" if len(rest) == 1 else "wait"
            words.append(f"{ranks_in_words(rest)} {verb} for these ranks to continue")
        error = DeadlockError("\n".join(words), {rank: met[rank].site for rank in met})
        return Found("stuck", str(error), tuple(sorted(ranks)), [], error)

    def _of_healthy(self) -> Found:
        trace = self.recorded.trace
        words = (
            f"No rank waits: all {len(trace):,} recorded calls of {len(self.recorded.by_rank):,} "
            "ranks have ended, and matching calls agree"
        )
        notes = []
        late = stragglers_of(trace)
        if late.ranks:
            notes.append(f"{late.in_words()}. These times are right if the clocks of hosts agree")
        return Found("healthy", words, (), notes)


def _is_certain(mismatch: Mismatch) -> bool:
    """Whether a mismatch is certain. Arrived messages may have met others: tags are unknown."""
    return not all(op.is_p2p and op.done for op in mismatch.ops.values())

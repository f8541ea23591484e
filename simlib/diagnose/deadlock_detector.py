"""The matcher at work on real ranks: judges when somebody waits, and at the end."""

from __future__ import annotations

from ..model.matching import Matcher
from . import verdicts


class DeadlockDetector:
    """Feeds the ops of a run to a `Matcher`, and turns what it finds into errors and findings.

    It looks only when a rank stands still, so a program that runs well costs it nothing until its
    end. No time is involved in a verdict: a rank is blocked when what it waits for can only come
    from ranks that are blocked, finished or dead. The logs are read while ranks run; a set of
    blocked ranks counts when none of them made a step between two looks, for then there was a
    moment at which all of them stood as they were read.

    Parameters
    ----------
    logs : list of OpLogReader
        By rank.
    cells : dict
        File name of a notebook cell -> its execution count.
    sleep_count : callable
        ``sleep_count(rank)``: how often the rank's main thread has gone to sleep, None while it is
        awake or where that is not known.
    eager_limit_bytes : int
        As for `Matcher`.
    """

    def __init__(self, logs, cells, sleep_count=lambda rank: None, eager_limit_bytes=-1):
        self._logs = logs
        self._cells = cells
        self._sleep_count = sleep_count
        self._matcher = Matcher(len(logs), eager_limit_bytes)
        self._taken = [0] * len(logs)
        self._open_any = []
        self._states = {}
        self._asleep = {}
        self.all_wait = False

    def look(self, running):
        """Note how the running ranks stand; returns whether one waits and has not moved since.

        ``all_wait`` says afterwards whether that holds for each of them.
        """
        states = {rank: self._logs[rank].state for rank in running}
        before, self._states = self._states, states
        still = [rank for rank in running if before.get(rank) == states[rank]]
        self._asleep = {
            rank: self._sleep_count(rank)
            for rank in still
            if not states[rank][1] and self._logs[rank].has_futures_taken
        }
        waiting = [rank for rank in still if states[rank][1] or self._asleep.get(rank) is not None]
        self.all_wait = len(waiting) == len(states)
        return bool(waiting)

    def verdict(self, running, gone):
        """A mismatch or deadlock among the ops so far, as an error; else None.

        Parameters
        ----------
        running : list of int
        gone : dict
            ``{rank: "has finished"}`` of the others.
        """
        before = [log.state for log in self._logs]
        self._take_in()
        if self._matcher.mismatches:
            return verdicts.mismatch(self._matcher.mismatches[0])
        waiting = {}
        for rank in running:
            offset = before[rank][1] or self._future_offset(rank)
            if offset:
                log = self._logs[rank]
                waiting[rank] = log.op_at(offset, log.seq_at(offset), 0, self._cells)
        blocked = self._matcher.blocked(waiting, gone, self._is_done)
        if blocked is None or any(self._logs[rank].state != before[rank] for rank in blocked.waits):
            return None
        return verdicts.deadlock(blocked, gone, self._matcher)

    def _future_offset(self, rank):
        """The op that C++ code waits for on this rank, by its future, where it surely does; or 0.

        DDP's reducer waits so at the end of `backward`, and no Python code sees it. It does wait
        when the rank's thread sleeps, has not been awake since the last look, and sleeps in there.
        """
        log = self._logs[rank]
        count = self._asleep.get(rank)
        if not log.has_futures_taken or count is None or self._sleep_count(rank) != count:
            return 0
        for offset in log.futures_taken():
            op = log.op_at(offset, log.seq_at(offset), 0, self._cells)
            if not self._matcher.is_satisfied(op):
                return offset
        return 0

    def mismatch(self, after_death=False):
        """The first mismatch among all ops, as an error, or None.

        ``after_death`` takes a suspicion for one: something has killed a rank, after all.
        """
        self._take_in()
        found = self._matcher.mismatches
        found = found[0] if found else self._matcher.suspected() if after_death else None
        return verdicts.mismatch(found) if found else None

    def findings(self):
        """What was left over or raced in a run that ended well."""
        self._take_in()
        never_waited = [
            log.op_at(log.offset_of(seq), seq, 0, self._cells)
            for log in self._logs
            for seq in log.requests_never_waited()
        ]
        touched = [race for log in self._logs for race in log.races(self._cells)]
        return verdicts.unfinished(self._matcher, never_waited) + verdicts.races(touched)

    def _take_in(self):
        """Give the matcher what has been posted since the last time."""
        for rank, log in enumerate(self._logs):
            for op in log.ops(0, self._cells, first=self._taken[rank]):
                was_open = op.any_source
                if was_open:
                    op.peer, peer = None, op.peer
                self._matcher.post(op)
                if was_open:
                    op.peer = peer
                    self._open_any.append(op)
                self._taken[rank] = op.seq + 1
        self._resolve_any()

    def _is_done(self, op):
        log = self._logs[op.rank]
        return log.op_at(log.offset_of(op.seq), op.seq, 0, self._cells).done

    def _resolve_any(self):
        """Tell the matcher the senders that recvs of any source have found by now."""
        still_open = []
        for op in self._open_any:
            log = self._logs[op.rank]
            now = log.op_at(log.offset_of(op.seq), op.seq, 0, self._cells)
            if now.peer is None:
                still_open.append(op)
            else:
                self._matcher.resolve(now)
        self._open_any = still_open

"""The functions `check` and `measure` of a grading run. They replace the functions that a notebook
calls."""

from __future__ import annotations

import base64
import functools
import lzma
import math
import os
import pickle

from ...core.engines.processes.real_run import run as run_on_processes
from ...core.model.errors import SimlibError
from ..checks.checking import TIMEOUT_S
from ..checks.checking import check as check_answer
from ..checks.compare import EXACT, describe, difference
from ..checks.complaints import (
    NO_RESULT,
    WORLDS,
    Complaint,
    broken_rules,
    changed_in_place,
    found_by_the_engine,
    input_complaint,
    parts_lost,
    run_answer,
    worst_of,
)
from ..checks.verdict import RIGHT
from ..parts import VALUE, parts_of
from .score import ALLOWED, LOST, MARK
from .texts import clean

FLOOR = 1 / 8
"""An honest answer sends at least this share of the solution's bytes. For example, it may use uint8
instead of int64."""

SLOWER = 2
"""The factor by which a check waits longer for its ranks, because other notebooks share the
machine."""


class GradedChecks:
    """Runs the checks and hidden cells of a grading run, and keeps their results by question.

    Parameters
    ----------
    patience : float
        The factor by which ranks may be without progress longer than by default.
    """

    def __init__(self, patience=1):
        self._patience = patience
        self.verdicts = {}
        self._rules, self._timed, self._within, self._parts = {}, {}, {}, {}
        self._expected, self._measured = {}, {}
        self._cell = self._question = ""

    def names(self):
        """Return the names that replace those of `simlib.checks` in the namespace of the cells."""
        return {"check": self.check, "measure": self.measure}

    def check(self, question, answer, inputs, expected, *rules, **options):
        """Do the same as `simlib.checks.check`, and keep the rules for `measure`."""
        self._rules[question] = rules
        self._timed[question] = [*options.get("timed", ()), *options.get("memory", ())]
        self._within[question] = options.get("within", EXACT)
        self._parts[question] = parts_of(options.get("points", 1))
        options["timeout_s"] = SLOWER * self._patience * options.get("timeout_s", TIMEOUT_S)
        try:
            verdict = check_answer(question, answer, inputs, expected, *rules, **options)
        except Exception as error:
            end_where_all_is_taken(error)
            raise
        self.verdicts[question] = verdict
        return GradedVerdict(verdict)

    def measure(self, answer, inputs, worlds=WORLDS, in_place=False, timeout_s=20, start=None):
        """Return the results of an answer as text, and whether the answer kept the rules of its
        check.

        If a value equals the expected value within the precision of the check, the text contains
        the expected value. So the order of a sum makes no difference. ``timeout_s`` replaces the
        time that `start` requests.
        """
        question = self._question  # an answer that a cell has wrapped does not say
        measured = []
        in_cell = self._measured.setdefault(question, {}).setdefault(self._cell, [])
        in_cell.append(measured)
        expected = self._expected.get(question)
        start = functools.partial(start or run_on_processes, timeout_s=timeout_s * self._patience)
        lines = []
        for world_size in worlds:
            by_rank = [inputs(rank, world_size) for rank in range(world_size)]
            try:
                run, after = run_answer(answer, by_rank, start)
            except Exception as error:  # the ranks' own words: any may be wrong
                end_where_all_is_taken(error)
                return "\n".join([*lines, f"{world_size}: {in_their_words(error)}"])
            got = [changed_in_place(mine) for mine in after] if in_place else run.results
            measured.append({"values": got, "sent": sent(run)})
            all_wanted = expected[self._cell][len(in_cell) - 1] if expected else measured
            want = all_wanted[len(measured) - 1]
            within = [self._within.get(question, EXACT)] * len(got)
            texts = list(map(snapped, got, want["values"], within))
            for rank, value in enumerate(want["values"]):
                if after[rank] is None and value is not None:
                    texts[rank] = f"rank {rank} {NO_RESULT}: it died"
            lines.append(f"{world_size}: {'; '.join(texts)}")
            given = list(zip(*by_rank, strict=True))
            changed = None if in_place else input_complaint(run, given, after)
            said = found_by_the_engine(run) or changed
            found = [Complaint(said)] if said else self._broken(question, run, given, want)
            lines.append(f"{world_size}: {rule_line(found, self._parts.get(question, {}))}")
        return "\n".join(lines)

    def _broken(self, question, run, given, want):
        rules = [*self._rules.get(question, ())]
        if run.engine == "simulated":
            timed, in_memory = self._timed.get(question, ()), run.memory is not None
            rules += [one.rule for one in timed if one.counts_memory == in_memory]
        too_few = too_little(sent(run), want["sent"], run.world_size)
        return broken_rules(run, given, rules) + ([Complaint(too_few)] if too_few else [])

    def begin(self, cell, question):
        """Announce the next hidden cell. Its measurements are compared with those of the solution
        in this cell."""
        self._cell, self._question = cell, question

    def expect(self, question, recorded):
        """From the first hidden cell on, compare with the results of `recorded` in a run of the
        solution."""
        self._measured.pop(question, None)
        self._expected[question] = pickle.loads(lzma.decompress(base64.b64decode(recorded)))

    def recorded(self, question):
        """Return all measurements for a question, as text."""
        data = pickle.dumps(self._measured.get(question, {}))
        return base64.b64encode(lzma.compress(data)).decode()


def end_where_all_is_taken(error):
    """End this process if the system gives it no more threads, processes or memory.

    An answer has used them up, perhaps an answer to another question. The grader finds out which
    answer it was.
    """
    is_ours = not isinstance(error, SimlibError)
    words = "can't start new thread"
    if is_ours and (isinstance(error, (OSError, MemoryError)) or words in str(error)):
        os._exit(1)


class GradedVerdict:
    """A verdict whose text is the same for every right answer."""

    def __init__(self, verdict):
        self._verdict = verdict

    def __repr__(self):
        verdict = self._verdict
        if verdict.status == RIGHT:
            return f"{verdict.question}: {verdict.status}"
        text, _, last = repr(verdict).rpartition("\n")
        return f"{clean(text)}\n{clean(last)}"  # the last line tells parts: what is cut is above it


def snapped(got, want, within=EXACT):
    """Return a value as text. If the value is as expected, the text shows the expected value."""
    wrong = difference(got, want, within)
    return describe(want) if wrong is None else in_one_line(f"{describe(got)} ({wrong})")


def rule_line(found, parts):
    """Return a line for a world's complaints: `ALLOWED`, or the parts that they cost."""
    if not found:
        return ALLOWED
    lost, said = parts_lost(found, parts), in_one_line(worst_of(found, parts).reason)
    return said if VALUE in lost else f"{LOST}{', '.join(sorted(lost))}: {said}"


def in_one_line(text):
    """Return a text that may contain a student's words, in a form that cannot look like another
    line."""
    return " ".join(clean(text).split("\n"))


def in_their_words(error):
    """Return an error that may contain a student's words. Its lines begin like no other lines."""
    return clean(f"{type(error).__name__}: {error}").replace("\n", f"\n{MARK}")


def sent(run):
    """Return how many bytes the ranks of a run have sent in total."""
    collectives = run.trace.collectives
    return {
        "messages": sum(run.messages),
        "collectives": len(collectives),
        "bytes": sum(run.bytes_sent) + sum(one.nbytes for one in collectives),
    }


def too_little(found, solution, world_size):
    """Return a sentence if ranks sent less than an honest answer needs, else None.

    This finds ranks that communicate by files or sockets instead of torch.distributed. In a world
    of one rank, the rank need not send anything.
    """
    calls, needed_calls = (one["messages"] + one["collectives"] for one in (found, solution))
    needed = math.ceil(FLOOR * solution["bytes"])
    if world_size == 1 or (found["bytes"] >= needed and calls >= min(1, needed_calls)):
        return None
    return (
        f"the ranks send {found['bytes']:,} bytes in {calls} calls through torch.distributed, "
        f"but every right answer needs at least {needed:,} bytes in {min(1, needed_calls)}: "
        "the ranks get values of each other in another way"
    )

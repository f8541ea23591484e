"""The errors of failed runs, in words.

Each function takes the `RunMonitor` of the run.
"""

from __future__ import annotations

import re
import signal
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import torch

from ..environment import is_learners
from ..model import errors
from ..model.errors import (
    DeadlockError,
    FailureReport,
    InvalidCallError,
    RankDiedError,
    RunInterrupted,
    SimlibError,
    StuckError,
)
from ..model.trace import Site, Trace, make_site
from ..model.words import ranks_in_words, shortened

MAX_CALLERS = 2
"""An error names at most this many callers of a line."""
MAX_PLACES = 8
"""The live display names at most this many places of ranks."""

_TIMED_OUT = re.compile(r"[Tt]imed out(?: waiting (\d+)ms)?")
_WANTS_GPU = re.compile(
    "No CUDA GPUs are available|not compiled with CUDA enabled|Found no NVIDIA driver"
    "|invalid device ordinal|no CUDA-capable device|deserialize object on a CUDA device"
    "|No supported gpu backend|not linked with support for cuda"
)
"""Parts of the messages of torch and Lightning if a program asks for a GPU and sees none."""
_TYPES_OF_GPU_ERRORS = (
    "RuntimeError", "AcceleratorError", "AssertionError", "MisconfigurationException",
)  # fmt: skip
"""The types of these errors of torch and Lightning. Other errors come from the program itself."""
_NO_GPU_MEMORY = ("CUDA error: out of memory", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$', re.M)
_STACK_END = re.compile(r"( in <module>|^  \.\.\.)$", re.M)
"""The outermost frame of a program, or the mark of `faulthandler` after 100 frames."""


_OF_OTHER_TORCH = (
    ("Backend gloo does not support alltoall", "has Gloo without all_to_all of lists: call "
     "dist.all_to_all_single, or install torch 2.13"),
    ("has no attribute 'all_gather_single'", "calls this op dist.all_gather_into_tensor"),
    ("has no attribute 'reduce_scatter_single'", "calls this op dist.reduce_scatter_tensor"),
)  # fmt: skip
"""The message of an older torch that lacks a function, and an explanation for this torch."""


def of_failures(monitor: Any, died: Collection[int]) -> SimlibError:
    """The error for ranks that died or raised, without the errors that followed in other ranks."""
    if died:
        return _rank_died(monitor, sorted(died))
    answers, hint = sorted(monitor.answers.items()), monitor.without_gpus
    told = {rank: _failure(word, content, hint) for rank, (word, content) in answers}
    told = {rank: failure for rank, failure in told.items() if failure is not None}
    first_hand = {rank: failure for rank, failure in told.items() if not failure.report.from_wait}
    return _raised(monitor, first_hand or told)


@dataclass(frozen=True, slots=True)
class _Failure:
    """The report on one rank that failed.

    ``sentence`` continues after the rank's name. ``advice`` says what to do, if the error's message
    does not say so. ``traceback`` is the learner's traceback, or empty if it would add no
    information.
    """

    report: FailureReport
    sentence: str
    advice: str = ""
    traceback: str = ""
    is_exit: bool = False


def _failure(word, content, without_gpus):
    """The report on a rank's answer, or None if the rank's function returned."""
    if word == "result":
        return None
    if word == "unpicklable":
        name, why = content
        return _Failure(
            FailureReport(name, why, [], "", invalid=False, from_wait=False),
            f"returned {_article(name)} {name}, which cannot be sent back to the notebook: {why}",
            "Return numbers, tensors, or lists or dicts that contain only these.",
        )
    if word == "exit":
        code = content.exit_code
        sentence = f"called sys.exit({'' if code is None else repr(code)})"
        is_script = bool(content.frames) and content.frames[0][2] == "<module>"
        advice = "" if is_script else "Let the function return instead."
        return _Failure(content, sentence, advice, is_exit=True)
    words = " ".join(content.message.split())
    if content.ledger is not None:
        return _Failure(content, content.message)
    if content.invalid:
        sentence = f"made a call that cannot be right: {words}"
        return _Failure(content, sentence, _advice(content, without_gpus), content.text)
    message = f": {content.message}" if words else ""
    sentence = f"raised {content.type}{message}"
    return _Failure(content, sentence, _advice(content, without_gpus), content.text)


def _advice(report, without_gpus):
    """Advice for errors whose own words do not say what to do."""
    of_torch = report.type in _TYPES_OF_GPU_ERRORS
    if without_gpus and of_torch and _WANTS_GPU.search(report.message):
        if torch.backends.cuda.is_built():
            return without_gpus
        return "This torch has been built without CUDA: keep tensors on the CPU."
    if report.type == "TypeError" and "positional argument" in report.message:
        if not report.frames:
            return "simlib calls the function as main(rank, world_size, *args)."
    for words, what in _OF_OTHER_TORCH:
        if words in report.message:
            return f"torch {torch.__version__} {what}."
    if report.type in ("BdbQuit", "EOFError"):
        return "A rank has no keyboard, so it cannot use breakpoint() or input(). Use print()."
    if of_torch and "invalid device ordinal" in report.message:
        return "The call names a GPU that does not exist: use rank % torch.cuda.device_count()."
    if report.message.startswith(_NO_GPU_MEMORY):
        return "The GPU has no memory left: take a smaller batch, or fewer ranks on this GPU."
    if report.message.startswith("CUDA error: "):
        return (
            "A GPU reports an error late, so an earlier line may have caused it. Set "
            "CUDA_LAUNCH_BLOCKING=1 in the environment and run again: then each line waits for "
            "its GPU."
        )
    return ""


def _article(noun):
    return "an" if noun[:1].lower() in "aeiou" else "a"


_OTHERS_VALUES = (
    "With alike=, the data of the first rank of a class replace the data of all ranks of the class "
    "that do not run. If each rank sends other data, as for a checkpoint, leave alike= out"
)


def _raised(monitor, told):
    """One error for all ranks that failed. It names ranks with the same message together."""
    alike = defaultdict(list)
    sites = {}
    for rank, failure in told.items():
        frames = failure.report.frames
        sites[rank] = make_site("raised", frames[-1] if frames else ("", 0, ""), monitor.cells)
        alike[failure.sentence, sites[rank].place].append(rank)
    if all(failure.report.ledger is not None for failure in told.values()):
        return _out_of_memory(told, sites)
    parts = []
    for (sentence, place), ranks in alike.items():
        where = f" ({place})" if sites[ranks[0]].lineno else ""
        parts.append(f"{ranks_in_words(ranks)} {sentence}{where}")
    first_rank = min(told)
    first, is_invalid = told[first_rank], told[first_rank].report.invalid
    lines = [parts[0], *(f"also, {part}" for part in parts[1:4])]
    if len(parts) > 4:
        lines.append(f"({len(parts) - 4} more messages from other ranks are not shown)")
    if first.advice:
        lines[0] += f". {first.advice}"
    if not (is_invalid or monitor.have_all_run):
        lines[0] += f". {_OTHERS_VALUES}"
    if sites[first_rank].line_text:
        lines.append(f"    {sites[first_rank].line_text}")
    limited = {r: _TIMED_OUT.search(failure.sentence) for r, failure in told.items()}
    lines += _who_was_waited_for(monitor, {r: found for r, found in limited.items() if found})
    tracebacks = {r: _readable(failure.traceback, monitor.cells) for r, failure in told.items()}
    if tracebacks[first_rank] and not is_invalid:
        lines += ["", f"The traceback of rank {first_rank}:", tracebacks[first_rank].rstrip()]
    message = "\n".join(lines)
    if is_invalid:
        return errors.InvalidCallError(message, sites)
    if all(failure.is_exit for failure in told.values()):
        codes = {rank: _exit_code(failure.report.exit_code) for rank, failure in told.items()}
        return errors.RankDiedError(message, sites, exitcodes=codes)
    reports = {rank: failure.report for rank, failure in told.items()}
    return errors.RankError(message, sites, tracebacks=tracebacks, reports=reports)


def _who_was_waited_for(monitor, limited):
    """Where the ranks were that had not arrived when the first rank's wait timed out."""
    ops = [op for log in monitor.logs for op in log.ops(0, monitor.cells)]
    failed = [op for op in ops if op.rank in limited and op.failed_s is not None]
    if not failed:
        return []
    op = min(failed, key=attrgetter("failed_s"))
    milliseconds, until_s = limited[op.rank][1], op.failed_s
    if milliseconds and op.wait_s is not None:
        until_s = min(until_s, op.wait_s + int(milliseconds) / 1000)
    calls, sites, lines = _met_by(op, Trace(monitor.world_size, ops)), sites_now(monitor), []
    is_of_two = op.is_p2p and op.peer is not None
    for other in sorted({op.peer} if is_of_two else {*op.group.ranks} - {op.rank}):
        call = calls.get(other)
        if call is None:
            site = sites.get(other)
            now = f"is {_in_words(site)}" if site else _why_nowhere(monitor, other)
            lines.append(f"  rank {other} had not arrived: it {now}")
        elif call.post_s > until_s:
            lines.append(f"  rank {other} arrived too late: {call.site.op} ({call.site.place})")
    return shortened(lines)


def _met_by(op, trace):
    """``{rank: Op}``: the ops that belong to this op, if their ranks have called them."""
    if not op.is_p2p:
        return next(one.ops for one in trace.collectives if one.ops.get(op.rank) is op)
    pairs = [(one.send, one.recv) for one in trace.messages if one.recv is not None]
    return {one.rank: one for pair in pairs if any(end is op for end in pair) for one in pair}


def _out_of_memory(told, sites):
    """One error for all ranks out of memory: the first rank's message, and the other ranks'
    names."""
    first, *others = told
    message = told[first].sentence
    if others:
        message += f"\nalso out of memory: {ranks_in_words(others)}"
    if sites[first].line_text:
        message += f"\n    {sites[first].line_text}"
    return errors.OutOfMemoryError(message, sites, ledger=told[first].report.ledger)


def _exit_code(code):
    """The exit code of a process that calls ``sys.exit(code)``."""
    if code is None:
        return 0
    return code if isinstance(code, int) else 1


def _readable(text, cells):
    """A traceback that names notebook cells, instead of their temporary files."""
    for file in cells:
        text = text.replace(f'File "{file}"', "Cell")
    return text


def _rank_died(monitor, ranks):
    sites, parts = {}, []
    for rank in ranks:
        code = monitor.deaths[rank]
        site = _last_known_site(monitor, rank)
        sites[rank] = site
        where = f" ({site.place}, {site.op})" if site.lineno else ""
        parts.append(f"{monitor.death_words.get(rank) or death_of(rank, code)}{where}")
    message = "; ".join(parts)
    if len(monitor.deaths) < monitor.world_size:
        message += ". simlib then ended the other ranks."
    first = sites[min(sites)]
    if first.line_text:
        message += f"\n    {first.line_text}"
    return errors.RankDiedError(message, sites, exitcodes=dict(monitor.deaths))


def death_of(rank: int, code: int, why: str = "") -> str:
    """A sentence about how a rank's process ended. ``why`` is the rest of the sentence."""
    return f"the process of rank {rank} {how_it_ended(code)}{why}"


def how_it_ended(code: int) -> str:
    """The exit code of a process in words. A negative code means a signal."""
    return f"was ended by {_signal_name(-code)}" if code < 0 else f"exited with code {code}"


def _signal_name(number):
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def _last_known_site(monitor, rank):
    """The place of a dead rank: from its crash stack, else the op of its wait, else its last op."""
    frames = frames_in(monitor.native[rank])
    if frames:
        return make_site("crashed", frames[-1], monitor.cells)
    log = monitor.logs[rank]
    waiting = log.waiting_site(monitor.cells)
    if waiting is not None:
        return waiting
    ops = log.ops(0, monitor.cells)
    if ops:
        site = ops[-1].site
        return make_site(f"after {site.op}", (site.file, site.lineno, site.function), monitor.cells)
    return make_site("before any op", ("", 0, ""), monitor.cells)


def frames_in(native: bytes, whole: bool = False) -> list[tuple[str, int, str]]:
    """The learner's frames, outermost first, in the last stack that `faulthandler` wrote.

    With ``whole``, the function skips a stack that the rank is still writing: after the learner's
    frames no frame of simlib has come yet.
    """
    text = native.decode("utf-8", "replace")
    stacks = re.split(r"^(?:Current thread|Thread|Stack) .*$", text, flags=re.M)[1:]
    for stack in reversed(stacks):
        frames = [(m["file"], int(m["line"]), m["function"]) for m in _FRAME.finditer(stack)]
        found = [frame for frame in frames if is_learners(frame[0])]
        is_whole = found and (found[-1] is not frames[-1] or _STACK_END.search(stack))
        if is_whole or (found and not whole):
            return found[::-1]
    return []


def with_callers(site: Site, frames: list, cells: Mapping[str, int]) -> Site:
    """A site with its callers, if it is the innermost of the learner's frames."""
    *above, innermost = frames or [("", 0, "")]
    if innermost[:2] != (site.file, site.lineno):
        return site
    places = [make_site("", frame, cells).place for frame in above[: -MAX_CALLERS - 1 : -1]]
    return replace(site, callers=tuple(places))


def sites_now(monitor: Any) -> dict[int, Site]:
    """The place of each running rank now: the op it waits for, or the line it computes."""
    sites = {}
    asked = []
    for rank in monitor.running():
        site = monitor.logs[rank].waiting_site(monitor.cells)
        if site is None and monitor.check:
            site = monitor.detector.site_of_future(rank)
        if site is None:
            asked.append(rank)
        else:
            sites[rank] = site
    for rank, frames in monitor.ask_for_stacks(asked).items():
        place = frames[-1] if frames else ("", 0, "")
        method, keys = monitor.logs[rank].awaited_keys()
        call = f"store.{method}({', '.join(map(repr, keys))})" if keys else "computing"
        site = make_site(call, place, monitor.cells)
        sites[rank] = with_callers(site, frames, monitor.cells)
    return dict(sorted(sites.items()))


def where_ranks_are(monitor: Any) -> str:
    """A line for the live display: the place of each rank, and for how long it has been there."""
    alike = defaultdict(list)
    sites = sites_now(monitor).items()
    for rank, site in sorted(sites, key=lambda item: item[1].op != "computing"):
        alike[_in_words(site)].append(rank)
    parts = [
        f"{ranks_in_words(ranks)} {'is' if len(ranks) == 1 else 'are'} {words}"
        for words, ranks in alike.items()
    ]
    more = len(parts) - MAX_PLACES
    places = "; ".join(parts[:MAX_PLACES] + ([f"and {more:,} more"] if more > 0 else []))
    limit_s = monitor.timeout_s
    end = "" if limit_s is None else f" simlib ends it after {limit_s:g} s without progress."
    stop = "Stop, or Ctrl-C in a terminal, ends the run."
    return f"no rank made progress for 10 s: {places}. {stop}{end}"


def _in_words(site):
    if site.op == "computing":
        return f"computing ({site.where})"
    return f"waiting in {site.op} ({site.where})"


def _list_of(monitor, sites):
    """One line per rank: what the rank was doing, or that it has finished."""
    lines = []
    for rank in range(monitor.world_size):
        if rank in sites:
            text = sites[rank].line_text
            words = f"{_in_words(sites[rank])}{_beside(monitor, rank)}"
            lines.append(f"  rank {rank}: {words}" + (f"   {text}" if text else ""))
        else:
            lines.append(f"  rank {rank}: {_why_nowhere(monitor, rank)}")
    return "\n".join(shortened(lines))


def _beside(monitor, rank):
    """The op in which another thread of a rank waits, as a continued sentence; else empty."""
    for op in monitor.logs[rank].ops(0, monitor.cells)[::-1]:
        if op.site.in_thread and op.wait_s is not None and op.end_s is op.failed_s is None:
            return f" and {_in_words(op.site)}"
    return ""


def _why_nowhere(monitor, rank):
    if rank in monitor.deaths:
        return "has died"
    if rank in monitor.answers or monitor.logs[rank].left_s is not None:
        return "has finished"
    return "has not had its turn"


def out_of_time(monitor: Any) -> SimlibError:
    """The error after ``timeout_s`` without progress."""
    sites = sites_now(monitor)
    error: type[SimlibError]
    computing = [rank for rank, site in sites.items() if site.op == "computing"]
    keys = _unset_keys(monitor, sites)
    what = f"no rank called an op or printed a line for {monitor.timeout_s:g} s"
    if computing:
        message = (
            f"{what}. But {ranks_in_words(computing)} {'is' if len(computing) == 1 else 'are'} "
            "computing, and not waiting for another rank: does the program loop for ever? If one "
            "step takes so long, give a larger timeout_s."
        )
        error = errors.StuckError
    elif keys:
        message = f"{what}: {keys}"
        error = errors.StuckError
    else:
        message = f"{what}: every rank that has not finished waits for another rank"
        error = errors.DeadlockError
    return error(f"{message}\n{_list_of(monitor, sites)}", sites)


def _unset_keys(monitor, sites):
    """Which ranks wait for which keys of a store, in words; empty if no rank does."""
    awaited = defaultdict(list)
    for rank in sites:
        _, keys = monitor.logs[rank].awaited_keys()
        if keys:
            awaited[keys].append(rank)
    return "; ".join(
        f"{ranks_in_words(ranks)} {'waits' if len(ranks) == 1 else 'wait'} for the "
        f"{'key' if len(keys) == 1 else 'keys'} {' and '.join(map(repr, keys))} of the store, but "
        f"no rank has set {'it' if len(keys) == 1 else 'them'}"
        for keys, ranks in awaited.items()
    )


def at_rest(monitor: Any) -> SimlibError:
    """The error if no rank can continue, and simlib knows no better explanation."""
    sites = sites_now(monitor)
    error: type[SimlibError]
    others = [rank for rank, site in sites.items() if site.op == "computing"]
    keys = _unset_keys(monitor, sites)
    if keys:
        message, error = keys, errors.StuckError
    elif others:
        who = f"{ranks_in_words(others)} {'waits' if len(others) == 1 else 'wait'}"
        message = f"{who} forever, perhaps for a key of the store that no rank sets"
        error = errors.StuckError
    elif monitor.has_streams:
        message = (
            "no rank can continue: every rank has called the ops that the others wait for, but "
            "the streams of the ranks run these ops in different orders. On every rank, call the "
            "ops of several groups in the same order"
        )
        error = errors.DeadlockError
    else:
        message = "no rank can continue: every rank that has not finished waits for another rank"
        error = errors.DeadlockError
    return error(f"{message}\n{_list_of(monitor, sites)}", sites)


def called_by_a_foreign_thread(monitor: Any) -> InvalidCallError:
    """The error if a thread that a rank has started itself called torch.distributed."""
    sites = sites_now(monitor)
    return errors.InvalidCallError(
        "a thread that a rank started calls torch.distributed. In a simulation only the rank's "
        "own thread may do this. With simlib.run, other threads may do it, "
        f"too\n{_list_of(monitor, sites)}",
        sites,
    )


def waits_for_the_dead(monitor: Any, found: DeadlockError | None) -> RankDiedError:
    """The error for ranks that wait for ever after others died. ``found`` is a known deadlock."""
    dead = sorted(monitor.deaths)
    sites = {rank: _last_known_site(monitor, rank) for rank in dead}
    words = f"{ranks_in_words(dead)} died"
    if all(rank in monitor.kill and monitor.deaths[rank] == -signal.SIGKILL for rank in dead):
        words += " because kill= asked for it"
    if found is not None:
        detail = ": " + str(found).partition("\nHint:")[0]
    else:
        detail = f", and the others cannot continue\n{_list_of(monitor, sites_now(monitor))}"
    sites |= found.sites if found is not None else {}
    return errors.RankDiedError(f"{words}{detail}", sites, exitcodes=dict(monitor.deaths))


def deadlock_apart_from_the_dead(monitor: Any, found: DeadlockError) -> DeadlockError:
    """The error for ranks that wait for each other, if a death is not the cause."""
    first, rest = str(found).split("\n", 1)
    words = f"{first}; the death of {ranks_in_words(monitor.deaths)} is not the cause\n{rest}"
    return errors.DeadlockError(words, found.sites, graph=found.graph)


def endless_output(monitor: Any, rank: int) -> StuckError:
    """The error for a rank that prints without end."""
    sites = {r: s for r, s in sites_now(monitor).items() if r == rank}
    where = f" ({sites[rank].place})" if rank in sites and sites[rank].lineno else ""
    size = monitor.outputs[rank].total / 1e6
    return errors.StuckError(
        f"rank {rank} has printed {monitor.outputs[rank].lines:,} lines ({size:,.0f} MB) and "
        f"still prints{where}: does the program loop for ever? simlib has ended the run, and has "
        "kept the beginning and the end of the output",
        sites,
    )


def interrupted(monitor: Any) -> RunInterrupted:
    """The error for a run that was stopped by hand."""
    sites = sites_now(monitor)
    return errors.RunInterrupted(f"the run was stopped by hand\n{_list_of(monitor, sites)}", sites)

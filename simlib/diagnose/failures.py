"""What a run came to: the `Run`, and the error in words where it failed."""

from __future__ import annotations

import re
import signal
from collections import defaultdict
from dataclasses import replace

from ..model import errors
from ..model.trace import Trace
from ..record.oplog import make_site, name_groups
from ..record.recorder import is_learners
from ..results.run import Run
from .verdicts import ranks_in_words, shortened

MOST_PLACES = 8
"""How many places the live display names when it says where the ranks are."""

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$', re.M)


def make_run(watch):
    """The `Run` of what is in the logs and answers now."""
    trace, groups = make_trace(watch)
    run = Run(
        name=watch.name,
        trace=trace,
        results=[
            content if word == "result" else None
            for word, content in (
                watch.answers.get(rank, ("none", None)) for rank in range(watch.world_size)
            )
        ],
        output=[output.text for output in watch.outputs],
        engine=watch.engine,
    )
    report = watch.report or {}
    run.memory = report.get("memory")
    if report.get("wire") is not None:
        run.wire = [replace(m, group=groups.get(m.group, m.group)) for m in report["wire"]]
    return run


def make_trace(watch):
    """The `Trace` of the ranks' logs, and the names of its groups; zero is the first entry."""
    logs = watch.logs
    zero_s = min((log.entered_s for log in logs if log.entered_s is not None), default=0.0)
    ops = [op for log in logs for op in log.ops(zero_s, watch.cells) if op.kind != "new_group"]
    ops.sort(key=lambda op: (op.post_s, op.rank))
    groups = name_groups(ops)
    trace = Trace(
        world_size=watch.world_size,
        ops=ops,
        spans=[(_since(zero_s, log.entered_s), _since(zero_s, log.left_s)) for log in logs],
        dropped=sum(log.dropped for log in logs),
    )
    return trace, groups


def _since(zero_s, moment_s):
    return None if moment_s is None else moment_s - zero_s


def left_nothing_over(trace):
    """Whether every op ended and every message was received: the world may serve again."""
    received = sum(1 for op in trace if op.kind == "recv")
    messages = trace.messages
    return (
        not trace.dropped
        and all(op.done for op in trace)
        and len(messages) == received
        and all(message.recv is not None for message in messages)
    )


def of_failures(watch, died):
    """The error for ranks that died or raised; follow-on errors of the others are folded away."""
    if died:
        return _rank_died(watch, sorted(died))
    reports = {rank: _report(watch, rank) for rank in sorted(watch.answers)}
    reports = {rank: report for rank, report in reports.items() if report is not None}
    first_hand = {r: report for r, report in reports.items() if not report["from_wait"]}
    return _raised(watch, first_hand or reports)


def _report(watch, rank):
    """What a rank's answer says of its failure; None for a rank that returned."""
    word, content = watch.answers[rank]
    if word == "result":
        return None
    if word == "unpicklable":
        name, why = content
        return {
            "sentence": f"returned {_article(name)} {name}, which cannot be sent back to the "
            f"notebook ({why})",
            "advice": "Return numbers, tensors, lists or dicts of them.",
            "frames": [],
            "text": "",
            "invalid": False,
            "from_wait": False,
        }
    if word == "exit":
        code = content["exit_code"]
        return content | {
            "sentence": f"left by sys.exit({'' if code is None else repr(code)})",
            "advice": "Let the function return instead.",
            "text": "",
            "is_exit": True,
        }
    words = " ".join(content["message"].split())
    if content["ledger"] is not None:
        return content | {"sentence": content["message"], "advice": "", "text": ""}
    if content["invalid"]:
        return content | {"sentence": f"made a call that cannot be right: {words}", "advice": ""}
    message = f": {content['message']}" if words else ""
    sentence = f"raised {content['type']}{message}"
    return content | {"sentence": sentence, "advice": _advice(content)}


def _advice(report):
    """What to do about errors whose own words do not say it."""
    if report["type"] == "TypeError" and "positional argument" in report["message"]:
        if not report["frames"]:
            return "simlib calls the function as main(rank, world_size, *args)."
    if report["type"] in ("BdbQuit", "EOFError"):
        return "A rank has no keyboard: breakpoint() and input() do not work there, print() does."
    return ""


def _article(noun):
    return "an" if noun[:1].lower() in "aeiou" else "a"


def _raised(watch, reports):
    """One error for all ranks that failed, those with the same words told together."""
    alike = defaultdict(list)
    sites = {}
    for rank, report in reports.items():
        place = report["frames"][-1] if report["frames"] else ("", 0, "")
        sites[rank] = make_site("raised", place, watch.cells)
        alike[report["sentence"], sites[rank].place].append(rank)
    parts = []
    if all(report.get("ledger") is not None for report in reports.values()):
        return _out_of_memory(reports, sites)
    for (sentence, place), ranks in alike.items():
        where = f" ({place})" if sites[ranks[0]].lineno else ""
        parts.append(f"{ranks_in_words(ranks)} {sentence}{where}")
    first = next(iter(reports.values()))
    lines = [parts[0], *(f"also, {part}" for part in parts[1:4])]
    if len(parts) > 4:
        lines.append(f"also, {len(parts) - 4} more ranks, each with other words")
    if first["advice"]:
        lines[0] += f". {first['advice']}"
    if sites[min(reports)].line_text:
        lines.append(f"    {sites[min(reports)].line_text}")
    tracebacks = {r: _readable(report["text"], watch.cells) for r, report in reports.items()}
    if tracebacks[min(reports)] and not first["invalid"]:
        lines += ["", f"The traceback of rank {min(reports)}:", tracebacks[min(reports)].rstrip()]
    message = "\n".join(lines)
    if first["invalid"]:
        return errors.InvalidCallError(message, sites)
    if all(report.get("is_exit") for report in reports.values()):
        codes = {r: _exit_code(report["exit_code"]) for r, report in reports.items()}
        return errors.RankDiedError(message, sites, exitcodes=codes)
    return errors.RankError(message, sites, tracebacks=tracebacks)


def _out_of_memory(reports, sites):
    """One error for all ranks that hold too much: the first one's words, the others named."""
    first, *others = reports
    message = reports[first]["sentence"]
    if others:
        message += f"\nalso out of memory: {ranks_in_words(others)}"
    if sites[first].line_text:
        message += f"\n    {sites[first].line_text}"
    return errors.OutOfMemoryError(message, sites, ledger=reports[first]["ledger"])


def _exit_code(code):
    """The exit code of a process that says ``sys.exit(code)``."""
    if code is None:
        return 0
    return code if isinstance(code, int) else 1


def _readable(text, cells):
    """A traceback in which cells are called so, not by the names of their temporary files."""
    for file in cells:
        text = text.replace(f'File "{file}"', "Cell")
    return text


def _rank_died(watch, ranks):
    sites, parts = {}, []
    for rank in ranks:
        code = watch.deaths[rank]
        site = _last_known_site(watch, rank)
        sites[rank] = site
        where = f" ({site.place}, {site.op})" if site.lineno else ""
        parts.append(f"the process of rank {rank} {how_it_ended(code)}{where}")
    message = "; ".join(parts) + ". The other ranks were ended too."
    first = sites[min(sites)]
    if first.line_text:
        message += f"\n    {first.line_text}"
    return errors.RankDiedError(message, sites, exitcodes=dict(watch.deaths))


def how_it_ended(code):
    """The exit code of a process in words, negative for a signal."""
    return f"was ended by {_signal_name(-code)}" if code < 0 else f"exited with code {code}"


def _signal_name(number):
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def _last_known_site(watch, rank):
    """Where a dead rank was: on its crash stack, else in the op it waited for, else its last op."""
    frames = frames_in(watch.native[rank])
    if frames:
        return make_site("crashed", frames[-1], watch.cells)
    log = watch.logs[rank]
    waiting = log.waiting_site(watch.cells)
    if waiting is not None:
        return waiting
    ops = log.ops(0, watch.cells)
    if ops:
        site = ops[-1].site
        return make_site(f"after {site.op}", (site.file, site.lineno, site.function), watch.cells)
    return make_site("before any op", ("", 0, ""), watch.cells)


def frames_in(native):
    """The learner's frames, outermost first, in the last stack that `faulthandler` wrote."""
    text = native.decode("utf-8", "replace")
    stacks = re.split(r"^(?:Current thread|Thread|Stack) .*$", text, flags=re.M)[1:]
    for stack in reversed(stacks):
        found = [
            (m["file"], int(m["line"]), m["function"])
            for m in _FRAME.finditer(stack)
            if is_learners(m["file"])
        ]
        if found:
            return found[::-1]
    return []


def sites_now(watch):
    """Where each running rank is now: in the op it waits for, or at the line it computes."""
    sites = {}
    asked = []
    for rank in watch.running():
        site = watch.logs[rank].waiting_site(watch.cells)
        if site is None:
            asked.append(rank)
        else:
            sites[rank] = site
    for rank, frames in watch.ask_for_stacks(asked).items():
        place = frames[-1] if frames else ("", 0, "")
        sites[rank] = make_site("computing", place, watch.cells)
    return dict(sorted(sites.items()))


def where_ranks_are(watch):
    """A line for the live display: which rank has been where for how long."""
    alike = defaultdict(list)
    sites = sites_now(watch).items()
    for rank, site in sorted(sites, key=lambda item: item[1].op != "computing"):
        alike[_in_words(site)].append(rank)
    parts = [
        f"{ranks_in_words(ranks)} {'is' if len(ranks) == 1 else 'are'} {words}"
        for words, ranks in alike.items()
    ]
    more = len(parts) - MOST_PLACES
    places = "; ".join(parts[:MOST_PLACES] + ([f"and {more:,} more"] if more > 0 else []))
    limit = "" if watch.timeout_s is None else f", or wait until {watch.timeout_s:g} s are over"
    return f"no op and no output for 10 s: {places}. Press Stop to end the run{limit}."


def _in_words(site):
    if site.op == "computing":
        return f"computing ({site.place})"
    return f"waiting in {site.op} ({site.place})"


def _list_of(watch, sites):
    """One line per rank: what it was doing, or that it has finished."""
    lines = []
    for rank in range(watch.world_size):
        if rank in sites:
            text = sites[rank].line_text
            lines.append(
                f"  rank {rank}: {_in_words(sites[rank])}" + (f"   {text}" if text else "")
            )
        else:
            lines.append(f"  rank {rank}: {_why_nowhere(watch, rank)}")
    return "\n".join(shortened(lines))


def _why_nowhere(watch, rank):
    if rank in watch.deaths:
        return "has died"
    if rank in watch.answers or watch.logs[rank].left_s is not None:
        return "has finished"
    return "has not had its turn"


def out_of_time(watch):
    """The error after ``timeout_s`` without progress."""
    sites = sites_now(watch)
    computing = [rank for rank, site in sites.items() if site.op == "computing"]
    what = f"no rank made an op or printed a line for {watch.timeout_s:g} s"
    if computing:
        message = (
            f"{what}, and {ranks_in_words(computing)} "
            f"{'is' if len(computing) == 1 else 'are'} computing, not waiting for another rank: an "
            "endless loop? (A longer step needs a larger timeout_s.)"
        )
        error = errors.StuckError
    else:
        message = f"{what}: every rank that has not finished waits for another"
        error = errors.DeadlockError
    return error(f"{message}\n{_list_of(watch, sites)}", sites)


def at_rest(watch):
    """The error for simulated ranks none of which can go on, where no more is known."""
    sites = sites_now(watch)
    others = [rank for rank, site in sites.items() if site.op == "computing"]
    if others:
        who = f"{ranks_in_words(others)} {'waits' if len(others) == 1 else 'wait'}"
        message = f"{who} for what no rank will ever do (a key of the store that nobody sets?)"
        error = errors.StuckError
    else:
        message = "nothing can go on: every rank that has not finished waits for another"
        error = errors.DeadlockError
    return error(f"{message}\n{_list_of(watch, sites)}", sites)


def called_by_a_stranger(watch):
    """The error where a thread that a rank has started itself called torch.distributed."""
    sites = sites_now(watch)
    return errors.InvalidCallError(
        "a thread that a rank started calls torch.distributed: in a simulation only the rank's own "
        "thread may. simlib.run has real processes, where other threads may too\n"
        f"{_list_of(watch, sites)}",
        sites,
    )


def waits_for_the_dead(watch, killed, found):
    """The error for ranks that wait for one that was killed as asked."""
    sites = {rank: _last_known_site(watch, rank) for rank in sorted(killed)}
    words = f"{ranks_in_words(sorted(killed))} died, as asked for by kill"
    detail = ": " + str(found).partition("\nHint:")[0] if found is not None else ""
    codes = {rank: watch.deaths[rank] for rank in killed}
    sites |= found.sites if found is not None else {}
    return errors.RankDiedError(f"{words}{detail}", sites, exitcodes=codes)


def endless_output(watch, rank):
    """The error for a rank that prints without end."""
    sites = {r: s for r, s in sites_now(watch).items() if r == rank}
    where = f" ({sites[rank].place})" if rank in sites and sites[rank].lineno else ""
    size = watch.outputs[rank].total / 1e6
    return errors.StuckError(
        f"rank {rank} has printed {watch.outputs[rank].lines:,} lines ({size:,.0f} MB) and goes "
        f"on{where}: an endless loop? "
        "The run was ended; the beginning and the end of its output are kept",
        sites,
    )


def interrupted(watch):
    """The error for a run that was stopped by hand."""
    sites = sites_now(watch)
    return errors.RunInterrupted(f"stopped by hand\n{_list_of(watch, sites)}", sites)

"""A run as plain data: what ``simlib run --json`` prints. `simlib/cli/output.schema.json` describes
it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..model.errors import RunInterrupted, SimlibError
from ..model.outcome import Outcome
from ..model.trace import Site
from .run import Run


def run_document(run: Run, error: SimlibError | RunInterrupted | None) -> dict[str, Any]:
    """The facts of a run that ended, or that ended in an error.

    **Cost** O(n log n) for n ops.
    """
    return {
        "program": run.name,
        "engine": run.engine,
        "world_size": run.world_size,
        "seed": run.seed,
        "restarts": len(run.attempts) - 1,
        "time_s": run.time_s,
        "findings": [
            {"kind": one.kind, "message": one.message, "lines": lines_of(one.sites)}
            for one in run.findings
        ],
        **waits_document(run.graph),
        "ranks": _ranks(run, error),
    }


def outcome_of(run: Run | None, error: Any, as_json: bool) -> Outcome:
    """The outcome of a command whose run ended, in an error or with None."""
    facts = run_document(run, error) if as_json and run is not None else {}
    return Outcome(facts=facts) if error is None else Outcome.of_error(error, **facts)


def lines_of(sites: Mapping[int, Site]) -> list[dict[str, Any]]:
    """A line of code for each of these ranks."""
    return [{"rank": rank, **_line(site)} for rank, site in sorted(sites.items())]


def waits_document(graph: Any) -> dict[str, Any]:
    """Which ranks wait for which, from a `WaitGraph` or None."""
    waits = graph.waits.values() if graph else ()
    return {
        "waits": [
            {
                "rank": wait.rank,
                "for": list(wait.needs),
                "call": wait.op.call,
                "group": wait.op.group.description or wait.op.group.name,
                "file": wait.op.site.file,
                "line": wait.op.site.lineno,
            }
            for wait in waits
        ],
        "cycle": list(graph.cycle) if graph else [],
    }


def _line(site: Site) -> dict[str, Any]:
    return {
        "call": site.op,
        "file": site.file,
        "line": site.lineno,
        "text": site.line_text,
        "callers": list(site.callers),
    }


def _ranks(run: Run, error: Any) -> list[dict[str, Any]]:
    states, memory = run.states, run.memory or [None] * run.world_size
    reports, codes = getattr(error, "reports", {}), getattr(error, "exitcodes", {})
    sites = error.sites if error is not None else {}
    ranks: list[dict[str, Any]] = []
    for rank, (begin_s, end_s) in enumerate(run.trace.spans):
        report, ledger = reports.get(rank), memory[rank]
        ranks.append(
            {
                "rank": rank,
                "output": run.output[rank],
                "line": _line(sites[rank]) if rank in sites else None,
                "exception": report
                and {"type": report.type, "message": report.message, "traceback": report.text},
                "exit_code": report.exit_code if report else codes.get(rank),
                "died_s": run.deaths.get(rank),
                "time_s": None if begin_s is None or end_s is None else end_s - begin_s,
                "computing_s": _number(states.computing_s[rank]),
                "waiting_s": _number(states.waiting_s[rank]),
                "transferring_s": _number(states.transferring_s[rank]),
                "memory_bytes": ledger and ledger.peak_bytes,
                "messages": 0,
                "bytes": 0,
                "collectives": 0,
            }
        )
    for op in run.trace:
        own = ranks[op.rank]
        own["messages"] += op.kind == "send"
        own["bytes"] += op.nbytes * (op.kind == "send")
        own["collectives"] += not op.is_p2p
    return ranks


def _number(seconds: float) -> float | None:
    """A number for JSON, which has no NaN."""
    return float(seconds) if seconds == seconds else None

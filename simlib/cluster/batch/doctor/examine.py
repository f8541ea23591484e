"""`examine`: goes through the checks, each where all that it needs is well."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from .host_checks import HOST_CHECKS
from .together_checks import CHECKS, NEEDS_OF_HELLO

WITHOUT_PROBE = ("name", "server", "ssh", "python")
STATES = OK, WRONG, NOT_ASKED = "ok", "wrong", "not asked"


@dataclass(frozen=True)
class Line:
    """The result of one check on one host, or on all together.

    Attributes
    ----------
    check : str
    host : str or None
        None for a check of all hosts together.
    state : {"ok", "wrong", "not asked"}
    sentence : str
        What is there; what is wrong and what to do; or why it could not be asked.
    """

    check: str
    host: str | None
    state: str
    sentence: str


def examine(facts, checks=CHECKS):
    """Judge what was found out; returns a list of `Line`, in the order of the checks."""
    lines, faults = [], {}
    places = facts.hosts or [socket.gethostname()]
    for check in checks:
        if not (facts.hosts or check.alone):
            continue
        for host in [None] if check.together else places:
            fault = _fault(facts, check, host, places, faults)
            if fault:
                faults[check.name, host] = fault
                sentence = _because(fault, host)
                lines.append(Line(check.name, host, NOT_ASKED, sentence))
                continue
            verdict = check.judge(facts) if check.together else check.judge(facts, host)
            if not verdict.ok:
                faults[check.name, host] = (check.name, host)
            state = OK if verdict.ok else WRONG
            lines.append(Line(check.name, host, state, verdict.sentence))
    return lines


def _fault(facts, check, host, places, faults):
    """The check, and its host, to blame where this one cannot be asked; or None."""
    if check.together:
        # A hello that was run had hosts enough, whatever is wrong with another one.
        among = [None] if facts.together else [*places, None]
    else:
        among = [host]
    for need in check.needs:
        for place in among:
            if (need, place) in faults:
                return faults[need, place]
    unheard = facts.hosts and not check.together and host not in facts.of
    return ("python", host) if unheard and check.name not in WITHOUT_PROBE else None


def _because(fault, host):
    check, where = fault
    if where is None:
        return f"because {check} failed"
    return f"because {check} failed {'there' if where == host else f'on {where}'}"


def hosts_for_hello(facts):
    """The hosts on which a hello is worth a try: empty for this machine, None for nowhere.

    One that cannot take part does not keep the others from it, as long as there are two.
    """
    lines = examine(facts, HOST_CHECKS)
    bad = {line.host for line in lines if line.check in NEEDS_OF_HELLO and line.state != OK}
    if not facts.hosts:
        return None if bad else []
    fit = [host for host in facts.hosts if host not in bad]
    return fit if len(fit) > 1 or len(facts.hosts) == 1 == len(fit) else None

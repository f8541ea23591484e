"""`doctor` checks whether jobs can run on hosts, and says what to fix if they cannot.

The doctor connects to every host by ssh once, and runs `probe` there. `facts` asks all hosts at
once, and runs `hello` under mpiexec. `checks` judge the facts. `examine` makes all checks, and a
`Report` shows them.
"""

from __future__ import annotations

import html
import os
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...core.draw.display import bar
from ...core.model.errors import InvalidCallError
from ..launchers import refuse_text
from .checks import CHECKS, HOST_CHECKS, NEEDS_OF_HELLO
from .facts import gather

__all__ = ["Report", "doctor"]


def doctor(
    hosts: Sequence[str] | None = None,
    *,
    launcher: str | Sequence[str] | None = None,
    folder: str | Path = ".",
) -> Report:
    """Check whether jobs can run on a cluster, and say how to fix what is wrong.

    Parameters
    ----------
    hosts : list of str, optional
        Names of the hosts, as for `simlib.Mpiexec`. Without names, the doctor checks only this
        machine.
    launcher : str or list of str, optional
        The command to use as mpiexec. The default is the mpiexec in the folder of this Python, or
        else the mpiexec on the PATH.
    folder : str or Path
        A folder that all hosts should share. The default is the working folder.

    Returns
    -------
    Report
        The report prints as a table with one line for each check. If a check finds a fault, the
        line says what to do. If the doctor could not make a check, the line names the earlier check
        that failed.

    Raises
    ------
    InvalidCallError
        A host's name is invalid, or simlib cannot write to ``folder``.

    Notes ----- The doctor changes nothing on the hosts, except that it creates a folder
    ``.simlib-doctor-...`` in ``folder`` for a moment. ssh runs in ``BatchMode``, so it must be able
    to log in without a password.

    **Cost** The doctor takes about 4 s with two hosts. It takes 5 s more if a host is down, and 20
    s more if messages of MPI do not arrive.

    Examples
    --------
    >>> simlib.doctor(["node1", "node2"])                               # doctest: +SKIP
    """
    hosts = _checked_hosts(hosts)
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise InvalidCallError(f"folder={str(folder)!r} is not a folder that you can write to")
    with bar(None, "simlib asks each host") as show:
        facts = gather(hosts, launcher, folder, hosts_for_hello, show)
    return Report(tuple(hosts), tuple(examine(facts)), pairs_of(facts))


def _checked_hosts(hosts: Sequence[str] | None) -> list[str]:
    """Return the hosts as a list without repeated names."""
    if hosts is None:
        return []
    refuse_text(hosts)
    hosts = list(hosts)
    for host in hosts:
        if not isinstance(host, str) or not host or host.startswith("-") or set(host) & set(" ,"):
            raise InvalidCallError(f"{host!r} is not a host name")
    if not hosts or len(set(hosts)) < len(hosts):
        raise InvalidCallError(f"hosts={hosts} must name at least one host, and each only once")
    return hosts


WITHOUT_PROBE = ("name", "server", "ssh", "python")
STATES = OK, WRONG, NOT_ASKED = "ok", "wrong", "not asked"


@dataclass(frozen=True)
class Line:
    """The result of one check on one host, or on all hosts together.

    Attributes
    ----------
    check : str
    host : str or None
        None for a check of all hosts together.
    state : {"ok", "wrong", "not asked"}
    sentence : str
        The facts that the check found. If the state is ``"wrong"``, the sentence says what to do.
        If the state is ``"not asked"``, the sentence says why the doctor did not ask.
    """

    check: str
    host: str | None
    state: str
    sentence: str


def examine(facts, checks=CHECKS):
    """Judge the facts. Return a list of `Line`, in the order of the checks."""
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
    """Return the failed check, and its host, that makes this check impossible; None if there is
    none."""
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
        return f"because the check {check} failed"
    return f"because the check {check} failed {'there' if where == host else f'on {where}'}"


def hosts_for_hello(facts):
    """Return the hosts on which to run `hello`. An empty list means this machine. None means that
    `hello` cannot run.

    The list leaves out a host that cannot take part, if at least two other hosts can.
    """
    lines = examine(facts, HOST_CHECKS)
    bad = {line.host for line in lines if line.check in NEEDS_OF_HELLO and line.state != OK}
    if not facts.hosts:
        return None if bad else []
    fit = [host for host in facts.hosts if host not in bad]
    return fit if len(fit) > 1 or len(facts.hosts) == 1 == len(fit) else None


COLOURS = {OK: "#1b7837", WRONG: "#b2182b", NOT_ASKED: "#767676"}
UNITS = (
    "The latency is the time in which one byte travels one way. The bandwidth is measured with "
    "large messages. Both are measured over MPI."
)


@dataclass(frozen=True, repr=False)
class Report:
    """The results of the doctor. They print as a table, and a notebook shows them as a table.

    Attributes
    ----------
    hosts : tuple of str
        The hosts that the doctor checked. Empty if it checked only this machine.
    lines : tuple of Line
        One line for each check and host: ``check``, ``host``, ``state`` and ``sentence``.
    pairs : tuple of tuple
        ``(host, host, latency in seconds, bandwidth in bytes per second)`` of each measured pair.
    """

    hosts: tuple[str, ...]
    lines: tuple[Line, ...]
    pairs: tuple[tuple[str, str, float, float], ...] = ()

    @property
    def ok(self) -> bool:
        """True if the doctor found no fault, else False."""
        return all(line.state == OK for line in self.lines)

    def wrong(self) -> list[Line]:
        """A list of the lines that say what to fix."""
        return [line for line in self.lines if line.state == WRONG]

    def to_record(self) -> dict[str, Any]:
        """The report as plain data, for JSON."""
        keys = ("hosts", "latency_s", "bandwidth_Bps")
        return {
            "kind": "ok" if self.ok else "wrong",
            "message": self._summary(),
            "hosts": list(self.hosts),
            "checks": [asdict(line) for line in self.lines],
            "pairs": [dict(zip(keys, (pair[:2], *pair[2:]), strict=True)) for pair in self.pairs],
        }

    def rows(self) -> list[tuple[str, str, str]]:
        """``(state, check, text)``: hosts with the same text share a row."""
        rows = []
        for check in dict.fromkeys(line.check for line in self.lines):
            of_check = [line for line in self.lines if line.check == check]
            said: dict[tuple[str, str], list[str | None]] = {}
            for line in of_check:
                said.setdefault((line.state, line.sentence), []).append(line.host)
            fine = [(hosts, words) for (state, words), hosts in said.items() if state == OK]
            if fine:
                rows.append((OK, check, "; ".join(self._with_hosts(*one) for one in fine)))
            for (state, words), hosts in said.items():
                if state != OK:
                    rows.append((state, check, self._with_hosts(hosts, words)))
        return rows

    def _with_hosts(self, hosts, words):
        named = hosts != [None] and self.hosts
        return f"{', '.join(hosts)}: {words}" if named else words

    def __str__(self) -> str:
        rows = self.rows()
        wide = max((len(check) for _, check, _ in rows), default=0)
        lines = [self._title(), ""]
        lines += [f"{state:9}  {check:{wide}}  {text}" for state, check, text in rows]
        if self.hosts and self.pairs:
            lines += ["", *self._pair_lines()]
        return "\n".join([*lines, "", self._summary()])

    __repr__ = __str__

    def _title(self):
        if self.hosts:
            return f"a cluster of {', '.join(self.hosts)}"
        return "this machine alone: no hosts were given (--hosts a,b, or hosts=['a', 'b'])"

    def _summary(self):
        count = len(self.wrong())
        if count:
            return f"{count} {'thing is' if count == 1 else 'things are'} wrong"
        return "all is well"

    def _pair_lines(self):
        names = [f"{one} - {other}" for one, other, *_ in self.pairs]
        wide = max(map(len, [*names, "pair"]))
        lines = [f"{'pair':{wide}}  {'latency':>10}  {'bandwidth':>11}"]
        for shown, (_, _, latency_s, bandwidth_Bps) in zip(names, self.pairs, strict=True):
            latency, bandwidth = _shown(latency_s, bandwidth_Bps)
            lines.append(f"{shown:{wide}}  {latency:>10}  {bandwidth:>11}")
        return [*lines, UNITS]

    def _repr_html_(self):
        cell = "style='text-align:left;vertical-align:top'"
        rows = [
            f"<tr><td {cell}><b style='color:{COLOURS[state]}'>{state}</b></td>"
            f"<td {cell}>{html.escape(check)}</td><td {cell}>{html.escape(text)}</td></tr>"
            for state, check, text in self.rows()
        ]
        parts = [f"<p>{html.escape(self._title())}</p><table>{''.join(rows)}</table>"]
        if self.hosts and self.pairs:
            rows = ["<tr><th>pair</th><th>latency</th><th>bandwidth</th></tr>"]
            for one, other, *measured in self.pairs:
                cells = [html.escape(f"{one} - {other}"), *_shown(*measured)]
                rows.append(f"<tr><td>{'</td><td>'.join(cells)}</td></tr>")
            parts.append(f"<table>{''.join(rows)}</table><p>{UNITS}</p>")
        return "".join([*parts, f"<p>{self._summary()}</p>"])


def _shown(latency_s, bandwidth_Bps):
    """Return a measured latency and bandwidth as text."""
    return f"{latency_s * 1e6:.1f} us", f"{bandwidth_Bps / 1e6:.1f} MB/s"


def pairs_of(facts):
    """Return the measured pairs, with the names of their hosts."""
    if facts.together is None:
        return ()
    hosts = facts.together["hosts"]
    at = hosts if len(hosts) > 1 else [f"rank {rank}" for rank in range(facts.together["wanted"])]
    return tuple(
        (at[step["pair"][0]], at[step["pair"][1]], step["latency_s"], step["bandwidth_Bps"])
        for step in facts.together["steps"]
        if step["step"] == "pair"
    )

"""`Report`: what the doctor found, as a table."""

from __future__ import annotations

import html
from dataclasses import dataclass

from .examine import NOT_ASKED, OK, WRONG, Line

COLOURS = {OK: "#1b7837", WRONG: "#b2182b", NOT_ASKED: "#767676"}
UNITS = "latency is one way, of one byte; bandwidth of large messages, over MPI"


@dataclass(frozen=True, repr=False)
class Report:
    """What the doctor found: prints as a table, and shows as one in a notebook.

    Attributes
    ----------
    hosts : tuple of str
        Those that were asked; empty for this machine alone.
    lines : tuple of Line
        One for each check and host: ``check``, ``host``, ``state`` and ``sentence``.
    pairs : tuple of tuple
        ``(host, host, latency in seconds, bandwidth in bytes per second)`` of those measured.
    """

    hosts: tuple[str, ...]
    lines: tuple[Line, ...]
    pairs: tuple[tuple[str, str, float, float], ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong: True or False."""
        return all(line.state == OK for line in self.lines)

    def wrong(self) -> list[Line]:
        """The lines of what has to be mended, a list."""
        return [line for line in self.lines if line.state == WRONG]

    def rows(self) -> list[tuple[str, str, str]]:
        """``(state, check, text)``: hosts with the same to say share a row."""
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
    """Both measured numbers as text."""
    return f"{latency_s * 1e6:.1f} us", f"{bandwidth_Bps / 1e6:.1f} MB/s"


def pairs_of(facts):
    """The measured pairs, by the names of their hosts."""
    if facts.together is None:
        return ()
    hosts = facts.together["hosts"]
    at = hosts if len(hosts) > 1 else [f"rank {rank}" for rank in range(facts.together["wanted"])]
    return tuple(
        (at[step["pair"][0]], at[step["pair"][1]], step["latency_s"], step["bandwidth_Bps"])
        for step in facts.together["steps"]
        if step["step"] == "pair"
    )

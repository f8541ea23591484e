"""Find out why a job failed, from the output of launchers, ssh, shells, queues and checks of hosts.

If a rank's process dies, its supervisor reports the death. But the supervisor may end, too, with
its host or by itself. Then the check of the hosts, ``start.py`` or the launcher reports the death.
"""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.model.words import ranks_in_words
from ..launchers import LAUNCHERS, NO_PYTHON
from .bootstrap import UNWRITTEN
from .folder import JobFolder
from .launcher_process import CUT, REFUSED, SILENT

SSH = (
    (
        r"Could not resolve hostname (?P<host>[^:\s]+)|unknown host:? (?P<host2>\S+)"
        r"|(?P<host3>\S+): Name or service not known",
        "the host {host} is unknown: is its name spelled right? It must be in DNS or /etc/hosts",
    ),
    (
        r"connect to host (?P<host>\S+) port \d+: Connection refused",
        "{host} answers, but runs no ssh server: start sshd on {host}",
    ),
    (
        r"connect to host (?P<host>\S+) port \d+: (Connection timed out|No route to host"
        r"|Operation timed out|Network is unreachable)",
        "{host} does not answer: is it switched on, and in this network?",
    ),
    (
        r"(?P<host>\S+): Permission denied \(",
        "{host} does not let this account in without a password: copy your public key to {host} "
        "with ssh-copy-id {host}",
    ),
    (
        r"No \S+ host key is known for (?P<host>\S+) and|Host key for (?P<host2>\S+) has changed",
        "ssh does not know {host} yet, or its key has changed: run `ssh {host}` once by hand, and "
        "compare its key",
    ),
    (
        r"Host key verification failed",
        "ssh does not know a host yet, or its key has changed: ssh to each host once by hand, and "
        "compare its key",
    ),
)
SHELL = (
    (r"(?P<host>\S+): (command )?not found", NO_PYTHON),
    (
        r"can't open file '?(?P<host>[^']*start\.py)|(?P<host2>[^:\s]*rank\.sh): No such file",
        "a host does not see {host} in the job's folder{which}: use folder=... to name a folder "
        "that all hosts share",
    ),
    (
        r"(?P<host>\S+): error while loading shared libraries",
        "a host cannot run {host}, because a system library is missing there{which}: install the "
        "same environment on every host",
    ),
)
CAUSES = [
    *SSH,
    *dict.fromkeys(failure for launcher in LAUNCHERS for failure in launcher.failures),
    *SHELL,
]
"""Patterns for output, with sentences that explain it. `know` adds the patterns of batch
systems."""
SHELL_HOPELESS = (
    r"start\.py': \[Errno 2\]|rank\.sh: No such file",
    "command not found",
    "error while loading shared libraries",
    "^Fatal Python error",
    "[Ee]xec format error",
)
HOPELESS = "|".join(
    dict.fromkeys([*SHELL_HOPELESS, *(words for each in LAUNCHERS for words in each.hopeless)])
)
"""A pattern for the output if a rank cannot even start."""
NOISE = re.compile(r"\[W.* The hostname of the client socket cannot be retrieved")
"""torch prints these words if DNS does not answer. They report no fault."""
BY_QUEUE: list[str] = []
"""Patterns for a batch system's output about a job that it has ended. `know` adds them."""


def know(scheduler: Any) -> None:
    """From now on, understand the output of a batch system. It is a `Scheduler` from
    `batch_system`."""
    CAUSES.extend(scheduler.failures)
    BY_QUEUE.append(scheduler.ended_by_queue)


def ended_by_queue(text: str) -> bool:
    """Whether the queue has ended the job for its own reason, and not because of a cancel."""
    return bool(re.search("|".join(BY_QUEUE), text))


def cause_in(text: str, doctor: str = "") -> tuple[str | None, str]:
    """Return ``(sentence, line)``: the meaning of the launcher's output, and the first line of this
    output.

    The sentence is None if simlib does not know the output. ``doctor`` is the result of
    `doctor_for` for the job. The sentence names this command if the launcher does not name the
    host.
    """
    which = f" (`{doctor}` names the host)" if doctor else ""
    lines = [line.strip() for line in text.splitlines() if line.strip(" =\t")]
    lines = [line for line in lines if not NOISE.match(line)]
    for line in lines:
        for pattern, sentence in CAUSES:
            found = re.search(pattern, line)
            if found:
                names = [value for value in found.groupdict().values() if value]
                host = names[0].rpartition("@")[2].strip("'\"") if names else "a host"
                return sentence.format(host=host, which=which), line
    return None, lines[0] if lines else ""


def doctor_for(hosts: Sequence[str] | None, folder: Path) -> str:
    """Return the command that checks a job's hosts; empty if the hosts are unknown or too many."""
    if not hosts or len(hosts) > MAX_HOSTS:
        return ""
    return shlex.join(["simlib", "doctor", "--hosts", ",".join(hosts), "--folder", str(folder)])


def refusal_in(said: str) -> str | None:
    """Return what a rank reported to the launcher after the job's folder refused a file, and the
    cause."""
    _, found, words = said.partition(UNWRITTEN)
    return "\n".join(words.splitlines()[:2]) if found else None


OVERLOADED = "log in by hand to see whether the host is overloaded, or the login hangs"


def mute_hosts(folder: JobFolder) -> str | None:
    """For a job that could not begin, return a text on hosts whose ssh server is silent; or
    None."""
    hosts = folder.read_json("mute.json")
    if not hosts:
        return None
    names = ", ".join(hosts)
    return f"no ssh server answers on {names}: {OVERLOADED}"


def refused(begin: str, said: str) -> str:
    """Return a sentence on a scheduler's refusal, and below it the scheduler's own output."""
    sentence, line = cause_in(said)
    return f"{begin}: {sentence or 'the queue gives this reason'}\n    {line}"


MAX_HOSTS = 16
HOW = {
    SILENT: "no longer answers: the host lost its network, or was switched off",
    REFUSED: "answers, but its ssh server no longer does: the host restarted, or is shutting down",
    CUT: "has lost its network",
}
PATTERNS = [pattern for launcher in LAUNCHERS for pattern in launcher.gone]
DIED = -signal.SIGKILL
"""The exit code of a rank without a supervisor."""


def waits_in_words(
    waits: Mapping[int, Any], places: Mapping[int, Mapping[str, Any]], seconds: float
) -> str:
    """Return a text such as ``rank 0 has waited for 40 s in all_reduce for rank 1 on node2``; empty
    if no rank waits."""
    if not waits:
        return ""
    kinds = " or ".join(dict.fromkeys(wait.op.kind for wait in waits.values()))
    have = "has" if len(waits) == 1 else "have"
    words = f"{ranks_in_words(waits)} {have} waited for {seconds:.0f} s in {kinds}"
    needed = sorted({rank for wait in waits.values() for rank in wait.needs})
    hosts = dict.fromkeys(places[rank]["host"] for rank in needed if rank in places)
    words += f" for {ranks_in_words(needed)}" if needed else ""
    return f"{words} on {', '.join(hosts)}" if hosts else words


def lost_hosts(folder: JobFolder, places: Mapping[int, Mapping[str, Any]]) -> str | None:
    """Return a text on hosts that answered at the beginning of the job and no longer answer; or
    None."""
    lost = folder.read_json("lost.json") or {}
    parts = []
    for host, found in sorted(lost.items()):
        ranks = [rank for rank, place in places.items() if place["host"] == host]
        verb = "runs" if len(ranks) == 1 else "run"
        parts.append(f"{host}, where {ranks_in_words(ranks)} {verb}, {HOW[found]}")
    return "; ".join(parts) or None


def lost_ranks(
    folder: JobFolder,
    places: Mapping[int, Mapping[str, Any]],
    running: list[int],
    said: str,
) -> dict[int, str]:
    """Return the rank that vanished with its supervisor, and its name: ``{1: "rank 1 on ..."}``.

    Parameters
    ----------
    folder : JobFolder
    places : dict
        The contents of each rank's ``rank-N.json``.
    running : list of int
        Ranks that have neither answered nor died.
    said : str
        The launcher's output.
    """
    known = [rank for rank in running if rank in places]
    told = folder.read_json("gone.json")
    found = [(told, told["words"])] if told else [(words, "") for words in _named_in(said)]
    for where, words in found:
        ranks = [rank for rank in known if _is_at(rank, places[rank], where)]
        if len(ranks) == 1:
            return {ranks[0]: _in_words(ranks[0], places, words)}
    silent = [rank for rank in known if not folder.has("ended", rank)]
    if len(silent) == 1:  # of the others it is known how they ended
        return {silent[0]: _in_words(silent[0], places)}
    return {}


def _named_in(said: str) -> list[dict[str, Any]]:
    """Return the process that ended first, as the launcher names it: ``host``, ``starter`` or
    ``rank``.

    The launcher itself ended the other processes that it names.
    """
    found = [match for pattern in PATTERNS for match in re.finditer(pattern, said)]
    return [match.groupdict() for match in sorted(found, key=re.Match.start)[:1]]


def _is_at(rank: int, place: Mapping[str, Any], where: Mapping[str, Any]) -> bool:
    """Whether the launcher's output (``where``) means this rank."""
    if where.get("rank") is not None:
        return int(where["rank"]) == rank
    if where["host"].partition(".")[0] != place["host"].partition(".")[0]:
        return False
    starter = where.get("starter")
    return starter is None or int(starter) == place.get("starter")


def _in_words(rank: int, places: Mapping[int, Mapping[str, Any]], words: str = "") -> str:
    words = words or "the process that watched the rank was ended from outside"
    return f"rank {rank} on {places[rank]['host']} is gone: {words}"

"""What a launcher's own words mean, and what to do: its first line is the cause."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..launch.causes import NO_PYTHON
from ..launch.launchers import LAUNCHERS
from .schedulers import SCHEDULERS

SSH = (
    (
        r"Could not resolve hostname (?P<host>[^:\s]+)|unknown host:? (?P<host2>\S+)"
        r"|(?P<host3>\S+): Name or service not known",
        "the host {host} is unknown: is its name spelled right? It must be in DNS or /etc/hosts",
    ),
    (
        r"connect to host (?P<host>\S+) port \d+: Connection refused",
        "{host} answers, but no ssh server runs there: start sshd on it",
    ),
    (
        r"connect to host (?P<host>\S+) port \d+: (Connection timed out|No route to host"
        r"|Operation timed out|Network is unreachable)",
        "{host} does not answer: is it switched on, and in this network?",
    ),
    (
        r"(?P<host>\S+): Permission denied \(",
        "{host} does not let this account in without a password: put your public key there, by "
        "ssh-copy-id {host}",
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
        "a host does not see the job's folder, with its {host}{which}: it must be on a "
        "filesystem that all hosts share, name one by folder=...",
    ),
    (
        r"(?P<host>\S+): error while loading shared libraries",
        "a host cannot run {host}, a library of the system is missing there{which}: install the "
        "same environment on every host",
    ),
)
CAUSES = (
    *SSH,
    *dict.fromkeys(failure for launcher in LAUNCHERS for failure in launcher.failures),
    *SHELL,
    *(failure for scheduler in SCHEDULERS.values() for failure in scheduler.failures),
)
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
"""What is said where a rank cannot even be started."""
NOISE = re.compile(r"\[W.* The hostname of the client socket cannot be retrieved")
"""torch, where DNS does not answer: nothing is wrong for it."""
BY_QUEUE = re.compile("|".join(each.ended_by_queue for each in SCHEDULERS.values()))


def ended_by_queue(text: str) -> bool:
    """Whether the queue has ended the job for a reason of its own, and nobody has cancelled it."""
    return bool(BY_QUEUE.search(text))


def cause_in(text: str, hosts: Sequence[str] | None = None) -> tuple[str | None, str]:
    """``(sentence, line)``: what the launcher said, in words, and its own first line.

    The sentence is None where nothing of it is known. ``hosts`` are those of the job: where the
    launcher does not say which of them it means, they are named.
    """
    which = f" (`simlib doctor --hosts {','.join(hosts)}` says which)" if hosts else ""
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


def refused(begin: str, said: str) -> str:
    """A sentence on what a scheduler refuses; below it, its own words."""
    sentence, line = cause_in(said)
    return f"{begin}: {sentence or 'it says why'}\n    {line}"

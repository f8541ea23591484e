"""What a launcher's own words mean, and what to do: its first line is the cause."""

from __future__ import annotations

import re

CAUSES = (
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
    (
        r"(hydra_pmi_proxy|hydra_bstrap_proxy|orted|prted|pmi_proxy)\S*:? .*"
        r"(No such file|not found|Permission denied|cannot execute)",
        "a host has no MPI where this one has it{which}: install the same MPI there, at the "
        "same path",
    ),
    (
        r"execvp error on file (?P<host>\S+)|(?P<host2>\S+): (command )?not found"
        r"|unable to find the specified executable",
        "a host cannot run the Python of this notebook, {host}{which}: install the same "
        "environment there, at the same path",
    ),
    (
        r"can't open file '?(?P<host>[^']*start\.py)",
        "a host does not see the job's folder, with its {host}{which}: it must be on a "
        "filesystem that all hosts share, name one by folder=...",
    ),
    (
        r"(?P<host>\S+): error while loading shared libraries",
        "a host cannot run {host}, a library of the system is missing there{which}: install the "
        "same environment on every host",
    ),
    (
        r"unsupported PMI version",
        "mpiexec belongs to another MPI than the one mpi4py has loaded: name the right mpiexec by "
        "launcher=..., or install mpi4py for its MPI",
    ),
    (
        r"not enough slots|More processors requested than permitted"
        r"|Requested node configuration is not available|cannot be satisfied"
        r"|Node count specification invalid|Requested time limit is invalid",
        "more was asked for than there is: take fewer ranks or nodes",
    ),
    (
        r"nvalid partition",
        "there is no such partition: sinfo lists those there are",
    ),
    (
        r"nvalid account",
        "there is no such account here: sacctmgr show associations lists yours",
    ),
    (
        r"DUE TO TIME LIMIT|APPLICATION TIMED OUT",
        "the queue's time limit was over before its ranks were done: give it more by "
        "time_limit=..., as far as the partition allows",
    ),
    (
        r"DUE TO PREEMPTION",
        "the queue gave its nodes to a more urgent job: submit it again",
    ),
    (
        r"DUE TO NODE FAILURE|Node failure on (?P<host>\S+)",
        "a node failed while it ran: submit it again",
    ),
)
BY_QUEUE = re.compile("DUE TO (TIME LIMIT|PREEMPTION|NODE FAILURE)")


def ended_by_queue(text):
    """Whether the queue has ended the job for a reason of its own, and nobody has cancelled it."""
    return bool(BY_QUEUE.search(text))


def cause_in(text, hosts=None):
    """``(sentence, line)``: what the launcher said, in words, and its own first line.

    The sentence is None where nothing of it is known. ``hosts`` are those of the job: where the
    launcher does not say which of them it means, they are named.
    """
    which = f" (`simlib doctor --hosts {','.join(hosts)}` says which)" if hosts else ""
    lines = [line.strip() for line in text.splitlines() if line.strip(" =\t")]
    for line in lines:
        for pattern, sentence in CAUSES:
            found = re.search(pattern, line)
            if found:
                names = [value for value in found.groupdict().values() if value]
                host = names[0].rpartition("@")[2].strip("'\"") if names else "a host"
                return sentence.format(host=host, which=which), line
    return None, lines[0] if lines else ""

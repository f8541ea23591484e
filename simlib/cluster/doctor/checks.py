"""The doctor's checks. Each check judges the facts that `facts` found, and says how to fix a fault.

A judge is a function that gets the facts, and a host unless it judges all hosts together. It
returns a `Verdict`: whether all is well, and one sentence. It is called only if all checks that it
needs have passed.
"""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass

from ..batch.failures import OVERLOADED, cause_in
from ..batch.mpiexec import versions
from ..launchers import mpi_named, mpi_of_library, mpi_of_version
from .facts import LIMIT_S, NO_PYTHON


@dataclass(frozen=True)
class Verdict:
    """Whether all is well, and a sentence: the facts, or the fault and how to fix it."""

    ok: bool
    sentence: str


@dataclass(frozen=True)
class Check:
    """One thing that a cluster needs.

    Attributes
    ----------
    name : str
    judge : callable
        ``judge(facts, host)``, or ``judge(facts)`` for a check of all hosts together.
    needs : tuple of str
        The checks that this check needs before it.
    alone : bool
        Whether the check also makes sense on one machine, without hosts.
    together : bool
        Whether the check judges all hosts together.
    """

    name: str
    judge: Callable[..., Verdict]
    needs: tuple[str, ...] = ()
    alone: bool = False
    together: bool = False


def well(sentence: str) -> Verdict:
    return Verdict(True, sentence)


def wrong(sentence: str) -> Verdict:
    return Verdict(False, sentence)


CLOCK_S = 0.5
"""The most seconds that clocks may differ. With a larger difference, times of files and logs
mislead. NTP keeps clocks within 0.01 s."""
CLOSE = ((0.001, "1 ms"), (0.01, "10 ms"), (0.1, "100 ms"), (0.5, "0.5 s"))


def _said(facts, host):
    """Return the meaning and the first line of ssh's output about a host; ``("", "")`` if none."""
    return cause_in(facts.refused.get(host, ""))


def name(facts, host):
    if re.search(r"resolve hostname", facts.refused.get(host, "")):
        return wrong(
            f"the name {host} is not known on {socket.gethostname()}: spell the name right, or "
            "add it with its address to /etc/hosts or your ~/.ssh/config"
        )
    return well("the name is known")


def server(facts, host):
    said = facts.refused.get(host, "")
    if re.search(r"refused|timed out|No route|unreachable|^no answer", said):
        sentence, line = _said(facts, host)
        return wrong(f"{sentence or f'no answer: {OVERLOADED}'} ({line})")
    return well("an ssh server answers")


def ssh(facts, host):
    said = facts.refused.get(host)
    if said is None or NO_PYTHON in said:
        return well("this account can log in without a password")
    sentence, line = _said(facts, host)
    if "Host key verification failed" in said:
        sentence = (
            f"the key of {host} is not known here, or has changed: run `ssh {host}` once by hand "
            "and compare its key"
        )
    return wrong(f"{sentence or f'run `ssh {host} true` by hand and fix what it says'} ({line})")


def account(facts, host):
    mine, theirs = facts.here["account"], facts.of[host]["account"]
    if mine == theirs:
        return well(f"{theirs[0]}, uid {theirs[1]}")
    if mine[0] != theirs[0] and theirs[0] is not None:
        fix = "give this account the same name and uid there, or name it in ~/.ssh/config (User)"
    else:
        fix = "give the account the same uid on every host (usermod -u), or files cannot be shared"
    return wrong(
        f"the account there is {theirs[0]} with uid {theirs[1]}, but here it is {mine[0]} with "
        f"uid {mine[1]}: {fix}"
    )


def python(facts, host):
    if NO_PYTHON in facts.refused.get(host, ""):
        return wrong(f"the host has no Python: install Python so that {sys.executable} runs there")
    mine, theirs = facts.here, facts.on(host)
    if theirs["executable"] != mine["executable"]:
        return wrong(
            f"{mine['executable']} is not there, only {theirs['executable']} with Python "
            f"{theirs['python']}: install the same environment at the same path"
        )
    if _minor(theirs["python"]) != _minor(mine["python"]):
        return wrong(
            f"{theirs['executable']} is Python {theirs['python']} there and {mine['python']} here: "
            "install the same version, because simlib sends functions as bytecode"
        )
    return well(f"Python {theirs['python']}, {theirs['executable']}")


def _minor(version):
    return version.split(".")[:2]


def torch(facts, host):
    mine = facts.here["packages"]["torch"] or versions()["torch"]
    theirs = facts.on(host)["packages"]["torch"]
    if theirs is None:
        return wrong(f"torch is missing: install {mine} there (pip install torch=={_bare(mine)})")
    if _bare(theirs) != _bare(mine):
        return wrong(f"torch is {theirs}, but {mine} here: pip install torch=={_bare(mine)} there")
    return well(f"torch {theirs}")


def _bare(version):
    """Return a version without the name of its build, because 2.13.0+cpu and 2.13.0 work
    together."""
    return version.partition("+")[0]


def simlib(facts, host):
    mine, theirs = facts.here["simlib"], facts.on(host)["simlib"]
    other = facts.on(host).get("other_simlib")
    if other:
        return wrong(other)
    if theirs is None:
        return wrong(
            f"simlib is missing: put {mine[1]} on a filesystem that all hosts share, or install "
            "simlib there"
        )
    if theirs[0] is None:
        return wrong(
            f"simlib in {theirs[1]} cannot be read there ({theirs[2]}): give this account the "
            "rights, or install it again"
        )
    if theirs[0] != mine[0]:
        return wrong(f"simlib is {theirs[0]} ({theirs[1]}), but {mine[0]} here: install {mine[0]}")
    if theirs[2] != mine[2]:
        return wrong(
            f"simlib is {theirs[0]} there, too, but its files in {theirs[1]} differ from those "
            "here: copy or install the same files"
        )
    return well(f"simlib {theirs[0]}, {theirs[1]}")


def mpi(facts, host):
    if facts.mpi_wrong:
        return wrong(facts.mpi_wrong)
    found = facts.on(host)["mpi"]
    if found["version"] is None:
        other = f" (another is at {found['other']})" if found["other"] else ""
        return wrong(
            f"there is no mpiexec at {facts.mpiexec}{other}: install the same {facts.mpi} "
            "there, at the same path"
        )
    mine, theirs = (_mpi_version(of["mpi"]["version"]) for of in (facts.here, facts.on(host)))
    if mine != theirs:
        return wrong(f"the MPI there is {theirs}, but {mine} here: install the same MPI there")
    proxy = mpi_named(facts.mpi).proxy
    if proxy and facts.hosts and facts.here["mpi"]["proxy"] > found["proxy"]:
        return wrong(
            f"{facts.mpiexec} is there, but {proxy} is missing: install {facts.mpi} again there"
        )
    return well(f"{theirs}, {facts.mpiexec}")


def _mpi_version(answer):
    """Return the MPI and its version, as found in the output of ``--version``."""
    text = answer[1]
    found = mpi_of_version(text)
    if found is None:
        return f"unknown ({text.strip().splitlines()[:1]})"
    number = found.version_in(text)
    return f"{found.name} {number}" if number else found.name


def library(facts, host):
    code, text = facts.on(host)["library"]
    first = next((line for line in reversed(text.strip().splitlines()) if line), "nothing")
    if code and facts.on(host)["packages"]["mpi4py"] is None:
        return wrong("mpi4py is missing: pip install mpi4py on this host")
    if code:
        return wrong(f"mpi4py finds no MPI library ({first}): install {facts.mpi} on this host")
    found = mpi_of_library(text)
    which = found.name if found else (text.strip().splitlines() or ["nothing"])[0]
    if which != facts.mpi:
        return wrong(
            f"mpi4py's library is {which}, but mpiexec is {facts.mpi}, so every process would be "
            f"alone: use the mpiexec of {which} (--launcher), or install {facts.mpi} in "
            "mpi4py's Python environment"
        )
    return well(f"mpi4py {facts.on(host)['packages']['mpi4py']} uses {which}, as mpiexec does")


def files(facts, host):
    seen, error = facts.of[host]["file"]
    if error == "Permission denied":
        return wrong(
            f"this account has no right to read or write {facts.folder} on this host: give the "
            "account the right, or name another folder (--folder)"
        )
    if not seen or error:
        return wrong(
            f"the host does not see a file that this machine wrote in {facts.folder}: mount the "
            "same filesystem at the same path, or work in a folder that all hosts share (--folder)"
        )
    if host not in facts.written:
        return wrong(
            f"this machine does not see a file that the host wrote in {facts.folder}: mount the "
            "same filesystem at the same path on both"
        )
    return well(f"the folder {facts.folder} is shared")


def address(facts, host):
    of = facts.of[host]
    own, interface, _ = of["address"]
    meant = of["names"].get(of["name"]) or []
    if meant and all(one.startswith("127.") for one in meant):
        return wrong(
            f"the host's own name {of['name']} stands for {meant[0]} there, which no other host "
            f"reaches: write {own} instead of {meant[0]} in the host's /etc/hosts"
            + (f", or set GLOO_SOCKET_IFNAME={interface} in each rank" if interface else "")
        )
    lost = [
        other for other in facts.hosts
        if other in facts.of and other != host and not of["names"].get(other)
    ]  # fmt: skip
    if lost:
        return wrong(
            f"the host does not know the name {', '.join(lost)}: add the name with its address to "
            "the host's /etc/hosts or to DNS"
        )
    return well(f"{own} by {interface}" if interface else f"{own}")


def clock(facts, host):
    offset_s, error_s = facts.clocks[host]
    if abs(offset_s) - error_s > CLOCK_S:
        way = "ahead of" if offset_s > 0 else "behind"
        return wrong(
            f"the host's clock is {abs(offset_s):.1f} s {way} this machine's: let both follow one "
            "time server (chrony, or timedatectl set-ntp true)"
        )
    apart_s = abs(offset_s) + error_s
    bound = next((words for most_s, words in CLOSE if apart_s < most_s), f"{apart_s:.1f} s")
    return well(f"less than {bound} from this machine's")


def ports(facts, host):
    if host not in facts.unreached:
        return wrong("the host no longer answers: run the doctor again")
    here = f"this machine ({socket.gethostname()})"
    lost = [f"to {other or here}: {why}" for other, why in facts.unreached.get(host, {}).items()]
    if host in facts.unreached.get(None, {}):
        lost.append(f"from {here}: {facts.unreached[None][host]}")
    if lost:
        return wrong(
            f"a connection to a free port failed ({'; '.join(lost)}): let the firewalls pass all "
            "ports between the hosts"
        )
    return well("free ports of the other hosts can be reached")


HOST_CHECKS = (
    Check("name", name),
    Check("server", server, ("name",)),
    Check("ssh", ssh, ("server",)),
    Check("account", account, ("ssh",)),
    Check("python", python, ("ssh",), alone=True),
    Check("torch", torch, ("python",), alone=True),
    Check("simlib", simlib, ("python",), alone=True),
    Check("mpi", mpi, ("ssh",), alone=True),
    Check("mpi4py", library, ("python", "mpi"), alone=True),
    Check("files", files, ("ssh",)),
    Check("address", address, ("ssh",)),
    Check("clock", clock, ("ssh",)),
    Check("ports", ports, ("ssh",)),
)


FIREWALL = (
    "let the firewalls pass all ports between the hosts, and check that MPI uses the interface by "
    "which they reach each other"
)


def hello(facts):
    """Check that every rank started, knew the right world size, and took part in a sum."""
    run = facts.together
    wanted, place = run["wanted"], ", ".join(run["hosts"]) or "this machine"
    began, joined, met = (_of(run, step) for step in ("began", "joined", "met"))
    if joined and all(step["size"] != wanted for step in joined):
        size = joined[0]["size"]
        return wrong(
            f"each process says that its world size is {size}, not {wanted}: "
            "mpiexec belongs to another MPI than mpi4py's library. Use the mpiexec that fits "
            "(--launcher)"
        )
    if len(met) == wanted and all(step["total"] == wanted * (wanted + 1) // 2 for step in met):
        return well(f"{wanted} ranks on {place}, world size {wanted}")
    sentence, line = cause_in(run["said"])
    if len(began) < wanted or run["code"] is not None:
        line = line or f"exit code {run['code']} and no output"
        fix = sentence or "run the same mpiexec by hand and fix the problem that it names"
        return wrong(f"{len(met)} of {wanted} ranks finished: {fix} ({line})")
    return wrong(
        f"the test hangs: {wanted} ranks started, {len(met)} finished in {LIMIT_S} s, so messages "
        f"of MPI are lost between {place}: {FIREWALL}"
    )


def _of(run, step):
    return [one for one in run["steps"] if one["step"] == step]


def ping_pong(facts):
    """Check that every pair of hosts was measured."""
    run = facts.together
    pairs = _of(run, "pair")
    if run["code"] == 0 and pairs:
        return well(f"pairs measured: {len(pairs)}" if facts.hosts else describe(pairs[0]))
    if run["code"] is None:
        return wrong(
            f"the measurement did not end in {LIMIT_S} s after {len(pairs)} pairs, although small "
            f"messages arrived: look for a wrong MTU, or {FIREWALL}"
        )
    sentence, line = cause_in(run["said"])
    return wrong(f"the measurement stopped: {sentence or 'run the doctor again'} ({line})")


def describe(pair):
    """Return the measured latency and bandwidth of a pair, in words."""
    latency_us, megabytes = pair["latency_s"] * 1e6, pair["bandwidth_Bps"] / 1e6
    return f"{latency_us:.3g} us one way, {megabytes:.3g} MB/s"


NEEDS_OF_HELLO = ("python", "account", "mpi", "mpi4py")

CHECKS = (
    *HOST_CHECKS,
    Check("hello", hello, NEEDS_OF_HELLO, alone=True, together=True),
    Check("ping-pong", ping_pong, ("hello",), alone=True, together=True),
)

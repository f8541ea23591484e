"""The checks of all hosts together: the hello under mpiexec."""

from __future__ import annotations

from ..launcher_failures import cause_in
from .diagnosis import Check, well, wrong
from .host_checks import HOST_CHECKS
from .together import LIMIT_S

FIREWALL = (
    "let the firewalls pass all ports between the hosts, and see that MPI takes the interface by "
    "which they reach each other"
)


def hello(facts):
    """Every rank came up, knew the right world size, and took part in a sum."""
    run = facts.together
    wanted, place = run["wanted"], ", ".join(run["hosts"]) or "this machine"
    began, joined, met = (_of(run, step) for step in ("began", "joined", "met"))
    if joined and all(step["size"] != wanted for step in joined):
        size = joined[0]["size"]
        return wrong(
            f"{len(joined)} processes each say that they are of {size}, where {wanted} were asked "
            "for: mpiexec belongs to another MPI than mpi4py's library, use the one that fits "
            "(--launcher)"
        )
    if len(met) == wanted and all(step["total"] == wanted * (wanted + 1) // 2 for step in met):
        return well(f"{wanted} ranks on {place}, world size {wanted}")
    sentence, line = cause_in(run["said"])
    if len(began) < wanted or run["code"] is not None:
        line = line or f"exit code {run['code']}, nothing said"
        mend = sentence or "run the same mpiexec by hand and mend what it says"
        return wrong(f"{len(met)} of {wanted} ranks came through: {mend} ({line})")
    return wrong(
        f"it hangs: {wanted} ranks started, {len(met)} came through in {LIMIT_S} s, so messages of "
        f"MPI are lost between {place}: {FIREWALL}"
    )


def _of(run, step):
    return [one for one in run["steps"] if one["step"] == step]


def ping_pong(facts):
    """Every pair was measured."""
    run = facts.together
    pairs = _of(run, "pair")
    if run["code"] == 0 and pairs:
        return well(f"{len(pairs)} measured, in the table" if facts.hosts else describe(pairs[0]))
    if run["code"] is None:
        return wrong(
            f"no end of it in {LIMIT_S} s after {len(pairs)} pairs, though small messages came "
            f"through: look for a wrong MTU, or {FIREWALL}"
        )
    sentence, line = cause_in(run["said"])
    return wrong(f"it broke off: {sentence or 'run it again, and mend what it says'} ({line})")


def describe(pair):
    """The two measured numbers of a pair, in words."""
    latency_us, megabytes = pair["latency_s"] * 1e6, pair["bandwidth_Bps"] / 1e6
    return f"{latency_us:.3g} us one way, {megabytes:.3g} MB/s"


NEEDS_OF_HELLO = ("python", "account", "mpi", "mpi4py")

CHECKS = (
    *HOST_CHECKS,
    Check("hello", hello, NEEDS_OF_HELLO, alone=True, together=True),
    Check("ping-pong", ping_pong, ("hello",), alone=True, together=True),
)

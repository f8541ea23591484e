"""After a rehearsal: the ranks that ran are compared, and all others timed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...clockwork.alike import Script, sisters
from ...clockwork.players import play
from ...model.errors import DeadlockError, InvalidCallError


def followed(simulation: Any, report: dict) -> dict:
    """The report of a rehearsal, at the times of the cluster.

    Parameters
    ----------
    simulation : Simulation
        The rehearsal, at its end.
    report : dict
        As `Ranks.run` returns it.

    Returns
    -------
    dict
        With ``"unlike"``: the places that tell ranks apart which send to each other, or None; and
        ``"refused"``: why the ranks of a class are not equal, or None.
    """
    report |= {"unlike": None, "refused": None}
    if simulation.unlike is not None:
        report["unlike"] = _places_in(simulation, simulation.unlike)
        return report
    if report["failure"] or _has_raised(simulation, report):
        return report
    is_over = all(rank in report["answers"] for rank in simulation.classes.running)
    try:
        report["unlike"] = _check_equal(simulation, report)
        if report["unlike"] is None and is_over:
            _play(simulation, report)
    except (DeadlockError, InvalidCallError) as refused:
        report["refused"] = str(refused)
    return report


def _has_raised(simulation, report):
    """Whether a rank has ended before its function's end."""
    scripts = [simulation.scripts[rank] for rank in report["answers"]]
    return any(not script.steps or script.steps[-1].what != "leave" for script in scripts)


def _lists_of(simulation, rank):
    """What a rank called `new_group` with, in order."""
    keys = simulation.time.logs[rank].numbers
    return [key[1] for key in keys if isinstance(key, tuple) and key[0] == "new_group"]


def _places_in(simulation, ranks):
    """By rank, its place in the one of these groups that it is in; -1: in none."""
    runs = next(rank for rank in simulation.classes.running if rank in ranks)
    places = [-1] * simulation.topology.world_size
    for group in sisters(_lists_of(simulation, runs), ranks):
        for place, rank in enumerate(group):
            places[rank] = place
    return places


def _play(simulation, report):
    classes, memory = simulation.classes, report["memory"]
    lists = {rank: _lists_of(simulation, rank) for rank in classes.running}
    played, players = play(simulation, lists)
    own = [rank for rank in classes.running if players[rank].rank == rank]
    for rank in classes.running:
        player, log = players[rank], simulation.time.logs[rank]
        if rank not in own:  # another stood for it, whose places in the log are others
            log.clear()
            memory[rank] = None
            continue
        log.retime(player.when, player.ends(), by_streams=played.streams is not None)
        simulation.ranks.retell_work(rank, player.extents())
        if memory[rank] is not None:
            memory[rank] = _retimed(memory[rank], player.when)
    left_s = {rank: player.left_s for rank, player in players.items()}
    report["left_s"] = [left_s[rank] for rank in range(simulation.topology.world_size)]
    streams = played.work_of_streams()
    report["streams"] = [each if rank in own else [] for rank, each in enumerate(streams)]


def _retimed(ledger, when):
    history = [(when(time_s), held) for time_s, held in ledger.history]
    parts = {name: _retimed(part, when) for name, part in ledger.by_dtype.items()}
    return replace(ledger, peak_s=when(ledger.peak_s), history=history, by_dtype=parts)


def _check_equal(simulation, report):
    """Refuse classes whose first and last rank did not do the same.

    Returns the places that tell a group's root from others, where that is what they differ in.
    """
    for ranks in simulation.classes.members.values():
        first, last = simulation.scripts[ranks[0]], simulation.scripts[ranks[-1]]
        if first is not last:
            rooted = _compare(simulation, first, last)
            if rooted is None:
                rooted = _root_that_did_not_run(simulation, ranks)
            if rooted is not None:
                return rooted
        have_left = {ranks[0], ranks[-1]} <= set(report["answers"])
        memory = [report["memory"][rank] for rank in (ranks[0], ranks[-1])]
        if have_left and None not in memory and memory[0].peak_bytes != memory[1].peak_bytes:
            raise InvalidCallError(
                f"ranks {ranks[0]} and {ranks[-1]} are taken to be equal, and held "
                f"{memory[0].peak_bytes:,} and {memory[1].peak_bytes:,} bytes at their peaks. "
                f"{_ADVICE}"
            )
    return None


_ADVICE = "Give alike= a function that tells them apart, or simulate all ranks: leave alike= out"


def _compare(simulation: Any, first: Script, last: Script) -> None:
    for number, (one, other) in enumerate(zip(first.steps, last.steps, strict=False)):
        calls = [(step.what, _terms(step)) for step in (one, other)]
        if calls[0] != calls[1]:
            if _is_one_root(first, last, one, other):
                root, ranks = one.args[1][1], first.groups[one.args[0]]
                return [int(at == root) for at in _places_in(simulation, ranks)]
            words = [_in_words(simulation, script, number) for script in (first, last)]
            raise InvalidCallError(
                f"ranks {first.rank} and {last.rank} are taken to be equal, and part here: rank "
                f"{first.rank} {words[0]}, and rank {last.rank} {words[1]}. {_ADVICE}"
            )
        if (one.gap_s, one.kernels) != (other.gap_s, other.kernels):
            seconds = [step.gap_s + sum(s for _, s in step.kernels) for step in (one, other)]
            raise InvalidCallError(
                f"ranks {first.rank} and {last.rank} are taken to be equal, and compute for "
                f"{seconds[0]:.9g} s and {seconds[1]:.9g} s before rank {first.rank} "
                f"{_in_words(simulation, first, number)}. {_ADVICE}"
            )
    if len(first.steps) != len(last.steps):
        raise InvalidCallError(
            f"ranks {first.rank} and {last.rank} are taken to be equal, and take "
            f"{len(first.steps):,} and {len(last.steps):,} steps. {_ADVICE}"
        )
    return None


def _root_that_did_not_run(simulation, ranks):
    """The places that tell a root from others, where only roots that did not run are of a class."""
    script, members = simulation.scripts[ranks[0]], set(ranks)
    calls = {
        (step.args[0], step.args[1][1])
        for step in script.steps
        if step.what == "collective" and step.args[1][1] is not None
    }
    for number, root in sorted(calls):
        family = sisters(_lists_of(simulation, script.rank), script.groups[number])
        roots = members.intersection(group[root] for group in family)
        if roots and roots.isdisjoint((ranks[0], ranks[-1])):
            return [int(at == root) for at in _places_in(simulation, script.groups[number])]
    return None


def _is_one_root(first, last, one, other):
    """Whether two ranks call the same rooted collective, and one of them is the root."""
    if (one.what, other.what) != ("collective", "collective") or one.args[0] != other.args[0]:
        return False
    kinds = [step.args[1][:2] for step in (one, other)]
    root = kinds[0][1]
    if kinds[0] != kinds[1] or root is None:
        return False
    places = [
        script.groups[step.args[0]].index(script.rank)
        for script, step in ((first, one), (last, other))
    ]
    return (places[0] == root) != (places[1] == root)


def _terms(step):
    """What must be equal: of a wait, how many ops before it is all that places in logs say."""
    return step.args if step.what not in ("record", "wait on", "hold") else ()


def _in_words(simulation, script, number):
    """What a rank does at one of its steps, and where."""
    step = script.steps[number]
    if step.what == "leave":
        return "is through"
    name = step.args[1][0] if step.what == "collective" else step.what
    at = next((s.start for s in script.steps[number:] if s.start), 0)
    site = simulation.time.logs[script.rank].site_of(at) if at else None
    where = f" ({site[0].rpartition('/')[2]}:{site[1]})" if site and step.start else ""
    size = f" of {step.args[2][0]:,} bytes" if step.what == "collective" else ""
    return f"comes to {name}{size}{where}"

"""After a rehearsal: compare the ranks that ran, and compute the times of all others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...clockwork.alike import Script, sisters
from ...clockwork.players import play
from ...model.errors import DeadlockError, InvalidCallError


def followed(simulation: Any, report: dict) -> dict:
    """The report of a rehearsal, with the times of the cluster.

    Parameters
    ----------
    simulation : Simulation
        The rehearsal at its end.
    report : dict
        The report that `Ranks.run` returns.

    Returns
    -------
    dict
        The report with two more keys. ``"unlike"`` contains the places that distinguish ranks which
        send to each other, or None. ``"refused"`` is the reason why the ranks of a class are not
        equal, or None.
    """
    report |= {"unlike": None, "refused": None}
    if simulation.unlike is not None:
        report["unlike"] = _places_in(simulation, *simulation.unlike)
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
    """The arguments of a rank's calls of `new_group`, in order."""
    keys = simulation.time.logs[rank].numbers
    return [key[1] for key in keys if isinstance(key, tuple) and key[0] == "new_group"]


def _places_in(simulation, ranks, root=None):
    """By rank, its place in its group among those made together with this group; -1 without one.

    With a root, whether the rank is the root of its group.
    """
    runs = next(rank for rank in simulation.classes.running if rank in ranks)
    places = [-1] * simulation.topology.world_size
    for group in sisters(_lists_of(simulation, runs), ranks):
        for place, rank in enumerate(group):
            places[rank] = place if root is None else int(place == root)
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

    Returns the places that distinguish the two ranks, if one of them is a root, or if they send to
    ranks of their own class.
    """
    for ranks in simulation.classes.members.values():
        first, last = simulation.scripts[ranks[0]], simulation.scripts[ranks[-1]]
        if first is last:
            continue
        number, difference = _difference(simulation, report, first, last)
        if difference is None:
            continue
        for places in _places_that_part(simulation, first, last, number):
            if places[first.rank] != places[last.rank]:
                return places
        raise InvalidCallError(
            f"alike= treats ranks {first.rank} and {last.rank} as equal, but they {difference}. "
            "Give alike= a function that distinguishes these ranks, or leave alike= out to "
            "simulate all ranks"
        )
    return None


def _difference(simulation: Any, report: dict, first: Script, last: Script) -> tuple:
    """The first step in which two ranks differ, and the difference in words; None if equal."""
    for number, (one, other) in enumerate(zip(first.steps, last.steps, strict=False)):
        if (one.what, _terms(one)) != (other.what, _terms(other)):
            words = [_in_words(simulation, script, number) for script in (first, last)]
            return number, (
                f"differ here: rank {first.rank} {words[0]}, but rank {last.rank} {words[1]}"
            )
        if (one.gap_s, one.kernels) != (other.gap_s, other.kernels):
            seconds = [step.gap_s + sum(s for _, s in step.kernels) for step in (one, other)]
            return number, (
                f"compute for {seconds[0]:.9g} s and {seconds[1]:.9g} s before rank {first.rank} "
                f"{_in_words(simulation, first, number)}"
            )
    lengths = len(first.steps), len(last.steps)
    if lengths[0] != lengths[1]:
        return min(lengths), f"take {lengths[0]:,} and {lengths[1]:,} steps"
    held = [report["memory"][script.rank] for script in (first, last)]
    have_left = {first.rank, last.rank} <= set(report["answers"])
    if have_left and None not in held and held[0].peak_bytes != held[1].peak_bytes:
        held = [ledger.peak_bytes for ledger in held]
        return lengths[0], f"held {held[0]:,} and {held[1]:,} bytes at their peaks"
    return lengths[0], None


def _places_that_part(simulation, first, last, number):
    """By rank, its place among ranks that may do different things up to this step."""
    steps = list(zip(first.steps, last.steps, strict=False))
    for one in steps[number : number + 1]:
        for script, step in zip((first, last), one, strict=True):
            if step.what in ("send", "recv"):
                yield _places_in(simulation, script.groups[step.args[0]])
    for one, other in steps[: number + 1]:
        if _is_one_root(first, last, one, other):
            yield _places_in(simulation, first.groups[one.args[0]], one.args[1][1])


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
    """The facts of a step that must be equal. For a wait, only the number of earlier ops counts."""
    return step.args if step.what not in ("record", "wait on", "hold") else ()


def _in_words(simulation, script, number):
    """The action of a rank at one of its steps, with its place."""
    step = script.steps[number]
    if step.what == "leave":
        return "has finished"
    name = step.args[1][0] if step.what == "collective" else step.what
    at = next((s.start for s in script.steps[number:] if s.start), 0)
    site = simulation.time.logs[script.rank].site_of(at) if at else None
    where = f" ({site[0].rpartition('/')[2]}:{site[1]})" if site and step.start else ""
    size = f" of {step.args[2][0]:,} bytes" if step.what == "collective" else ""
    return f"reaches {name}{size}{where}"

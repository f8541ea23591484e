"""How a simulation is run: its options, and what they may be; for `simulate` and `Run.replay`."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, field

from ..collectives.choice import ALGORITHMS, choose
from ..model.chance import Failures, Jitter
from ..model.errors import InvalidCallError

POLICIES = ("mpich", "nccl", "gloo")
ON_DEATH = ("end", "continue")


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a simulation is run; see `simulate`."""

    eager_limit_bytes: int = -1
    policy: str = "mpich"
    algorithms: dict = field(default_factory=dict)
    expand: bool = False
    slow: dict = field(default_factory=dict)
    kill: dict | Failures = field(default_factory=dict)
    on_death: str = "end"
    detection_s: float = 0.0
    begin_s: float = 0.0
    is_restarted: bool = False
    seed: int | None = None
    compute: str = "flops"
    memory: bool = False


def eager_limit(sends, eager_limit_bytes):
    """Sends of at most so many bytes are eager; -1: none is."""
    check_choice("sends", sends, ("rendezvous", "eager"))
    if eager_limit_bytes is None:
        return -1 if sends == "rendezvous" else math.inf
    is_count = isinstance(eager_limit_bytes, numbers.Integral) and eager_limit_bytes >= 0
    if not is_count or isinstance(eager_limit_bytes, bool):
        raise InvalidCallError(
            f"eager_limit_bytes={eager_limit_bytes!r} must be a number of bytes, 0 or more"
        )
    return eager_limit_bytes


def check_choice(name, value, known):
    """Refuse a value that is none of those known."""
    if value not in known:
        raise InvalidCallError(f"{name}={value!r} is none of {', '.join(map(repr, known))}")
    return value


def check_algorithms(algorithm_of):
    """Refuse a collective, or an algorithm of it, that does not exist."""
    for kind, name in algorithm_of.items():
        if kind not in ALGORITHMS:
            raise TypeError(f"simulate() got an unexpected keyword argument {kind!r}")
        choose(kind, 2, 8, name)
    return algorithm_of


def check_seed(seed):
    """Refuse a seed that is no whole number."""
    if seed is not None and not isinstance(seed, numbers.Integral):
        raise InvalidCallError(f"seed={seed!r} must be a whole number, or None")
    return seed


def check_seconds(name, value):
    """Refuse what is no number of seconds."""
    if not (isinstance(value, numbers.Real) and 0 <= value < math.inf):
        raise InvalidCallError(f"{name}={value!r} must be seconds, 0 or more")
    return float(value)


def check_detection(detection_s, on_death):
    """Refuse a time after which a death is seen where nobody lives to see it."""
    if detection_s and on_death != "continue":
        raise InvalidCallError(
            f'detection_s={detection_s!r} is when survivors see a death: say on_death="continue"'
        )
    return check_seconds("detection_s", detection_s)


def check_by_rank(name, values, world_size):
    """Refuse what is no dict from ranks to numbers of at least 0; None is an empty one."""
    values = {} if values is None else values
    if not isinstance(values, dict):
        raise InvalidCallError(f"{name}={values!r} must be a dict by rank: {{0: 1.5}}")
    for rank, value in values.items():
        if not (isinstance(rank, numbers.Integral) and 0 <= rank < world_size):
            raise InvalidCallError(f"{name}: {rank!r} is no rank: 0 to {world_size - 1}")
        if not (isinstance(value, numbers.Real) and 0 <= value < math.inf):
            raise InvalidCallError(f"{name}: {value!r} for rank {rank} must be 0 or more")
    return {int(rank): float(value) for rank, value in values.items()}


def check_kill(kill, world_size, topology=None):
    """`Failures`, or ``{rank: seconds}``; names of nodes become their ranks where there are nodes.

    Of two times for one rank the earlier counts.
    """
    if isinstance(kill, Failures):
        return kill
    if topology is None or not isinstance(kill, dict):
        return check_by_rank("kill", kill, world_size)
    times = {}
    for who, time_s in kill.items():
        ranks = [who] if not isinstance(who, str) else _ranks_of_node(who, topology)
        for rank, own_s in check_by_rank("kill", dict.fromkeys(ranks, time_s), world_size).items():
            times[rank] = min(own_s, times.get(rank, own_s))
    return times


def _ranks_of_node(name, topology):
    number = name.removeprefix("node")
    nodes = topology.node_of.tolist()
    if not (name.startswith("node") and number.isdecimal() and int(number) in nodes):
        raise InvalidCallError(f'kill: {name!r} is no node: "node0" to "node{max(nodes)}"')
    return [rank for rank, node in enumerate(nodes) if node == int(number)]


def check_slow(slow, world_size):
    """What ``slow=`` takes, as a dict from ranks to numbers of at least 0 and `Jitter`."""
    if _is_noise(slow):
        return dict.fromkeys(range(world_size), _jitter(slow))
    if slow is not None and not isinstance(slow, dict):
        raise InvalidCallError(
            f"slow={slow!r} must be a dict by rank, {{0: 1.5}}, a simlib.scale.Jitter, or a "
            "function of a rank, k, and a random generator"
        )
    slow = slow or {}
    noisy = {rank: _jitter(value) for rank, value in slow.items() if _is_noise(value)}
    check_by_rank("slow", {rank: 0 if rank in noisy else slow[rank] for rank in slow}, world_size)
    return slow | noisy


def _is_noise(value):
    return isinstance(value, Jitter) or callable(value)


def _jitter(value):
    return (value if isinstance(value, Jitter) else Jitter(value)).travelling()


def replay_options(
    world_size,
    *,
    sends="rendezvous",
    eager_limit_bytes=None,
    algorithms="mpich",
    expand=False,
    slow=None,
    **algorithm_of,
):
    """The `Options` of a replay, checked."""
    return Options(
        eager_limit_bytes=eager_limit(sends, eager_limit_bytes),
        policy=check_choice("algorithms", algorithms, POLICIES),
        algorithms=check_algorithms(algorithm_of),
        expand=expand,
        slow=check_slow(slow, world_size),
    )

"""Tests of distributed code with pytest. pytest loads `plugin`.

pytest loads the plugin in every project if simlib is installed. So this module and `plugin` import
torch only when a test asks for ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from ..core.model.errors import InvalidCallError, check_count

ENGINES = ("run", "simulate")
FILLED_IN = ("rank", "world_size")
"""Arguments of a marked test that its ranks fill in themselves."""
SEED = "_seed_of_the_order"
"""The parameter of a sweep. No test has an argument with this name."""


class Asked(NamedTuple):
    """The sizes, seeds and options that a ``pytest.mark.ranks`` asks for."""

    sizes: tuple[int, ...]
    engine: str
    seeds: tuple[int, ...]
    """pytest runs one case for each seed. Without seeds it runs one case, in which the ranks run in
    their usual order."""
    options: dict[str, Any]
    """Options that simlib passes to the engine unchanged."""

    def cases(self) -> list[tuple[tuple, str]]:
        """``((world_size, seed), id)`` of every case."""
        if not self.seeds:
            return [((size, None), f"{size}ranks") for size in self.sizes]
        return [
            ((size, seed), f"{size}ranks-seed{seed}") for size in self.sizes for seed in self.seeds
        ]


def asked_by(mark: Any) -> Asked:
    """Return the sizes, seeds and options that a ``pytest.mark.ranks`` asks for.

    Raises
    ------
    InvalidCallError
        The mark can never be right.
    """
    options = dict(mark.kwargs)
    engine, seeds = options.pop("engine", "run"), options.pop("seeds", ())
    if not mark.args:
        raise InvalidCallError("mark.ranks needs numbers of ranks: @pytest.mark.ranks(1, 2, 4)")
    for size in mark.args:
        check_count("a number of ranks in mark.ranks", size)
    check_engine(engine)
    if not isinstance(seeds, Iterable):
        raise InvalidCallError(
            f"seeds={seeds!r} is one number: give several, as in range(20), or use seed="
        )
    if engine == "run" and (seeds or "seed" in options):
        raise InvalidCallError(
            'only simulated ranks can run in another order: seed= and seeds= need engine="simulate"'
        )
    return Asked(mark.args, engine, tuple(seeds), options)


def check_engine(engine: object) -> None:
    """Refuse an engine that tests cannot use."""
    if engine not in ENGINES:
        raise InvalidCallError(f'engine={engine!r} is not known: it is "run" or "simulate"')

"""Run a test, or a function of a test's, on ranks: one server of ranks for all of a session."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cloudpickle

from ..engines import processes, virtual
from ..engines.processes.worlds import pool
from ..engines.virtual.process import simulators
from ..model.errors import InvalidCallError, SimlibError
from ..record.recorder import is_learners
from ..results.run import Run
from .asked import FILLED_IN, Asked, check_engine
from .on_rank import OnRank, Settings
from .told import raise_told

OF_THIS_PROCESS = ("_pytest", "simlib.testing")
"""Packages whose objects are this process's own: a rank could do nothing with a copy."""


class Ranks:
    """What the fixture ``ranks`` gives: ``ranks(function, 4)`` runs it and returns the `Run`.

    Parameters
    ----------
    config : pytest.Config
    """

    def __init__(self, config: Any) -> None:
        self._config = config

    def __call__(
        self,
        function: Callable[..., Any],
        world_size: int,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        engine: str = "run",
        **options: Any,
    ) -> Run:
        """Run ``function(rank, world_size, *args, **kwargs)`` on ranks, for a test to look at.

        Parameters
        ----------
        function, world_size, args, kwargs
            As for `simlib.run`.
        engine : {"run", "simulate"}
            Real processes, or simulated ranks.
        **options
            Those of `simlib.run` or `simlib.simulate`. ``strict`` is True unless it is given.

        Returns
        -------
        Run

        Raises
        ------
        SimlibError
            As the engine does.
        """
        __tracebackhide__ = True
        check_engine(engine)
        if not callable(function):
            raise InvalidCallError(f"ranks needs a function to call on ranks, not {function!r}")
        whole = OnRank(function, Settings(self._config))
        return _run(self._config, engine, whole, world_size, args, kwargs, options)


def run_test(item: Any, asked: Asked, world_size: int, seed: int | None) -> None:
    """Run a marked test on ranks; its fixtures are sent to them by value.

    Parameters
    ----------
    item : pytest.Function
    asked : Asked
    world_size : int
    seed : int or None
        Of the order, in a sweep.
    """
    __tracebackhide__ = True
    names = item._fixtureinfo.argnames
    fixtures = {name: item.funcargs[name] for name in names if name not in FILLED_IN}
    for name, value in fixtures.items():
        _check_can_travel(item.name, name, value)
    cloudpickle.register_pickle_by_value(item.module)
    filled_in = [name for name in FILLED_IN if name in names]
    test = OnRank(item.obj, Settings(item.config), filled_in)
    options = asked.options if seed is None else {**asked.options, "seed": seed}
    _run(item.config, asked.engine, test, world_size, (), fixtures, options)


def close() -> None:
    """End all ranks of this process."""
    pool().close()
    simulators().close()


def _run(config, engine, function, world_size, args, kwargs, options):
    __tracebackhide__ = True
    for module in _rewritten():
        cloudpickle.register_pickle_by_value(module)
    run = processes.run if engine == "run" else virtual.simulate
    try:
        return run(function, world_size, args, kwargs, **{"strict": True, **options})
    except SimlibError as error:
        raise_told(error, str(config.invocation_params.dir))


def _rewritten():
    """Modules of the learner's whose assertions pytest has rewritten: by name, ranks would import
    them as they are in their files."""
    for module in list(sys.modules.values()):
        file, loader = getattr(module, "__file__", None), getattr(module, "__loader__", None)
        if file and hasattr(loader, "mark_rewrite") and is_learners(file):
            yield module


def _check_can_travel(test, name, value):
    package = type(value).__module__
    if package.startswith(OF_THIS_PROCESS):
        raise InvalidCallError(
            f"the fixture {name} of {test} belongs to this process and cannot be sent to the "
            "ranks: leave it out of a test that is marked ranks, or let a test without the mark "
            "take it and the fixture ranks: ranks(function, 4)"
        )

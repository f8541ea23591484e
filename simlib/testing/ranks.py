"""Run a test, or a function of a test, on ranks. A session has one server of ranks."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import cloudpickle
import pytest

from ..core.collectives.choice import ALGORITHMS
from ..core.engines.processes.real_run import run
from ..core.engines.processes.worlds import pool
from ..core.engines.virtual.process import simulators
from ..core.engines.virtual.simulated_run import simulate
from ..core.environment import is_learners
from ..core.model.errors import InvalidCallError, RankError, SimlibError
from ..core.model.words import ranks_in_words
from ..core.results.run import Run
from . import FILLED_IN, Asked, check_engine
from .on_rank import OnRank, Settings

MAX_ALIKE = 4
"""A report shows at most this many kinds of failures in full."""
HEAD = "Traceback (most recent call last):\n"
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""The address of an object, which differs from rank to rank."""
SKIPPED = ("Skipped", "SkipTest")
OUTCOMES = {*SKIPPED, "XFailed"}
"""Exceptions by which a test says that it has not failed."""
OF_THIS_PROCESS = ("_pytest", "simlib.testing")
"""Packages whose objects work only in this process. A rank could not use a copy."""


class Ranks:
    """The fixture ``ranks``. ``ranks(function, 4)`` runs the function and returns the `Run`.

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
        """Run ``function(rank, world_size, *args, **kwargs)`` on ranks, in a test.

        Parameters
        ----------
        function, world_size, args, kwargs
            As for `simlib.run`.
        engine : {"run", "simulate"}
            ``"run"`` for real processes, ``"simulate"`` for simulated ranks.
        **options
            Options of `simlib.run` or `simlib.simulate`. ``strict`` is True by default.

        Returns
        -------
        Run

        Raises
        ------
        SimlibError
            The same errors as `simlib.run` and `simlib.simulate`.
        """
        __tracebackhide__ = True
        check_engine(engine)
        if not callable(function):
            raise InvalidCallError(f"ranks needs a function to call on ranks, not {function!r}")
        whole = OnRank(function, Settings(self._config))
        return _run(self._config, engine, whole, world_size, (args, kwargs), options)


def run_test(item: Any, asked: Asked, world_size: int, seed: int | None) -> None:
    """Run a marked test on ranks. Ranks receive its fixtures by value.

    Parameters
    ----------
    item : pytest.Function
    asked : Asked
    world_size : int
    seed : int or None
        The seed for the order of events, in a sweep over several seeds.
    """
    __tracebackhide__ = True
    names = item._fixtureinfo.argnames
    fixtures = {name: item.funcargs[name] for name in names if name not in FILLED_IN}
    for name, value in fixtures.items():
        _check_can_travel(item.name, name, value)
    filled_in = [name for name in FILLED_IN if name in names]
    test = OnRank(item.obj, Settings(item.config), filled_in)
    options = asked.options if seed is None else {**asked.options, "seed": seed}
    _run(item.config, asked.engine, test, world_size, ((), fixtures), options)


def close() -> None:
    """End all ranks of this process."""
    pool().close()
    simulators().close()


def _run(config, engine, function, world_size, given, options):
    __tracebackhide__ = True
    call = run if engine == "run" else simulate
    _check_names(options, call)
    try:
        with _tests_by_value():
            return call(function, world_size, *given, **{"strict": True, **options})
    except SimlibError as error:
        raise_reported(error, str(config.invocation_params.dir))


def _check_names(options, call):
    known = set(inspect.signature(call).parameters)
    if call is simulate:
        known |= set(ALGORITHMS)
    for name in options.keys() - known:
        like = difflib.get_close_matches(name, known, 1)
        meant = f": did you mean {like[0]!r}?" if like else ""
        raise InvalidCallError(f"simlib.{call.__name__} has no option {name!r}{meant}")


@contextlib.contextmanager
def _tests_by_value():
    """Send the code of a test's functions and classes, with the assertions that pytest rewrote.

    If simlib sent them by name, ranks would import the module of tests from its file, without
    rewritten assertions. A module that a test imports as a whole (``import helpers``) can only be
    sent by name.
    """
    rewritten = [module for module in list(sys.modules.values()) if _is_rewritten(module)]
    whole = {id(one) for module in rewritten for one in vars(module).values()}
    known = cloudpickle.list_registry_pickle_by_value()
    sent = [m for m in rewritten if id(m) not in whole and m.__name__ not in known]
    for module in sent:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in sent:
            cloudpickle.unregister_pickle_by_value(module)


def _is_rewritten(module):
    """Whether pytest has rewritten the assertions of a module, and the module is the learner's."""
    file, loader = getattr(module, "__file__", None), getattr(module, "__loader__", None)
    return bool(file) and hasattr(loader, "mark_rewrite") and is_learners(file)


def _check_can_travel(test, name, value):
    package = type(value).__module__
    if package.startswith(OF_THIS_PROCESS):
        raise InvalidCallError(
            f"the fixture {name} of {test} belongs to this process and cannot be sent to the "
            "ranks: leave it out of a test that is marked ranks, or use it in a test without the "
            "mark, which calls the fixture ranks: ranks(function, 4)"
        )


def raise_reported(error: SimlibError, folder: str) -> NoReturn:
    """Raise the error of the ranks, in words for a report. A skip or an xfail stays a skip or
    xfail.

    Parameters
    ----------
    error : SimlibError
    folder : str
        The folder in which pytest was called. Paths are relative to it.
    """
    __tracebackhide__ = True
    if isinstance(error, RankError) and error.reports:
        failed = {
            rank: report for rank, report in error.reports.items() if report.type not in OUTCOMES
        }
        if not failed:
            raise _outcome(error) from None
        error.args = (_text(error, failed, folder),)
    raise error.with_traceback(None) from None


def _outcome(error):
    rank, report = min(error.reports.items())
    reason = f"{report.message} (rank {rank})"
    if report.type in SKIPPED:
        return pytest.skip.Exception(reason, _use_item_location=True)
    return pytest.xfail.Exception(reason)


def _text(error, failed, folder):
    alike = defaultdict(list)
    for rank, report in failed.items():
        alike[report.type, ADDRESS.sub("", report.text)].append(rank)
    parts = []
    for (kind, _), ranks in list(alike.items())[:MAX_ALIKE]:
        site, report = error.sites[ranks[0]], failed[ranks[0]]
        where = f" ({site.place})" if site.lineno else ""
        first = report.message.partition("\n")[0]
        head = f"{ranks_in_words(ranks)} raised {kind}{': ' if first else ''}{first}{where}"
        parts.append(f"{head}\n\n{_indented(report.text, folder)}")
    if len(alike) > MAX_ALIKE:
        parts.append(f"({len(alike) - MAX_ALIKE} more messages from other ranks are not shown)")
    return "\n\n".join(parts)


def _indented(text, folder):
    """A traceback without its first line, with file names relative to a folder."""
    text = text.removeprefix(HEAD).replace(f'File "{folder}{os.sep}', 'File "').rstrip()
    return "\n".join(f"    {line}".rstrip() for line in text.split("\n"))

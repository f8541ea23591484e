"""A test on its rank. The rank passes the arguments by name, and assertions explain.

Ranks are other processes. They receive the code of a test module as pytest has rewritten it. A hook
of pytest explains the difference of two values. This module sets the hook on ranks, as pytest sets
it in its own process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import _pytest.assertion
from _pytest.assertion import truncate, util

from ..core.engines.rank_process.isolation import keep_own_modules

INI = ("assertion_text_diff_style", "truncation_limit_lines", "truncation_limit_chars")


class Settings:
    """The settings of pytest that its explanations need, as plain data that can be sent to ranks.

    Parameters
    ----------
    config : pytest.Config
    """

    def __init__(self, config: Any) -> None:
        self._verbosity = config.get_verbosity(config.VERBOSITY_ASSERTIONS)
        self._ini = {}
        for name in INI:
            try:
                self._ini[name] = config.getini(name)
            except (KeyError, ValueError):  # another pytest, which does not look at it either
                continue

    @property
    def pluginmanager(self) -> Settings:
        """The object that knows which plugins there are: see `has_plugin`."""
        return self

    def get_verbosity(self, kind: str | None = None) -> int:
        """The amount of detail."""
        return self._verbosity

    def getini(self, name: str) -> Any:
        """The value in the file of settings."""
        return self._ini[name]

    def has_plugin(self, name: str) -> bool:
        """Always False, because explanations are plain text."""
        return False

    def explain(self, op: str, left: Any, right: Any) -> str | None:
        """The difference of two values, in `_pytest.assertion.rewrite`'s form. None if unknown."""
        try:
            lines = _pytest.assertion.pytest_assertrepr_compare(self, op, left, right)
            lines = truncate.materialize_with_truncation(lines or [], self)
        except Exception:  # a pytest that asks for more: the values are still shown
            return None
        return "\n~".join(line.replace("\n", "\\n") for line in lines).replace("%", "%%") or None


class OnRank:
    """A function in the form in which ranks call it.

    Parameters
    ----------
    function : callable
    settings : Settings
    asks_for : sequence of str or None
        For a test, those of the names ``rank`` and ``world_size`` that the test has as arguments.
        None if ranks call the function as in `run`.
    """

    def __init__(
        self, function: Callable[..., Any], settings: Settings, asks_for: Any = None
    ) -> None:
        functools.update_wrapper(self, function, updated=())
        self._settings = settings
        self._asks_for = asks_for

    def __call__(self, rank: int, world_size: int, *args: Any, **kwargs: Any) -> Any:
        util._reprcompare = self._settings.explain
        try:
            if self._asks_for is None:
                return self.__wrapped__(rank, world_size, *args, **kwargs)
            known = {"rank": rank, "world_size": world_size}
            self.__wrapped__(**{name: known[name] for name in self._asks_for}, **kwargs)
            return None
        finally:
            keep_own_modules()

"""A verdict as bytes, and back: an error of simlib's with the ranks' lines, and plain data only."""

from __future__ import annotations

import dataclasses
from typing import Any

from ...core.diagnose.matching import Wait
from ...core.diagnose.verdicts import WaitGraph
from ...core.model import errors
from ...core.model.trace import Group, Op, Site
from ...core.record.safe_pickle import dumps_tree, loads_tree

PARTS = {part.__name__: part for part in (Group, Op, Site, Wait, WaitGraph)}
PART = "a part:"
"""Before the name of one of them, in a tuple of that and its fields."""
ERRORS = {
    error.__name__: error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, errors.SimlibError)
}


def dumps(error: errors.SimlibError) -> bytes:
    """A verdict as bytes for `loads`; without its run, which is made of the logs."""
    more = {name: _tree(value) for name, value in vars(error).items() if name != "run"}
    return dumps_tree((type(error).__name__, str(error), more))


def loads(content: bytes) -> errors.SimlibError:
    """The verdict that bytes hold.

    Raises
    ------
    Exception
        Of any class: they hold none.
    """
    name, message, more = loads_tree(content)
    error = ERRORS[name](message)
    for field, value in more.items():
        if field not in vars(error):
            raise KeyError(field)
        setattr(error, field, _value(value))
    return error


def _tree(value: Any) -> Any:
    sort = type(value)
    if PARTS.get(sort.__name__) is sort:
        parts = {one.name: _tree(getattr(value, one.name)) for one in dataclasses.fields(sort)}
        return (PART, sort.__name__, parts)
    if sort is dict:
        return {key: _tree(one) for key, one in value.items()}
    if sort in (list, tuple):
        return sort(map(_tree, value))
    return value


def _value(tree: Any) -> Any:
    sort = type(tree)
    if sort is tuple and tree[:1] == (PART,):
        _, name, fields = tree
        return PARTS[name](**{field: _value(one) for field, one in fields.items()})
    if sort is dict:
        return {key: _value(one) for key, one in tree.items()}
    if sort in (list, tuple):
        return sort(map(_value, tree))
    return tree

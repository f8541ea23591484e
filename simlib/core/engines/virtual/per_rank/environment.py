"""Environment variables of one rank."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

from ....record.this_rank import here as local

_DELETED = object()


class EnvironmentPerRank(MutableMapping):
    """``os.environ``: the process's, and over it what belongs to one rank."""

    def __init__(self, base):
        self.base = base

    def _mine(self):
        return local.__dict__.setdefault("environ", {})

    def __getitem__(self, name):
        value = self._mine().get(name)
        if value is _DELETED:
            raise KeyError(name)
        return self.base[name] if value is None else value

    def __setitem__(self, name, value):
        for text in (name, value):
            if not isinstance(text, str):
                raise TypeError(f"str expected, not {type(text).__name__}")
        self._mine()[name] = value

    def __delitem__(self, name):
        if name not in self:
            raise KeyError(name)
        self._mine()[name] = _DELETED

    def __iter__(self):
        return iter(self.copy())

    def __len__(self):
        return len(self.copy())

    def __repr__(self):
        return f"environ({self.copy()!r})"

    def __or__(self, other):
        return self.copy() | dict(other) if isinstance(other, Mapping) else NotImplemented

    def __ror__(self, other):
        return dict(other) | self.copy() if isinstance(other, Mapping) else NotImplemented

    def __ior__(self, other):
        self.update(other)
        return self

    def copy(self):
        values = {**self.base, **self._mine()}
        return {name: value for name, value in values.items() if value is not _DELETED}

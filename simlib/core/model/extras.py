"""What the wheel of simlib leaves out, and how whoever meets that is told."""

from __future__ import annotations

from importlib.util import find_spec


class MissingExtra(ImportError):
    """Something that an extra of simlib brings is not installed; the message says which."""


def need(extra: str, *modules: str, what: str) -> None:
    """Refuse in one sentence where a module is missing.

    Parameters
    ----------
    extra : str
        The extra of pyproject.toml that brings these modules.
    modules : str
        By the names under which they are imported.
    what : str
        What needs them: the sentence begins with it.

    Raises
    ------
    MissingExtra
        One of them is not installed.
    """
    gone = [name for name in modules if find_spec(name) is None]
    if gone:
        raise MissingExtra(
            f'{what} needs {", ".join(gone)}, missing here: pip install "simlib[{extra}]"'
        )

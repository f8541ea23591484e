"""`hosts_in`: the hosts that a hostfile names, and how many ranks each takes.

Every MPI has its own form, and takes what it does not understand for something else: MPICH runs
all ranks on this machine where a file is empty. So the file is read here, whatever form it has, and
the launcher is told the hosts by its options.

::

    node1            # as many ranks as `ranks_per_node`
    node2:2          # MPICH, Intel MPI
    node3 slots=2    # Open MPI; its max_slots=4 is read over
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from ...core.model.errors import InvalidCallError

HOST = re.compile(r"([^\s:,=#]+)(?::(\S*))?")
OPTION = re.compile(r"(slots|max_slots|max-slots)\s*=\s*(\S*)")
FORMS = "a line is a host's name, alone or as `node1:2` or `node1 slots=2`"


def hosts_in(path: str | os.PathLike[str]) -> list[tuple[str, int | None]]:
    """The hosts of a hostfile, each once, in their order, with how many ranks it takes.

    None where the file does not say it. A host that stands there again takes so many more.

    Raises
    ------
    InvalidCallError
        There is no such file, it names no host, or a line of it cannot be understood.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InvalidCallError(
            f"hostfile={os.fspath(path)!r} cannot be read ({error.strerror}): name a file that "
            "has a host on each line"
        ) from None
    except UnicodeDecodeError:
        raise InvalidCallError(f"hostfile={os.fspath(path)!r} is no text: {FORMS}") from None
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        if line:
            found.append(_host_in(line, f"line {number} of {path}"))
    if not found:
        raise InvalidCallError(f"hostfile={os.fspath(path)!r} names no host: {FORMS}")
    return _added_up(found)


def refuse_text(hosts: object) -> None:
    """Refuse hosts that are one text in place of a list."""
    if isinstance(hosts, str):
        raise InvalidCallError(f"hosts={hosts!r} must be a list: hosts={hosts.split(',')!r}")


def check_name(name: object, where: str) -> None:
    """Refuse what can be no host's name; ``where`` it stands."""
    if not isinstance(name, str) or not HOST.fullmatch(name) or ":" in name or name[0] == "-":
        raise InvalidCallError(
            f"{where} is {name!r}, which is no host's name (how many ranks it takes is said by "
            "ranks_per_node, or in a hostfile)"
        )


def _host_in(line: str, where: str) -> tuple[str, int | None]:
    begin = HOST.match(line)
    if begin is None or line[0] == "-":
        raise InvalidCallError(f"{where} begins with no host's name, {line!r}: {FORMS}")
    name, count = begin.groups()
    slots = None if count is None else _count(count, where)
    rest = line[begin.end() :].strip()
    while rest:
        option = OPTION.match(rest)
        if option is None:
            raise InvalidCallError(f"{where} has {rest!r} after the host {name}: {FORMS}")
        value = _count(option[2], where)
        if option[1] == "slots":
            if slots is not None:
                raise InvalidCallError(f"{where} says twice how many ranks {name} takes: {line!r}")
            slots = value
        rest = rest[option.end() :].strip()
    return name, slots


def _count(text: str, where: str) -> int:
    if not re.fullmatch("[0-9]+", text) or int(text) < 1:
        raise InvalidCallError(
            f"{where} gives a host {text!r} ranks: it must be a whole number from 1"
        )
    return int(text)


def _added_up(found: list[tuple[str, int | None]]) -> list[tuple[str, int | None]]:
    """Each host once. One that stands there several times takes what its lines give together."""
    counts: dict[str, list[int | None]] = {}
    for name, slots in found:
        counts.setdefault(name, []).append(slots)
    return [
        (name, slots[0] if len(slots) == 1 else sum(one or 1 for one in slots))
        for name, slots in counts.items()
    ]

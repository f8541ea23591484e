"""`doctor`: whether hosts are a cluster on which jobs run, and if not, what to mend.

`probe` is sent to every host by one ssh (`dialog`); `facts` asks all hosts at once and runs `hello`
under mpiexec (`together`); `checks` and `together_checks` judge what was found; `examine` goes
through them; `report` shows it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ....core.model.errors import InvalidCallError
from ...launch.hostfile import refuse_text
from .examine import examine, hosts_for_hello
from .facts import gather
from .report import Report, pairs_of

__all__ = ["Report", "doctor"]


def doctor(
    hosts: Sequence[str] | None = None,
    *,
    launcher: str | Sequence[str] | None = None,
    folder: str | Path = ".",
) -> Report:
    """Check what a cluster needs, and say how to mend what is wrong.

    Parameters
    ----------
    hosts : list of str, optional
        Names of the hosts, as for `simlib.Mpiexec`; none: this machine alone.
    launcher : str or list of str, optional
        The command that stands for mpiexec; else the one beside this Python, then that of the PATH.
    folder : str or Path
        A folder that all hosts should share; this one.

    Returns
    -------
    Report
        Prints as a table, one line for each check: ok; wrong, and what to do; or not asked, because
        of which other check.

    Raises
    ------
    InvalidCallError
        For hosts that cannot be names, and a folder in which nothing can be written.

    Notes
    -----
    It changes nothing on the hosts: for a moment there is a folder ``.simlib-doctor-...`` in
    ``folder``. ssh must not ask for anything: it is run with ``BatchMode``.

    **Cost** Some 4 s with two hosts; where a host is down, 5 s more; where messages of MPI are
    lost, 20 s more.

    Examples
    --------
    >>> simlib.doctor(["node1", "node2"])                               # doctest: +SKIP
    """
    hosts = _checked_hosts(hosts)
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise InvalidCallError(f"folder={str(folder)!r} is no folder in which files can be written")
    facts = gather(hosts, launcher, folder, hosts_for_hello)
    return Report(tuple(hosts), tuple(examine(facts)), pairs_of(facts))


def _checked_hosts(hosts: Sequence[str] | None) -> list[str]:
    """The hosts as a list of different names."""
    if hosts is None:
        return []
    refuse_text(hosts)
    hosts = list(hosts)
    for host in hosts:
        if not isinstance(host, str) or not host or host.startswith("-") or set(host) & set(" ,"):
            raise InvalidCallError(f"{host!r} is no name of a host")
    if not hosts or len(set(hosts)) < len(hosts):
        raise InvalidCallError(f"hosts={hosts} must name at least one host, and each only once")
    return hosts

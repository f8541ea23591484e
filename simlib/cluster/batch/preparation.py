"""What is in a job's folder before it begins."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ...core.record.oplog import COMMITTED, HEADER
from . import connectivity
from .folder import JobFolder
from .launcher_failures import HOPELESS
from .launcher_process import LINGER_S, OBEY_S
from .staging import LAST_S

START = (
    "import sys; sys.path[:0] = sys.argv[1:2]; "
    "from simlib.cluster.batch.attempts import main; sys.exit(main(sys.argv[2]))"
)
NO_WORDS = "(?!)"
"""A pattern of nothing."""
STAGED = {"obey_s": OBEY_S + LAST_S, "linger_s": LINGER_S + LAST_S, "leave_s": 600}
"""How long `staging` may take: what is last has to come from hosts. It gives up by itself."""
ATTEMPTS_OBEY_S = 2 * OBEY_S
"""How long attempts may take to end: each has a launcher, which may take `OBEY_S`."""


def prepare(
    folder: JobFolder, about: dict[str, Any], request: bytes, to: Any, words: list[str]
) -> None:
    """Write down what the ranks of a job need, and what its launcher process starts.

    Parameters
    ----------
    folder : JobFolder
    about : dict
        For its ``job.json``.
    request : bytes
        For its ``request.pkl``.
    to : Mpiexec, Slurm or Pbs
    words : list of str
        The launcher's command, up to what `Resources.write_start` writes.
    """
    command = [*words, str(to.write_start(folder))]
    look = [*to.before_launcher(), sys.executable, "-I", str(Path(connectivity.__file__).resolve())]
    times = STAGED if getattr(to, "stage", False) else {"obey_s": OBEY_S}
    _write(folder, about, request, to, command, to.environ(), HOPELESS, times, look)


def prepare_attempts(
    folder: JobFolder, about: dict[str, Any], request: bytes, to: Any, plan: bytes
) -> None:
    """The same of a job that may begin anew; ``plan`` is for its ``restarts.pkl``."""
    folder.write(plan, "restarts.pkl")
    command = [sys.executable, "-I", "-c", START, about["root"], str(folder.path)]
    times = {"obey_s": ATTEMPTS_OBEY_S}
    _write(folder, about, request, to, command, {}, NO_WORDS, times, [])


def _write(folder, about, request, to, command, environ, hopeless, times, look):
    folder.write(request, "request.pkl")
    within = [folder.file("cancel"), *([about["within"]] if about["within"] else [])]
    plan = {
        "command": command,
        "environ": environ,
        "time_limit": to.time_limit,
        "hopeless": hopeless,
        **times,
        "cancelled_by": [str(path) for path in within],
        "reach": look,
        "world_size": about["world_size"],
        "timeout_s": about["timeout_s"],
        "log": [HEADER, COMMITTED],
    }
    folder.write_json(plan, "launch.json")
    folder.write_json({"state": "queued"}, "state.json")
    folder.write_json(about, "job.json")

"""`run_together`: the hello under mpiexec, bounded in time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from ....core.model.errors import JobError
from . import hello

LIMIT_S = 20
"""Seconds after which it hangs; where all is well it takes two."""
LEAVE_S = 3


def run_together(to, hosts):
    """Run one rank on each host, or two on a single one.

    Parameters
    ----------
    to : simlib.Mpiexec
    hosts : list of str
        Those of ``to``; empty for this machine.

    Returns
    -------
    dict
        ``hosts``; ``wanted``, the number of ranks; ``steps``, as the ranks told them; ``said``,
        by the launcher and Python; ``code``, None where it had to be ended.
    """
    wanted = max(2, len(hosts))
    program = [sys.executable, "-c", Path(hello.__file__).read_text(), str(LIMIT_S + LEAVE_S)]
    answer = {"hosts": hosts, "wanted": wanted, "steps": [], "said": "", "code": None}
    try:
        command = to.command(wanted, program)
        # The folder need not be there on the hosts: "/" is.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True, cwd="/", env={**os.environ, **to.environ()},
        )  # fmt: skip
    except (JobError, OSError) as error:
        return {**answer, "said": str(error), "code": 127}
    try:
        out, err = process.communicate(timeout=LIMIT_S)
        answer["code"] = process.returncode
    except subprocess.TimeoutExpired:
        out, err = _end(process)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    lines = out.decode("utf-8", "replace").splitlines()
    others = []
    for line in lines:
        try:
            answer["steps"].append(dict(json.loads(line)))
        except (ValueError, TypeError):
            others.append(line)
    answer["said"] = "\n".join([err.decode("utf-8", "replace"), *others]).strip()
    return answer


def _end(process):
    """End a launcher that hangs: first so that it can end its ranks."""
    process.terminate()
    try:
        return process.communicate(timeout=LEAVE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()

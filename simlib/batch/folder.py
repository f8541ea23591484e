"""`JobFolder`: all that is known of a job, in files that every host of it sees.

======================  ====================================================================
``job.json``            what was asked for; never changes
``state.json``          queued, active, ended (`launch` says how), each written in one piece
``request.pkl``         the function, its arguments, the cells of the notebook
``start.py``            what the launcher runs for each rank: it leads to `rank`, see `start`
``launcher.out, .err``  what mpiexec or srun said
``rank-0.json``         where rank 0 is: host, process, clock
``rank-0.log``          its op log
``rank-0.out, .err``    what it printed; what native code wrote to stderr
``rank-0.answer``       what its function came to
``rank-0.exit``         how its process ended, where it died
``verdict.pkl``         the error by which the job was ended: ranks that wait for ever
``end``                 somebody has failed: all ranks end soon. ``cancel``: the learner says so
======================  ====================================================================
"""

from __future__ import annotations

import json
import os
from pathlib import Path


class JobFolder:
    """Reads and writes the files of one job; a file is there whole or not at all.

    Parameters
    ----------
    path : str or Path
    """

    def __init__(self, path):
        self.path = Path(path)

    def file(self, name, rank=None):
        """The path of a file: ``file("log", 2)`` is rank 2's."""
        return self.path / (name if rank is None else f"rank-{rank}.{name}")

    def write(self, content, name, rank=None):
        """Write bytes in one piece: whoever reads sees all of them, or what was there before."""
        path = self.file(name, rank)
        draft = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
        draft.write_bytes(content)
        os.replace(draft, path)

    def read(self, name, rank=None):
        """The bytes of a file; None where there is none (yet)."""
        try:
            return self.file(name, rank).read_bytes()
        except FileNotFoundError:
            return None

    def write_json(self, value, name, rank=None):
        """Write plain data in one piece."""
        self.write(json.dumps(value, indent=1).encode(), name, rank)

    def read_json(self, name, rank=None):
        """Plain data; None where there is no such file."""
        content = self.read(name, rank)
        return None if content is None else json.loads(content)

    def text(self, name, rank=None):
        """A file as text; empty where there is none."""
        return (self.read(name, rank) or b"").decode("utf-8", "replace")

    def mark(self, name):
        """Leave a word: ``end`` or ``cancel``."""
        self.file(name).touch()

    def has(self, name, rank=None):
        """Whether there is such a file."""
        return self.file(name, rank).exists()

"""What the command line asks before torch is loaded: by what ranks talk, and where jobs are."""

from ...core.record.transports import BACKEND_NAMES

MPI4PY = "mpi4py"
BACKENDS = (*BACKEND_NAMES, MPI4PY)
"""The names of `core.record.transports.backends.BACKENDS`, with the one that is registered here."""
JOBS = "simlib-jobs"
"""Where the folders of jobs are made, unless another place is named."""

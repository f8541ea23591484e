"""What the command line asks before torch is loaded: by what ranks talk, and where jobs are."""

BACKENDS = ("gloo", "nccl", "mpi4py")
"""The names of `core.record.transports.backends.BACKENDS`, with those registered here."""
JOBS = "simlib-jobs"
"""Where the folders of jobs are made, unless another place is named."""

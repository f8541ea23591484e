"""What the command line asks before torch is loaded: how many ranks, by what, where jobs are."""

MOST_PROCESSES = 64
MOST_SIMULATED = 4096
BACKENDS = ("gloo", "nccl", "mpi4py")
"""The names of `record.transports.backends.BACKENDS`."""
JOBS = "simlib-jobs"
"""Where the folders of jobs are made, unless another place is named."""

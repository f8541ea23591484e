"""What the command line asks before anything is imported: how many ranks, and where jobs are."""

MOST_PROCESSES = 64
MOST_SIMULATED = 4096
JOBS = "simlib-jobs"
"""Where the folders of jobs are made, unless another place is named."""

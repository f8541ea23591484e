"""What carries the calls of a rank: Gloo, NCCL or MPI, and what each of them can."""

from datetime import timedelta

BACKEND_NAMES = ("gloo", "nccl")
"""The names of the backends of the core: here, as the command line asks for them without torch."""
FOREVER = timedelta(days=30)
"""Gloo's own timeout: hangs are found by simlib, not by Gloo."""

"""How a rank's calls reach other ranks: by Gloo, NCCL or MPI. Each has its own capabilities."""

from datetime import timedelta

BACKEND_NAMES = ("gloo", "nccl")
"""The names of the core's backends. The command line needs them here, without torch."""
FOREVER = timedelta(days=30)
"""Gloo's own timeout. It is long, because simlib and not Gloo finds hangs."""

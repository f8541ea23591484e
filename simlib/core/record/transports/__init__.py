"""What carries the calls of a rank: Gloo, NCCL or MPI, and what each of them can."""

BACKEND_NAMES = ("gloo", "nccl")
"""The names of the backends of the core: here, as the command line asks for them without torch."""

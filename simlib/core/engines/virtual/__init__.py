"""Simulated ranks: threads of one child process under a virtual clock."""

__all__ = ["simulate"]


def __getattr__(name):
    """`simulate`, imported when it is needed."""
    if name == "simulate":
        from .simulated_run import simulate

        return simulate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

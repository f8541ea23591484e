"""The engine of real ranks: processes of this machine, Gloo between them, wall clock."""

__all__ = ["run"]


def __getattr__(name):
    """`run`, imported when it is needed."""
    if name == "run":
        from .real_run import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""The engine of real ranks: processes of this machine, Gloo between them, wall clock."""

from .real_run import run

__all__ = ["run"]

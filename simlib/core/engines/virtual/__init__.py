"""Simulated ranks: threads of one child process under a virtual clock."""

from .simulated_run import simulate

__all__ = ["simulate"]

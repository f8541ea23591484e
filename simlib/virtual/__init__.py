"""Simulated ranks: threads of one child process under a virtual clock."""

from .engine import simulate

__all__ = ["simulate"]

"""A practice network: nodes that are network namespaces of this machine, joined by slow links."""

from .network import PracticeNetwork
from .system import remove_leftovers

__all__ = ["PracticeNetwork", "remove_leftovers"]

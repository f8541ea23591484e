"""A practice network, or a practice cluster: hosts that are namespaces of this machine."""

from .cluster import PracticeCluster
from .network import PracticeNetwork
from .running import launcher
from .system import remove_leftovers

__all__ = ["PracticeCluster", "PracticeNetwork", "launcher", "remove_leftovers"]

"""Practice networks and practice clusters: their hosts are namespaces of this machine."""

from . import daemon
from .daemon import launcher
from .practice_cluster import PracticeCluster
from .practice_network import PracticeNetwork, remove_leftovers

running = daemon  # its name in notebooks of before

__all__ = ["PracticeCluster", "PracticeNetwork", "launcher", "remove_leftovers"]

"""Lightning on the ranks of simlib. The plug-in `environment` tells Lightning its rank."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from ..environment import need
from ..model.errors import InvalidCallError


def environment() -> Any:
    """The cluster environment of the calling rank, for Lightning's Trainer and Fabric.

    Without this plug-in Lightning would start its own processes. With it, Lightning uses the ranks
    and the process group that `run`, `simulate` or `submit` has started::

        def main(rank, world_size):
            trainer = lightning.Trainer(
                accelerator="cpu", devices=world_size, strategy="ddp",
                plugins=[simlib.lightning.environment()],
            )

    Returns
    -------
    lightning.fabric.plugins.environments.ClusterEnvironment

    Raises
    ------
    InvalidCallError
        No rank calls the function, or the Trainer asks for another number of ranks.
    ImportError
        Lightning is not installed (``pip install "rank-by-rank[frameworks]"``).
    """
    if not dist.is_initialized():
        raise InvalidCallError(
            "simlib.lightning.environment() is for the ranks of a run: call it in the function "
            "that you give to simlib.run"
        )
    return _environment_class()(dist.get_rank(), dist.get_world_size())


def _environment_class() -> Any:
    """Define the class here, because Lightning takes a second to import and may be missing."""
    need("frameworks", "lightning", what="simlib.lightning.environment()")
    from lightning.fabric.plugins.environments import ClusterEnvironment

    class RanksOfSimlib(ClusterEnvironment):
        """Ranks that exist already, with their own process group."""

        creates_processes_externally = True
        main_address, main_port = "127.0.0.1", 0  # of a rendezvous that has been

        def __init__(self, rank: int, world_size: int) -> None:
            self._rank, self._world_size = rank, world_size
            self._devices = world_size

        @staticmethod
        def detect() -> bool:
            return dist.is_initialized()

        def world_size(self) -> int:
            return self._world_size

        def global_rank(self) -> int:
            return self._rank

        def local_rank(self) -> int:
            return self._rank % self._devices

        def node_rank(self) -> int:
            return self._rank // self._devices

        def set_world_size(self, size: int) -> None:
            pass

        def set_global_rank(self, rank: int) -> None:
            pass

        def validate_settings(self, num_devices: int, num_nodes: int) -> None:
            self._devices = num_devices
            if num_devices * num_nodes != self._world_size:
                raise InvalidCallError(
                    f"devices={num_devices} on num_nodes={num_nodes} asks for "
                    f"{num_devices * num_nodes} ranks, but this world has {self._world_size}: set "
                    f"devices={self._world_size}"
                )

    return RanksOfSimlib

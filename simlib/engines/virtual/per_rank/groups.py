"""torch.distributed's tables of groups, which each rank has to itself."""

from __future__ import annotations

import threading

from torch.distributed import distributed_c10d as c10d

from ....model.errors import InvalidCallError
from ....record.this_rank import here as local

foreign_threads = []
"""Names of threads that called torch.distributed without being a rank."""


class WorldPerThread(threading.local):
    """torch.distributed's table of groups, one for each rank."""

    pg_config_info = c10d._World.pg_config_info

    def __init__(self):
        # Called in each thread that asks for a field for the first time.
        if hasattr(local, "rank") or threading.current_thread() is threading.main_thread():
            self.default_pg = None
        self.pg_map = {}
        self.pg_names = {}
        self.pg_group_ranks = {}
        self.pg_backend_config = {}
        self.group_count = 0
        self.tags_to_pg = {}
        self.pg_to_tag = {}
        self.pg_coalesce_state = {}
        self.comms = []

    def __getattr__(self, name):
        if name != "default_pg":
            raise AttributeError(f"torch.distributed's world has no {name!r}")
        foreign_threads.append(threading.current_thread().name)
        raise InvalidCallError(
            "this thread was started by a rank and is none: in a simulation only the rank's own "
            "thread may call torch.distributed (on real ranks, simlib.run, others may too)"
        )

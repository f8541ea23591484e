"""torch.distributed's tables of groups, which each rank has to itself."""

from __future__ import annotations

import threading

from torch.distributed import distributed_c10d as c10d

from ....model.errors import InvalidCallError
from ....record.this_rank import here as local

foreign_threads = []
"""Names of threads that called torch.distributed without being a rank."""


def _world_field(name, make):
    def read(self):
        fields = local.__dict__
        if name not in fields:
            fields[name] = make()
        return fields[name]

    def write(self, value):
        setattr(local, name, value)

    return property(read, write)


def _default_group():
    """No group: asked for by a rank before it has joined, or by a thread that is no rank."""
    if not hasattr(local, "rank") and threading.current_thread() is not threading.main_thread():
        foreign_threads.append(threading.current_thread().name)
        raise InvalidCallError(
            "this thread was started by a rank and is none: in a simulation only the rank's own "
            "thread may call torch.distributed (on real ranks, simlib.run, others may too)"
        )


class WorldPerThread:
    """torch.distributed's table of groups, one for each rank."""

    default_pg = _world_field("default_pg", _default_group)
    pg_map = _world_field("pg_map", dict)
    pg_names = _world_field("pg_names", dict)
    pg_group_ranks = _world_field("pg_group_ranks", dict)
    pg_backend_config = _world_field("pg_backend_config", dict)
    group_count = _world_field("group_count", int)
    tags_to_pg = _world_field("tags_to_pg", dict)
    pg_to_tag = _world_field("pg_to_tag", dict)
    pg_coalesce_state = _world_field("pg_coalesce_state", dict)
    comms = _world_field("comms", list)
    pg_config_info = c10d._World.pg_config_info

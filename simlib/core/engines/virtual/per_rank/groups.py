"""torch.distributed's tables of groups, which each rank has to itself."""

from __future__ import annotations

import threading

from ....model.errors import InvalidCallError
from ....record.this_rank import here as local
from ....record.torch_inside import configurations, fields_of_world

foreign_threads = []
"""Names of threads that called torch.distributed without being a rank."""


class WorldPerThread(threading.local):
    """torch.distributed's table of groups, one for each rank."""

    pg_config_info = configurations()
    fields = fields_of_world()

    def __init__(self):
        # Called in each thread that asks for a field for the first time.
        may_ask = hasattr(local, "rank") or threading.current_thread() is threading.main_thread()
        for name, make in self.fields.items():
            if may_ask or name != "default_pg":
                setattr(self, name, make())

    def __getattr__(self, name):
        if name != "default_pg":
            raise AttributeError(f"torch.distributed's world has no {name!r}")
        foreign_threads.append(threading.current_thread().name)
        raise InvalidCallError(
            "this thread was started by a rank and is none: in a simulation only the rank's own "
            "thread may call torch.distributed (on real ranks, simlib.run, others may too)"
        )

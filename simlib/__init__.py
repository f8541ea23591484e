"""simlib: run one rank function on real ranks, and see what its ranks said to each other.

::

    import simlib, torch, torch.distributed as dist

    def main(rank, world_size):
        x = torch.tensor([float(rank)])
        dist.all_reduce(x)
        return x.item()

    run = simlib.run(main, world_size=4)
"""

# ruff: noqa: E402 (the command answers to Ctrl-C while the rest is imported)
from . import _ctrl_c

_ctrl_c.ends_at_once()

import gc
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ._names import install as _find_public_names
from .core.draw.display import follow_theme as _follow_theme
from .core.environment import VERSION as _VERSION

_find_public_names()

if TYPE_CHECKING:
    from .facade import *  # noqa: F403
    from .facade import __all__ as __all__
else:

    def __getattr__(name):
        """Return a submodule, or a name of the facade. Both are imported when they are used, so
        that `simlib check` can refuse without torch. The submodules are looked up first, because
        the facade itself needs them."""
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if find_spec(f"{__name__}.{name}"):
            return import_module(f"{__name__}.{name}")
        facade = _facade()
        if name != "__all__" and name not in facade.__all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = getattr(facade, name)
        return globals()[name]

    def _facade():
        """Import the facade. Garbage collection is off, because it would look through all objects
        of torch."""
        was_on = gc.isenabled()
        gc.disable()
        try:
            return import_module(f"{__name__}.facade")
        finally:
            if was_on:
                gc.enable()

    def __dir__():
        return sorted({*globals(), *_facade().__all__})


__version__ = _VERSION
_follow_theme()

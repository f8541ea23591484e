"""An IPython extension for the kernels of a class. It prepares the first run in advance.

While the student still reads, the kernel and the server of ranks import torch. If the server has
ended after a rest, the next cell that the student runs starts a new server, which imports torch
again.
"""

from __future__ import annotations

import importlib
import threading
from typing import Any

from .session import warm_up


def load_ipython_extension(shell: Any) -> None:
    """Begin to import torch, and return at once."""
    warm_up()
    shell.events.register("pre_run_cell", lambda cell: warm_up())
    # torch alone: another thread that wants a part of it waits for the whole, so no circle of
    # imports is met half way.
    threading.Thread(target=importlib.import_module, args=("torch",), daemon=True).start()

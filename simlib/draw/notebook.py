"""Whether there is a notebook to draw into."""

from __future__ import annotations

import sys


def in_notebook():
    """Whether this code runs in a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return hasattr(shell, "kernel")

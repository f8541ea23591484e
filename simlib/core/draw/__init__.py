"""Pictures of runs. Each module needs matplotlib, so simlib imports it at its first use.

Ctrl-C must not interrupt the import of matplotlib. Otherwise only a part of matplotlib would be
loaded, and matplotlib would stay broken until the kernel ends.
"""

from importlib import import_module
from typing import Any

from ..environment import uninterrupted

_FILE_OF = {
    "Player": "player",
    "draw_comparison": "run_pictures",
    "draw_memory": "memory",
    "draw_memory_history": "memory",
    "draw_parts": "memory",
    "draw_predictions": "report_page",
    "draw_states": "states",
    "draw_timeline": "timeline",
    "draw_traffic": "run_pictures",
    "draw_wait_graph": "run_pictures",
    "png_of": "figures",
    "save_report": "report_page",
}

__all__ = [*_FILE_OF]

_FILE_OF_OTHERS = {
    **dict.fromkeys(("differences_of", "page_of", "parts_of", "save_page"), "player.page"),
    **dict.fromkeys(("Picture", "figure_in_words"), "figures"),
    "WithDarkVariant": "dark",
}
"""Further names, which only simlib itself uses."""


def __getattr__(name: str) -> Any:
    file = _FILE_OF.get(name) or _FILE_OF_OTHERS.get(name)
    if file is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with uninterrupted():
        module = import_module(f".{file}", __name__)
    return getattr(module, name)

"""What a lab learns from the page that shows it: whether its theme is dark."""

from __future__ import annotations

import anywidget
import traitlets


class Theme(anywidget.AnyWidget):
    """The page's theme, told by the page itself; nothing of it is seen.

    Attributes
    ----------
    dark : bool
        At first what the page told last, so that a new lab is not shown light for a moment.
    """

    _esm = """
    export default {
      initialize({ model }) {
        const tell = () => {
          const { jpThemeLight } = document.body.dataset;
          if (!jpThemeLight) return;  // not JupyterLab
          model.set("dark", jpThemeLight === "false");
          model.save_changes();
        };
        tell();
        const watch = new MutationObserver(tell);
        watch.observe(document.body, { attributeFilter: ["data-jp-theme-light"] });
        return () => watch.disconnect();
      },
    };
    """
    dark = traitlets.Bool(False).tag(sync=True)
    _told_last = False

    def __init__(self):
        super().__init__(dark=Theme._told_last)

    @traitlets.observe("dark")
    def _remember(self, change):
        Theme._told_last = change.new

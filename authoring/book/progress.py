"""How far Sphinx is with the pages of the book, as a bar in a terminal."""

import contextlib

from simlib.core.draw.display import bar


class Progress:
    """Counts each page twice: when Sphinx has read it, and when Sphinx writes it."""

    def __init__(self, app):
        self._stack, self._done = contextlib.ExitStack(), 0
        app.connect("env-before-read-docs", self.begin)
        app.connect("source-read", self.count)
        app.connect("html-page-context", self.count)
        app.connect("build-finished", self.end)

    def begin(self, app, env, pages):
        """Show the bar."""
        self._show = self._stack.enter_context(bar(2 * len(pages), ""))

    def count(self, app, page, *more):
        """Count a page. The search page and other pages without a source do not count."""
        if page in app.env.found_docs:
            self._done += 1
            self._show(page, self._done)

    def end(self, app, error):
        """Take the bar away."""
        self._stack.close()

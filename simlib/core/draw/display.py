"""What a notebook or a terminal shows: what ranks print, what was found, pictures with alt text."""

from __future__ import annotations

import html
import sys
import time

from ..environment import are_ranks_trusted

SHOWN_LINES = 400
"""Lines of one rank that a notebook shows after a run."""


def _as_text(line):
    """A line as a terminal would leave it: after the last carriage return."""
    return line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]


def _bar(unfinished):
    """A progress bar, which redraws an unfinished line by carriage returns; else empty."""
    return _as_text(unfinished) if b"\r" in unfinished else ""


def _lines_of(output):
    """What a rank printed, as lines; a progress bar that was wiped out at the end is none."""
    text = output.text
    lines = text.removesuffix("\n").split("\n") if output.total else []
    if lines and "\r" in lines[-1] and not _as_text(lines[-1].encode()).strip():
        lines.pop()
    return lines


def _shortened(lines):
    """The first and last of very many lines, and how many are not shown."""
    if len(lines) <= SHOWN_LINES:
        return lines
    half = SHOWN_LINES // 2
    note = f"... {len(lines) - 2 * half:,} more lines: run.output has what is kept of them ..."
    return [*lines[:half], note, *lines[-half:]]


def in_notebook():
    """Whether this code runs in a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return hasattr(shell, "kernel")


def open_display():
    """The display of a run: a notebook's or a terminal's; none where outputs are compared."""
    if not are_ranks_trusted():
        return SilentDisplay()
    return NotebookDisplay() if in_notebook() else TerminalDisplay()


class TerminalDisplay:
    """Prints each line as it comes, with its rank before it."""

    def status(self, text):
        """Say what the run waits for."""
        if text:
            print(text, file=sys.stderr, flush=True)

    def lines(self, rank, lines):
        """Show lines a rank has just completed."""
        sys.stdout.write("".join(f"[{rank}] {_as_text(line)}\n" for line in lines))

    def bar(self, rank, unfinished):
        """Show no progress bar: several ranks' would need a line each."""

    def refresh(self):
        """Nothing to refresh: lines are shown at once."""

    def close(self, outputs):
        """Show the unfinished last lines."""
        for rank, output in enumerate(outputs):
            if _as_text(output.unfinished).strip():
                print(f"[{rank}] {_as_text(output.unfinished)}")
        sys.stdout.flush()

    def findings(self, findings):
        """Show what looked wrong."""
        for finding in findings:
            print(f"simlib: {finding}", file=sys.stderr)

    def picture(self, graph):
        """Nothing: the text of the error has it all."""


class SilentDisplay:
    """Shows nothing: for a run beside the one that is shown, for graded ones, and within a job."""

    def status(self, text):
        """Say nothing."""

    def lines(self, rank, lines):
        """Show nothing."""

    def bar(self, rank, unfinished):
        """Show nothing."""

    def refresh(self):
        """Nothing to refresh."""

    def close(self, outputs):
        """Show nothing."""

    def findings(self, findings):
        """Show nothing."""

    def picture(self, graph):
        """Show nothing."""


class NotebookDisplay:
    """One display that begins and ends empty; then all output once, in rank order.

    That is the only live display whose stored form is the same for every run, which is what nbval
    compares.
    """

    SHOWN_LINES = 20
    FIRST_AFTER_S = 0.3
    EVERY_S = 0.1

    def __init__(self):
        from IPython.display import display

        self._lines = []
        self._bars = {}
        self._status = ""
        self._next = time.monotonic() + self.FIRST_AFTER_S
        self._changed = False
        self._handle = display(self._bundle(""), raw=True, display_id=True)
        self._is_empty = True

    @staticmethod
    def _bundle(markup):
        return {"text/plain": "", "text/html": markup}

    def status(self, text):
        """Say what the run waits for, at once."""
        if text != self._status:
            self._status = text
            self._show()

    def lines(self, rank, lines):
        """Show lines a rank has just completed."""
        self._lines += [f"[{rank}] {_as_text(line)}" for line in lines[-self.SHOWN_LINES :]]
        del self._lines[: -self.SHOWN_LINES]
        self._changed = self._changed or bool(lines)

    def bar(self, rank, unfinished):
        """Show the line that a rank is in the middle of, where it is a progress bar."""
        text = _bar(unfinished)
        if text != self._bars.get(rank, ""):
            self._bars[rank] = text
            self._changed = True

    def refresh(self):
        """Bring the display up to date, not too often."""
        if self._changed and time.monotonic() >= self._next:
            self._show()

    def _show(self):
        bars = [f"[{rank}] {text}" for rank, text in sorted(self._bars.items()) if text.strip()]
        text = html.escape("\n".join([*self._lines, *bars, self._status]).strip())
        self._handle.update(self._bundle(f"<pre>{text}</pre>" if text else ""), raw=True)
        self._is_empty = not text
        self._changed = False
        self._next = time.monotonic() + self.EVERY_S

    def close(self, outputs):
        """Empty the display, and print everything in rank order."""
        self._lines, self._bars, self._status = [], {}, ""
        if not self._is_empty:
            self._show()
        for rank, output in enumerate(outputs):
            lines = _shortened(_lines_of(output))
            shown = [f"[{rank}] {_as_text(line.encode())}\n" for line in lines]
            sys.stdout.write("".join(shown))

    def findings(self, findings):
        """Show what looked wrong."""
        for finding in findings:
            print(finding)

    def picture(self, graph):
        """Show the wait-for graph above the error."""
        from IPython.display import display

        display(graph)


def show_and_raise(display, run, failure):
    """Show what a run has found, or the picture of how it failed; returns the `Run`, or raises."""
    if failure is None:
        display.findings(run.findings)
        return run
    run.ended_in(failure)
    if getattr(failure, "graph", None) is not None:
        display.picture(failure.graph)
    raise failure


class Displayed:
    """Mixed into what has a ``_repr_png_``: a notebook keeps `in_words` as the picture's alt text.

    It stands in the metadata of the output, where nbconvert looks for it; JupyterLab learns it from
    the course's extension (`scripts/lab_extensions`).
    """

    __slots__ = ()

    def in_words(self) -> str:
        """What the picture shows, in sentences."""
        raise NotImplementedError

    def _repr_mimebundle_(self, **kwargs):
        return {}, alt_metadata(self.in_words())


class DisplayMixin(Displayed):
    """Mixed into what has ``draw()``, a figure by which it is shown."""

    __slots__ = ()

    def in_words(self) -> str:
        """What the figure's axes are called: for whoever does not see it."""
        return self.draw().in_words()

    def _repr_png_(self):
        return self.draw()._repr_png_()


def alt_metadata(words: str) -> dict:
    """The metadata of an output that has a PNG, with its alt text."""
    return {"image/png": {"alt": words}}


def follow_theme() -> None:
    """Show every figure of this notebook with its dark variant; elsewhere nothing is done."""
    if not in_notebook():
        return
    from IPython import get_ipython

    # By name, so that matplotlib is not imported for it.
    bundles = get_ipython().display_formatter.mimebundle_formatter
    bundles.for_type_by_name("matplotlib.figure", "Figure", _prepare)


def _prepare(figure):
    """See to it that the figure about to be shown comes with its dark variant; adds its alt text.

    pyplot sets how figures are shown when it is first used, and again with every change of its
    settings, so this cannot be done once and for all.
    """
    from IPython import get_ipython
    from matplotlib.figure import Figure

    from .dark import WithDarkVariant
    from .figures import Picture, figure_in_words, png_of

    pngs = get_ipython().display_formatter.formatters["image/png"]
    pngs.for_type(Picture, png_of)
    printer = pngs.type_printers.get(Figure)
    if printer and not isinstance(printer, WithDarkVariant):
        pngs.for_type(Figure, WithDarkVariant(printer))
    words = figure.in_words() if isinstance(figure, Picture) else figure_in_words(figure)
    return {}, alt_metadata(words)

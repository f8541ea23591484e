"""A notebook in a real JupyterLab: open, run, type, drag, look. Each function does one thing.

What JupyterLab knows is asked of itself (``window.jupyterapp``); what a learner does is done with
mouse and keyboard. Nothing waits for a time: a run has ended when JupyterLab says so.
"""

import time
from contextlib import contextmanager

PANEL = "[...jupyterapp.shell.widgets('main')].find((w) => w.context?.path === path)"
"""JavaScript: the panel of the notebook at `path`."""
HAS_ERROR = (
    "(model) => !(model.getMetadata('tags') ?? []).includes('raises-exception')"
    " && (model.outputs?.toJSON() ?? []).some((o) => o.output_type === 'error')"
)
"""JavaScript: whether a cell shows an error that it does not announce."""
FORMULAS = """(root) => {
    const text = [...root.querySelectorAll(".jp-MarkdownOutput")].flatMap((part) => {
        const copy = part.cloneNode(true);
        copy.querySelectorAll("code, pre, mjx-container").forEach((one) => one.remove());
        return copy.textContent.match(/\\$[^$]*\\$|\\\\[a-z]+/g) ?? [];
    });
    const broken = [...root.querySelectorAll("mjx-merror")].map((one) => one.textContent);
    return [root.querySelectorAll("mjx-container").length, [...text, ...broken]];
}"""
"""JavaScript: the number of formulas below a node; what is between dollars still, or an error."""
BROKEN = """(root) => {
  const found = [], range = document.createRange();
  const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  for (let text; (text = texts.nextNode()); )
    for (const word of text.data.matchAll(/[^\\s/]+/g)) {
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1)
        found.push(word[0]);
    }
  return found;
}"""
"""JavaScript: the words below a node that go on in the next line; a path may after each slash."""
RUN_LIMIT_MS = 180_000
PICTURE_LIMIT_S = 60


class NotebookPage:
    """One open notebook.

    Parameters
    ----------
    lab : playwright Page
        A JupyterLab started with ``expose_app_in_browser``.
    path : str
        The notebook, from the server's folder.
    """

    def __init__(self, lab, path):
        self.lab, self.path = lab, path
        self.command("docmanager:open", {"path": path})
        # Its promises (`context.ready`) are now and then collected as garbage before they are kept.
        self.lab.wait_for_function(
            f"([path]) => {{ const panel = {PANEL}; return panel?.context.isReady"
            " && panel.sessionContext.isReady && panel.isRevealed; }",
            arg=[self.path],
        )
        self.show()
        self.root = lab.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")

    # JupyterLab itself

    def show(self):
        """Bring the notebook's tab to the front."""
        self.ask("jupyterapp.shell.activateById(panel.id)")

    def command(self, name, arguments=None):
        """Run a command of JupyterLab, to its end."""
        return self.lab.evaluate(
            "([name, args]) => jupyterapp.commands.execute(name, args).then(() => null)",
            [name, arguments or {}],
        )

    def ask(self, expression, argument=None):
        """The value of a JavaScript expression; `panel` is this notebook's, `argument` is given."""
        return self.lab.evaluate(
            f"async ([path, argument]) => {{ const panel = {PANEL};"
            f" const value = await ({expression}); return value === undefined ? null : value; }}",
            [self.path, argument],
        )

    def close(self):
        """Shut the kernel down and close the panel, whatever has changed in it."""
        self.ask("void panel.sessionContext.shutdown()")
        self.ask("panel.dispose()")

    # Cells

    def sources(self):
        """The text of every cell."""
        return self.ask("panel.content.widgets.map((w) => w.model.sharedModel.source)")

    def texts(self):
        """The text of every cell that is prose."""
        return self.ask(
            "panel.content.widgets.map((w) => w.model).filter((m) => m.type === 'markdown')"
            " .map((m) => m.sharedModel.source)"
        )

    def find(self, text, after=0):
        """The number of the first cell that holds the text."""
        numbers = [n for n, source in enumerate(self.sources()) if text in source and n >= after]
        assert numbers, f"no cell of {self.path} holds {text!r}"
        return numbers[0]

    def cell(self, number):
        """A cell on the page (a Locator)."""
        return self.root.locator(".jp-Notebook .jp-Cell").nth(number)

    def outputs(self, number):
        """The outputs of a cell on the page (a Locator)."""
        return self.cell(number).locator(".jp-Cell-outputArea")

    def text_of(self, number):
        """All text that a cell shows below itself."""
        return self.outputs(number).inner_text()

    def type_into(self, number, text):
        """Replace the text of a cell by typing; tabs and line ends arrive as they are."""
        editor = self.cell(number).locator(".cm-content")
        editor.click()
        self.lab.keyboard.press("Control+a")
        self.lab.keyboard.press("Delete")
        # As a paste is: no brackets closed and no lines indented by the editor.
        self.lab.keyboard.insert_text(text)
        assert self.sources()[number] == text

    def run(self, number):
        """Run a cell with Shift+Enter, until the kernel has answered."""
        # A fresh kernel may give the cell the very number that is stored with it.
        self.ask("void (panel.content.widgets[argument].model.executionCount = null)", number)
        self.cell(number).locator(".cm-content").click()
        self.lab.keyboard.press("Shift+Enter")
        self.lab.wait_for_function(
            f"([path, number]) => {{ const panel = {PANEL};"
            " return panel.content.widgets[number].model.executionCount"
            " && panel.sessionContext.session?.kernel?.status === 'idle'; }",
            arg=[self.path, number],
        )

    def run_all(self):
        """Run every cell, until the last one has ended or one has failed."""
        self.ask("jupyterapp.commands.execute('notebook:run-all-cells').then(() => null)")
        # JupyterLab says so too early where a cell fails that announces it.
        self.lab.wait_for_function(
            f"([path]) => {{ const panel = {PANEL}; const fails = ({HAS_ERROR});"
            " const code = panel.content.widgets.map((w) => w.model)"
            "  .filter((m) => m.type === 'code' && m.sharedModel.source);"
            " return panel.sessionContext.session?.kernel?.status === 'idle'"
            "  && (code.every((m) => m.executionCount) || code.some(fails)); }",
            arg=[self.path],
            timeout=RUN_LIMIT_MS,
        )

    def wait_until_idle(self):
        """Wait until the kernel has nothing to do."""
        self.lab.wait_for_function(
            f"([path]) => {PANEL}.sessionContext.session?.kernel?.status === 'idle'",
            arg=[self.path],
        )

    def not_run(self):
        """The numbers of the code cells with text that were not run."""
        return self.ask(
            "panel.content.widgets.map((w, number) => [w.model, number])"
            " .filter(([m]) => m.type === 'code' && m.sharedModel.source && !m.executionCount)"
            " .map(([, number]) => number)"
        )

    def errors(self):
        """``[number, name, words]`` of every error in a cell that does not announce one."""
        return self.ask(
            f"panel.content.widgets.flatMap((w, number) => !({HAS_ERROR})(w.model) ? [] :"
            " w.model.outputs.toJSON().filter((o) => o.output_type === 'error')"
            " .map((o) => [number, o.ename, o.evalue]))"
        )

    # Pictures and sliders

    def pictures(self, number):
        """The bytes of every picture that a cell shows, each as a text."""
        return self.lab.evaluate(
            "(images) => Promise.all(images.map(async (image) => Array.from(new Uint8Array("
            " await (await fetch(image.src)).arrayBuffer()), (b) => b.toString(36)).join(' ')))",
            self.outputs(number).locator("img").element_handles(),
        )

    def sliders(self, number):
        """The sliders of ipywidgets below a cell, as Locators."""
        return self.outputs(number).locator(".widget-slider .noUi-target").all()

    def label_of(self, slider):
        """What stands beside a slider."""
        label = "e => e.closest('.widget-slider').querySelector('.widget-label').innerText"
        return slider.evaluate(label)

    def slider_share(self, slider):
        """Where a slider's handle is, as a share (0 to 1) of its way."""
        handle, way = slider.locator(".noUi-handle").first.bounding_box(), slider.bounding_box()
        return (handle["x"] + handle["width"] / 2 - way["x"]) / way["width"]

    def drag_slider(self, slider, share):
        """Drag a slider's handle with the mouse to a share (0 to 1) of its way.

        It is done again where it did not move: a new picture above had moved it from under the
        mouse.
        """
        before = self.slider_share(slider)
        for _ in range(3):
            self._drag_once(slider, share)
            if abs(self.slider_share(slider) - before) > 0.01:
                return

    def _drag_once(self, slider, share):
        handle = slider.locator(".noUi-handle").first
        handle.hover()  # which scrolls there, and waits until it stands still
        start, way = handle.bounding_box(), slider.bounding_box()
        y = start["y"] + start["height"] / 2
        self.lab.mouse.down()
        self.lab.mouse.move(way["x"] + share * way["width"], y, steps=4)
        self.lab.mouse.up()

    def wait_for_another_picture(self, number, before):
        """Wait until the pictures of a cell are others than these."""
        self._wait_for_pictures(number, lambda pictures: pictures != before)

    def wait_for_the_picture_again(self, number, before):
        """Wait until the pictures of a cell are these again."""
        self._wait_for_pictures(number, lambda pictures: pictures == before)

    def _wait_for_pictures(self, number, are_right):
        self.outputs(number).locator("img").first.wait_for()
        limit = time.monotonic() + PICTURE_LIMIT_S
        while not are_right(self.pictures(number)):
            assert time.monotonic() < limit, f"the pictures of cell {number} stay as they are"
            self.wait_for_page_to_paint()

    def wait_for_page_to_paint(self):
        """Wait for the browser's next frame."""
        self.lab.evaluate("() => new Promise((done) => requestAnimationFrame(() => done()))")

    # The whole page

    @contextmanager
    def in_full_length(self):
        """A page so long that every cell is in sight: JupyterLab makes others when they come."""
        size = self.lab.viewport_size
        scroller = "panel.content.node.querySelector('.jp-WindowedPanel-outer')"
        height = self.ask(f"{scroller}.scrollHeight")
        try:
            self.lab.set_viewport_size({"width": size["width"], "height": int(height) + 200})
            self.ask(f"{scroller}.scrollTo(0, 0)")
            self.wait_for_page_to_paint()
            yield
        finally:
            self.lab.set_viewport_size(size)

    def keep_picture(self, path):
        """Save the whole notebook, from its first to its last cell, as one PNG."""
        with self.in_full_length():
            self.root.screenshot(path=path)

    def formulas(self, at_least):
        """How many formulas the notebook shows, and the words that were to be some and are none.

        Waits until it shows this many.
        """
        with self.in_full_length():
            self.root.locator("h1").first.wait_for()
            if at_least:
                self.root.locator("mjx-container").nth(at_least - 1).wait_for(state="attached")
            self.wait_for_page_to_paint()
            return self.root.evaluate(FORMULAS)


def use_theme(lab, name):
    """Switch the theme: ``"JupyterLab Light"`` or ``"JupyterLab Dark"``."""
    lab.evaluate(
        "(theme) => jupyterapp.commands.execute('apputils:change-theme', { theme })"
        ".then(() => null)",
        name,
    )
    lab.wait_for_function("(name) => document.body.dataset.jpThemeName === name", arg=name)

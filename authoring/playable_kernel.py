"""Runs in the kernel of a notebook that is built, before its first cell.

Whatever of a run is shown there then gives, beside its picture, what a page plays: the run itself,
its timeline, its player, and where it failed the picture of who waits for whom. A lab gives the
pictures along its sliders. The builder takes this out of the outputs (see `playable`).
"""


def give_pages():
    """Let the kernel's outputs hold what plays."""
    from weakref import WeakKeyDictionary

    from IPython import get_ipython
    from IPython.core.formatters import JSONFormatter
    from traitlets import ObjectName, Unicode

    from simlib.core.draw.player import Player
    from simlib.core.draw.player.page import page_of, parts_of
    from simlib.core.model.words import ranks_text
    from simlib.core.results.run import Run

    class PageFormatter(JSONFormatter):
        format_type = Unicode("application/vnd.simlib.page+json")
        print_method = ObjectName("_gives_no_page_by_a_method_of_its_own")

    shown, failed = WeakKeyDictionary(), {}
    timeline, play, ended_in = Run.timeline, Run.play, Run.ended_in

    def page(run, ranks=None, between=None, **_looks):
        title = f"{run.name} on {ranks_text(run)}"
        return {"run": page_of(title, [run], None, (ranks, between), parts_of(run))}

    def remembered(draw):
        def drawn(run, **view):
            if view.get("ranks") is not None:
                view["ranks"] = list(view["ranks"])
            picture = draw(run, **view)
            shown[picture] = lambda: page(run, **view)
            return picture

        return drawn

    def end(run, failure):
        ended_in(run, failure)
        if run.graph is not None:
            failed[id(run.graph)] = run

    def of_lab(lab):
        import base64

        def text(png):
            return base64.b64encode(png).decode()

        strips = [
            strip | {"pictures": [text(png) for png in strip["pictures"]]} for strip in lab.strips()
        ]
        return {"lab": strips}

    Run.timeline, Run.play, Run.ended_in = remembered(timeline), remembered(play), end
    pages = PageFormatter(parent=get_ipython().display_formatter)
    pages.for_type(Run, page)
    for kind in (Player, "simlib.core.draw.figures.Picture"):
        pages.for_type(kind, lambda picture: shown[picture]() if picture in shown else None)
    pages.for_type(
        "simlib.core.diagnose.verdicts.WaitGraph",
        lambda graph: page(failed[id(graph)]) if id(graph) in failed else None,
    )
    pages.for_type("simlib.course.labs.sliders.Lab", of_lab)
    get_ipython().display_formatter.formatters[pages.format_type] = pages


give_pages()
del give_pages

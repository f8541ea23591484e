"""Lessons in a real browser: Run All to the end, guesses, and sliders that move their pictures."""

import os
import random

import pytest
from lab_server import ROOT
from notebook_page import NotebookPage, use_theme

FIRST = "00_start_here"


LESSONS = [path.stem for path in sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))]
DRAWN = random.Random(os.environ["SEED"]).choice(LESSONS)


def quick_is(quick):
    """Every lesson; `make test` takes this one."""
    return [pytest.param(name, marks=() if name == quick else pytest.mark.slow) for name in LESSONS]


@pytest.fixture(scope="module", params=quick_is(FIRST))
def lesson(lab, request):
    """A lesson after Run All; it is run once for all tests."""
    page = NotebookPage(lab, f"notebooks/{request.param}.ipynb")
    page.run_all()
    yield page
    page.close()


def test_a_lesson_runs_to_its_end(lesson, request, screenshots):
    assert lesson.errors() == []
    assert lesson.not_run() == []
    for theme in ("Light", "Dark") if screenshots else ():
        use_theme(lesson.lab, f"JupyterLab {theme}")
        name = request.node.callspec.params["lesson"]
        lesson.keep_picture(screenshots / f"{name}_{theme.lower()}.png")
    use_theme(lesson.lab, "JupyterLab Light")


@pytest.mark.parametrize("name", quick_is(DRAWN))
def test_every_formula_of_a_lesson_is_set(notebook, name):
    opened = notebook(f"notebooks/{name}.ipynb")
    written = [text for text in opened.texts() if "$" in text]
    shown, left = opened.formulas(at_least=len(written))
    assert left == []
    assert shown >= len(written)


ASLEEP = {
    "stages a rank v": "of schedules that interleave; lesson 11 begins with GPipe",
    "which stage": "takes longer: none does at first",
}
"""Sliders that have nothing to say before another control is moved, and why."""


def test_every_slider_of_a_lesson_moves_its_picture(lesson):
    """From the state in which the lesson shows its lab."""
    for number in [n for n, source in enumerate(lesson.sources()) if "_lab(" in source]:
        # JupyterLab makes the page's cells as they come into sight.
        lesson.ask("panel.content.scrollToItem(argument)", number)
        lesson.outputs(number).locator(".widget-slider").first.wait_for()
        for slider in lesson.sliders(number):
            if lesson.label_of(slider) in ASLEEP:
                continue
            before, share = lesson.pictures(number), lesson.slider_share(slider)
            lesson.drag_slider(slider, 0.1 if share > 0.5 else 0.9)
            lesson.wait_for_another_picture(number, before)
            lesson.drag_slider(slider, share)  # else the next may have nothing to say
            lesson.wait_for_the_picture_again(number, before)


@pytest.mark.parametrize("lesson", [FIRST], indirect=True)
def test_lesson_00_takes_any_guess(lesson):
    number = lesson.find("counter += rank")
    source = lesson.sources()[number]
    for guess in ("106", "100"):  # a wrong one and the right one: nobody reads it but you
        lesson.type_into(number, source.replace("guess = None", f"guess = {guess}"))
        lesson.run(number)
        assert lesson.errors() == []
        assert "here counter is 100" in lesson.text_of(number)

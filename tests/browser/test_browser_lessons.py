"""Lessons in a real browser: Run All to the end, guesses, and sliders that move their pictures."""

import pytest
from lab_server import ROOT
from notebook_page import use_theme

LESSONS = [path.stem for path in sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))]


def runs_to_its_end(page):
    page.run_all()
    assert page.errors() == []
    assert page.not_run() == []


def test_lesson_00_runs_to_its_end_and_takes_any_guess(notebook):
    page = notebook("notebooks/00_start_here.ipynb")
    runs_to_its_end(page)
    number = page.find("counter += rank")
    source = page.sources()[number]
    for guess in ("106", "100"):  # a wrong one and the right one: nobody reads it but you
        page.type_into(number, source.replace("guess = None", f"guess = {guess}"))
        page.run(number)
        assert page.errors() == []
        assert "here counter is 100" in page.text_of(number)


@pytest.mark.long
@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_runs_to_its_end_and_its_sliders_move_their_pictures(name, notebook, screenshots):
    page = notebook(f"notebooks/{name}.ipynb")
    runs_to_its_end(page)
    for theme in ("Light", "Dark") if screenshots else ():
        use_theme(page.lab, f"JupyterLab {theme}")
        page.keep_picture(screenshots / f"{name}_{theme.lower()}.png")
    use_theme(page.lab, "JupyterLab Light")
    for number in range(len(page.sources())):
        for slider in page.sliders(number):
            before = page.pictures(number)
            page.drag_slider(slider, 0.1 if page.slider_share(slider) > 0.5 else 0.9)
            page.wait_for_another_picture(number, before)

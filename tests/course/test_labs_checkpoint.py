"""The checkpoint lab: its curve and points against a run told step by step, and its words."""

from __future__ import annotations

import numpy as np
import pytest
from lab_pictures import words_of

from simlib import labs, scale
from simlib.course.labs.training_runs import LIVES, POINTS, duration_text, lives

YEAR_S = 365 * 86_400


def test_the_points_lie_around_the_curve():
    """The mean of the 400 lives of a machine, at five intervals, within 5 standard errors."""
    machine_s, save_s, restart_s = 1_000.0, 20.0, 50.0
    for interval_s in (40.0, 100.0, 190.0, 400.0, 900.0):
        drawn = lives(np.full(POINTS, interval_s), machine_s, save_s, restart_s)
        expected = scale.goodput(interval_s, save_s, machine_s, restart_s=restart_s)
        assert abs(drawn.mean() - expected) < 5 * drawn.std() / np.sqrt(drawn.size)


def lived(between_s, interval_s, save_s, restart_s):
    """A life told piece by piece: the goodput of one machine with these times between failures."""
    work_s = 0.0
    for until_failure_s in between_s:
        now_s = restart_s
        while now_s + interval_s + save_s <= until_failure_s:
            now_s += interval_s + save_s
            work_s += interval_s
    return work_s / sum(between_s)


def test_a_life_is_what_happens_piece_by_piece():
    between_s = 500 * np.random.default_rng(14).exponential(size=(POINTS, LIVES, 40))
    interval_s = np.linspace(10.3, 700.7, POINTS)
    drawn = lives(interval_s, 500, 7.7, 33.3)
    for place, life in ((0, 0), (7, 3), (24, 15)):
        found = lived(between_s[place, life].tolist(), interval_s[place], 7.7, 33.3)
        assert drawn[place, life] == pytest.approx(found)


def test_the_curve_and_the_upright_lines_are_those_of_scale():
    figure = labs.draw_checkpoint(10_000, 5 * YEAR_S, 60, 300)
    points, curve, *upright = figure.axes[0].lines
    assert len(points.get_xdata()) == POINTS * LIVES
    expected = scale.goodput(curve.get_xdata(), 60, 5 * YEAR_S, 10_000, restart_s=300)
    assert curve.get_ydata() == pytest.approx(expected)
    for line, formula in zip(upright, ("young", "daly"), strict=True):
        wanted_s = scale.checkpoint_interval(60, 5 * YEAR_S, 10_000, formula=formula)
        assert line.get_xdata()[0] == pytest.approx(wanted_s)
    best_s = curve.get_xdata()[curve.get_ydata().argmax()]
    assert wanted_s == pytest.approx(best_s, rel=0.04)  # as fine as the curve is drawn


def test_the_title_says_what_is_left_and_where_the_rest_goes():
    words = words_of(labs.draw_checkpoint(10_000, 5 * YEAR_S, 60, 300))
    assert "10,000 ranks: a failure every 4.38 h; save every 22.3 min: goodput 89.8%" in words
    assert "Daly 22.3 min: 89.80%; Young 22.9 min: 89.80%" in words
    assert "saving 4.0%, restarts 1.9%, done again 4.3%" in words


def test_both_intervals_are_in_the_picture_wherever_sliders_stand():
    lab = labs.checkpoint_lab()
    ends = [(c.options[0][1], c.options[-1][1]) for c in lab.controls.values()]
    for state in np.array(np.meshgrid(*ends)).T.reshape(-1, 4).tolist():
        state[0] = int(state[0])
        figure = labs.draw_checkpoint(*state)
        low, high = figure.axes[0].get_xlim()
        for line in figure.axes[0].lines[-2:]:
            assert low < line.get_xdata()[0] < high, state


@pytest.mark.parametrize(
    "time_s, text",
    [(0, "0 s"), (0.5, "500 ms"), (12, "12 s"), (90, "1.5 min"), (7200, "2 h"), (86_400, "1 day"),
     (YEAR_S, "1 year"), (5 * YEAR_S, "5 years")],
)  # fmt: skip
def test_durations_have_the_units_of_people(time_s, text):
    assert duration_text(time_s) == text

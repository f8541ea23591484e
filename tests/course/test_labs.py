"""Labs of few ranks: what their pictures hold, and how their sliders work."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from carry import carried
from lab_pictures import words_of
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from sampled import sampled

import simlib
from simlib import labs
from simlib.core.collectives import schedule
from simlib.core.draw.palette import rank_color
from simlib.core.model.errors import InvalidCallError
from simlib.course.labs import break_even, message_sizes, rounds, sliders
from simlib.course.labs.rounds import steps_of
from simlib.course.labs.sliders import Layers
from simlib.course.labs.world_sizes import _together
from simlib.scale import time_of

LATENCY_S, BANDWIDTH_BPS = 30e-6, 1.25e9
SIZES = [4 * 4**k for k in range(11)]
POINTS = [(nbytes, LATENCY_S + nbytes / BANDWIDTH_BPS) for nbytes in SIZES]
ALGORITHMS = list(rounds.NAMES)


def png_of(figure):
    """The figure as PNG bytes, written as a lab writes them."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return sliders._png(canvas)


def work_and_tell(rank, world_size):
    """Rank 0 tells all others, one after the other."""
    simlib.compute(seconds=1e-3)
    x = torch.zeros(100_000)
    if rank == 0:
        for dst in range(1, world_size):
            dist.send(x, dst=dst)
    else:
        dist.recv(x, src=0)


@pytest.fixture(scope="module")
def runs():
    return labs.simulate_sizes(work_and_tell, (2, 3, 4), slow=(1, 3))


def test_a_state_that_was_drawn_is_not_drawn_again():
    class Counted(Layers):
        backgrounds, foregrounds = [], []

        def background_state(self, n):
            return (n,)

        def background(self, n):
            self.backgrounds.append(n)
            return labs.draw_rounds(n=n)

        def foreground(self, figure, n):
            self.foregrounds.append(n)
            return [figure.text(0, 0.5, str(n))]

    lab = sliders.Lab(Counted(), {"n": sliders.slider("n", (2, 3, 4)).widget(2)})
    for value in (3, 2, 3):
        lab.controls["n"].value = value
    assert Counted.backgrounds == Counted.foregrounds == [2, 3]
    lab.draw_ahead("n")
    lab.controls["n"].value = 4
    assert Counted.backgrounds == Counted.foregrounds == [2, 3, 4]


def test_a_background_that_comes_again_is_clean():
    lab = labs.rounds_lab("ring", 3, 1)
    for name, value in (("n", 4), ("rounds_done", 2), ("n", 3)):
        lab.controls[name].value = value
    assert lab.image.value == png_of(labs.draw_rounds("ring", 3, 2))


def test_round_numbers_are_those_people_type():
    assert sliders.round_numbers(5e-7, 2e-6) == [5e-7, 6e-7, 8e-7, 1e-6, 1.2e-6, 1.5e-6, 2e-6]


def test_a_slider_has_room_for_a_value_between_its_own():
    slider = sliders.slider("size", (1, 2, 4), "{} B".format).widget(3)
    assert slider.value == 3
    assert slider.options == (("1 B", 1), ("2 B", 2), ("3 B", 3), ("4 B", 4))


# ---- ping-pong


def test_the_fit_finds_what_was_put_in_and_stays_above_zero():
    assert labs.fit_ping_pong(POINTS) == pytest.approx((LATENCY_S, BANDWIDTH_BPS))
    latency_s, bandwidth_Bps = labs.fit_ping_pong([(4, 2e-5), (4000, 1e-5)])
    assert latency_s > 0 and bandwidth_Bps > 0
    assert labs.fit_ping_pong([(4, 1e-9), (8, 1e-3)])[0] > 0


def test_the_ping_pong_says_what_its_message_is_made_of():
    words = words_of(labs.draw_ping_pong(POINTS, 10e-6, 1e9, 30_000))
    assert "T = 10 us + nbytes / (1 GB/s)" in words
    assert "30 kB: 10 us latency + 30 us for its bytes = 40 us; uses 75% of the bandwidth" in words
    assert "= 10 kB" in words  # n_1/2


def test_the_half_bandwidth_size_is_marked_where_it_is():
    axes = labs.draw_ping_pong(POINTS).axes[0]
    dashed = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert [line.get_xdata()[0] for line in dashed] == pytest.approx([LATENCY_S * BANDWIDTH_BPS])
    axes = labs.draw_ping_pong(POINTS, 1.0, 1e11).axes[0]  # far outside of the picture
    assert not [line for line in axes.lines if line.get_linestyle() == "--"]


@pytest.mark.parametrize("half", [3, 1e3, 1e5, 1.9e7])
def test_the_name_of_the_half_bandwidth_size_is_not_cut(half):
    figure = labs.draw_ping_pong(POINTS, half / 1e9, 1e9)
    (text,) = figure.axes[0].texts
    box, room = text.get_window_extent(), figure.axes[0].get_window_extent()
    assert room.x0 <= box.x0 and box.x1 <= room.x1 and room.y0 <= box.y0 and box.y1 <= room.y1


def test_axes_of_the_ping_pong_stay_while_sliders_move():
    first, last = (
        labs.draw_ping_pong(POINTS, *state).axes[0] for state in ((5e-7, 1e7), (2e-3, 1e11))
    )
    assert (first.get_xlim(), first.get_ylim()) == (last.get_xlim(), last.get_ylim())


def test_the_error_of_the_model_is_told():
    twice = [(nbytes, 2 * time_s) for nbytes, time_s in POINTS]
    state = LATENCY_S, BANDWIDTH_BPS
    assert "point is 0% off" in words_of(labs.draw_ping_pong(POINTS, *state))
    assert "point is 50% off" in words_of(labs.draw_ping_pong(twice, *state))
    assert "point is 10 times off" in words_of(labs.draw_ping_pong(POINTS, 3e-4, 1.25e8))


# ---- rounds of an all_reduce


@pytest.mark.parametrize("n, algorithm", sampled(range(2, 9), ALGORITHMS))
def test_the_last_state_is_what_the_schedule_computes(algorithm, n):
    steps = steps_of(algorithm, n)
    plan = schedule("all_reduce", n, n << n.bit_length(), algorithm)
    own = np.repeat((1 << np.arange(n))[:, None], steps.chunks, axis=1)
    for done in range(len(plan.rounds) + 1):
        part = schedule("all_reduce", n, plan.nbytes, algorithm)
        object.__setattr__(part, "rounds", plan.rounds[:done])
        as_bits = (steps.held[done] * (1 << np.arange(n))).sum(axis=2)
        assert np.array_equal(as_bits, carried(part, own))
    assert steps.held[-1].all()
    assert steps.sent[-1] * plan.nbytes == pytest.approx(plan.bytes_sent)


def test_a_ring_ends_on_the_bound():
    for n in range(2, 9):
        assert steps_of("ring", n).sent[-1] == pytest.approx([2 * (n - 1) / n] * n)


def slots_of(figure):
    """The coloured slots of all cells: their fill colours."""
    slots = figure.axes[0].collections[0]
    return [to_hex(color) for color in slots.get_facecolors()]


def test_cells_show_whose_contributions_are_in_them():
    assert len(slots_of(labs.draw_rounds("ring", 4, 0))) == 4 * 4
    assert len(slots_of(labs.draw_rounds("ring", 4, 1))) == 4 * 4 + 4  # one more on each rank
    colors = slots_of(labs.draw_rounds("ring", 4, 6))
    assert len(colors) == 4 * 4 * 4
    assert set(colors) == {rank_color(rank).lower() for rank in range(4)}


def arrows_of(algorithm, n, rounds_done):
    """The arrows of a picture: (x, row of the tail, row of the head)."""
    axes = labs.draw_rounds(algorithm, n, rounds_done).axes[0]
    points = [drawn for drawn in axes.collections if drawn.get_zorder() == 5]
    if not points:
        return []
    _, heads, tails = points
    grid = rounds.Grid(steps_of(algorithm, n))
    rows = [grid.middle(rank) for rank in range(n)]

    def row(y):
        return int(np.argmin(np.abs(np.array(rows) - y)))

    tips = [path.vertices[0] for path in heads.get_paths()]
    return [
        (round(x, 6), row(y), row(tip))
        for (x, y), (_, tip) in zip(tails.get_offsets(), tips, strict=True)
    ]


@pytest.mark.parametrize(
    "algorithm, n, messages",
    [
        ("ring", 4, {(0, 1), (1, 2), (2, 3), (3, 0)}),
        ("naive", 4, {(1, 0)}),
        ("binomial", 5, {(1, 0), (3, 2)}),
        ("recursive_doubling", 4, {(0, 1), (1, 0), (2, 3), (3, 2)}),
        ("rabenseifner", 4, {(0, 1), (1, 0), (2, 3), (3, 2)}),
    ],
)
def test_arrows_are_the_messages_of_the_round(algorithm, n, messages):
    assert arrows_of(algorithm, n, 0) == []
    arrows = arrows_of(algorithm, n, 1)
    assert {(src, dst) for _, src, dst in arrows} == messages
    assert len(arrows) == len(messages)


@pytest.mark.parametrize("algorithm, n", sampled(ALGORITHMS, (4, 7, 8)))
def test_arrows_keep_apart(algorithm, n):
    for done in range(1, len(steps_of(algorithm, n).rounds) + 1):
        columns = sorted(x for x, _, _ in arrows_of(algorithm, n, done))
        assert all(np.diff(columns) > 0.1), f"inches, round {done}"


def test_the_rounds_say_where_they_are_and_what_was_sent():
    words = words_of(labs.draw_rounds("ring", 4, 2))
    assert "all_reduce on 4 ranks by ring: after round 2 of 6; what came was added" in words
    assert "2(n-1)/n = 1.5" in words and "| 0.5 |" in words
    assert "after round 4 of 6; what came was put in place" in words_of(
        labs.draw_rounds("ring", 4, 4)
    )
    assert "before the first of 6 rounds" in words_of(labs.draw_rounds("ring", 4, 0))


def test_a_change_of_algorithm_or_ranks_keeps_the_round_where_it_can():
    lab = labs.rounds_lab("ring", 8, 14)
    lab.controls["n"].value = 4
    assert (lab.controls["rounds_done"].max, lab.controls["rounds_done"].value) == (6, 6)
    lab.controls["algorithm"].value = "recursive_doubling"
    assert (lab.controls["rounds_done"].max, lab.controls["rounds_done"].value) == (2, 2)
    lab.controls["n"].value = 8
    assert (lab.controls["rounds_done"].max, lab.controls["rounds_done"].value) == (3, 2)
    shown = png_of(labs.draw_rounds("recursive_doubling", 8, 2))
    assert lab.image.value == shown


# ---- algorithm against size and ranks


@pytest.mark.parametrize(
    "nodes, ranks_per_node", [(2, 1), (6, 1), (7, 1), (48, 1), (64, 1), (2, 2), (4, 8), (6, 4)]
)
def test_curves_are_those_of_the_cost_model(nodes, ranks_per_node):
    """Only two sizes of each are worked out: all others lie on the same line."""
    intra = simlib.Link(5e-6, 150e9) if ranks_per_node > 1 else None
    cluster = simlib.Cluster(nodes, ranks_per_node, simlib.Link(30e-6, 1.25e9), intra)
    n = cluster.max_ranks
    even = 4 * n << (n.bit_length() - 1)
    for algorithm, times_s in message_sizes.times_of(cluster).items():
        for factor in (1, 5, 77, 1000):
            exact_s = time_of("all_reduce", n, factor * even, cluster, algorithm)
            line = np.polynomial.Polynomial.fit(message_sizes.SIZES, times_s, 1)
            assert line(factor * even) == pytest.approx(exact_s, rel=1e-6), algorithm


def test_the_crossing_is_where_both_formulas_are_equal():
    # 2 (n-1) (L + N/(nB)) = lg n (L + N/B), solved for N
    n, lg = 8, 3
    nbytes = LATENCY_S * BANDWIDTH_BPS * (2 * (n - 1) - lg) / (lg - 2 * (n - 1) / n)
    times_s = message_sizes.times_of(simlib.Cluster(n, 1, simlib.Link(LATENCY_S, BANDWIDTH_BPS)))
    assert message_sizes.crossing(times_s, "ring", "recursive_doubling") == pytest.approx(nbytes)
    assert "ring = recursive doubling\nat 330 kB" in words_of(labs.draw_crossover())


def test_algorithms_that_never_cross_have_no_crossing():
    times_s = message_sizes.times_of(simlib.Cluster(2, 1, simlib.Link(LATENCY_S, BANDWIDTH_BPS)))
    assert message_sizes.crossing(times_s, "ring", "recursive_doubling") is None
    assert "ring = recursive doubling" not in words_of(labs.draw_crossover(2))


def test_the_strip_names_the_fastest_everywhere():
    times_s = message_sizes.times_of(simlib.Cluster(48, 1, simlib.Link(LATENCY_S, BANDWIDTH_BPS)))
    stretches = message_sizes.fastest(times_s)
    names = [name for name, _, _ in stretches]
    assert names == ["recursive_doubling", "rabenseifner", "ring"]
    assert stretches[0][1] == message_sizes.SIZES[0] and stretches[-1][2] == message_sizes.SIZES[-1]
    for (_, _, end), (_, start, _) in zip(stretches, stretches[1:], strict=False):
        assert end == start
    for name, start, end in stretches:
        inside = (message_sizes.SIZES > start) & (message_sizes.SIZES < end)
        least_s = np.min(list(times_s.values()), axis=0)
        assert times_s[name][inside] == pytest.approx(least_s[inside])


@pytest.mark.parametrize("n, bandwidth_Bps", [(8, 11880078496.738998), (32, 92016634849.77892)])
def test_equals_share_no_strip(n, bandwidth_Bps):
    """Without latency ring and Rabenseifner take equally long; rounding decides nothing."""
    times_s = message_sizes.times_of(simlib.Cluster(n, 1, simlib.Link(0, bandwidth_Bps)))
    assert len(message_sizes.fastest(times_s)) == 1


def test_nodes_with_several_ranks_have_the_hierarchical_one():
    def drawn(*state):
        return [text.get_text() for text in labs.draw_crossover(*state).axes[0].legend_.texts]

    assert "hierarchical" not in drawn(4, 1) and "hierarchical" in drawn(4, 8)
    assert "recursive doubling" in drawn(4, 8) and "recursive doubling" not in drawn(6, 8)
    assert "left out: no power of two" in words_of(labs.draw_crossover(6, 8))


# ---- world sizes


@pytest.mark.parametrize("cluster", [None, simlib.clusters.ethernet_1g(nodes=4)])
def test_a_replay_with_a_slow_rank_is_the_simulation_with_one(cluster):
    options = {"cluster": cluster, "sends": "eager"} if cluster else {}
    found = labs.simulate_sizes(work_and_tell, (2, 4), slow=(1, 2), **options)
    assert list(found) == [(2, 1), (2, 2), (4, 1), (4, 2)]
    for (size, slow), run in found.items():
        simulated = simlib.simulate(work_and_tell, size, slow={0: slow}, **options)
        assert run.time_s == pytest.approx(simulated.time_s, rel=1e-9)


def test_a_timeline_has_the_time_and_the_ends_of_all_sizes(runs):
    figure = labs.draw_world_size(runs, 4, 3)
    message_s = 30e-6 + 400_000 / 1.25e9
    assert f"work_and_tell on 4 ranks, rank 0 takes 3 x as long: {3 + 3e3 * message_s:.3g} ms" in (
        words_of(figure)
    )
    lanes, strip = figure.axes
    assert [label.get_text() for label in lanes.get_yticklabels()] == [
        f"rank {rank}" for rank in range(4)
    ]
    assert lanes.get_xlim() == strip.get_xlim()
    marks = [line.get_xdata()[0] for line in strip.lines if line.get_marker() == "D"]
    assert marks == pytest.approx([3 + (n - 1) * 1e3 * message_s for n in (2, 3, 4)])
    limits = {labs.draw_world_size(runs, size, 1).axes[0].get_xlim() for size in (2, 3, 4)}
    assert len(limits) == 1  # ranks slide on one axis


def test_sizes_that_end_together_share_a_mark():
    ends_s = {2: 1.0, 3: 2.0, 4: 2.0, 5: 2.01, 6: 3.0}
    assert _together(ends_s, 0.1) == [([2], 1.0), ([3, 4, 5], 2.0), ([6], 3.0)]


def test_without_slow_runs_there_is_no_slider_for_them():
    lab = labs.world_size_lab(labs.simulate_sizes(work_and_tell, (2, 3), slow=(2,)), 2, 2)
    assert list(lab.controls) == ["world_size"]
    lab.controls["world_size"].value = 3


@pytest.mark.parametrize(
    "state, sentence",
    [
        ((5,), "world_size is 5: choose one of 2, 3, 4"),
        ((3, 7), "slow is 7: choose one of 1, 3"),
    ],
)
def test_a_run_that_is_not_there_is_refused(runs, state, sentence):
    for function in (labs.draw_world_size, labs.world_size_lab):
        with pytest.raises(InvalidCallError, match=sentence):
            function(runs, *state)


def test_sizes_that_cannot_be_simulated_are_refused():
    with pytest.raises(InvalidCallError, match="at least one value of sizes"):
        labs.simulate_sizes(work_and_tell, ())
    with pytest.raises(InvalidCallError, match="slow is 0: give a number above 0"):
        labs.simulate_sizes(work_and_tell, (2,), slow=(0,))
    with pytest.raises(InvalidCallError, match="world_size=0 is not possible"):
        labs.simulate_sizes(work_and_tell, (0,))


# ---- break-even


OURS = {"ring": "ring", "tree": "binomial", "linear": "naive"}


@pytest.mark.parametrize("ours, ranks", sampled(OURS, (2, 3, 7, 8, 64, 1000)))
def test_synchronisation_takes_what_the_cost_model_says(ours, ranks):
    nbytes = 4000 * ranks
    cluster = simlib.Cluster(ranks, 1, simlib.Link(LATENCY_S, BANDWIDTH_BPS))
    modelled_s = time_of("all_reduce", ranks, nbytes, cluster, OURS[ours])
    own_s = break_even.sync_s(ours, ranks, nbytes, LATENCY_S, BANDWIDTH_BPS)
    assert own_s == pytest.approx(modelled_s, rel=1e-9)


@pytest.mark.parametrize("overlap", ["none", "backward"])
@pytest.mark.parametrize("scaling", ["weak", "strong"])
def test_with_the_needed_compute_ranks_have_that_efficiency(scaling, overlap):
    on = np.arange(2, 50)
    for efficiency in (1 / on, 0.5, 0.9):
        needed_s = break_even.needed_compute_s(efficiency, 0.3, on, scaling, overlap)
        gains = break_even.speedup(needed_s, 0.3, on, scaling, overlap)
        assert gains == pytest.approx(efficiency * on, rel=1e-12)


def test_overlap_is_the_one_of_the_cost_model():
    """One bucket would wait for all of backward; small buckets come close to the maximum."""
    cluster = simlib.Cluster(8, 1, simlib.Link(0.0, 1e9))
    for compute_s, nbytes in ((0.3, 8e6), (0.003, 8e7)):
        step = simlib.scale.step_time(
            nbytes, 8, cluster, forward_s=compute_s / 3, backward_s=compute_s * 2 / 3,
            bucket_bytes=nbytes // 1000,
        )  # fmt: skip
        synced_s = break_even.sync_s("ring", 8, nbytes, 0.0, 1e9)
        gain = break_even.speedup(compute_s, synced_s, 8, overlap="backward")
        assert gain == pytest.approx(8 * compute_s / step.time_s, rel=2e-3)


def test_the_point_of_the_map_is_taken_apart_in_words():
    words = words_of(labs.draw_break_even(1.5, 1e9, 1e-9, 1e9, 8, "linear"))
    assert "8 ranks, linear, weak scaling: by the model 0.774 x one rank, efficiency 10%" in words
    assert "T_sync / T_comp = 9.33, not below R - 1 = 7" in words
    assert "nothing pays: no R up to 1,024" in words
    words = words_of(labs.draw_break_even(1.5, 1e9, 1e-9, 1e9, 8, "ring"))
    assert "3.69 x one rank" in words and "pays from R = 2 to 1,024 and beyond" in words
    words = words_of(labs.draw_break_even(1.5, 1e9, 1e-9, 1e9, 8, "tree"))
    assert "pays for most R from 4 to 1,024" in words
    words = words_of(labs.draw_break_even(1.5, 1e9, 1e-9, 1e9, 8, "linear", "strong"))
    assert "not below 1 - 1/R = 0.875" in words


def test_the_thick_line_of_the_map_is_the_break_even():
    axes = labs.draw_break_even(0.18, 1e8, 30e-6, 1.25e9).axes[0]
    (thick,) = (line for line in axes.lines if line.get_linewidth() == 2)
    on, edge_s = thick.get_data()
    synced_s = break_even.sync_s("ring", on, 1e8, 30e-6, 1.25e9)
    assert edge_s == pytest.approx(synced_s / (on - 1), rel=1e-12)

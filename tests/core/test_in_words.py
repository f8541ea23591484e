"""Pictures in words: who waits for whom, how long, and what was sent, as the trace has it."""

import pytest
import torch
import torch.distributed as dist
from kernel_client import kernel_with
from matplotlib.figure import Figure
from synthetic import RunMaker

import simlib
from simlib.core.draw.figures import Picture, figure_in_words
from simlib.core.draw.player.scene import scene_of
from simlib.core.draw.text import MAX_WAITS, comparison_in_words


def late(rank, world_size):
    """Rank 0 sends after 200 ms; then the last rank works longest."""
    if rank == 0:
        simlib.compute(0.2)
        for dst in range(1, world_size):
            dist.send(torch.ones(dst), dst=dst)
    else:
        dist.recv(torch.empty(rank), src=0)
        with simlib.span("F"):
            simlib.compute(0.01 * rank)
    dist.all_reduce(torch.ones(1000))


def circle(rank, world_size):
    dist.recv(torch.empty(1), src=(rank + 1) % world_size)


def ends_early(rank, world_size):
    if rank:
        dist.broadcast(torch.ones(1), src=0)


def failed(function, world_size):
    with pytest.raises(simlib.SimlibError) as caught:
        simlib.simulate(function, world_size)
    return caught.value.run


def line(function, number):
    """Where the line of a function is, its own first one being 1."""
    return f"(test_in_words.py, line {function.__code__.co_firstlineno + number - 1})"


@pytest.fixture(scope="module")
def run():
    return simlib.simulate(late, 4)


def test_a_run_says_who_waits_for_whom_and_what_was_sent(run):
    words = run.in_words()
    recv, reduce = line(late, 8), line(late, 11)
    for part in (
        "late on 4 simulated ranks over 230 ms.",
        f"Ranks 1, 2 and 3 wait for rank 0 in recv {recv}. Rank 3 waits longest: 200 ms.",
        f"Ranks 0, 1 and 2 wait for rank 3 in all_reduce {reduce}. Rank 0 waits longest: 30 ms.",
        "3 messages; the largest is 12 B.",
        "Collectives: 1 all_reduce, of at most 4 kB.",
        "Pieces of work: 3 x F.",
    ):
        assert part in words


def test_a_part_of_a_run_is_told_alone(run):
    words = run.timeline(ranks=iter([2, 1]), between=(0.1, 0.2)).in_words()
    assert "Shown: ranks 1 and 2, 100 ms to 200 ms." in words
    assert "Rank 1 waits longest: 100 ms" in words and "2 messages" not in words
    assert "all_reduce" not in words and "rank 3" not in words


def test_one_rank_that_waits_is_told_with_its_time_and_of_many_waits_the_longest():
    assert "No rank waits for long. No rank ever communicated." in RunMaker(2).run().in_words()
    maker = RunMaker(2)
    maker.send(0, 1, 60, 60, 62, numel=1000)
    maker.recv(1, 0, 10, 10, 62, numel=1000)
    words = maker.run().in_words()
    assert "Rank 1 waits 50 us for rank 0 in recv (main, line 1)." in words
    assert "communicated" not in words
    assert words.endswith("1 message of 4 kB.")
    maker = RunMaker(2)
    for number in range(6):
        begin, end = 15 * number, 15 * number + 5 + number
        maker.recv(1, 0, begin, begin, end, line=number)
        maker.send(0, 1, end, end, end)
    words = maker.run().in_words()
    assert words.count("waits ") == MAX_WAITS and "leaves out 3 more waits." in words
    assert "waits 10 us for rank 0 in recv (main, line 5)" in words


def test_waits_for_two_things_at_once_count_once():
    maker = RunMaker(2)
    for posted in (5, 8):
        maker.send(0, 1, 60, 60, 62, numel=1000)
        maker.recv(1, 0, posted, 10, 62, numel=1000)
    run = maker.run()
    assert "Rank 1 waits 50 us for rank 0 in recv" in run.in_words()
    assert run.states.waiting_s[1] == pytest.approx(50e-6)


def test_a_deadlock_says_who_waits_for_ever():
    run = failed(circle, 3)
    assert "The run failed: 3 ranks wait in a ring: 0 for 1, 1 for 2, 2 for 0." in run.in_words()
    assert f"Rank 0 waits forever for rank 1 in recv {line(circle, 2)}." in run.in_words()
    assert run.graph.in_words().startswith("Who waits for whom: rank 0 waits for rank 1: recv")
    assert run.graph.picture().in_words() == run.graph.in_words()


def test_who_never_came_to_a_collective_is_named_and_a_message_nobody_received_told():
    words, where = failed(ends_early, 3).in_words(), line(ends_early, 3)
    assert f"Ranks 1 and 2 wait forever for rank 0 in broadcast {where}." in words

    def leaves(rank, world_size):
        if rank == 0:
            dist.isend(torch.ones(1), dst=1)

    words = simlib.simulate(leaves, 2).in_words()
    assert (
        "1 message of 4 B. Messages that no rank received: 1." in words and "found this: " in words
    )


def test_a_comparison_tells_what_differs_first(run):
    words = simlib.compare({"one": run, "other": simlib.simulate(late, 4)}).in_words()
    assert "4 of 4 kinds occur equally often in all runs." in words
    rows = [("all_reduce, 4 B", (1, 1), True), ("message, 8 B", (0, 3), False)]
    told = comparison_in_words(("one", "other"), rows)
    assert "in one and other. 1 of 2 kinds occur" in told
    assert told.index("message, 8 B: 0 and 3.") < told.index("all_reduce, 4 B: 1 and 1.")


def test_other_figures_say_what_their_axes_are_called(run):
    assert run.heat_map().in_words() == (
        "A figure. src (rank) over dst (rank). sent point-to-point (B)."
    )
    assert figure_in_words(Picture()) == "A figure."
    figure = Figure()  # as pyplot makes it
    figure.words = "Two timelines."
    assert figure_in_words(figure) == "Two timelines."


def test_player_and_picture_say_the_same(run):
    data, metadata = run.play()._repr_mimebundle_()
    assert metadata["image/png"]["alt"] == scene_of(run)["words"] == run.in_words()
    assert run.in_words() not in data["text/plain"]


def test_a_notebook_keeps_them_beside_each_picture():
    setup = "import simlib\nrun = simlib.simulate(lambda rank, world_size: None, 2)"
    with kernel_with(setup=setup) as kernel:
        kernel.cell("show = get_ipython().display_formatter.format")
        for thing in ("run", "run.timeline()", "run.heat_map()", "simlib.compare([run, run])"):
            kernel.cell(
                f"thing = {thing}\ndata, metadata = show(thing)\n"
                "assert isinstance(data['image/png'], (bytes, str)) and data['text/plain']\n"
                "assert metadata['image/png']['alt'] == thing.in_words() != ''"
            )
        kernel.cell(
            "import matplotlib.pyplot as plt\nfigure, axes = plt.subplots()\n"
            "axes.set(xlabel='steps', ylabel='loss')\n"
            "assert show(figure)[1]['image/png']['alt'] == 'A figure. loss over steps.'"
        )

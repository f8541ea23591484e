"""Live curves: they appear, grow and end in the same form every time, whatever the ranks do."""

import contextlib
import os

import pytest
import torch
import torch.distributed as dist
from kernel_client import kernel_with
from torch.utils.tensorboard import SummaryWriter

import simlib
from simlib.core.diagnose.monitor import RankOutput
from simlib.core.draw.curves import Reader, picture_of
from simlib.core.draw.palette import OKABE_ITO, visible
from simlib.core.engines.session import _bar

SETUP = """
import os, sys, tempfile, threading
import simlib

folder = tempfile.mkdtemp()

def log(rank, world_size, folder, steps, end=None):
    if rank == 0:
        from torch.utils.tensorboard import SummaryWriter
        writer = SummaryWriter(folder, flush_secs=1)
        for step in range(steps):
            writer.add_scalar("loss", 1 / (1 + step), step)
        writer.flush()
        if end:
            end()
        writer.close()
"""
EMPTY = {"text/plain": "", "text/html": ""}


@pytest.fixture(scope="module")
def kernel():
    with kernel_with(setup=SETUP) as kernel:
        yield kernel


def kinds_of(displays):
    """What was displayed, in order: the same twice in a row counts once."""
    kinds = []
    for kind, data in displays:
        if data == EMPTY:
            name = "empty"
        else:
            name = "picture" if "image/png" in data else "live" if "<img" in str(data) else "text"
        if (kind, name) not in kinds[-1:]:
            kinds.append((kind, name))
    return kinds


def log_with(folder, points, name="loss"):
    with contextlib.closing(SummaryWriter(str(folder))) as writer:
        for step, value in points:
            writer.add_scalar(name, value, step)


def test_a_curve_appears_grows_and_ends_as_one_picture(kernel):
    # The block goes on until its reader has seen points, in two goes: no waiting for a time.
    code = """
import simlib.draw.curves
seen = threading.Event()
class Watched(simlib.draw.curves.Reader):
    def read(self):
        curves = super().read()
        if any(len(points) >= 3 for points in curves.get("loss", {}).values()):
            shown_before.append(curves)
        if len(shown_before) >= 2:
            seen.set()
        return curves
shown_before = []
simlib.draw.curves.Reader = Watched
with simlib.live_curves(folder):
    simlib.run(log, 2, args=(folder, 3))
    assert seen.wait(60)
"""
    _, error, displays = kernel.finish(kernel.start(code))
    assert error is None, error
    kinds = kinds_of(displays)
    assert kinds[0] == ("display_data", "empty")
    assert ("update_display_data", "live") in kinds
    assert kinds[-2:] == [("update_display_data", "empty"), ("display_data", "picture")]


def test_nothing_logged_is_said_and_ranks_that_die_leave_what_they_logged(kernel):
    code = "with simlib.live_curves(tempfile.mkdtemp()):\n    pass"
    printed, error, displays = kernel.finish(kernel.start(code))
    assert (printed, error) == ("there are no curves, because no rank logged a value\n", None)
    assert all(data == EMPTY for _, data in displays)
    code = """
folder = tempfile.mkdtemp()
with simlib.live_curves(folder):
    simlib.run(log, 2, args=(folder, 3, lambda: os._exit(3)))
"""
    _, error, displays = kernel.finish(kernel.start(code))
    assert "rank 0 exited with code 3" in error
    assert ("display_data", "picture") in kinds_of(displays)
    threads = kernel.cell("print([t.name for t in threading.enumerate() if 'curves' in t.name])")
    assert threads == "[]\n"


def test_a_progress_bar_that_is_wiped_out_leaves_no_line(kernel):
    code = """
def bar(rank, world_size):
    from tqdm import tqdm
    for _ in tqdm(range(3), leave=False, disable=rank > 0):
        pass
    print("done")
run = simlib.run(bar, 2)
"""
    assert kernel.cell(code) == "[0] done\n[1] done\n"
    only_a_bar = code.replace('    print("done")\n', "")
    assert kernel.cell(only_a_bar) == ""


def test_each_folder_is_a_run_and_each_name_a_panel(tmp_path):
    log_with(tmp_path / "slow", [(1, 2.0), (2, 1.5)])
    log_with(tmp_path / "fast", [(1, 2.0), (2, 0.5)])
    log_with(tmp_path / "fast", [(2, 0.9)], name="accuracy")
    picture = simlib.draw_curves(tmp_path)
    accuracy, loss = picture.axes
    assert (accuracy.get_title(), loss.get_title()) == ("accuracy", "loss")
    lines = {line.get_label(): line.get_xydata().tolist() for line in loss.get_lines()}
    assert lines == {"fast": [[1, 2], [2, 0.5]], "slow": [[1, 2], [2, 1.5]]}
    (legend,) = picture.legends  # above the panels: within, it lay on the lines
    assert [text.get_text() for text in legend.get_texts()] == ["slow", "fast"]
    assert accuracy.get_legend() is None and loss.get_legend() is None


def colors_of(picture):
    """``{panel: {run: colour}}`` of a picture."""
    return {
        axes.get_title(): {line.get_label(): line.get_color() for line in axes.get_lines()}
        for axes in picture.axes
    }


def test_a_run_has_one_colour_in_all_panels_and_keeps_it_while_others_come(tmp_path):
    reader, seen = Reader(tmp_path), []
    for run, names in (("m", ["loss", "accuracy"]), ("z", ["loss"]), ("a", ["loss", "accuracy"])):
        for name in names:
            log_with(tmp_path / run, [(1, 2.0), (2, 1.5)], name)
        seen.append(colors_of(picture_of(reader.read(), reader.runs)))
    first, second, last = map(visible, OKABE_ITO[:3])
    assert seen[0] == {"loss": {"m": first}, "accuracy": {"m": first}}
    assert seen[1] == {"loss": {"m": first, "z": second}, "accuracy": {"m": first}}
    assert seen[2] == {
        "loss": {"m": first, "z": second, "a": last},
        "accuracy": {"m": first, "a": last},
    }
    assert colors_of(simlib.draw_curves(tmp_path)) == seen[2]


def test_points_are_marked_where_a_run_has_few_of_them_however_long_it_grows(tmp_path):
    for count in (4, 40):
        log_with(tmp_path / str(count), [(step, 1.0) for step in range(count)])
        log_with(tmp_path / str(count), [(0, 0.5), (count - 1, 0.9)][: count // 4], "accuracy")
    accuracy, loss = simlib.draw_curves(tmp_path, x="examples").axes
    assert [line.get_marker() for line in accuracy.get_lines()] == ["o", "o"]
    assert [line.get_marker() for line in loss.get_lines()] == ["None", "None"]
    assert accuracy.get_xlabel() == loss.get_xlabel() == "examples"


def test_what_is_logged_later_is_read_later(tmp_path):
    reader = Reader(tmp_path)
    assert reader.read() == {}
    with contextlib.closing(SummaryWriter(str(tmp_path))) as writer:
        for step in range(3):
            writer.add_scalar("loss", 1.0, step)
            writer.flush()
            assert len(reader.read()["loss"]["."]) == step + 1


def test_an_empty_folder_has_no_picture_and_outside_a_notebook_the_block_just_runs(
    tmp_path, capsys
):
    with pytest.raises(FileNotFoundError, match="contains no curve"):
        simlib.draw_curves(tmp_path)
    with simlib.live_curves(tmp_path):
        print("inside")
    assert capsys.readouterr().out == "inside\n"


def test_a_bar_is_the_line_a_rank_is_in_the_middle_of():
    output = RankOutput()
    output.add(b"a line\n in the middle")
    assert _bar(output.unfinished) == ""
    output.add(b"\r 10%")
    output.add(b"\r 20%")
    assert _bar(output.unfinished) == " 20%"
    output.add(b"\r100%\n")
    assert _bar(output.unfinished) == ""


def test_a_rank_that_showed_a_bar_serves_again():
    def bar(rank, world_size):
        from tqdm import tqdm

        list(tqdm(range(3), leave=False))
        return os.getpid()

    assert simlib.run(bar, 2).results == simlib.run(bar, 2).results


def test_a_deadlock_is_told_although_tensorboard_has_a_thread(tmp_path):
    def both_wait(rank, world_size):
        with contextlib.closing(SummaryWriter(str(tmp_path / str(rank)))):
            dist.recv(torch.zeros(1), src=1 - rank)

    with pytest.raises(simlib.DeadlockError) as caught:
        simlib.run(both_wait, 2, timeout_s=20)
    assert "20 s" not in str(caught.value)

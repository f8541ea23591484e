"""The player's data: what it shows of any run, what it leaves out and says so, what is packed."""

import gc
import json
import math
import re
import shutil
import subprocess
import sys
import weakref
import zipfile
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from synthetic import RunMaker, all_reduces, ring

import simlib
from simlib.core.draw.palette import rank_color
from simlib.core.draw.player import FOLDER, SCRIPTS, Player
from simlib.core.draw.player.scene import (
    MAX_BOXES,
    MAX_EVENTS,
    MAX_LANES,
    happenings,
    scene_of,
    thinned,
)

NO_TIME = (
    "between must be two times in seconds, the first smaller than the second. This run ends at "
    "0.000103 s"
)
ROOT = Path(__file__).resolve().parents[2]


def pass_on(rank, world_size):
    x = torch.full((3,), float(rank))
    if rank == 0:
        dist.send(x, dst=1, tag=5)
    elif rank == 1:
        dist.recv(x, src=0, tag=5)
    dist.all_reduce(x)


def all_receive(rank, world_size):
    dist.recv(torch.zeros(1), src=(rank + 1) % world_size)


def events(scene, row):
    return [event for event in scene["events"] if event["row"] == row]


@pytest.mark.parametrize("engine", [simlib.run, simlib.simulate])
def test_every_call_is_there_with_op_bytes_and_line(engine):
    run = engine(pass_on, world_size=3)
    scene = scene_of(run)
    calls = [[event["call"] for event in events(scene, row)] for row in range(3)]
    summed = "all_reduce(SUM)"
    assert calls == [["send(dst=1, tag=5)", summed], ["recv(src=0, tag=5)", summed], [summed]]
    sent = events(scene, 0)[0]
    assert sent["size"] == "12 bytes  float32[3]"
    assert sent["code"] == "dist.send(x, dst=1, tag=5)"
    assert re.fullmatch(r"test_player.py, line \d+", sent["place"])
    assert sent["post"] <= sent["end"] <= scene["end"]
    assert scene["title"] == f"pass_on on 3 {'real' if engine is simlib.run else 'simulated'} ranks"
    assert scene["clock"] == ("time" if engine is simlib.run else "virtual time")
    assert (scene["shown"], scene["total"], scene["notes"]) == (5, 5, [])
    # Messages lead from lane to lane, and collectives join lanes.
    (arrow,) = scene["arrows"]
    assert (arrow["src"], arrow["dst"], arrow["text"], arrow["wire"]) == (0, 1, "12 B", False)
    assert (arrow["start"], arrow["end"]) == (sent["post"], events(scene, 1)[0]["end"])
    (band,) = scene["bands"]
    assert [scene["events"][index]["row"] for index in band["events"]] == [0, 1, 2]
    assert band["text"] == "all_reduce(SUM)  12 B"
    assert json.dumps(scene) == json.dumps(Player(run).scene)


def test_lanes_have_the_states_of_the_timeline():
    maker = RunMaker(2)
    maker.send(0, 1, 10, 20, 60)
    maker.recv(1, 0, 30, 30, 60)
    first, second = scene_of(maker.run())["lanes"]
    parts = {"computing": (0, 100), "in a call": (10, 20), "waiting": (20, 30)}
    for name, (start, end) in {**parts, "transferring": (30, 60)}.items():
        assert first["states"][name] == [pytest.approx((start * 1e-6, end * 1e-6))]
    assert second["states"]["in a call"] == []
    assert [lane["color"] for lane in (first, second)] == [rank_color(0), rank_color(1)]


def test_the_wire_of_a_simulation_is_played_too_and_so_is_the_run_when_it_was_saved(tmp_path):
    run = simlib.simulate(pass_on, world_size=3, all_reduce="ring", expand=True)
    scene = scene_of(run)
    wires = [arrow for arrow in scene["arrows"] if arrow["wire"]]
    assert len(wires) == 12  # a ring on 3 ranks: 4 rounds of 3 messages
    assert scene["total"] == 5 + 12
    assert all(arrow["start"] < arrow["end"] for arrow in wires)
    again = simlib.load(run.save(tmp_path / "run.json"))
    assert scene_of(again) == scene
    assert again.trace == run.trace and again.wire == run.wire
    assert again.output == run.output and again.time_s == run.time_s


def test_a_run_that_failed_plays_until_it_stood_still():
    with pytest.raises(simlib.DeadlockError) as caught:
        simlib.run(all_receive, world_size=3)
    scene = Player(caught.value.run).scene
    assert [event["end"] for event in scene["events"]] == [None] * 3
    assert all(lane["open"] and lane["states"]["waiting"] for lane in scene["lanes"])
    maker = RunMaker(2)
    maker.send(0, 1, 10, 10, 12)
    assert [arrow["end"] for arrow in scene_of(maker.run())["arrows"]] == [None]


def test_what_is_no_saved_run_is_told_in_one_sentence(tmp_path):
    path = tmp_path / "other.json"
    for text in ('{"traceEvents": []}', "[]"):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"^other.json is neither a run that run.save\(\)"):
            simlib.load(path)


# What is left out, and the note that says so


def test_more_than_a_thousand_events_are_thinned_with_a_note():
    scene = scene_of(ring(4, 125))
    assert (scene["shown"], scene["total"], scene["notes"]) == (1000, 1000, [])
    run = ring(8, 200)
    scene = scene_of(run)
    assert scene["total"] == 3200 and 0.9 * MAX_EVENTS < scene["shown"] <= MAX_EVENTS
    assert scene["notes"][0].startswith(f"{scene['shown']:,} of 3,200 events are shown")
    assert len(scene["events"]) == scene["shown"]
    # Whole messages, of every rank, from the first to the last tenth of the run.
    assert all(len(arrow["events"]) == 2 for arrow in scene["arrows"])
    assert {arrow["src"] for arrow in scene["arrows"]} == set(range(8))
    tenths = {int(10 * event["post"] / scene["end"]) for event in scene["events"]}
    assert tenths == set(range(10))
    run = ring(8, 100)  # lanes show all of its time
    for rank, lane in enumerate(scene_of(run)["lanes"]):
        parts = lane["states"]["waiting"] + lane["states"]["transferring"]
        whole = sum(op.end_s - op.wait_s for op in run.trace.of_rank(rank))
        assert sum(end - start for start, end in parts) == pytest.approx(whole, rel=0.1)


def test_what_never_finished_is_never_thinned_away():
    maker = RunMaker(2)
    for step in range(2000):
        maker.collective("barrier", {rank: (step, step, step + 0.5) for rank in (0, 1)}, numel=0)
        if step == 700:
            maker.recv(1, 0, step + 0.6, step + 0.6, None)
    scene = scene_of(maker.run())
    assert scene["shown"] < scene["total"] == 4001
    assert [event["call"] for event in scene["events"] if event["end"] is None] == ["recv(src=0)"]


def test_sends_that_nobody_waited_for_are_thinned_evenly_and_leave_room_for_the_rest():
    run = isends(1500, received=True)
    times = [event["post"] / run.trace.end_s for event in scene_of(run)["events"]]
    assert 900 < len(times) <= MAX_EVENTS and longest_gap(times) < 0.01
    scene = scene_of(isends(1500, received=False))
    assert scene["shown"] <= MAX_EVENTS
    for called in ("isend", "barrier"):
        times = [e["post"] / scene["end"] for e in scene["events"] if called in e["call"]]
        assert longest_gap(times) < 0.02
    # The one call in which a rank stood is there, among 3,000 that never came about.
    assert [event["row"] for event in scene["events"] if "recv" in event["call"]] == [1]


def isends(count, received):
    """Rank 0 sends and never waits, both meet in barriers; rank 1 receives all, or waits for 7."""
    maker = RunMaker(2)
    for t in range(count):
        maker.send(0, 1, t, None, None, async_op=True)
        if received:
            maker.recv(1, 0, t, t, t + 0.5)
        else:
            maker.collective("barrier", {rank: (t, t, t + 0.5) for rank in (0, 1)}, numel=0)
    if not received:
        maker.recv(1, 0, count, count, None, tag=7)
    maker.spans = [(0.0, count)] * 2
    return maker.run()


def longest_gap(times):
    """The longest stretch from 0 to 1 without any of these times."""
    return max(b - a for a, b in pairwise([0.0, *sorted(times), 1.0]))


@pytest.mark.parametrize("world_size, steps", [(8, 800), (16, 800), (34, 400), (55, 233)])
def test_every_rank_has_messages_all_along_a_thinned_run(world_size, steps):
    run = ring(world_size, steps)  # as many messages per step as there are Fibonacci numbers for
    scene = scene_of(run)
    kept = MAX_EVENTS / 2 / world_size
    for row in range(world_size):
        times = [arrow["start"] / scene["end"] for arrow in scene["arrows"] if arrow["src"] == row]
        assert longest_gap(times) < 2.2 / kept
    boxes = sum(len(parts) for lane in scene["lanes"] for parts in lane["states"].values())
    assert (MAX_BOXES / 4 < boxes or world_size == 55) and boxes <= MAX_BOXES + world_size


def test_thinning_never_falls_into_step_with_the_program():
    run = ring(5, 100)
    found = happenings(run, list(run.trace), dict.fromkeys(range(5)), 0, run.trace.end_s)
    for most in (50, 100, 200, 400):
        by_rank = [h.thing.src for h in thinned(found, most)]
        counts = [by_rank.count(rank) for rank in range(5)]
        assert max(counts) - min(counts) <= 3


def test_many_ranks_are_cut_with_a_note_and_ops_that_were_not_recorded_are_told():
    run = all_reduces(70, 2)
    scene = scene_of(run)
    assert len(scene["lanes"]) == MAX_LANES
    assert scene["notes"] == ["64 of 70 ranks are shown; to see others, give ranks="]
    chosen = scene_of(run, ranks=[69, 3])
    assert [lane["rank"] for lane in chosen["lanes"]] == [69, 3]
    assert chosen["notes"] == []
    for ranks in (1, 3):  # without ops
        scene = scene_of(RunMaker(ranks).run(dropped=1200))
        assert scene["notes"] == ["simlib did not record 1,200 further ops"]
        assert scene["events"] == []


@pytest.mark.parametrize("end", [0.0004, math.inf])
def test_a_part_of_the_time_up_to_a_moment_or_to_the_end(end):
    run = ring(4, 10)
    player = run.play(between=(0.0002, end))
    scene = player.scene
    assert (scene["begin"], scene["end"]) == (0.0002, min(end, run.trace.end_s))
    assert 0 < scene["total"] < len(run.trace)
    assert player._repr_mimebundle_()[0]["image/png"]


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"ranks": [0, 4]}, "rank 4 is not in this run of 4 ranks"),
        ({"ranks": []}, "ranks is empty: give at least one rank to show"),
        ({"ranks": [1, 1]}, "ranks contains a rank twice: give each rank once"),
        ({"ranks": 2}, "ranks is 2: give a list of ranks, like [0, 2]"),
        ({"ranks": [1.0, 0]}, "ranks is [1.0, 0]: give a list of ranks, like [0, 2]"),
        ({"between": (2, 1)}, NO_TIME),
        ({"between": (2, math.inf)}, NO_TIME),
        ({"between": (0, math.nan)}, NO_TIME),
        ({"between": 3}, NO_TIME),
        ({"between": "ab"}, NO_TIME),
    ],
)
def test_a_bad_argument_is_told_in_one_sentence(options, sentence):
    with pytest.raises(simlib.InvalidCallError) as caught:
        ring(4).play(**options)
    assert str(caught.value) == sentence


# Where widgets are not shown


def test_a_picture_stands_in_the_place_of_the_widget_and_a_player_keeps_it_and_not_its_run():
    run = ring(4)
    gone, player = weakref.ref(run), run.play()
    data, _ = player._repr_mimebundle_()
    assert data["text/plain"] == repr(player) == "player of main on 4 real ranks"
    assert data["image/png"] == run._repr_png_()
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"]
    part, _ = run.play(ranks=(rank for rank in (2, 1)))._repr_mimebundle_()
    assert part["image/png"] != data["image/png"]
    del run
    gc.collect()
    assert gone() is None
    assert player._repr_mimebundle_()[0]["image/png"] == data["image/png"]


# What is packed


def test_the_script_is_one_module_that_loads_nothing_and_every_script_is_used():
    script = Player._esm
    assert re.findall(r"^export .*", script, re.MULTILINE) == ["export default {"]
    assert not re.search(r"\bimport\b|https?://|\burl\(", script + Player._css)
    names = re.findall(r"^(?:const|class|function) (\w+)", script, re.MULTILINE)
    assert len(names) == len(set(names))
    assert sorted([*SCRIPTS, "page"]) == sorted(path.stem for path in FOLDER.glob("*.js"))


def test_the_wheel_has_script_and_style(tmp_path):
    for name in ("pyproject.toml", "rank_by_rank.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "simlib", tmp_path / "simlib")  # a build leaves files beside its source
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-q", "-w", tmp_path, tmp_path], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for name in [f"{script}.js" for script in SCRIPTS] + ["player.css"]:
        assert f"simlib/core/draw/player/{name}" in names

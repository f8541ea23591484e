"""A run as one HTML file: what it holds, how small it is, that no text of a learner's is code."""

import base64
import hashlib
import json
import re
from html import unescape
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from synthetic import RunMaker

import simlib
from simlib.cli import main as command
from simlib.core.draw.player.page import MAX_OUTPUT
from simlib.core.draw.player.scene import scene_of

NASTY = "</script><script>alert(1)</script><!--"


def pass_on(rank, world_size):
    print("rank", rank, NASTY)
    if rank == 0:
        dist.send(torch.ones(3), dst=1)
    elif rank == 1:
        dist.recv(torch.empty(3), src=0)
    dist.all_reduce(torch.ones(2))


def circle(rank, world_size):
    dist.recv(torch.empty(1), src=(rank + 1) % world_size)


def saved(run, tmp_path, **options):
    return run.to_html(tmp_path / "run.html", **options).read_text()


def scenes_in(page):
    """The scenes of a page, with its columns as they are."""
    return json.loads(re.search(r'id="scenes">(.*)</script>', page)[1])


def unpacked(table):
    """The rows of a table of columns, as page.js makes them."""
    columns = {
        name: [column["words"][at] for at in column["at"]] if isinstance(column, dict) else column
        for name, column in table["columns"].items()
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@pytest.mark.parametrize("engine", [simlib.run, simlib.simulate])
def test_a_page_holds_what_the_player_shows(engine, tmp_path):
    run = engine(pass_on, 3)
    (scene,) = scenes_in(saved(run, tmp_path))
    whole = scene_of(run)
    for name in ("title", "clock", "unit", "notes", "shown", "total"):
        assert scene[name] == whole[name]
    span_s = whole["end"] - whole["begin"]
    for event, exactly in zip(unpacked(scene["events"]), whole["events"], strict=True):
        for word in ("call", "size", "place", "code", "row"):
            assert event[word] == exactly[word]
        assert event["post"] == pytest.approx(exactly["post"], abs=1e-8 * span_s)


def test_text_of_learners_is_text(tmp_path):
    maker = RunMaker(2)
    maker.send(0, 1, 10, 20, 60)
    maker.recv(1, 0, 30, 30, 60)
    run = maker.run()
    run.name, run.output = NASTY, [NASTY, ""]
    run.failure = f"rank 0 raised {NASTY}"
    page = saved(run, tmp_path)
    assert page.count("<script") == page.count("</script>") == 2  # the data, and our own
    assert "alert(1)<" not in page and "<!--" not in page
    assert f"rank 0 raised {NASTY}" in unescape(page)
    assert scenes_in(page)[0]["title"].startswith(NASTY)


def test_only_our_own_script_and_style_may_act(tmp_path):
    page = saved(simlib.simulate(pass_on, 2), tmp_path)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    script = re.search(r'<script type="module">(.*?)</script>', page, re.DOTALL)[1]
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    for text, kind in ((script, "script-src"), (style, "style-src")):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    assert not re.search(r"<[^>]* (style|on\w+)=", re.sub(r"<script.*?</script>", "", page))


def test_a_thousand_events_are_300_kb_at_most(tmp_path):
    def talk(rank, world_size):
        left, right = (rank - 1) % world_size, (rank + 1) % world_size
        for _ in range(70):
            receiving = dist.irecv(torch.empty(1000), left)
            dist.send(torch.ones(1000), right)
            receiving.wait()
            dist.all_reduce(torch.ones(1000))

    run = simlib.run(talk, 6)
    page = saved(run, tmp_path)
    assert 950 <= len(unpacked(scenes_in(page)[0]["events"])) <= 1000
    assert len(page.encode()) < 300_000


def test_a_failed_run_is_told_with_its_picture(tmp_path):
    with pytest.raises(simlib.DeadlockError) as caught:
        simlib.simulate(circle, 3)
    run = caught.value.run
    assert run.failure == str(caught.value) and run.graph is caught.value.graph
    page = saved(run, tmp_path)
    assert str(caught.value) in unescape(page)
    pictures = re.findall(r'<img class="(\w+)" alt="([^"]*)" src="data:image/png;base64,', page)
    assert [theme for theme, _ in pictures] == ["light", "dark"]
    assert all("rank 0 waits for rank 1" in alt for _, alt in pictures)


def test_a_rank_that_raises_and_a_finding_are_told(tmp_path):
    def raises(rank, world_size):
        raise ValueError("no <b>data</b>")

    def leaves_a_message(rank, world_size):
        if rank == 0:
            dist.isend(torch.ones(1), dst=1).wait()

    with pytest.raises(simlib.RankError) as caught:
        simlib.run(raises, 2)
    page = saved(caught.value.run, tmp_path)
    assert "raised ValueError: no &lt;b&gt;data&lt;/b&gt;" in page and "<img" not in page
    run = simlib.simulate(leaves_a_message, 2, eager_limit_bytes=100)
    assert "was never received" in saved(run, tmp_path)


def test_part_of_a_run_alone_and_of_much_output_the_first(tmp_path):
    run = simlib.simulate(pass_on, 3)
    run.output = ["x" * 50 + "\n"] * 1000 + ["", ""]
    page = saved(run, tmp_path, ranks=[2, 0], between=(0, 1e-5))
    assert re.search(r"\.\.\. and [\d,]+ more characters", page)
    assert page.count("x" * 50) < MAX_OUTPUT / 50
    (scene,) = scenes_in(page)
    assert scene["lanes"]["columns"]["rank"] == [2, 0] and scene["end"] == 1e-5


def test_compared_runs_have_one_axis_and_their_differences(tmp_path):
    def steps(rank, world_size, n):
        for _ in range(n):
            dist.all_reduce(torch.ones(2))
        dist.barrier()

    one, two = simlib.simulate(steps, 2, (1,)), simlib.simulate(steps, 2, (3,))
    both = simlib.compare(one, two)
    assert both.names == ("steps", "steps 2") and both.runs == (one, two)
    page = both.to_html(tmp_path / "both.html").read_text()
    first, second = scenes_in(page)
    assert first["end"] == second["end"] and first["unit"] == second["unit"]
    assert "<td>all_reduce(SUM), 8 B</td><td>1</td><td>3</td>" in page
    assert "<tr class=common><td>barrier</td><td>1</td><td>1</td>" in page
    assert "1 kind of op occurs more often" in page
    same = simlib.compare({"a": one, "b": one}).to_html(tmp_path / "same.html").read_text()
    assert "All kinds of ops occur equally often" in same
    assert any(scene["title"].startswith("a: steps on") for scene in scenes_in(same))
    with pytest.raises(simlib.InvalidCallError, match="no runs to show"):
        simlib.Comparison(("a", "b"), both.ops).to_html(tmp_path / "both.html")


def test_a_path_that_cannot_be(tmp_path):
    run = simlib.simulate(pass_on, 2)
    for name, words in (
        ("run.json", "is not a page: name a file"),
        ("nowhere/run.html", "there is no folder"),
    ):
        with pytest.raises(simlib.InvalidCallError, match=words):
            run.to_html(tmp_path / name)


@pytest.mark.parametrize(("last", "code"), [("dist.barrier()", 0), ("dist.recv(x, 1 - rank)", 1)])
def test_the_command_line_saves_a_page_also_of_a_failure(last, code, tmp_path, capsys):
    script, page = tmp_path / "train.py", tmp_path / "run.html"
    script.write_text(
        "import torch, torch.distributed as dist\ndist.init_process_group()\n"
        f"x, rank = torch.ones(1), dist.get_rank()\n{last}\n"
    )
    words = ["simulate", "-n", "2", "--quiet", "--html", str(page), str(script)]
    assert command(words) == code
    assert ('class="verdict"' in page.read_text()) == bool(code)
    assert command(["run", "-n", "2", "--html", "run.txt", str(script)]) == 2
    assert "--html run.txt is not a page" in capsys.readouterr().err


def test_an_error_knows_its_run_and_the_run_its_error():
    run, failure = simlib.simulate(pass_on, 2), SimpleNamespace()
    run.ended_in(failure)
    assert failure.run is run and run.graph is None

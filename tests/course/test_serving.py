"""Lesson 21: its published answers, and its model of decoding against one process."""

import re
from math import inf

import pytest
from lesson_programs import LESSONS, names_of

import simlib
from simlib.course.labs.serving import arrivals, served

WRITES = {
    "your_layer": ("21_decode_on_split_ranks", 3),
    "token_s": ("21_decode_on_split_ranks", 4),
    "your_turn": ("21_serve_a_queue", 2),
    "evict": ("21_serve_a_queue", 3),
}


def are_constants(names):
    return all(name.isupper() for name in names)


@pytest.mark.parametrize("function", WRITES)
def test_an_answer_in_its_place_is_right(function, capsys):
    """In place of the stub, with the check's cell; as stored it says "not yet"."""
    name, count = WRITES[function]
    names = names_of(name, are_constants)
    text = (LESSONS / f"{name}.py").read_text(encoding="utf-8")
    stub, check, answer = re.search(
        rf"^# %%\n(def {function}\(.*?    return [^\n]*# yours[^\n]*\n)(.*?)^# %% \[markdown\]\n"
        r"# <details><summary>Answer</summary>\n#\n(.*?)^# </details>",
        text, re.M | re.S,
    ).groups()  # fmt: skip
    exec(stub + check, names)
    assert capsys.readouterr().out.count("not yet") == count
    exec("\n".join(re.findall(r"^#     (.*)$", answer, re.M)), names)
    exec(check, names)
    said = capsys.readouterr().out
    assert said.count("right") == count and "not yet" not in said


@pytest.mark.parametrize("per_s, most, tp", [(20, 100_000, 1), (40, 20_000, 1), (6, 50_000, 2)])
def test_the_labs_model_is_the_lessons_server(per_s, most, tp):
    """Each request's first and last token, to a microsecond; the network takes no time."""
    lesson = names_of("21_serve_a_queue", are_constants)
    queue = lesson["arrivals"](120, per_s)
    free = simlib.Cluster(1, 8, simlib.Link(0, inf))
    job = lesson["serve"], tp, (queue, lesson["continuous"], most)
    seen = simlib.simulate(*job, cluster=free).results[0]
    requests = arrivals(120, per_s)
    assert requests == [(r.at, r.prompt, r.output) for r in queue]
    steps, first, last = served(requests, most, tp)
    assert [r.times[0] for r in seen] == pytest.approx(steps[first, 0], abs=1e-6)
    assert [r.times[-1] for r in seen] == pytest.approx(steps[last, 0], abs=1e-6)
    assert all(len(r.times) == r.output for r in seen)


def test_ranks_apart_write_every_token_once():
    lesson = names_of("21_serve_a_queue", are_constants)
    queue = lesson["arrivals"](60, 30)
    queue[7].output = 1
    cluster = simlib.Cluster(2, 1, simlib.Link(7e-6, 50e9))
    job = lesson["apart"], 2, (queue, 50_000)
    run = simlib.simulate(*job, cluster=cluster, data=False, broadcast="binomial")
    for prefilled, decoded in zip(*run.results, strict=True):
        times = prefilled.times + decoded.times
        assert len(times) == decoded.output and times == sorted(times)
    caches = [c.nbytes for c in run.trace.collectives]
    assert caches == [request.prompt * 131_072 for request in queue]

"""Which memory tensors share, and how it is found among the places of many."""

import random

import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from simlib.core.record import pending
from simlib.core.record.pending import Place, Places

NUMBERS = torch.arange(64)


@st.composite
def views(draw):
    """Shape, steps and start of a view of 64 elements: with gaps, with repetition, transposed."""
    shape = draw(st.lists(st.integers(1, 4), max_size=4))
    steps = draw(st.lists(st.integers(0, 12), min_size=len(shape), max_size=len(shape)))
    reach = sum((size - 1) * step for size, step in zip(shape, steps, strict=True))
    assume(reach < len(NUMBERS))
    return shape, steps, draw(st.integers(0, len(NUMBERS) - 1 - reach))


def elements(view):
    return set(NUMBERS.as_strided(*view).flatten().tolist())


@given(views(), views(), st.sampled_from([torch.uint8, torch.bfloat16, torch.complex128]))
def test_views_clash_where_they_have_an_element_in_common(one, other, dtype):
    base = torch.zeros(len(NUMBERS), dtype=dtype)
    places = [Place.of(base.as_strided(*view), True) for view in (one, other)]
    shared = bool(elements(one) & elements(other))
    assert places[0].clashes_with(places[1]) == places[1].clashes_with(places[0]) == shared


def test_who_only_reads_clashes_with_nobody_who_reads():
    x = torch.zeros(8)
    reads, writes = (Place.of(x[::2], is_written) for is_written in (False, True))
    assert not reads.clashes_with(reads)
    assert reads.clashes_with(writes) and writes.clashes_with(reads)


def test_what_cannot_be_told_with_little_work_is_told_of_nobody(monkeypatch):
    x = torch.zeros(200_000)
    shape, steps = (7, 11, 13, 5, 7), (1009, 2003, 3001, 4001, 7919)
    ours = Place.of(x.as_strided(shape, steps), True)
    theirs = Place.of(x.as_strided(shape[::-1], [step + 4 for step in steps], 1), True)
    found = {}
    for work in (1, 1_000_000):
        monkeypatch.setattr(pending, "MAX_WORK", work)
        found[work] = ours.clashes_with(theirs)
    assert found == {1: False, 1_000_000: True}


def test_tensors_without_elements_have_no_place():
    for tensor in (torch.zeros(9)[3:3], torch.zeros(3, 3)[:, 1:1], torch.eye(2).to_sparse()):
        place = Place.of(tensor, True)
        assert place.first == place.end


def test_an_index_finds_what_looking_at_all_finds():
    draw = random.Random(16)
    x, places, index = torch.zeros(4000), {}, Places()
    for number in range(2000):
        first = draw.randrange(3900)
        view = x[first : first + draw.choice((1, 3, 10, 90)) : draw.choice((1, 2))]
        place = Place.of(view, draw.random() < 0.5)
        assert set(index.overlapping(place)) == {
            owner for owner, other in places.items() if place.clashes_with(other)
        }
        index.add(place, number)
        places[number] = place
        if len(places) > 200:
            gone = draw.choice(list(places))
            index.remove(places.pop(gone), gone)

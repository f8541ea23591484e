"""Which cases of a long table `make test` runs; the others are slow, and run in `make test-all`."""

import pytest


def one_of(number, cases):
    """Parameters of a test from ``{id: value}``: every so many is quick, the first among them."""
    return [
        pytest.param(value, id=name, marks=pytest.mark.slow if place % number else ())
        for place, (name, value) in enumerate(cases.items())
    ]

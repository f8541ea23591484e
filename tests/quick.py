"""Which cases of a long table `make test` runs; the others are slow, and run in `make test-all`."""

import pytest


def one_of(number, cases, first=0):
    """Parameters of a test from ``{id: values}``: every so many is quick, from the first on."""
    return [
        pytest.param(
            *(values if isinstance(values, tuple) else (values,)),
            id=name,
            marks=pytest.mark.slow if (place - first) % number else (),
        )
        for place, (name, values) in enumerate(cases.items())
    ]

"""No public name vanishes: what programs could import of simlib once, they can import now."""

import json
from importlib import import_module
from pathlib import Path

import pytest

NAMES = json.loads(Path(__file__).with_name("public_names.json").read_text())
"""Public module -> its names of before simlib was split into packages (commit 6d19c39)."""


@pytest.mark.parametrize("module", NAMES)
def test_a_public_module_has_all_names_it_had(module):
    found = import_module(module)
    assert [name for name in NAMES[module] if not hasattr(found, name)] == []
    assert set(NAMES[module]) <= set(found.__all__)

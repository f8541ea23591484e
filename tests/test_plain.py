"""What ranks send is read as data where they are not to be trusted."""

import os
import pickle
from collections import OrderedDict

import cloudpickle
import numpy as np
import pytest
import torch

from simlib import plain
from simlib.checks.trial import Exchanged
from simlib.virtual.ledger import CATEGORIES, Ledger


class Evil:
    def __reduce__(self):
        return os.mkdir, ("owned",)


EVIL_BYTES = pickle.dumps(Evil())
load_from_bytes = torch.storage._load_from_bytes


class Own:
    pass


DATA = [
    None,
    3,
    (1.5, "text", b"bytes", [True], {"a": {1, 2}}),
    OrderedDict(a=1),
    torch.arange(6.0).reshape(2, 3).t(),
    torch.tensor([1, 2], dtype=torch.int16),
    torch.nn.Parameter(torch.ones(2)),
    [torch.Size([2]), torch.float16, complex(1, 2)],
    np.arange(3),
    np.float64(2.5),
    Exchanged([torch.ones(1)], [torch.zeros(1)]),
    Ledger(0, dict.fromkeys(CATEGORIES, 1), dict.fromkeys(CATEGORIES, 2), 0.0, []),
]


@pytest.mark.parametrize("value", DATA, ids=lambda value: type(value).__name__)
def test_data_arrive_as_they_were(monkeypatch, value):
    monkeypatch.setenv(plain.VARIABLE, "1")
    arrived = plain.loads(cloudpickle.dumps(("result", value), protocol=5))[1]
    assert type(arrived) is type(value)
    assert repr(arrived) == repr(value)


@pytest.mark.parametrize("value", [Evil(), Own(), os.system, lambda: 1, [Evil()]], ids=repr)
def test_anything_else_is_refused_before_it_acts(monkeypatch, tmp_path, value):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(plain.VARIABLE, "1")
    with pytest.raises(pickle.UnpicklingError, match="is no plain data"):
        plain.loads(cloudpickle.dumps(value))
    assert not os.listdir(tmp_path)


def test_a_tensors_bytes_are_no_way_in(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(plain.VARIABLE, "1")
    monkeypatch.setattr(Evil, "__reduce__", lambda self: (load_from_bytes, (EVIL_BYTES,)))
    with pytest.raises(pickle.UnpicklingError, match="(?i)weights"):
        plain.loads(pickle.dumps(Evil()))
    assert not os.listdir(tmp_path)


def test_elsewhere_ranks_may_send_what_they_like(monkeypatch):
    monkeypatch.delenv(plain.VARIABLE, raising=False)
    assert isinstance(plain.loads(pickle.dumps(Own())), Own)

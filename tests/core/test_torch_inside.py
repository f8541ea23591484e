"""torch's inside is touched in one file, and what it hands out is what torch has."""

import re
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed import distributed_c10d as c10d

import simlib
from simlib.core.record import torch_inside

SIMLIB = Path(simlib.__file__).parent
INSIDE = re.compile(r"torch\._C\b|\bc10d\._[a-z]|distributed_c10d\._|__version__ *[<>]")


def test_torchs_inside_is_touched_in_one_file():
    touching = {
        file.relative_to(SIMLIB).as_posix()
        for file in SIMLIB.rglob("*.py")
        if INSIDE.search(file.read_text(encoding="utf-8"))
    }
    assert touching == {"core/record/torch_inside.py"}


def test_every_table_of_torchs_own_world_is_there_and_empty():
    fields = torch_inside.fields_of_world()
    assert set(fields) >= {"default_pg", "pg_map", "pg_names", "group_count", "tags_to_pg"}
    assert "pg_config_info" not in fields
    assert not any(make() for make in fields.values())
    assert fields["pg_map"]() is not fields["pg_map"]()
    asked = set(re.findall(r"_world\.(\w+)", Path(c10d.__file__).read_text(encoding="utf-8")))
    assert asked <= set(fields)


def test_a_group_knows_its_rank_and_size_whatever_its_backend_says():
    class Group(torch_inside.GroupOfItsOwn):
        pass

    group = Group(2, 5)
    one = dist.ProcessGroupGloo(dist.HashStore(), 0, 1)
    kind = dist.ProcessGroup.BackendType.GLOO
    group._register_backend(torch.device("cpu"), kind, one)
    group._set_default_backend(kind)
    assert (group.rank(), group.size()) == (2, 5)


@pytest.mark.parametrize(
    ("says", "advice"),
    [
        ("Backend gloo does not support alltoall", "call dist.all_to_all_single, or install"),
        ("no module has no attribute 'all_gather_single'", "op dist.all_gather_into_tensor"),
        ("no module has no attribute 'reduce_scatter_single'", "op dist.reduce_scatter_tensor"),
    ],
)
def test_what_an_older_torch_lacks_is_told_with_what_to_call_instead(says, advice):
    def main(rank, n):
        raise RuntimeError(says)

    with pytest.raises(simlib.RankError, match=rf"{says}.* torch \S+ .*{advice}"):
        simlib.run(main, 1)


def test_fake_tensors_outlive_the_rank_that_made_the_first():
    """torch 2.10 and 2.11 with CUDA: the first rank's substitute for CUDA ends with its thread."""

    def main(rank, n):
        time.sleep(rank)
        with FakeTensorMode():
            return torch.ones(rank).numel()

    assert simlib.simulate(main, 3).results == [0, 1, 2]

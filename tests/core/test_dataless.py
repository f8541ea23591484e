"""Programs of each kind of parallelism without data: what they do is what they do with data."""

import copy
import dataclasses
import functools
import pickle
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import simlib
from tests.dataless_programs import PROGRAMS

CLUSTER = simlib.Cluster(
    2, 2, simlib.Link(5e-6, 1e10), simlib.Link(1e-6, 1e11), simlib.Device(1e12, 1e12)
)
QUICK = ("ddp_autocast", "fsdp2_selective", "fsdp2_and_tensor_parallel", "one_f_one_b")
"""Tried by every `make test`; the rest by `make test-all`."""
EACH = pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PROGRAMS],
)


@functools.cache
def simulated(name, data=True):
    return simlib.simulate(
        PROGRAMS[name], 4, cluster=CLUSTER, memory=True, algorithms="nccl", data=data
    )


def _calls(run, rank):
    return [
        (op.kind, op.group.ranks, op.peer, op.shapes, op.dtype, op.nbytes, op.splits, str(op.site))
        for op in run.trace.of_rank(rank)
    ]


@EACH
def test_simulated_ranks_call_what_real_ones_call(name):
    real = simlib.run(PROGRAMS[name], 4)
    for rank in range(4):
        assert _calls(simulated(name), rank) == _calls(real, rank)


def _times(run, rank):
    return [moment for op in run.trace.of_rank(rank) for moment in (op.post_s, op.end_s)]


@EACH
def test_a_program_without_data_does_what_it_does_with_data(name):
    real, dataless = simulated(name), simulated(name, data=False)
    for rank in range(4):
        mine, theirs = _calls(dataless, rank), _calls(real, rank)
        if name == "saved":  # its ranks tell each other how many bytes they have put into files
            mine, theirs = mine[:-3], theirs[:-3]
        assert mine == theirs
        assert name == "saved" or _times(dataless, rank) == pytest.approx(
            _times(real, rank), abs=1e-12, rel=0
        )
        peak = real.memory[rank].peak_bytes  # garbage collectors may run at other moments
        assert dataless.memory[rank].peak_bytes == pytest.approx(peak, rel=0.01)
    assert dataless.flops == real.flops


def test_a_device_with_streams_takes_the_same_time_without_data():
    device = simlib.Device(
        rates={"float32": 5e10, "bfloat16": 1e11}, memory_Bps=1e10, launch_s=1e-6, asynchronous=True
    )
    cluster = dataclasses.replace(CLUSTER, device=device)
    main = PROGRAMS["fsdp2_and_tensor_parallel"]
    real, dataless = (
        simlib.simulate(main, 4, cluster=cluster, data=data) for data in (True, False)
    )
    for rank in range(4):
        assert _times(dataless, rank) == pytest.approx(_times(real, rank), abs=1e-12, rel=0)
        assert dataless.memory[rank].reserved_bytes == real.memory[rank].reserved_bytes
    assert dataless.exposed().exposed_s == pytest.approx(real.exposed().exposed_s)


def whole_number():
    torch.rand(4).argmax().item()


def truth_value():
    if torch.rand(()) > 0.5:
        dist.barrier()


def places():
    torch.rand(4).gt(0.5).nonzero()


def mask():
    x = torch.rand(4)
    x[x > 0.5].sum()


def numpy():
    torch.rand(4).numpy()


def to_list():
    torch.rand(4).tolist()


def sparse():
    torch.nn.Embedding(8, 2, sparse=True)(torch.arange(4)).sum().backward()


def own_op():
    if dist.get_rank() == 0:

        @torch.library.custom_op("of_another_test::double", mutates_args=())
        def double(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        double(torch.rand(3))


REFUSED = {
    whole_number: "asks for the value of a tensor of torch.int64",
    truth_value: "asks for the value of a tensor of torch.bool",
    places: "asks for the values of a tensor of torch.bool",
    mask: "asks for the values of a tensor of torch.float32",
    numpy: r"numpy\(\) returns values",
    to_list: r"tolist\(\) returns values",
    sparse: "sparse tensors cannot be simulated",
    own_op: "of_another_test::double does not say which shapes its results have",
}


def call(rank, world_size, part):
    part()


@pytest.mark.parametrize("part", REFUSED, ids=lambda part: part.__name__)
def test_what_needs_data_is_refused_with_the_line(part):
    with pytest.raises(simlib.InvalidCallError, match=REFUSED[part]) as caught:
        simlib.simulate(call, 2, args=(part,), data=False)
    begin = part.__code__.co_firstlineno
    lines = [f"(test_dataless.py, line {begin + more})" for more in range(1, 8)]
    assert any(line in str(caught.value) for line in lines)


def test_the_page_on_large_models_has_each_refusal():
    page = (Path(__file__).parents[2] / "docs" / "large-models.md").read_text(encoding="utf-8")
    assert [words for words in REFUSED.values() if not re.search(words.split("::")[-1], page)] == []


def scaled(rank, world_size):
    model = torch.nn.Linear(2, 2)
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cpu")
    for _ in range(2):
        scaler.scale(model(torch.rand(2)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    return len(optimizer.state)


def test_a_scaler_of_gradients_takes_each_step():
    assert simlib.simulate(scaled, 1, data=False).results == [2]


def known(rank, world_size):
    """What a program writes down has values; what it computes of others has none."""
    total = torch.tensor(0.0)
    total += torch.rand(100_000).sum()
    return torch.tensor([1, 2]).tolist(), sorted(torch.randperm(4).tolist()), f"{total:.1f}"


def test_what_is_known_without_data_has_values():
    found = simlib.simulate(known, 2, data=False).results
    assert found == [([1, 2], [0, 1, 2, 3], "nan")] * 2


def large(rank, world_size):
    """4 TiB, which no machine has that runs this: copied, written into, let go and filled again."""
    x = torch.rand(1 << 20, 1 << 20, requires_grad=True)
    copied, out = copy.deepcopy(x), torch.empty(0)
    torch.add(x.detach()[0], 1, out=out)
    storage = copied.untyped_storage()
    storage.resize_(0)
    freed = simlib.held()["activations and temporaries"]
    assert len(copy.deepcopy(copied).untyped_storage()) == 0
    assert storage.resize_(8) is storage
    torch.func.grad(lambda value: print(value) or value.sum())(torch.rand(1 << 20))
    sizes = freed - x.nbytes, storage.nbytes(), tuple(out.shape)
    return repr(x), sizes, pickle.loads(pickle.dumps(x)).device.type, x


def test_what_has_no_data_takes_no_memory_whatever_its_size():
    cluster = dataclasses.replace(CLUSTER, device=simlib.Device(1e12))
    ((words, sizes, sent, x),) = simlib.simulate(large, 1, data=False, cluster=cluster).results
    assert words == (
        "tensor(without data, size=(1048576, 1048576), dtype=torch.float32, requires_grad=True)"
    )
    assert sizes == (4 << 20, 8, (1 << 20,))
    assert (sent, x.device.type, x.shape) == ("meta", "meta", (1 << 20, 1 << 20))


def alike_calls(rank, world_size):
    """Calls whose arguments are equal to Python, or of which numbers decide the shape."""
    flags, many = torch.rand(100_000) > 0.5, 100_000
    sums = (flags + True).dtype, (flags + 1).dtype, (flags + 1.0).dtype
    sizes = [tuple(torch.arange(0.0, end).shape) for end in (1e5, 2e5)]
    sizes += [tuple(torch.arange(0.0, end, out=torch.zeros(many)).shape) for end in (9.0, 2e5)]
    moved = torch.zeros(many).to("meta").device.type, torch.zeros(many).resize_as_(flags).shape
    places = [torch.zeros(many, device=device).exp().device.type for device in ("meta", "cpu")]
    torch.set_default_dtype(torch.float64)
    return sums, sizes, moved, places, torch.zeros(many).dtype


def test_calls_that_differ_in_numbers_alone_give_what_torch_gives():
    simulated = simlib.simulate(alike_calls, 1, data=False).results
    assert simulated == simlib.run(alike_calls, 1).results


def ops_on_lists(rank, world_size):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor._op_schema import OpSchema

    asked, given = [], OpSchema.gen_fake_args
    OpSchema.gen_fake_args = lambda schema: (
        asked.append(len(schema.args_schema[0])) or given(schema)
    )
    mesh = dist.init_device_mesh("cpu", (world_size,))
    kinds = ((4, 6), Shard(0)), ((8,), Shard(0)), ((4, 6), Shard(1)), ((8,), Replicate())
    parameters = [
        distribute_tensor(torch.empty(shape), mesh, [how]) for shape, how in (*kinds, *kinds)
    ]
    torch._foreach_addcdiv_(parameters, parameters, parameters, [0.1] * 8)
    products = torch._foreach_mul(parameters, [1.0, 2.0] * 4)
    norms = torch._foreach_norm(parameters)
    OpSchema.gen_fake_args = given
    lists = parameters, products, norms
    of_all = [[(tuple(one.shape), one.placements) for one in each] for each in lists]
    return asked, of_all, [one.to_local().shape for one in products]


def test_dtensor_is_asked_for_one_of_each_kind_of_parameter():
    run = simlib.simulate(ops_on_lists, 2, data=False)
    assert run.results[0][0] == [4, 4, 4]
    with_data = simlib.run(ops_on_lists, 2)
    assert [found[1:] for found in run.results] == [found[1:] for found in with_data.results]

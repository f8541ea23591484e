"""Runs go into Chakra's traces and come back the same; protobuf itself reads and writes them."""

import json
import random

import pytest
import torch
import torch.distributed as dist

import simlib
from simlib.core.formats.chakra_wire import read_nodes

protobuf = pytest.importorskip("google.protobuf")

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: E402

FIELDS = {
    "Attribute": {
        "name": (1, "STRING"),
        "double_val": (3, "DOUBLE"),
        "float_val": (5, "FLOAT"),
        "int32_val": (7, "INT32"),
        "int64_val": (9, "INT64"),
        "sint64_val": (17, "SINT64"),
        "bool_val": (27, "BOOL"),
        "string_val": (29, "STRING"),
    },
    "Metadata": {"version": (1, "STRING"), "attr": (2, "*Attribute")},
    "Node": {
        "id": (1, "UINT64"),
        "name": (2, "STRING"),
        "type": (3, "INT32"),
        "ctrl_deps": (4, "*UINT64"),
        "data_deps": (5, "*UINT64"),
        "start_time_micros": (6, "UINT64"),
        "duration_micros": (7, "UINT64"),
        "attr": (10, "*Attribute"),
    },
}
"""The part of Chakra's et_def.proto that counts here."""


def messages_of_protobuf():
    file = descriptor_pb2.FileDescriptorProto(name="et.proto", package="et", syntax="proto3")
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        if name == "Attribute":
            message.oneof_decl.add(name="value")
        for field, (number, kind) in fields.items():
            one = message.field.add(name=field, number=number)
            one.label = one.LABEL_REPEATED if kind.startswith("*") else one.LABEL_OPTIONAL
            kind = kind.lstrip("*")
            one.type = one.TYPE_MESSAGE if kind in FIELDS else getattr(one, f"TYPE_{kind}")
            if field.endswith("_val"):
                one.oneof_index = 0  # a value of 0 is written, too
            if kind in FIELDS:
                one.type_name = f".et.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return [
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"et.{name}")) for name in FIELDS
    ]


Attribute, Metadata, Node = messages_of_protobuf()


def parsed(data):
    """The messages of a file, by protobuf."""
    found, at = [], 0
    while at < len(data):
        size, shift = 0, 0
        while True:
            byte, at = data[at], at + 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        found.append((Node if found else Metadata).FromString(data[at : at + size]))
        at += size
    return found


def write(path, *nodes):
    """A file, by protobuf."""
    with open(path, "wb") as file:
        for message in (Metadata(version="0.0.4"), *nodes):
            data = message.SerializeToString()
            size = len(data)
            while size > 127:
                file.write(bytes([size & 127 | 128]))
                size >>= 7
            file.write(bytes([size]) + data)


def work(number, micros, *deps):
    return Node(id=number, type=4, duration_micros=micros, data_deps=deps)


def collective(number, kind, nbytes, *deps, **texts):
    told = [Attribute(name="is_cpu_op", bool_val=False), Attribute(name="slow", double_val=0.5)]
    told += [Attribute(name="comm_type", int64_val=kind)]
    told += [Attribute(name="comm_size", int64_val=nbytes)]
    told += [Attribute(name=name, string_val=text) for name, text in texts.items()]
    return Node(id=number, type=7, data_deps=deps, attr=told)


def training(rank, world_size):
    pair, all_of_them = dist.new_group([0, 1]), dist.new_group(list(range(world_size)))
    for _ in range(3):
        simlib.compute((1 + rank) * 3.3e-7)
        works = [dist.all_reduce(torch.ones(1000 + k), async_op=True) for k in range(3)]
        if rank < 2:
            dist.broadcast(torch.ones(5), 1, group=pair)
        dist.all_reduce(torch.ones(7), group=all_of_them)
        works[1].wait()
        dist.reduce(torch.ones(3, 3), 2)
        works[2].wait()
        works[0].wait()
        if rank == 0:
            dist.send(torch.ones(100), 1, tag=4)
        if rank == 1:
            dist.irecv(torch.ones(100), 0, tag=4).wait()
        dist.all_to_all_single(torch.ones(2 * world_size), torch.ones(2 * world_size))
        dist.barrier()
        dist.all_reduce(torch.ones(2), async_op=True)
    simlib.compute(1e-3)


@pytest.fixture(scope="module")
def run():
    return simlib.simulate(training, 4, cluster=simlib.clusters.ethernet_10g(4))


@pytest.mark.parametrize("network", ["ethernet_1g", "infiniband_hdr"])
def test_what_comes_back_replays_the_same(network, run, tmp_path):
    back = simlib.load_chakra(run.to_chakra(tmp_path))
    assert (back.name, back.engine) == (run.name, run.engine)
    cluster = getattr(simlib.clusters, network)(nodes=4, ranks_per_node=1)
    before, after = run.replay(cluster), back.replay(cluster)
    assert after.time_s == pytest.approx(before.time_s, rel=1e-12)
    for old, new in zip(before.trace, after.trace, strict=True):
        assert (old.rank, old.call, old.shapes, old.dtype) == (
            (new.rank, new.call, new.shapes, new.dtype)
        )
        assert (old.group.ranks, old.site.place) == (new.group.ranks, new.site.place)
        assert new.post_s == pytest.approx(old.post_s, abs=1e-12)
        assert new.end_s == pytest.approx(old.end_s, abs=1e-12)
    assert back.time_s == pytest.approx(run.time_s, abs=1e-6 * len(run.trace))


def test_protobuf_reads_what_is_written(run, tmp_path):
    run.to_chakra(tmp_path)
    _, *nodes = parsed((tmp_path / "chakra.1.et").read_bytes())
    assert [node.id for node in nodes] == list(range(len(nodes)))
    assert max(len(node.data_deps) for node in nodes) <= 4
    total_us = sum(node.duration_micros for node in nodes if node.type == 4)
    assert total_us == int(3 * 0.66 + 1000)
    told = [
        {one.name: one for one in node.attr} for node in nodes if node.name == "broadcast(src=1)"
    ]
    assert told[0]["comm_type"].int64_val == 5 and told[0]["comm_size"].int64_val == 20
    assert json.loads((tmp_path / "comm_groups.json").read_text())[
        told[0]["pg_name"].string_val
    ] == [0, 1]
    recv = next(node for node in nodes if node.type == 6)
    ends = {one.name: one.int32_val for one in recv.attr if one.name.startswith("comm_")}
    assert (ends["comm_src"], ends["comm_dst"], ends["comm_tag"]) == (0, 1, 4)


def test_what_others_write_is_read(tmp_path):
    for rank in range(2):
        write(
            tmp_path / f"job.{rank}.et",
            work(1, 100),
            collective(2, 0, 4096, 1),
            work(3, 50, 1),
            collective(5, 5, 64, 3, 2, pg_name="7"),
        )
    (tmp_path / "comm_groups.json").write_text('{"7": [1, 0]}')
    run = simlib.load_chakra(tmp_path)
    first, second = run.trace.of_rank(1)
    assert (first.call, first.nbytes, first.post_s) == ("all_reduce", 4096, 1e-4)
    assert first.wait_s == pytest.approx(1.5e-4)
    assert (second.call, second.group.ranks, second.wait_s) == ("broadcast", (1, 0), None)
    assert run.time_s == pytest.approx(1.5e-4)


def test_numbers_are_read_as_protobuf_writes_them(tmp_path):
    values = {"int32_val": -5, "int64_val": -(2**63), "sint64_val": -7, "bool_val": True}
    told = [Attribute(name=name, **{name: value}) for name, value in values.items()]
    told.append(Attribute(name="float_val", float_val=1.5))
    write(tmp_path / "job.0.et", Node(id=2**64 - 1, data_deps=[1, 300, 2**40], attr=told))
    (node,), _ = read_nodes(tmp_path / "job.0.et")
    assert (node.id, node.deps, node.attributes) == (2**64 - 1, [1, 300, 2**40], values)


WRONG = {
    "streams run in parallel": [work(0, 1), work(1, 1)],
    "node 3 does not wait for node 0": [
        collective(0, 0, 4),
        collective(1, 0, 4),
        collective(2, 0, 4, 0),
        collective(3, 0, 4, 1),
    ],
    "wait for each other in a cycle": [work(0, 1, 1), work(1, 1, 0)],
    "waits for node 9, which is not in the trace": [work(0, 1, 9)],
    "two nodes of the trace have the same number": [work(0, 1), work(0, 1)],
    "is of group 3": [collective(0, 0, 4, pg_name="3")],
    "has no valid comm_size": [collective(0, 0, -4)],
    "of a type that simlib does not know": [collective(0, 8, 4)],
    "shapes of one of its nodes are damaged": [collective(0, 0, 4, simlib='{"shapes": [[-1]]}')],
    "contradict each other": [collective(0, 0, 4, simlib='{"shapes": [[3]]}')],
}


@pytest.mark.parametrize("sentence", WRONG)
def test_a_graph_that_is_no_run_is_refused(sentence, tmp_path):
    for rank in range(2):
        write(tmp_path / f"job.{rank}.et", *WRONG[sentence])
    with pytest.raises(ValueError, match=sentence) as caught:
        simlib.load_chakra(tmp_path)
    assert "job.0.et" in str(caught.value) and "\n" not in str(caught.value)


def test_bytes_that_are_broken_end_in_a_sentence(run, tmp_path):
    folder = run.to_chakra(tmp_path)
    path = folder / "chakra.2.et"
    good = path.read_bytes()
    dice = random.Random(1)
    for _ in range(200):
        data = bytearray(good[: dice.randrange(len(good))] if dice.random() < 0.3 else good)
        for _ in range(dice.randrange(1, 4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        path.write_bytes(data)
        try:
            simlib.load_chakra(folder)
        except ValueError as error:
            assert "\n" not in str(error)


def test_files_that_are_not_of_one_job_are_refused(run, tmp_path):
    with pytest.raises(ValueError, match="names are: none"):
        simlib.load_chakra(tmp_path)
    write(tmp_path / "job.1.et", work(0, 1))
    with pytest.raises(ValueError, match="no job.0.et: the files of all ranks"):
        simlib.load_chakra(tmp_path)
    write(tmp_path / "job.0.et", collective(0, 0, 4))
    with pytest.raises(ValueError, match="the ranks of world do not all call all_reduce"):
        simlib.load_chakra(tmp_path)
    with pytest.raises(simlib.InvalidCallError, match=r"has job.0.et, which is not from this run"):
        run.to_chakra(tmp_path)


def test_a_run_that_never_ended_is_not_written(tmp_path):
    with pytest.raises(simlib.DeadlockError) as caught:
        simlib.simulate(lambda rank, n: dist.recv(torch.ones(1), 1 - rank), 2)
    with pytest.raises(simlib.InvalidCallError, match="only a completed run"):
        caught.value.run.to_chakra(tmp_path)

"""NCCL's log: which network is used, who is in which communicator, what was called."""

import pytest

from simlib.core.formats.nccl_log import read_nccl_logs

CALL = (
    "{kind}: opCount 0 sendbuff 0x7f01 recvbuff 0x7f02 count {count} datatype {dtype} op {op} "
    "root {root} comm {comm} [nranks={size}] stream 0x55e0"
)


def process(host, pid, device, rank, texts, world=4):
    """The lines of a process, beginning with those of its world."""
    begin = [
        "NCCL_SOCKET_IFNAME set by environment to eth0",
        f"ncclCommInitRank comm 0xa{pid} rank {rank} nranks {world} cudaDev {device} nvmlDev "
        f"{device} busId 30 commId 0x795b968dc454cfee - Init START",
        "Channel 00/02 :    0   1   3   2",
        "Channel 01/02 :    0   2   3   1",
    ]
    return [f"{host}:{pid}:{pid + 100} [{device}] NCCL INFO {text}" for text in begin + texts]


def of_group(pid, rank, kind, **told):
    """A group of two, and its call, from one process."""
    texts = {"count": 8, "dtype": 7, "op": 0, "root": 0, "size": 2, "comm": f"0xb{pid}", **told}
    return [
        f"comm 0xb{pid} rank {rank} nranks 2 cudaDev 0 nvmlDev 0 busId 30 commId 0x17 - Init START",
        CALL.format(kind=kind, **texts),
    ]


def read(path, *lines):
    path.write_text("\n".join(lines) + "\n")
    return read_nccl_logs([path])


SOCKET = [
    "NET/IB : No device found.",
    "NET/Socket : Using [0]eth0:10.0.0.1<0>",
    "Using network Socket",
]
IB = [
    "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>",
    "Using network IB",
]


def test_sockets_in_the_place_of_infiniband_are_told_first(tmp_path):
    lines = [
        line
        for rank, host in enumerate(("a", "a", "b", "b"))
        for line in process(host, 10 + rank, rank % 2, rank, SOCKET)
    ]
    log = read(tmp_path / "all.log", "NCCL version 2.21.5+cuda12.4", *lines)
    assert log.in_words() == (
        "Ranks 0 to 3 talk over TCP sockets of eth0, not over InfiniBand: NET/IB found no device. "
        "The version of NCCL is 2.21.5."
    )
    (world,) = log.communicators
    assert world.rings == {0: (0, 1, 3, 2), 1: (0, 2, 3, 1)}
    assert world.members[2] == ("b", 12, 0)


@pytest.mark.parametrize(
    "more, ending",
    [
        (["Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0/GDRDMA"], ", with GPUDirect RDMA."),
        (
            ["Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0"],
            ", without GPUDirect RDMA: data go through the memory of the hosts.",
        ),
        ([], "."),
    ],
)
def test_infiniband_is_told_with_its_cards(more, ending, tmp_path):
    lines = process("a", 1, 0, 0, IB + more, world=2) + process("b", 2, 0, 1, IB, world=2)
    said = read(tmp_path / "log", *lines).in_words()
    assert said == f"Ranks 0 and 1 talk over InfiniBand (mlx5_0:1/IB, mlx5_1:1/IB){ending}"


def test_ranks_on_different_networks_a_switch_and_a_warning_are_told(tmp_path):
    off = ["NCCL_IB_DISABLE set by environment to 1.", *SOCKET[1:]]
    lines = process("a", 1, 0, 0, IB, world=2) + process("b", 2, 0, 1, off, world=2)
    log = read(tmp_path / "log", *lines, "b:2:9 [0] NCCL WARN Call to connect failed : timed out")
    assert log.in_words() == (
        "Rank 0 talks over InfiniBand (mlx5_0:1/IB, mlx5_1:1/IB); rank 1 talks over TCP sockets of "
        "eth0, not over InfiniBand: NCCL_IB_DISABLE=1 is set. "
        "NCCL warned: Call to connect failed : timed out."
    )


def test_the_root_of_a_call_is_found_by_group_and_number(tmp_path):
    paths = []
    for rank in range(4):
        texts = of_group(rank, rank // 2, "Broadcast", root=1) if rank % 2 else []
        comm = {"comm": f"0xa{rank}", "size": 4, "dtype": 9}
        texts.append(CALL.format(kind="AllReduce", count=5, op=4, root=0, **comm))
        texts.append(CALL.format(kind="Send", count=5, op=0, root=3, **comm))
        root = 2 if rank == 1 else 3
        texts.append(CALL.format(kind="Reduce", count=6, op=2, root=root, **comm))
        paths.append(tmp_path / f"host.{rank}")
        paths[-1].write_text("\n".join(process("host", rank, rank, rank, texts)))
    log = read_nccl_logs(paths)
    world = range(4)
    first, second = (log.call(2, world, number) for number in (1, 2))
    assert (first.kind, first.dtype, first.reduce_op, first.root) == (
        ("all_reduce", "bfloat16", "AVG", None)
    )
    assert (second.kind, second.count, second.reduce_op, second.root) == ("reduce", 6, "MAX", 3)
    assert log.call(1, world, 2).root == 2 and log.root_of(world, 2) is None
    assert log.root_of((1, 3), 1) == 3  # rank 1 of the group
    assert log.call(0, world, 3) is None and log.call(0, (0, 2), 1) is None


def test_a_file_without_lines_of_nccl_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match="log has no line from NCCL: start the job with NCCL_DEBUG"
    ):
        read(tmp_path / "log", "epoch 1", "\0" * 100_000)

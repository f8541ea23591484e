"""Read logs that NCCL writes with ``NCCL_DEBUG=INFO``: its network, communicators and calls.

Unlike a flight recorder, a log contains the root and the reduce op of a collective. A log contains
no times and no lines of the program. The ``commId`` identifies a communicator. Within one process,
the address of the communicator identifies it, too. simlib counts the collectives of a communicator
in the order of their lines, because ``opCount`` repeats.

**Source** logs of NCCL 2.18 to 2.28 in public issues of NVIDIA/nccl.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..model.trace import P2P_KINDS
from ..model.words import ranks_in_words
from .names import kind_of

LINE = re.compile(r"([^\s:()\[\]]{1,255}):(\d{1,9}):\d{1,9} \[(\d{1,9})\] NCCL (INFO|WARN) (.*)")
VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
COMM = re.compile(r"comm (0x[0-9a-f]+) rank (\d+) nranks (\d+) .*?commId (0x[0-9a-f]+)")
CALL = re.compile(
    r"(\w+): opCount \S+ .*?count (\d+) datatype (\d+) op (\d+) root (\d+) comm (0x[0-9a-f]+)"
)
RING = re.compile(r"Channel (\d+)/\d+ :((?: +\d+)+) *$")
INTERFACE = re.compile(r"\[\d+\](\S+?):[^\s\[]+")
LONGEST_LINE = 1 << 16
MOST_WARNINGS = 10

DTYPES = "int8 uint8 int32 uint32 int64 uint64 float16 float32 float64 bfloat16".split()
"""The names of datatypes. The index of a name is NCCL's number for the datatype."""
REDUCE_OPS = "SUM PRODUCT MAX MIN AVG".split()


@dataclass(frozen=True)
class NcclCall:
    """One collective, as one rank called it.

    Attributes
    ----------
    kind : str
        ``"all_reduce"``...
    count : int
        The number of elements in NCCL's call.
    dtype : str
        ``"float32"``..., or ``"datatype 10"`` for a dtype whose name simlib does not know.
    reduce_op : str or None
        ``"SUM"``..., if the kind of collective reduces. None if the program has defined the reduce
        op itself.
    root : int or None
        The root, if the kind of collective has one. It is a rank of the world if the log shows
        which one, else a rank of the group.
    """

    kind: str
    count: int
    dtype: str
    reduce_op: str | None
    root: int | None


@dataclass
class Communicator:
    """One communicator.

    Attributes
    ----------
    id : str
        The ``commId`` of the communicator.
    size : int
    members : dict of int to tuple
        ``{rank in the communicator: (host, pid, device)}``: the process and GPU of the rank.
    calls : dict of int to list of NcclCall
        ``{rank in the communicator: its collectives in order}``. Roots are ranks in the
        communicator, too.
    rings : dict of int to tuple of int
        ``{channel: ranks in the order of the channel's ring}``.
    """

    id: str
    size: int
    members: dict = field(default_factory=dict)
    calls: defaultdict = field(default_factory=lambda: defaultdict(list))
    rings: dict = field(default_factory=dict)


@dataclass
class NcclLog:
    """The facts in the NCCL logs of a job.

    Attributes
    ----------
    version : str or None
        ``"2.28.9"``.
    communicators : list of Communicator
        The communicators in the order in which they appear.
    networks : dict of tuple to str
        For each process and GPU, the network it uses: ``"Socket"``, ``"IB"``, or a plugin's name.
    interfaces : dict of str to list of str
        For each network, its interfaces: ``["eth0"]``, ``["mlx5_0:1/IB"]``.
    why_not_ib : str or None
        The reason why NCCL does not use InfiniBand, in words.
    uses_gpu_direct : bool or None
        Whether a channel uses GPUDirect RDMA; None if the logs name no channel to another host.
    warnings : list of str
        The first warnings that NCCL printed.
    """

    version: str | None = None
    communicators: list[Communicator] = field(default_factory=list)
    networks: dict = field(default_factory=dict)
    interfaces: dict = field(default_factory=dict)
    why_not_ib: str | None = None
    uses_gpu_direct: bool | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def ranks(self) -> dict[tuple, int]:
        """Return the rank of each process and GPU in the world, which is the largest
        communicator."""
        if not self.communicators:
            return {}
        world = max(self.communicators, key=lambda comm: comm.size)
        return {member: rank for rank, member in world.members.items()}

    def call(self, rank: int, ranks: Iterable[int], number: int) -> NcclCall | None:
        """Return the ``number``-th collective (from 1) that a rank of the world called in a group.

        Return None if the log does not show this call, or if several communicators have these
        ranks. To check that the call is the same as in another record, compare ``kind`` and
        ``count``.
        """
        found = self._communicator_of(tuple(ranks))
        if found is None:
            return None
        comm, members = found
        own = next((place for place, member in members.items() if member == rank), None)
        calls = [] if own is None else comm.calls[own]
        if not 1 <= number <= len(calls):
            return None
        call = calls[number - 1]
        root = None if call.root is None else members.get(call.root)
        return NcclCall(call.kind, call.count, call.dtype, call.reduce_op, root)

    def root_of(self, ranks: Iterable[int], number: int) -> int | None:
        """Return the root of a group's ``number``-th collective (from 1), if the logs of all its
        ranks agree."""
        ranks = tuple(ranks)
        calls = [self.call(rank, ranks, number) for rank in ranks]
        roots = {call.root for call in calls if call is not None}
        return roots.pop() if len(roots) == 1 else None

    def in_words(self) -> str:
        """Return one or two sentences. The first sentence says which network the ranks use."""
        sentences = [self._network_in_words()]
        if self.warnings:
            sentences.append(f"NCCL warned: {self.warnings[0].rstrip('.')}.")
        if self.version:
            sentences.append(f"The version of NCCL is {self.version}.")
        return " ".join(sentences)

    def _communicator_of(self, ranks: tuple) -> tuple[Communicator, dict[int, int | None]] | None:
        """Return the only communicator of these ranks, and the rank in the world of each of its
        ranks."""
        known = self.ranks
        found = []
        for comm in self.communicators:
            members = {rank: known.get(member) for rank, member in comm.members.items()}
            if set(members.values()) <= set(ranks) and comm.size == len(ranks) and members:
                found.append((comm, members))
        return found[0] if len(found) == 1 else None

    def _network_in_words(self) -> str:
        hosts = {host for host, _, _ in [*self.networks, *self.ranks]}
        if len(hosts) == 1 and self.uses_gpu_direct is None and not self._names("Socket", "IB"):
            return "The log names no network that NCCL uses."
        told = []
        for network in sorted(set(self.networks.values())):
            ranks = [self.ranks.get(one) for one, name in self.networks.items() if name == network]
            known = sorted({rank for rank in ranks if rank is not None})
            who = ranks_in_words(known) if known else "ranks"
            verb = "talks" if len(known) == 1 else "talk"
            told.append(f"{who} {verb} {self._one_in_words(network)}")
        if not told:
            return "The log does not say which network NCCL uses."
        sentence = "; ".join(told)
        more = " NCCL uses a network only between hosts, but all ranks here are on one host."
        return sentence[0].upper() + sentence[1:] + "." + more * (len(hosts) == 1)

    def _one_in_words(self, network: str) -> str:
        names = self._names(network)
        if network == "Socket":
            of = f" of {names}" if names else ""
            why = f": {self.why_not_ib}" if self.why_not_ib else ""
            return f"over TCP sockets{of}, not over InfiniBand{why}"
        if network != "IB":
            return f"over the network plugin {network}"
        what = "RoCE" if "RoCE" in names else "InfiniBand"
        direct = {
            True: ", with GPUDirect RDMA",
            False: ", without GPUDirect RDMA: data go through the memory of the hosts",
            None: "",
        }
        return f"over {what} ({names}){direct[self.uses_gpu_direct]}"

    def _names(self, *networks: str) -> str:
        return ", ".join(name for network in networks for name in self.interfaces.get(network, ()))


def read_nccl_logs(paths: Iterable[str | Path]) -> NcclLog:
    """Read the logs of one job: one file for each process, or one file with the lines of all
    processes.

    Raises
    ------
    ValueError
        No file contains a line from NCCL.
    OSError
        A file cannot be read.
    """
    files = [Path(path) for path in paths]
    reader = _Reader()
    for path in files:
        for line in _lines_of(path):
            reader.read(line)
    if not reader.lines:
        names = ", ".join(path.name for path in files[:3]) or "nothing"
        raise ValueError(
            f"{names} has no line from NCCL: start the job with NCCL_DEBUG=INFO and "
            "NCCL_DEBUG_SUBSYS=INIT,COLL,NET"
        )
    return reader.log


def _lines_of(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as file:
        while line := file.readline(LONGEST_LINE):
            yield line


class _Reader:
    """Goes through the lines of logs. Finds communicators by process and address."""

    def __init__(self) -> None:
        self.log = NcclLog()
        self.lines = 0
        self._comms: dict[tuple, tuple[Communicator, int]] = {}  # (host, pid, address)
        self._by_id: dict[str, Communicator] = {}
        self._current: dict[tuple, Communicator] = {}  # (host, pid, device): begun last

    def read(self, line: str) -> None:
        if (found := VERSION.search(line)) and self.log.version is None:
            self.log.version = found[1]
            self.lines += 1
        before, name, after = line.partition("] NCCL ")
        if not (name and (found := LINE.search(before[-600:] + name + after))):
            return
        self.lines += 1
        host, pid, device, level, text = found.groups()
        member = host, int(pid), int(device)
        if level == "WARN":
            if len(self.log.warnings) < MOST_WARNINGS:
                self.log.warnings.append(text.strip())
        elif call := CALL.match(text):
            self._call(member, call)
        elif comm := COMM.search(text):
            self._communicator(member, comm)
        elif ring := RING.match(text):
            self._ring(member, ring)
        else:
            self._network(member, text)

    def _communicator(self, member: tuple, found: re.Match) -> None:
        address, rank, size, number = found[1], int(found[2]), int(found[3]), found[4]
        if rank >= size:
            return
        if number not in self._by_id:
            self._by_id[number] = Communicator(number, size)
            self.log.communicators.append(self._by_id[number])
        comm = self._by_id[number]
        comm.members[rank] = member
        self._comms[*member[:2], address] = comm, rank
        self._current[member] = comm

    def _call(self, member: tuple, found: re.Match) -> None:
        kind = kind_of(found[1])
        known = self._comms.get((*member[:2], found[6]))
        if kind is None or kind in P2P_KINDS or known is None:
            return
        comm, rank = known
        dtype, op = int(found[3]), int(found[4])
        reduces = "reduce" in kind
        comm.calls[rank].append(
            NcclCall(
                kind,
                int(found[2]),
                DTYPES[dtype] if dtype < len(DTYPES) else f"datatype {dtype}",
                REDUCE_OPS[op] if reduces and op < len(REDUCE_OPS) else None,
                int(found[5]) if kind in ("broadcast", "reduce", "gather", "scatter") else None,
            )
        )

    def _ring(self, member: tuple, found: re.Match) -> None:
        if comm := self._current.get(member):
            comm.rings[int(found[1])] = tuple(map(int, found[2].split()))

    def _network(self, member: tuple, text: str) -> None:
        log = self.log
        if text.startswith("Using network "):
            log.networks[member] = text.removeprefix("Using network ").strip()
        elif text.startswith("NET/Socket : Using "):
            names = INTERFACE.findall(text)
            log.interfaces["Socket"] = list(dict.fromkeys(log.interfaces.get("Socket", []) + names))
        elif text.startswith("NET/IB : Using "):
            names = [one for one in text.split(";")[0].split() if re.match(r"\[\d+\]", one)]
            names = [name.partition("]")[2] for name in names]
            log.interfaces["IB"] = list(dict.fromkeys(log.interfaces.get("IB", []) + names))
        elif text.startswith("NET/IB : No device found"):
            log.why_not_ib = log.why_not_ib or "NET/IB found no device"
        elif text.startswith("NCCL_IB_DISABLE set by environment to 1"):
            log.why_not_ib = "NCCL_IB_DISABLE=1 is set"
        elif " via NET/" in text:
            is_direct = "GDRDMA" in text
            log.uses_gpu_direct = bool(log.uses_gpu_direct) or is_direct

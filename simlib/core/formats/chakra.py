"""Write runs as Chakra's execution traces (the input of ASTRA-sim), and read such traces.

A trace is a graph for each rank: nodes of work, messages and collectives, each with the nodes that
it waits for. A rank of simlib is one thread: it works, posts ops and waits for them. In the file,
the work of a rank is a chain of nodes. If the rank waits for an op, the op is a branch that returns
to the chain. simlib can read only such graphs. If two streams compute side by side, the order of
calls is unknown.

Chakra has no fields for dtype, shapes, root, line and parts of a microsecond. simlib writes these
facts as JSON into an attribute ``simlib``, which other readers ignore.
"""

from __future__ import annotations

import heapq
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..model.errors import InvalidCallError
from ..model.steps import steps_of
from ..model.trace import ROOTED, Group, Op, Site, Trace, describe_call
from .chakra_wire import COLLECTIVE, COMPUTE, RECV, SEND, Node, Value, read_nodes, write_nodes
from .recorder_dumps import make_folder, numbers_of_groups

GROUPS = "comm_groups.json"
NAME = re.compile(r"(.*)\.(\d{1,7})\.et")
KINDS = {
    0: "all_reduce",
    1: "reduce",
    2: "all_gather",
    3: "gather",
    4: "scatter",
    5: "broadcast",
    6: "all_to_all",
    7: "reduce_scatter",
    9: "barrier",
}
"""Chakra's ``comm_type`` for each kind of collective."""
TYPES = {kind: number for number, kind in KINDS.items()}
MOST_ELEMENTS = 1 << 53


def write_trace(trace: Trace, folder: str | Path, about: dict[str, str]) -> Path:
    """Write ``chakra.N.et`` for each rank, and the groups; see `Run.to_chakra`.

    Parameters
    ----------
    trace : Trace
        The trace of a run that has ended.
    folder : str or Path
        simlib creates the folder if it does not exist.
    about : dict of str to str
        Facts about the run, which `read_trace` returns.

    Raises
    ------
    InvalidCallError
        A rank never returned, or the folder contains traces of ranks that this run does not have.
    """
    if not trace.is_over:
        raise InvalidCallError(
            "only a completed run can be written for Chakra, but in this run a rank never finished"
        )
    folder = Path(folder)
    make_folder(folder, "*.et", {f"chakra.{rank}.et" for rank in range(trace.world_size)})
    groups = numbers_of_groups(trace)
    for rank, (span, ops) in enumerate(zip(trace.spans, trace.by_rank(), strict=True)):
        graph = _Graph(ops, span, groups)
        told = about | {"sites": [_place(site) for site in graph.sites]}
        write_nodes(folder / f"chakra.{rank}.et", graph.nodes, {"simlib": json.dumps(told)})
    members = {str(number): list(group.ranks) for group, number in groups.items() if number}
    (folder / GROUPS).write_text(json.dumps(members), encoding="utf-8")
    return folder


def _place(site: Site) -> list:
    return [site.file, site.lineno, site.function, site.line_text]


class _Graph:
    """The nodes of one rank: a chain of work, from which ops branch off."""

    def __init__(self, ops: list[Op], span: tuple[float, float], groups: dict[Group, int]) -> None:
        self.nodes: list[Node] = []
        self.sites: dict[Site, int] = {}
        self._groups = groups
        self._work: list[int] = []  # the last node of work, where there is one
        self._waited: list[int] = []  # ops that were waited for since then
        self._covered: dict[int, list[int]] = {}  # op's node -> what it waits for itself
        self._rest_us = 0.0
        nodes: dict[int, int] = {}
        now_s = span[0]
        for step in steps_of(ops, span):
            is_last = step.what == "leave"
            if step.gap_s > 0 or len(self._waited) > 1 or (is_last and self._waited):
                self._add_work(now_s, step.gap_s)
            if is_last:
                break
            op = ops[step.number]
            if step.what == "post":
                nodes[step.number] = self._add_op(op)
                now_s = op.post_s
            else:
                self._wait(nodes[step.number])
                now_s = op.ends_by(now_s)

    def _add(self, node: Node) -> int:
        node.id = len(self.nodes)
        node.deps = self._work + self._waited
        self.nodes.append(node)
        return node.id

    def _add_work(self, start_s: float, work_s: float) -> None:
        """Write whole microseconds. Add the remainder to the next node."""
        exact_us = self._rest_us + work_s * 1e6
        whole_us = int(exact_us)
        self._rest_us = exact_us - whole_us
        told: dict[str, Value] = {"is_cpu_op": False, "simlib": json.dumps({"work_s": work_s})}
        node = Node(0, "work", COMPUTE, [], _micros(start_s), whole_us, told)
        self._work, self._waited = [self._add(node)], []

    def _wait(self, node: int) -> None:
        """Wait for a node, and with it for all nodes that this node waits for."""
        self._waited = [one for one in self._waited if one not in self._covered[node]] + [node]

    def _add_op(self, op: Op) -> int:
        told: dict[str, Value] = {"is_cpu_op": False, "comm_size": op.nbytes}
        if op.is_p2p:
            assert op.peer is not None  # it came to its end
            src, dst = (op.rank, op.peer) if op.kind == "send" else (op.peer, op.rank)
            told |= {"comm_src": src, "comm_dst": dst, "comm_tag": op.tag or 0}
        else:
            told["comm_type"] = TYPES[op.kind]
        if self._groups[op.group]:
            told["pg_name"] = str(self._groups[op.group])
        more = {
            "dtype": op.dtype,
            "shapes": op.shapes,
            "root": None if op.is_p2p else op.peer,
            "reduce_op": op.reduce_op,
            "splits": op.splits,
            "async": op.async_op,
            "site": self.sites.setdefault(op.site, len(self.sites)),
        }
        told["simlib"] = json.dumps(
            {key: value for key, value in more.items() if value is not None}
        )
        kind = {"send": SEND, "recv": RECV}.get(op.kind, COLLECTIVE)
        took_us = _micros(op.ends_by(op.post_s) - op.post_s)
        number = self._add(Node(0, op.call, kind, [], _micros(op.post_s), took_us, told))
        self._covered[number] = self._waited
        return number


def _micros(time_s: float) -> int:
    return max(0, round(time_s * 1e6))


def read_trace(folder: str | Path) -> tuple[Trace, dict[str, Any]]:
    """The trace of a folder with a file ``NAME.N.et`` for each rank, and the facts about it.

    Raises
    ------
    ValueError
        The folder has no such files, lacks files of some ranks, or has a graph that one thread
        cannot have made. The message names the file.
    """
    folder = Path(folder)
    paths = _paths_in(folder)
    world = Group("world", tuple(range(len(paths))))
    groups = _groups_in(folder, world)
    trace = Trace(len(paths))
    about: dict[str, Any] = {}
    for rank, path in enumerate(paths):
        try:
            nodes, metadata = read_nodes(path)
            told = _json(metadata.get("simlib", "{}"))
            reader = _Reader(rank, nodes, groups, told.get("sites", []))
        except ValueError as error:
            raise ValueError(f"{path.name} is not the trace of one thread: {error}") from None
        trace.ops += reader.ops
        trace.spans.append((0.0, reader.now_s))
        about = about or told
    trace.ops.sort(key=lambda op: (op.post_s, op.rank))
    _check_alike(trace)
    return trace, about


def _paths_in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder")
    found: dict[str, dict[int, Path]] = defaultdict(dict)
    for path in folder.iterdir():
        if match := NAME.fullmatch(path.name):
            found[match[1]][int(match[2])] = path
    if len(found) != 1:
        names = ", ".join(sorted(found)) or "none"
        raise ValueError(
            f"{folder} must contain files NAME.N.et with one NAME, but the names are: {names}"
        )
    ((name, of_rank),) = found.items()
    absent = sorted(set(range(max(of_rank) + 1)) - set(of_rank))
    if absent:
        raise ValueError(
            f"{folder} has no {name}.{absent[0]}.et: the files of all ranks are needed"
        )
    return [of_rank[rank] for rank in range(len(of_rank))]


def _groups_in(folder: Path, world: Group) -> dict[str, Group]:
    groups = {"": world, "0": world}
    path = folder / GROUPS
    if not path.exists():
        return groups
    try:
        for name, ranks in json.loads(path.read_text(encoding="utf-8")).items():
            known = {rank for rank in ranks if type(rank) is int and rank in world.ranks}
            if not ranks or len(known) < len(ranks):
                raise ValueError
            groups[name] = Group(f"group {name}", tuple(ranks))
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise ValueError(
            f"{path.name} is not a table of groups: for each name it must have a list of ranks "
            f"from 0 to {len(world) - 1}"
        ) from None
    return groups


def _check_alike(trace: Trace) -> None:
    for collective in trace.collectives:
        ops = collective.ops.values()
        calls = sorted({op.call for op in ops})
        if len(calls) > 1 or len(ops) < len(collective.group):
            raise ValueError(
                f"the ranks of {collective.group.name} do not all call {' and '.join(calls)}: are "
                "these files of one job?"
            )


class _Reader:
    """Reads one rank of a trace: follows its graph as one thread, and notes its ops."""

    def __init__(self, rank: int, nodes: list[Node], groups: dict[str, Group], sites: Any) -> None:
        if not isinstance(sites, list):
            raise ValueError("its list of source lines is damaged")
        self.now_s = 0.0
        self.ops: list[Op] = []
        self._rank, self._groups = rank, groups
        self._sites = [_site(place) for place in sites]
        self._took_s: dict[int, float] = {}
        self._of_node: dict[int, Op] = {}
        self._work = 0
        self._waited: list[int] = []  # ops that were waited for since the last work
        self._after: dict[int, tuple[int, int]] = {}  # op's node -> work and waits before it
        for node in _in_order_of_calls(nodes):
            self._wait_for_deps(node)
            if _is_op(node):
                self._after[node.id] = self._work, len(self._waited)
                self._post(node)
            else:
                self.now_s += _work_s(node)
                self._work, self._waited = self._work + 1, []

    def _wait_for_deps(self, node: Node) -> None:
        """Wait for a node's deps. They must include all nodes for which the thread has waited
        before."""
        deps = [dep for dep in node.deps if dep in self._of_node]
        for dep in deps:
            op = self._of_node[dep]
            if op.wait_s is not None:
                continue
            op.wait_s, op.waited_after = self.now_s, len(self.ops)
            self.now_s = op.end_s = max(self.now_s, op.post_s + self._took_s[dep])
            self._waited.append(dep)
        after = [self._after[dep] for dep in deps]
        covered = max((waits for work, waits in after if work == self._work), default=0)
        for dep in self._waited[covered:]:
            if dep not in deps:
                raise ValueError(
                    f"node {node.id} does not wait for node {dep}, but nodes before it do, so "
                    "streams run in parallel"
                )

    def _post(self, node: Node) -> None:
        op = _op_of(node, self._rank, len(self.ops), self._groups, self._sites)
        op.post_s = self.now_s
        self._took_s[node.id] = node.duration_us / 1e6
        self._of_node[node.id] = op
        self.ops.append(op)


def _is_op(node: Node) -> bool:
    return node.type in (SEND, RECV, COLLECTIVE)


def _in_order_of_calls(nodes: list[Node]) -> Iterator[Node]:
    """The nodes in the order of one thread: by the work before them, then by waits."""
    places: dict[int, tuple[int, int]] = {}
    work = 0
    for node in _parents_first(nodes):
        before = max((places[dep][0] for dep in node.deps), default=0)
        if _is_op(node):
            places[node.id] = before, _waits_before(node, before, places)
        else:
            if before < work:
                raise ValueError(
                    f"node {node.id} does not wait for the work before it, so streams run in "
                    "parallel"
                )
            work += 1
            places[node.id] = work, -1
    yield from sorted(nodes, key=lambda node: (places[node.id], node.id))


def _waits_before(node: Node, work: int, places: dict[int, tuple[int, int]]) -> int:
    """The longest chain of waits that leads to an op since the last work."""
    known = [places[dep] for dep in node.deps]
    ops = [waits * (before == work) for before, waits in known if waits >= 0]
    return max((1 + waits for waits in ops), default=0)


def _parents_first(nodes: list[Node]) -> Iterator[Node]:
    by_id = {node.id: node for node in nodes}
    if len(by_id) < len(nodes):
        raise ValueError("two nodes of the trace have the same number")
    children = defaultdict(list)
    missing = {}
    for node in nodes:
        deps = set(node.deps)
        missing[node.id] = len(deps)
        for dep in deps:
            if dep not in by_id:
                raise ValueError(f"node {node.id} waits for node {dep}, which is not in the trace")
            children[dep].append(node.id)
    free = [node.id for node in nodes if not node.deps]
    heapq.heapify(free)
    count = 0
    while free:
        number = heapq.heappop(free)
        count += 1
        yield by_id[number]
        for child in children[number]:
            missing[child] -= 1
            if not missing[child]:
                heapq.heappush(free, child)
    if count < len(nodes):
        raise ValueError("the trace's nodes wait for each other in a cycle")


def _work_s(node: Node) -> float:
    """A node's seconds. Use simlib's exact number, unless somebody has changed the rounded
    number."""
    exact_s = _json(node.attributes.get("simlib", "{}")).get("work_s")
    if isinstance(exact_s, float) and abs(exact_s * 1e6 - node.duration_us) <= 1:
        return max(0.0, exact_s)
    return node.duration_us / 1e6


def _op_of(node: Node, rank: int, seq: int, groups: dict[str, Group], sites: list[Site]) -> Op:
    told = _json(node.attributes.get("simlib", "{}"))
    name = node.attributes.get("pg_name", "")
    group = groups.get(str(name))
    if group is None or rank not in group.ranks:
        raise ValueError(f"node {node.id} is of group {name}, but {GROUPS} lists no such group")
    nbytes = _number(node, "comm_size", MOST_ELEMENTS)
    tag, peer = None, told.get("root")
    if node.type == COLLECTIVE:
        kind = KINDS.get(_number(node, "comm_type", 9))
        if kind is None:
            raise ValueError(f"node {node.id} is a collective of a type that simlib does not know")
        fits = peer is None or kind in ROOTED and type(peer) is int and peer in group.ranks
    else:
        kind = "send" if node.type == SEND else "recv"
        tag = _number(node, "comm_tag", MOST_ELEMENTS, 0)
        src, dst = (_number(node, f"comm_{end}", MOST_ELEMENTS) for end in ("src", "dst"))
        mine, peer = (src, dst) if kind == "send" else (dst, src)
        fits = mine == rank and peer != rank and peer in group.ranks
    dtype, reduce_op = told.get("dtype", "uint8"), told.get("reduce_op")
    shapes = _shapes(told.get("shapes", [[nbytes]]))
    elements = sum(map(math.prod, shapes))
    splits = _splits(told.get("splits"), len(group))
    number = told.get("site", len(sites))
    fits &= isinstance(dtype, str) and isinstance(reduce_op, str | None)
    fits &= nbytes == 0 if not elements else nbytes >= elements and nbytes % elements == 0
    fits &= type(number) is int and 0 <= number <= len(sites)
    if not fits:
        raise ValueError(f"the fields of node {node.id} contradict each other")
    is_async = told.get("async") is not False
    call = describe_call(kind, peer, tag, reduce_op, is_async)
    place = sites[number] if number < len(sites) else Site("", "", 0)
    site = Site(call, place.file, place.lineno, place.function, line_text=place.line_text)
    return Op(
        rank,
        seq,
        kind,
        group,
        peer,
        tag,
        nbytes,
        shapes,
        dtype,
        reduce_op,
        splits,
        is_async,
        False,
        site,
        0.0,
        None,
        None,
    )


def _number(node: Node, name: str, most: int, otherwise: int | None = None) -> int:
    value = node.attributes.get(name, otherwise)
    if not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"node {node.id} has no valid {name}")
    return value


def _json(text: Value) -> dict[str, Any]:
    try:
        found = json.loads(str(text))
    except RecursionError:
        found = None
    if not isinstance(found, dict):
        raise ValueError("an attribute named simlib is damaged")
    return found


def _site(place: Any) -> Site:
    types = (str, int, str, str)
    if not isinstance(place, list) or tuple(map(type, place)) != types:
        raise ValueError("one of its source lines is damaged")
    file, lineno, function, text = place
    return Site("", file, lineno, function, line_text=text)


def _shapes(told: Any) -> tuple:
    if not isinstance(told, list) or not all(_are_sizes(shape, most=64) for shape in told):
        raise ValueError("the shapes of one of its nodes are damaged")
    return tuple(map(tuple, told))


def _splits(told: Any, size: int) -> tuple | None:
    if told is None:
        return None
    is_pair = isinstance(told, list) and len(told) == 2
    if not is_pair or not all(_are_sizes(part, size) and len(part) == size for part in told):
        raise ValueError("the splits of one of its nodes are damaged")
    return tuple(map(tuple, told))


def _are_sizes(told: Any, most: int) -> bool:
    if not isinstance(told, list) or len(told) > most:
        return False
    return all(type(size) is int and 0 <= size <= MOST_ELEMENTS for size in told)

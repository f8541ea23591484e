"""Convert nodes of Chakra's execution traces to bytes and back, without the package protobuf.

A file is a sequence of protobuf messages, each after its length: one ``GlobalMetadata``, then
``Node``. simlib reads only the fields below and skips all others, as protobuf does.

**Source** ``et_def.proto`` of MLCommons Chakra 1.0.0; "Encoding", protobuf.dev.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

COMPUTE, SEND, RECV, COLLECTIVE = 4, 5, 6, 7
"""Types of nodes."""
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Types of fields on the wire."""
INT32, INT64, BOOL, STRING = 7, 9, 27, 29
"""The types of attributes' values that simlib writes, by numbers of fields."""
SIGNED = frozenset({7, 9})
ZIGZAG = frozenset({15, 17})
UNSIGNED = frozenset({11, 13, BOOL})
MOST_BYTES = 1 << 30
"""The largest file that simlib reads, in bytes."""

Value = int | str


@dataclass(slots=True)
class Node:
    """A node of the graph of one rank: work, a message or a collective.

    Attributes
    ----------
    id : int
    name : str
    type : int
        `COMPUTE`, `SEND`, `RECV`, `COLLECTIVE`, or another of Chakra's.
    deps : list of int
        The nodes that it waits for.
    start_us, duration_us : int
        Microseconds.
    attributes : dict of str to int or str
    """

    id: int
    name: str = ""
    type: int = 0
    deps: list[int] = field(default_factory=list)
    start_us: int = 0
    duration_us: int = 0
    attributes: dict[str, Value] = field(default_factory=dict)


TYPES_OF_ATTRIBUTES = {
    "is_cpu_op": BOOL,
    "comm_type": INT64,
    "comm_size": INT64,
    "comm_src": INT32,
    "comm_dst": INT32,
    "comm_tag": INT32,
    "pg_name": STRING,
    "simlib": STRING,
}
"""The attributes that simlib writes, with the types that ASTRA-sim expects."""


def write_nodes(path: Path, nodes: list[Node], metadata: dict[str, Value]) -> None:
    """Write a file. ``metadata`` are attributes of the whole file."""
    messages = [_field(1, "1.0.0") + _attributes(2, metadata)]
    messages += [_node(node) for node in nodes]
    path.write_bytes(b"".join(_varint(len(message)) + message for message in messages))


def read_nodes(path: Path) -> tuple[list[Node], dict[str, Value]]:
    """The nodes of a file, and the attributes of the whole file.

    Raises
    ------
    ValueError
        The file is not a Chakra trace. The message does not name the file.
    """
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(f"the file has {size:,} bytes, but simlib reads at most {MOST_BYTES:,}")
    data = memoryview(path.read_bytes())
    messages = _messages(data)
    metadata: dict[str, Value] = {}
    for number, value in _fields(next(messages, data[:0])):
        if number == 1 and isinstance(value, int):
            raise ValueError("the file begins with a node instead of its metadata")
        if number == 2:
            _add_attribute(metadata, value)
    return [_node_of(message) for message in messages], metadata


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1  # a negative one in two's complement
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3 | VARINT) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | BYTES) + _varint(len(data)) + data


def _attributes(number: int, attributes: dict[str, Value]) -> bytes:
    return b"".join(
        _field(number, _field(1, name) + _field(TYPES_OF_ATTRIBUTES[name], value))
        for name, value in attributes.items()
    )


def _node(node: Node) -> bytes:
    deps = _field(5, b"".join(map(_varint, node.deps))) if node.deps else b""
    return (
        _field(1, node.id)
        + _field(2, node.name)
        + _field(3, node.type)
        + deps
        + _field(6, node.start_us)
        + _field(7, node.duration_us)
        + _attributes(10, node.attributes)
    )


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    number = shift = 0
    while shift < 70:
        if at >= len(data):
            raise ValueError("the file ends within a number")
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number & (1 << 64) - 1, at
        shift += 7
    raise ValueError("the file has a number that is longer than 64 bits")


def _part(data: memoryview, at: int, size: int) -> tuple[memoryview, int]:
    if size > len(data) - at:
        raise ValueError("the file ends within a message")
    return data[at : at + size], at + size


def _messages(data: memoryview) -> Iterator[memoryview]:
    at = 0
    while at < len(data):
        size, at = _read_varint(data, at)
        message, at = _part(data, at, size)
        yield message


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    at = 0
    value: int | memoryview
    while at < len(message):
        key, at = _read_varint(message, at)
        kind = key & 7
        if kind == VARINT:
            value, at = _read_varint(message, at)
        elif kind == BYTES:
            size, at = _read_varint(message, at)
            value, at = _part(message, at, size)
        elif kind in (FIXED64, FIXED32):
            value, at = _part(message, at, 8 if kind == FIXED64 else 4)
        else:
            raise ValueError(f"a field of the file has the unknown type {kind}")
        yield key >> 3, value


def _node_of(message: memoryview) -> Node:
    node = Node(id=0)
    for number, value in _fields(message):
        if number == 1:
            node.id = _whole(value)
        elif number == 2:
            node.name = _text(value)
        elif number == 3:
            node.type = _whole(value)
        elif number == 5:
            node.deps += [value] if isinstance(value, int) else _packed(value)
        elif number == 6:
            node.start_us = _whole(value)
        elif number == 7:
            node.duration_us = _whole(value)
        elif number == 10:
            _add_attribute(node.attributes, value)
    return node


def _packed(data: memoryview) -> list[int]:
    found, at = [], 0
    while at < len(data):
        number, at = _read_varint(data, at)
        found.append(number)
    return found


def _add_attribute(attributes: dict[str, Value], message: int | memoryview) -> None:
    """Add an attribute if its value is one whole number or text; skip others."""
    if isinstance(message, int):
        raise ValueError("an attribute has a bare number where it should have a name and a value")
    name = ""
    for number, value in _fields(message):
        if number == 1:
            name = _text(value)
        elif number == STRING:
            attributes[name] = _text(value)
        elif number in UNSIGNED:
            attributes[name] = _whole(value)
        elif number in SIGNED:
            whole = _whole(value)
            attributes[name] = whole - (1 << 64) if whole >> 63 else whole
        elif number in ZIGZAG:
            whole = _whole(value)
            attributes[name] = (whole >> 1) ^ -(whole & 1)


def _whole(value: int | memoryview) -> int:
    if not isinstance(value, int):
        raise ValueError("the file has bytes where a whole number belongs")
    return value


def _text(value: int | memoryview) -> str:
    if isinstance(value, int):
        raise ValueError("the file has a number where text belongs")
    return bytes(value).decode(errors="replace")

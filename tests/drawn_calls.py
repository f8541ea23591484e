"""Random calls of `torch.distributed`: drawn, and made on a rank. `meant` says what they mean.

A call is plain data, so that plain Gloo, `simlib.run` and `simlib.simulate` make the same one.
Tensors lie within a larger piece of memory, whose other elements nobody may write.
"""

import itertools
import warnings
from dataclasses import dataclass, field, replace
from math import prod

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Spec:
    """A tensor: its elements are ``numbers[i]``, as often as needed."""

    shape: tuple
    dtype: str = "float32"
    layout: str = "plain"
    numbers: tuple = (0,)
    needs_grad: bool = False

    @property
    def numel(self):
        return prod(self.shape)

    def strides(self):
        def of(shape):
            return [prod(shape[i + 1 :]) for i in range(len(shape))]

        shape = list(self.shape)
        if self.layout == "crossed":
            return of(shape[::-1])[::-1]
        if self.layout == "steps":
            return [2 * stride for stride in of(shape)]
        if self.layout == "columns":
            return of([*shape[:-1], shape[-1] + 2] if shape else [])
        if self.layout == "expanded" and shape:
            return [0, *of(shape)[1:]]
        if self.layout == "channels_last" and len(shape) == 4:
            _, c, h, w = shape
            return [h * w * c, 1, w * c, c]
        return of(shape)

    def offsets(self):
        """Where each element lies, in order."""
        strides, margin = self.strides(), 2 * self.numel + 4
        places = itertools.product(*map(range, self.shape))
        return [
            margin + sum(map(int.__mul__, place, strides), 0) if self.shape else margin
            for place in places
        ]

    def memory(self):
        """All elements of the memory that the tensor lies in."""
        margin = 2 * self.numel + 4
        reach = [s * (n - 1) for n, s in zip(self.shape, self.strides(), strict=True)]
        size = 2 * margin + max(0, sum(reach)) + 1
        memory = list(itertools.islice(itertools.cycle(self.numbers[::-1]), size))
        for offset, number in zip(self.offsets(), itertools.cycle(self.numbers), strict=False):
            memory[offset] = number
        return memory

    def elements(self):
        """The elements in order; several of them may be one place in memory."""
        memory = self.memory()
        return [memory[offset] for offset in self.offsets()]

    def build(self):
        """The tensor, and its memory."""
        dtype = getattr(torch, self.dtype)
        wide = torch.complex128 if dtype.is_complex else torch.float64
        memory = torch.tensor(self.memory(), dtype=wide).to(dtype)
        tensor = memory.as_strided(self.shape, self.strides(), 2 * self.numel + 4)
        if self.layout == "sparse" and self.dtype in USUAL:  # torch makes no others sparse
            return tensor.to_sparse(), memory
        return tensor.requires_grad_() if self.needs_grad else tensor, memory


def numbers_of(tensor):
    """The elements of a tensor as Python's numbers."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.dtype is torch.bool:
        return [bool(x) for x in tensor.contiguous().view(torch.uint8).reshape(-1).tolist()]
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    return tensor.to(wide).reshape(-1).tolist()


@dataclass(frozen=True)
class Call:
    """What one rank calls: the tensors it takes, those it brings (None: no list), and the rest."""

    takes: tuple | None
    brings: tuple | None
    options: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One op, and the `Call` of each rank (None: it makes none)."""

    op: str
    calls: tuple


def flat(nested):
    """The specs, or tensors, of a nested list in order."""
    if nested is None:
        return []
    if isinstance(nested, (list, tuple)):
        return [one for part in nested for one in flat(part)]
    return [nested]


# -- made on a rank --------------------------------------------------------------------------------


def perform(case, rank):
    """Make the call of a rank: ("done", elements of what it takes, is memory beside untouched).

    Or ("raised", names of the exception's classes, its words).
    """
    call = case.calls[rank]
    if call is None:
        return "done", [], True
    built = []

    def build(nested):
        if isinstance(nested, tuple):
            return [build(part) for part in nested]
        if nested is None:
            return None
        built.append((nested, *nested.build()))
        return built[-1][1]

    takes, brings = build(call.takes), build(call.brings)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            work = _MAKE[case.op](takes, brings, **call.options)
            if work is not None and not isinstance(work, int):
                work.wait()
    except Exception as error:  # noqa: BLE001
        return "raised", [one.__name__ for one in type(error).__mro__], str(error)[:500]
    return "done", [numbers_of(tensor) for tensor in flat(takes)], all(map(_is_clean, built))


def _is_clean(built):
    spec, _, memory = built
    own = set(spec.offsets())
    pairs = enumerate(zip(numbers_of(memory), spec.memory(), strict=True))
    return all(found == before for i, (found, before) in pairs if i not in own)


def _reduce_op(options):
    if "reduce" in options:
        options["op"] = getattr(dist.ReduceOp, options.pop("reduce"))
    return options


def _all_to_all_single(takes, brings, splits=(None, None), **rest):
    return dist.all_to_all_single(takes[0], brings[0], *splits, **rest)


def _message(takes, brings, how="", peer=None, **rest):
    if brings:
        return (dist.isend if how == "i" else dist.send)(brings[0], peer, **rest)
    return (dist.irecv if how == "i" else dist.recv)(takes[0], peer, **rest)


def _in_place(name):
    return lambda takes, _, **rest: getattr(dist, name)(takes[0], **_reduce_op(rest))


def _one_and_list(name):
    return lambda takes, brings, **rest: getattr(dist, name)(takes[0], brings, **_reduce_op(rest))


def _single(name):
    return lambda takes, brings, **rest: getattr(dist, name)(
        takes[0], brings[0], **_reduce_op(rest)
    )


_MAKE = {
    "all_reduce": _in_place("all_reduce"),
    "all_reduce_coalesced": lambda takes, _, **rest: dist.all_reduce_coalesced(
        takes, **_reduce_op(rest)
    ),
    "broadcast": _in_place("broadcast"),
    "reduce": _in_place("reduce"),
    "gather": lambda takes, brings, **rest: dist.gather(brings[0], takes, **rest),
    "scatter": _one_and_list("scatter"),
    "all_gather": lambda takes, brings, **rest: dist.all_gather(takes, brings[0], **rest),
    "all_gather_coalesced": lambda takes, brings, **rest: dist.all_gather_coalesced(
        takes, brings, **rest
    ),
    "all_gather_into_tensor": _single("all_gather_into_tensor"),
    "reduce_scatter": _one_and_list("reduce_scatter"),
    "reduce_scatter_tensor": _single("reduce_scatter_tensor"),
    "all_to_all": lambda takes, brings, **rest: dist.all_to_all(takes, brings, **rest),
    "all_to_all_single": _all_to_all_single,
    "message": _message,
}
OPS = tuple(_MAKE)


# -- drawn -----------------------------------------------------------------------------------------

SHAPES = "1 3 4 6 1,1 2,3 3,2 1,4 4,1 2,2,3 2,1,2,3 1,2,2,2 2,3,2,1 0 0,3 2,0"
SHAPES = [(), *(tuple(map(int, shape.split(","))) for shape in SHAPES.split())]
LAYOUTS = "plain crossed steps columns expanded channels_last sparse".split()
USUAL = "float32 float64 float16 bfloat16 int64 int32 int8 uint8 bool complex64 complex128".split()
DTYPES = [*USUAL, "int16", "uint16", "float8_e4m3fn"]
REDUCE = "SUM AVG PRODUCT MIN MAX BAND BOR BXOR".split()
TAGS = [1, 7, True, 2**31 - 1, -1, 2**31, 1.5, "1", None]


class Drawer:
    """Draws cases: a right call, then what may be wrong with it."""

    def __init__(self, rng):
        self.rng = rng

    def often(self, chance):
        return self.rng.random() < chance

    def case(self, op):
        """A `Case` of this op."""
        rng = self.rng
        n = rng.choice((2, 3))
        self.dtype = "float32" if self.often(0.5) else rng.choice(DTYPES)
        self.layouts = ["plain"] if self.often(0.4) else [rng.choice(LAYOUTS)]
        if self.often(0.15):
            self.layouts = LAYOUTS
        self.shape = rng.choice(SHAPES)
        calls = getattr(self, f"draw_{op}")(n)
        if self.often(0.4):
            calls = self.disturbed(calls)
        is_async = self.often(0.3) and op != "message"
        if is_async:
            calls = [replace(c, options={**c.options, "async_op": True}) for c in calls]
        return Case(op, tuple(calls))

    def numbers(self, dtype):
        """Elements of a tensor: small, so that no dtype rounds their sums."""
        top = 1 if dtype == "bool" else 3
        numbers = [self.rng.randint(0, top) for _ in range(7)]
        if dtype.startswith("complex"):
            return tuple(complex(number, self.rng.randint(0, 3)) for number in numbers)
        return tuple(numbers)

    def with_other_numbers(self, case):
        """The same call of other elements."""

        def change(nested):
            if isinstance(nested, tuple):
                return tuple(map(change, nested))
            return nested and replace(nested, numbers=self.numbers(nested.dtype))

        calls = [
            call and replace(call, takes=change(call.takes), brings=change(call.brings))
            for call in case.calls
        ]
        return replace(case, calls=tuple(calls))

    def spec(self, shape=None):
        rng = self.rng
        shape = self.shape if shape is None else tuple(shape)
        layout = rng.choice(self.layouts)
        needs_grad = self.dtype == "float32" and layout != "sparse" and self.often(0.03)
        return Spec(shape, self.dtype, layout, self.numbers(self.dtype), needs_grad)

    def many(self, n, shape=None):
        return tuple(self.spec(shape) for _ in range(n))

    def shapes_by_rank(self, n):
        """One for all, or now and then one for each rank."""
        if self.often(0.25):
            return [self.rng.choice(SHAPES) for _ in range(n)]
        return [self.shape] * n

    def reduce(self):
        return {} if self.often(0.5) else {"reduce": self.rng.choice(REDUCE)}

    # Something is changed on one rank, or on all alike

    def disturbed(self, calls):
        """The calls with one thing changed, on one rank or on all."""
        rng = self.rng
        there = [rank for rank, call in enumerate(calls) if call is not None]
        chosen = there if self.often(0.5) else [rng.choice(there)]
        change = rng.choice(
            [self.other_spec, self.other_spec, self.other_length, self.other_option]
        )
        state = rng.getstate()
        calls = list(calls)
        for rank in chosen:
            rng.setstate(state)
            calls[rank] = change(calls[rank])
        return calls

    def other_spec(self, call):
        """Another shape, dtype or layout of one tensor, or of all that are taken or brought."""
        side = self.rng.choice(("takes", "brings"))
        nested = getattr(call, side) or call.takes
        side = "takes" if nested is call.takes else "brings"
        place = self.rng.randrange(8) if self.often(0.5) else None
        kind = self.rng.choice(("reshape", "reshape", "shape", "dtype", "layout"))
        shape, layout = self.rng.choice(SHAPES), self.rng.choice(LAYOUTS)
        dtype, way = self.rng.choice(DTYPES), self.rng.randrange(4)

        def change(spec):
            if kind == "reshape":
                ways = (spec.numel,), spec.shape[::-1], (1, *spec.shape), (*spec.shape, 1)
                return replace(spec, shape=ways[way])
            if kind == "shape":
                return replace(spec, shape=shape)
            if kind == "layout":
                return replace(spec, layout=layout)
            is_complex = "complex" in spec.dtype + dtype or "bool" in dtype
            return spec if is_complex else replace(spec, dtype=dtype, needs_grad=False)

        count = len(flat(nested))
        numbers = itertools.count()

        def through(nested):
            if isinstance(nested, tuple):
                return tuple(map(through, nested))
            is_meant = place is None or next(numbers) == place % max(1, count)
            return change(nested) if is_meant else nested

        return replace(call, **{side: through(nested)}) if nested else call

    def other_length(self, call):
        """A list that is too long, too short, empty, or absent."""
        side = self.rng.choice(("takes", "brings"))
        nested = getattr(call, side)
        single = nested is not None and len(nested) == 1 and isinstance(nested[0], Spec)
        if not nested or single:
            side = "brings" if side == "takes" else "takes"
            nested = getattr(call, side)
        if not nested or (len(nested) == 1 and isinstance(nested[0], Spec)):
            return call
        if isinstance(nested[0], tuple) and self.often(0.5):
            return replace(call, **{side: (nested[0][:-1], *nested[1:])})
        ways = nested[:-1], (*nested, nested[-1]), (), None
        return replace(call, **{side: self.rng.choice(ways[: 3 if self.often(0.8) else 4])})

    def other_option(self, call):
        """Another root, peer, tag, reduction or split."""
        rng, options = self.rng, dict(call.options)
        if "splits" in options:
            options["splits"] = rng.choice(
                [(None, None), ((), ()), ([2, 2], [2, 2]), ([1], [1]), ([3, -1], [3, -1])]
            )
        elif "peer" in options:
            if self.often(0.5):
                options["peer"] = rng.choice((0, 1, 2, 3, -1, None))
            else:
                options["tag"] = rng.choice(TAGS)
        elif "src" in options or "dst" in options:
            name = "src" if "src" in options else "dst"
            options[name] = rng.choice((0, 1, 2, 3, -1))
        elif "reduce" in options:
            options["reduce"] = rng.choice(REDUCE)
        return replace(call, options=options)

    # One method for each op

    def draw_all_reduce(self, n):
        options = self.reduce()
        return [Call((self.spec(),), None, options) for _ in range(n)]

    def draw_all_reduce_coalesced(self, n):
        options = self.reduce()
        return [Call(tuple(map(self.spec, cut)), None, options) for cut in self.cuts(n)]

    def draw_broadcast(self, n):
        root = self.rng.randrange(n)
        return [Call((self.spec(),), None, {"src": root}) for _ in range(n)]

    def draw_reduce(self, n):
        options = {"dst": self.rng.randrange(n), **self.reduce()}
        return [Call((self.spec(),), None, options) for _ in range(n)]

    def draw_gather(self, n):
        root, shapes = self.rng.randrange(n), self.shapes_by_rank(n)
        lists = [tuple(map(self.spec, shapes)) if r == root else None for r in range(n)]
        return [Call(lists[r], (self.spec(shapes[r]),), {"dst": root}) for r in range(n)]

    def draw_scatter(self, n):
        root, shapes = self.rng.randrange(n), self.shapes_by_rank(n)
        lists = [tuple(map(self.spec, shapes)) if r == root else None for r in range(n)]
        return [Call((self.spec(shapes[r]),), lists[r], {"src": root}) for r in range(n)]

    def draw_all_gather(self, n):
        shapes = self.shapes_by_rank(n)
        return [Call(tuple(map(self.spec, shapes)), (self.spec(shapes[r]),)) for r in range(n)]

    def draw_all_gather_coalesced(self, n):
        return [
            Call(tuple(tuple(map(self.spec, cut)) for _ in range(n)), tuple(map(self.spec, cut)))
            for cut in self.cuts(n)
        ]

    def cuts(self, n):
        """Shapes of a list on each rank; now and then the same elements cut in other places."""
        shapes = self.shapes_by_rank(self.rng.randint(1, 3))
        if self.often(0.8):
            return [shapes] * n
        return [
            self.rng.choice((shapes, shapes[::-1], [(sum(map(prod, shapes)),)])) for _ in range(n)
        ]

    def whole(self, n):
        """A shape that holds those of all ranks: in rows, stacked or flat."""
        shape = self.shape
        rows = (shape[0] * n, *shape[1:]) if shape else (n,)
        return self.rng.choice((rows, rows, (n, *shape), (n * prod(shape),)))

    def draw_all_gather_into_tensor(self, n):
        whole = self.whole(n)
        return [Call((self.spec(whole),), (self.spec(),)) for _ in range(n)]

    def draw_reduce_scatter(self, n):
        options, shapes = self.reduce(), self.shapes_by_rank(n)
        return [
            Call((self.spec(shapes[r]),), tuple(map(self.spec, shapes)), options) for r in range(n)
        ]

    def draw_reduce_scatter_tensor(self, n):
        options, whole = self.reduce(), self.whole(n)
        return [Call((self.spec(),), (self.spec(whole),), options) for _ in range(n)]

    def draw_all_to_all(self, n):
        table = [self.shapes_by_rank(n) for _ in range(n)]
        if self.often(0.6):
            table = [[self.shape] * n] * n
        return [
            Call(
                tuple(self.spec(table[other][r]) for other in range(n)),
                tuple(map(self.spec, table[r])),
            )
            for r in range(n)
        ]

    def draw_all_to_all_single(self, n):
        row = self.rng.choice([(), (), (2,), (0,), (2, 2), (1, 2, 3)])
        even = self.rng.randint(0, 2) if self.often(0.5) else None
        table = [
            [self.rng.randint(0, 2) if even is None else even for _ in range(n)] for _ in range(n)
        ]
        calls = []
        for r in range(n):
            incoming, outgoing = [table[other][r] for other in range(n)], table[r]
            splits = (None, None) if even is not None and self.often(0.7) else (incoming, outgoing)
            takes, brings = self.spec((sum(incoming), *row)), self.spec((sum(outgoing), *row))
            calls.append(Call((takes,), (brings,), {"splits": splits}))
        return calls

    def draw_message(self, n):
        src, dst = self.rng.sample(range(n), 2)
        how = {"how": "i" if self.often(0.3) else ""}
        if self.often(0.3):
            how["tag"] = self.rng.choice(TAGS)
        calls = [None] * n
        calls[src] = Call(None, (self.spec(),), {"peer": dst, **how})
        named = src if self.often(0.7) else None
        calls[dst] = Call((self.spec(),), None, {"peer": named, **how})
        return calls

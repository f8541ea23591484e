"""The same right answer as ten learners would write it: sources made from a solution.

Each of `KINDS` is a function ``kind(source, question, check)``, which gives the cells, one or
several, that stand in the place of the answer's. ``check`` is the source of the task's check: a
learner, who does not see it, may have names that it has for helpers of its own.
"""

import ast
import textwrap

BLOCKING = {"send": "isend", "recv": "irecv"}
SUMMED = {"all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter"}
SUMMED |= {"all_gather_single", "reduce_scatter_single", "all_to_all_single", "barrier"}


class Names(ast.NodeTransformer):
    """Gives names others, by a dict; attributes and keywords of calls stay."""

    def __init__(self, other):
        self.other = other

    def visit_Name(self, node):
        return ast.copy_location(ast.Name(self.other.get(node.id, node.id), node.ctx), node)

    def visit_arg(self, node):
        node.arg = self.other.get(node.arg, node.arg)
        return node


class Calls(ast.NodeTransformer):
    """Changes calls of torch.distributed: ``change(node, name)`` gives what takes its place."""

    def __init__(self, change):
        self.change = change

    def visit_Call(self, node):
        self.generic_visit(node)
        name = dist_name(node)
        return self.change(node, name) if name else node


def dist_name(node):
    """``"send"`` of a call ``dist.send(...)``, else None."""
    called = node.func
    is_dist = isinstance(called, ast.Attribute) and getattr(called.value, "id", None) == "dist"
    return called.attr if is_dist else None


def read(source, question):
    """The tree of a cell, and in it the function that answers."""
    tree = ast.parse(source)
    (function,) = (node for node in tree.body if getattr(node, "name", None) == question)
    return tree, function


def text(tree):
    return ast.unparse(ast.fix_missing_locations(tree))


def arguments(function):
    return [one.arg for one in function.args.args]


def helpers_of(check):
    """The names of the functions that a check defines for itself."""
    return [node.name for node in ast.parse(check).body if isinstance(node, ast.FunctionDef)]


def other_names(source, question, check):
    """All arguments and local names are others."""
    tree, function = read(source, question)
    own = {*arguments(function)}
    own |= {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and stored(n)}
    Names({name: f"my_{name}" for name in own}).visit(function)
    return [text(tree)]


def stored(name):
    return isinstance(name.ctx, ast.Store)


def helper_above(source, question, check):
    """The work is done in a function of a cell above, which has the name of one of the check's."""
    name = next(iter(helpers_of(check)), "worked_out")
    tree, function = read(source, question)
    given = ", ".join(arguments(function))
    function.name = name
    return [text(tree), f"def {question}({given}):\n    return {name}({given})"]


def an_object(source, question, check):
    """The answer is an object of a class, which is called."""
    tree, function = read(source, question)
    function.name = "__call__"
    function.args.args.insert(0, ast.arg("self"))
    return [f"class Answer:\n{textwrap.indent(text(tree), '    ')}\n\n{question} = Answer()"]


def a_closure(source, question, check):
    """The answer is made by another function, and keeps a number of it."""
    return [
        f"def made(kept):\n{textwrap.indent(source, '    ')}\n"
        f"    def answer(*given):\n        assert kept == 7\n        return {question}(*given)\n"
        f"    return answer\n\n{question} = made(7)"
    ]


def that_prints(source, question, check):
    """It prints what it is given, and where it is in between."""
    tree, function = read(source, question)
    given = ", ".join(arguments(function))
    said = ast.parse(f"print('begin', {given})").body
    for node in ast.walk(function):
        if isinstance(node, (ast.For, ast.While)):
            node.body = [*ast.parse("print('in the loop', rank, flush=True)").body, *node.body]
    place = bool(ast.get_docstring(function))
    function.body = [*function.body[:place], *said, *function.body[place:]]
    return [text(tree)]


DECORATOR = """\
import functools
import typing

def noted(function):
    @functools.wraps(function)
    def wrapped(*given: typing.Any, **named: typing.Any) -> typing.Any:
        "What is noted goes nowhere."
        return function(*given, **named)
    return wrapped

@noted
"""


def in_full_dress(source, question, check):
    """With type hints, a default argument, another docstring and a decorator."""
    tree, function = read(source, question)
    for one in function.args.args:
        one.annotation = ast.parse("typing.Any", mode="eval").body
    function.args.args.append(ast.arg("verbose", ast.parse("bool", mode="eval").body))
    function.args.defaults.append(ast.Constant(False))
    function.returns = ast.parse("typing.Any", mode="eval").body
    place = bool(ast.get_docstring(function))
    function.body = [ast.Expr(ast.Constant("Mine.")), *function.body[place:]]
    return [DECORATOR + text(tree)]


def group_named(source, question, check):
    """Each call of torch.distributed says that the group is the whole world."""

    def change(node, name):
        if name in SUMMED | {*BLOCKING, *BLOCKING.values()}:
            node.keywords.append(
                ast.keyword("group", ast.parse("dist.group.WORLD", mode="eval").body)
            )
        return node

    return [text(Calls(change).visit(ast.parse(source)))]


def imported_inside(source, question, check):
    """torch and its functions are imported in the function, some by their own names."""
    tree, function = read(source, question)
    used = set()

    def change(node, name):
        if name in SUMMED | {*BLOCKING, *BLOCKING.values()}:
            used.add(name)
            node.func = ast.Name(name, ast.Load())
        return node

    Calls(change).visit(function)
    Names({"dist": "c10d", "torch": "pytorch"}).visit(function)
    lines = ["import torch as pytorch", "import torch.distributed.distributed_c10d as c10d"]
    lines += [f"from torch.distributed import {name}" for name in sorted(used)]
    place = bool(ast.get_docstring(function))
    added = ast.parse("\n".join(lines)).body
    function.body = [*function.body[:place], *added, *function.body[place:]]
    return [text(tree)]


def with_requests(source, question, check):
    """Each blocking call starts, and is waited for in the same line."""

    def change(node, name):
        if any(one.arg == "async_op" for one in node.keywords):
            return node
        if name in BLOCKING:
            node.func.attr = BLOCKING[name]
        elif name in SUMMED:
            node.keywords.append(ast.keyword("async_op", ast.Constant(True)))
        else:
            return node
        return ast.Call(ast.Attribute(node, "wait", ast.Load()), [], [])

    return [text(Calls(change).visit(ast.parse(source)))]


COPIED = """\
def copied(value):
    if isinstance(value, torch.Tensor):
        return value.detach().clone().contiguous()
    if isinstance(value, dict):
        return dict((key, copied(one)) for key, one in value.items())
    return type(value)(map(copied, value)) if isinstance(value, (list, tuple)) else value
"""


def on_copies(source, question, check):
    """It works on copies of all that it is given, and returns a copy."""
    tree, function = read(source, question)
    given = arguments(function)
    function.name = "worked_out"
    kept = 2 + ("in_place=True" in check)  # so many are handed on as they are
    called = ", ".join([*given[:kept], *(f"copied({name})" for name in given[kept:])])
    return [
        COPIED,
        text(tree),
        f"def {question}({', '.join(given)}):\n    return copied(worked_out({called}))",
    ]


def by_keywords(source, question, check):
    """The work is done in a function that wants keywords, and gets them in another order."""
    tree, function = read(source, question)
    given = arguments(function)
    function.name = "worked_out"
    function.args.kwonlyargs, function.args.args = function.args.args, []
    function.args.kw_defaults = [None] * len(given)
    named = ", ".join(f"{name}={name}" for name in reversed(given))
    return [
        text(tree),
        f"def {question}({', '.join(given)}):\n    found = worked_out({named})\n    return found",
    ]


def a_method(source, question, check):
    """The answer is a method of an object, which holds the inputs while it works."""
    tree, function = read(source, question)
    given = ", ".join(arguments(function))
    function.name = "work"
    function.decorator_list = [ast.Name("staticmethod", ast.Load())]
    return [
        f"class Worker:\n{textwrap.indent(text(tree), '    ')}\n\n"
        f"    def solve(self, {given}):\n        self.inputs = ({given})\n"
        f"        return self.work(*self.inputs)\n\n{question} = Worker().solve"
    ]


class Attributes(ast.NodeTransformer):
    """Makes attributes of one object of names."""

    def __init__(self, names):
        self.names = names

    def visit_Name(self, node):
        if node.id not in self.names:
            return node
        return ast.copy_location(
            ast.Attribute(ast.Name("kept", ast.Load()), node.id, node.ctx), node
        )


INNER = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Lambda, ast.FunctionDef)


def on_an_object(source, question, check):
    """All that the function knows is in the attributes of one object."""
    tree, function = read(source, question)
    own = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and stored(n)}
    for node in ast.walk(function):  # what belongs to something inside stays a name
        if isinstance(node, INNER) and node is not function:
            inside = list(ast.walk(node))
            own -= {n.id for n in inside if isinstance(n, ast.Name) and stored(n)}
            own -= {n.arg for n in inside if isinstance(n, ast.arg)}
        if isinstance(node, ast.Nonlocal):
            own -= set(node.names)
    if not own:
        own = set(arguments(function)) - inner_arguments(function)
    given = [name for name in arguments(function) if name in own]
    function.body = [Attributes(own).visit(one) for one in function.body]
    begin = (
        "import types\nkept = types.SimpleNamespace(" + ", ".join(f"{n}={n}" for n in given) + ")"
    )
    place = bool(ast.get_docstring(function))
    function.body = [*function.body[:place], *ast.parse(begin).body, *function.body[place:]]
    return [text(tree)]


def inner_arguments(function):
    """The arguments of what is defined inside a function."""
    return {
        one.arg
        for node in ast.walk(function)
        if isinstance(node, (ast.Lambda, ast.FunctionDef)) and node is not function
        for one in ast.walk(node.args)
        if isinstance(one, ast.arg)
    }


MIRRORED = {ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE}
MIRRORED |= {ast.Eq: ast.Eq, ast.NotEq: ast.NotEq}


class OtherWords(ast.NodeTransformer):
    """Says the same otherwise; loops only if asked to."""

    def __init__(self, in_loops):
        self.in_loops, self.number = in_loops, 0

    def visit_For(self, node):
        """A loop that counts by itself."""
        self.generic_visit(node)
        if node.orelse or not self.in_loops:
            return node
        self.number += 1
        things, at = f"things_{self.number}", f"at_{self.number}"
        lines = (
            f"{things} = list({ast.unparse(node.iter)})\n{at} = 0\nwhile {at} < len({things}):\n"
            f"    {ast.unparse(node.target)} = {things}[{at}]\n    {at} += 1"
        )
        *begin, loop = ast.parse(lines).body
        loop.body += node.body
        return [*begin, loop]

    def visit_ListComp(self, node):
        """A list that is made of a generator."""
        self.generic_visit(node)
        made = ast.GeneratorExp(node.elt, node.generators)
        return ast.Call(ast.Name("list", ast.Load()), [made], [])

    def visit_GeneratorExp(self, node):
        """A list where a generator was."""
        self.generic_visit(node)
        return ast.ListComp(node.elt, node.generators)

    def visit_Call(self, node):
        """`next` takes no list."""
        return node if getattr(node.func, "id", None) == "next" else self.generic_visit(node)

    def visit_Compare(self, node):
        """`n > k` for `k < n`."""
        self.generic_visit(node)
        other = MIRRORED.get(type(node.ops[0]))
        if len(node.ops) > 1 or other is None:
            return node
        return ast.Compare(node.comparators[0], [other()], [node.left])

    def visit_BinOp(self, node):
        """`n * 2` for `2 * n`."""
        self.generic_visit(node)
        if isinstance(node.op, ast.Mult) and isinstance(node.left, ast.Constant):
            node.left, node.right = node.right, node.left
        return node

    def visit_IfExp(self, node):
        """A choice that is made the other way round."""
        self.generic_visit(node)
        return ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.orelse, node.body)

    def visit_Return(self, node):
        """What is returned has a name first."""
        self.generic_visit(node)
        if node.value is None or isinstance(node.value, (ast.Name, ast.Constant)):
            return node
        result = ast.Assign([ast.Name("result", ast.Store())], node.value)
        return [result, ast.Return(ast.Name("result", ast.Load()))]


def in_other_words(source, question, check):
    """Loops, lists, comparisons, products, choices and results are written in another way."""
    # Where memory is counted, a list of all that a loop takes is another answer.
    return [text(OtherWords("memory=" not in check).visit(ast.parse(source)))]


TRIED = """\
import numpy as np

import simlib

rank, world_size, seed, n, x, w, step, total, left, right, run, dtype = 3, 4, 7, *range(9)
inputs = expected = want = got = points = mistakes = answer = rules = hint = None


def tried(rank, world_size):
    x = torch.full((3,), float(rank))
    torch.distributed.all_reduce(x)
    return x.tolist()


found = simlib.run(tried, 2)
assert found.results == [[1.0] * 3] * 2
torch.manual_seed(123)
np.random.seed(4)
"""


def after_experiments(source, question, check):
    """Other cells stand above, with programs and names of the learner's own; some below."""
    shadowed = "".join(f"{name} = 'my own'\n" for name in helpers_of(check))
    return [TRIED + shadowed, source, "print(simlib.run(tried, 3).results)\ntorch.rand(3)"]


KINDS = [
    other_names,
    helper_above,
    an_object,
    a_closure,
    that_prints,
    in_full_dress,
    group_named,
    imported_inside,
    with_requests,
    on_copies,
    by_keywords,
    a_method,
    on_an_object,
    in_other_words,
    after_experiments,
]


def variants(source, question, check):
    """``{kind: cells}`` of the kinds that change something, and give what no kind before gives."""
    found, seen = {}, {as_a_tree([source])}
    for kind in KINDS:
        # Where memory is counted, copies of all are another answer.
        if kind is on_copies and "memory=" in check:
            continue
        cells = kind(source, question, check)
        if as_a_tree(cells) not in seen:
            seen.add(as_a_tree(cells))
            found[kind] = cells
    return found


def as_a_tree(cells):
    """What cells say, whatever their spaces and comments."""
    return tuple(ast.dump(ast.parse(cell)) for cell in cells)

"""Measure a package: modules, import chains, circles, names, functions, parameters, lines.

    house.py                   measures simlib
    house.py path/to/package   measures another package, for example an older simlib
    house.py --walks           also lists the files that a run, a check, a job ... pass through

An import inside a function counts like one at the top. An import for type checkers counts only for
the second number of circles. A chain is a row of modules each of which imports the next; a circle
counts with all its modules.
"""

import argparse
import ast
import io
import sys
import tokenize
from pathlib import Path
from typing import NamedTuple

import grimp
import networkx

ROOT = Path(__file__).resolve().parent.parent
MAX_PARAMETERS = 6
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


class Function(NamedTuple):
    """A function, by its length."""

    lines: int
    name: str


class Size(NamedTuple):
    """The size of a package, or of one part of it."""

    modules: int
    code_lines: int


class House(NamedTuple):
    """The figures of a package."""

    parts: dict
    """The name of each folder at the top -> its `Size`; "the top" has the files beside them."""
    chain: list
    """Names of modules, the importing one first."""
    circles: list
    """Lists of modules that import each other, the largest first."""
    type_circles: list
    """The same, if imports for type checkers count too."""
    names: list
    """Files and folders at its top level."""
    longest: Function
    many_parameters: int
    """How many functions have more than `MAX_PARAMETERS` parameters."""

    @property
    def whole(self):
        """The `Size` of all parts together."""
        return Size(*map(sum, zip(*self.parts.values(), strict=True)))


def measure(folder):
    """The `House` of a package folder."""
    imports = import_graph(folder)
    functions = list(functions_of(folder))
    return House(
        parts=parts_of(folder),
        chain=longest_chain(imports),
        circles=circles_of(imports),
        type_circles=circles_of(import_graph(folder, for_types=True)),
        names=sorted(entry.name for entry in folder.iterdir() if entry.name != "__pycache__"),
        longest=max(length for length, _ in functions),
        many_parameters=sum(parameters > MAX_PARAMETERS for _, parameters in functions),
    )


def parts_of(folder):
    """The `Size` of each folder of a package, and of the files at its top."""
    parts = {}
    for file in sorted(folder.rglob("*.py")):
        path = file.relative_to(folder).parts
        part = path[0] if len(path) > 1 else "the top"
        size = parts.get(part, Size(0, 0))
        lines = len(code_lines_of(file.read_text(encoding="utf-8")))
        parts[part] = Size(size.modules + 1, size.code_lines + lines)
    return parts


def import_graph(folder, for_types=False):
    """A directed graph of the modules of a package folder: from the importing to the imported."""
    sys.path.insert(0, str(folder.parent))
    try:
        graph = grimp.build_graph(
            folder.name, cache_dir=None, exclude_type_checking_imports=not for_types
        )
    finally:
        sys.path.remove(str(folder.parent))
    found = networkx.DiGraph()
    found.add_nodes_from(graph.modules)
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            found.add_edge(module, imported)
    return found


def circles_of(imports):
    """The groups of modules that import each other, the largest first."""
    groups = networkx.strongly_connected_components(imports)
    return sorted((sorted(one) for one in groups if len(one) > 1), key=len, reverse=True)


def longest_chain(imports):
    """The longest row of modules each of which imports the next."""
    groups = networkx.condensation(imports)
    best = {}
    for group in reversed(list(networkx.topological_sort(groups))):
        rest = max((best[one] for one in groups.successors(group)), key=len, default=[])
        best[group] = sorted(groups.nodes[group]["members"]) + rest
    return max(best.values(), key=len)


def functions_of(folder):
    """Each function of a package folder: its length as `Function`, and its number of parameters."""
    yield Function(0, "none"), 0
    for file in sorted(folder.rglob("*.py")):
        place = file.relative_to(folder.parent).as_posix()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                arguments = node.args
                parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
                length = node.end_lineno - node.lineno + 1
                yield (
                    Function(length, f"{place}:{node.name}"),
                    sum(one.arg not in ("self", "cls") for one in parameters),
                )


def code_lines_of(text):
    """The numbers of the lines that hold code: no blank ones, no comments, no docstrings."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            lines -= docstring_lines(node)
    return lines


def docstring_lines(node):
    """The numbers of the lines of a node's docstring, and of those that stand below values."""
    strings = [
        one
        for one in node.body
        if isinstance(one, ast.Expr)
        and isinstance(one.value, ast.Constant)
        and isinstance(one.value.value, str)
    ]
    return {line for one in strings for line in range(one.lineno, one.end_lineno + 1)}


def describe(house):
    """The lines of the report."""
    yield "                 modules  code lines"
    for name, size in [*house.parts.items(), ("together", house.whole)]:
        yield f"{name:16s} {size.modules:7d} {size.code_lines:11d}"
    yield f"longest chain    {len(house.chain)}: {' > '.join(house.chain)}"
    for name, circles in ("circles", house.circles), ("with types", house.type_circles):
        yield f"{name:16s} {len(circles)}"
        for circle in circles:
            yield f"                 of {len(circle)}: {' '.join(circle)}"
    yield f"names at the top {len(house.names)}: {' '.join(house.names)}"
    yield f"longest function {house.longest.lines} lines: {house.longest.name}"
    yield f"more than {MAX_PARAMETERS} parameters: {house.many_parameters} functions"


def main():
    """The command line."""
    parser = argparse.ArgumentParser(description="Measure a package.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "simlib")
    parser.add_argument(
        "--walks", action="store_true", help="also list the files of simlib that calls pass through"
    )
    options = parser.parse_args()
    folder = options.folder.resolve()
    if not (folder / "__init__.py").is_file():
        parser.error(f"{options.folder} is not a package: there is no __init__.py")
    print(*describe(measure(folder)), sep="\n")
    if options.walks:
        import walks

        for line in walks.describe(folder):
            print(line, flush=True)


if __name__ == "__main__":
    main()

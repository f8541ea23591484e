"""How a package is built, in figures: modules, import chains, circles, names, functions, lines.

    house.py                   of simlib
    house.py path/to/package   of another package, say an older simlib
    house.py --walks           and which files a run, a check, a graded notebook, a job pass through

An import inside a function counts like one at the top; one for type checkers only does not. A chain
is a row of modules each of which imports the next; a circle stands in it with all its modules.
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


class House(NamedTuple):
    """The figures of a package."""

    modules: int
    chain: list
    """Names of modules, the importing one first."""
    circles: list
    """Lists of modules that import each other, the largest first."""
    names: list
    """Files and folders at its top level."""
    longest: Function
    code_lines: int


def measure(folder):
    """The `House` of a package folder."""
    imports = import_graph(folder)
    files = sorted(folder.rglob("*.py"))
    return House(
        modules=len(imports),
        chain=longest_chain(imports),
        circles=circles_of(imports),
        names=sorted(one.name for one in folder.iterdir() if one.name != "__pycache__"),
        longest=max(one for file in files for one in functions_of(file, folder)),
        code_lines=sum(len(code_lines_of(file.read_text(encoding="utf-8"))) for file in files),
    )


def import_graph(folder):
    """Who imports whom in a package folder: a directed graph of module names."""
    sys.path.insert(0, str(folder.parent))
    try:
        graph = grimp.build_graph(folder.name, cache_dir=None, exclude_type_checking_imports=True)
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


def functions_of(file, folder):
    """The functions of a file as `Function`; where it has none, one of no lines."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    place = file.relative_to(folder.parent).as_posix()
    yield Function(0, place)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield Function(node.end_lineno - node.lineno + 1, f"{place}:{node.name}")


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
    yield f"modules          {house.modules}"
    yield f"longest chain    {len(house.chain)}: {' > '.join(house.chain)}"
    yield f"circles          {len(house.circles)}"
    for circle in house.circles:
        yield f"                 of {len(circle)}: {' '.join(circle)}"
    yield f"names at the top {len(house.names)}: {' '.join(house.names)}"
    yield f"longest function {house.longest.lines} lines: {house.longest.name}"
    yield f"code lines       {house.code_lines}"


def main():
    """The command line."""
    parser = argparse.ArgumentParser(description="How a package is built, in figures.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "simlib")
    parser.add_argument("--walks", action="store_true", help="also trips through simlib's files")
    options = parser.parse_args()
    folder = options.folder.resolve()
    if not (folder / "__init__.py").is_file():
        parser.error(f"{options.folder} is no package: it has no __init__.py")
    print(*describe(measure(folder)), sep="\n")
    if options.walks:
        import walks

        print(*walks.describe(folder), sep="\n")


if __name__ == "__main__":
    main()

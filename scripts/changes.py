"""What has changed since a commit, and which modules of simlib that reaches.

The base is the commit that ``BASE`` names. Without one it is

- where this branch has commits that its upstream lacks: the commit where they part,
- else the first parent of HEAD, so that a merge is compared with the branch it went into.

Files that are not committed yet count as changed. A push of several commits is tested as a whole by
``BASE=<the commit before it>``; ``BASE=none`` lets everything count as changed. So does a base that
this clone does not have, or a folder without git.
"""

import ast
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

import grimp

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "simlib"
TOUCH_EVERYTHING = ("constraints.txt", "conftest.py", "tests/conftest.py")
"""What every test runs with."""
CHANGED, REACHED, UNTOUCHED = "changed", "reached", "untouched"


class Changes(NamedTuple):
    """What has changed since a base."""

    base: str
    """In words; where everything counts as changed, why."""
    files: frozenset | None
    """Paths below the root; None for every file there is."""


def git(root, *words):
    """What git says, or None where it fails or is missing."""
    try:
        done = subprocess.run(
            ["git", "-C", root, "-c", "core.quotePath=false", *words],
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def changes(root=ROOT, named=None):
    """The `Changes` of a checkout since the base that is named, or since the default one."""
    named = os.environ.get("BASE", "") if named is None else named
    if named == "none":
        return Changes("BASE=none: everything counts as changed", None)
    wanted = named or default_base(root)
    base = wanted and git(root, "rev-parse", "--verify", "--quiet", f"{wanted}^{{commit}}")
    if not base:
        why = f"there is no commit {wanted} here" if wanted else "no history here"
        return Changes(f"{why}: everything counts as changed", None)
    # Without renames: a file that was moved has gone from one place and come to another.
    committed = git(root, "diff", "--name-only", "--no-renames", base)
    new = git(root, "ls-files", "--others", "--exclude-standard")
    if committed is None or new is None:
        return Changes("git cannot compare here: everything counts as changed", None)
    files = frozenset(committed.splitlines() + new.splitlines())
    return Changes(f"{len(files)} files changed since {base[:9]}", files)


def default_base(root):
    """The commit to compare with where none is named; None where there is none."""
    parted, head = git(root, "merge-base", "HEAD", "@{upstream}"), git(root, "rev-parse", "HEAD")
    return parted if parted and parted != head else git(root, "rev-parse", "HEAD^")


class Reach:
    """How near to a change the rooms of a checkout are.

    A room is a path below the root, a file or a folder, such as ``simlib/practice``. It is changed
    where a file in it is, and reached where what it imports, directly or not, is changed.
    """

    def __init__(self, found, root=ROOT):
        everything = found.files is None or any(one in found.files for one in TOUCH_EVERYTHING)
        self._files = None if everything else found.files
        if not everything:
            self._graph = grimp.build_graph(
                PACKAGE, cache_dir=None, exclude_type_checking_imports=True
            )
            self._facade = facade(root / PACKAGE / "facade.py")
            self._changed = {one for one in map(self._module_of, self._files) if one}

    def of(self, rooms):
        """``(CHANGED, REACHED or UNTOUCHED, why)`` of some rooms."""
        if self._files is None:
            return CHANGED, "everything counts as changed"
        for file in sorted(self._files):
            if any(file == room or file.startswith(f"{room}/") for room in rooms):
                return CHANGED, f"{file} has changed"
        inside = [self._module_of(room) for room in rooms]
        return self.of_imports([one for one in inside if one])

    def of_imports(self, names):
        """The same of what imports some names of simlib: ``simlib.clusters``, ``simlib.run``."""
        if self._files is None:
            return CHANGED, "everything counts as changed"
        for module in sorted({self._facade.get(name, name) for name in names}):
            seen = self._downstream(module) & self._changed
            if seen:
                return REACHED, f"{min(seen)}, which it imports, has changed"
        return UNTOUCHED, "neither it nor what it imports has changed"

    def _downstream(self, module):
        """A module, or a package with all that is in it, and whatever these import."""
        if module not in self._graph.modules:
            return set()
        found = {module} | self._graph.find_descendants(module)
        found |= self._graph.find_upstream_modules(module, as_package=True)
        # Who imports a.b.c imports a and a.b before.
        return found | {one.rpartition(".")[0] for one in found if one.count(".") > 1} | {PACKAGE}

    def _module_of(self, path):
        """The module of a path in the package, or the package around it; None for other paths."""
        parts = Path(path).with_suffix("").parts
        if not parts or parts[0] != PACKAGE:
            return None
        while ".".join(parts) not in self._graph.modules:
            parts = parts[:-1]
        return ".".join(parts)


def facade(path):
    """``{name: module}`` of what the package's own names stand for: simlib.run is an engine's."""
    found = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module:
            for one in node.names:
                found[f"{PACKAGE}.{one.asname or one.name}"] = f"{PACKAGE}.{node.module}"
    return found


def names_in(source):
    """The names of simlib that some code uses: ``simlib.run``, ``simlib.checks.check``."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == PACKAGE:
            if node.module == PACKAGE:
                found |= {f"{PACKAGE}.{one.name}" for one in node.names}
            else:
                found.add(node.module)
        elif isinstance(node, ast.Import):
            names = {one.name for one in node.names}
            found |= {name for name in names if name.startswith(f"{PACKAGE}.")}
        elif isinstance(node, ast.Attribute) and getattr(node.value, "id", None) == PACKAGE:
            found.add(f"{PACKAGE}.{node.attr}")
    return found


def imported(source):
    """The modules that some code imports from, by the names in its import lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module

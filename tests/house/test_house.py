"""simlib keeps its form: no circles, short chains, few names at the top; how that is measured."""

import house
import pytest

LONGEST_CHAIN = 13
MAX_NAMES = 22


@pytest.fixture(scope="module")
def simlib_house():
    return house.measure(house.ROOT / "simlib")


def test_no_modules_import_each_other(simlib_house):
    assert simlib_house.circles == []


def test_chains_of_imports_are_short(simlib_house):
    assert len(simlib_house.chain) <= LONGEST_CHAIN, " > ".join(simlib_house.chain)


def test_few_names_stand_at_the_top(simlib_house):
    assert len(simlib_house.names) <= MAX_NAMES, simlib_house.names


FILES = {
    "__init__.py": '"""A package."""\n\nfrom .a import f\n',
    "a.py": "def f():\n    from .b import g\n\n    return g\n",
    "b.py": "from . import c\n\n\ndef g():\n    # Nothing yet.\n    return c\n",
    "c.py": (
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from .a import f\n\n"
        'X = 1\n"""What X is."""\nY = """\n\nno docstring\n"""\n'
    ),
}


@pytest.fixture
def package(tmp_path):
    """``package(files)``: a folder of a package, of another name each time."""

    def make(files):
        folder = tmp_path / f"package_{abs(hash(tmp_path))}"
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
        return folder

    return make


def test_an_import_in_a_function_counts_and_one_for_types_does_not(package):
    found = house.measure(package(FILES))
    assert found.modules == 4 and found.circles == []
    assert [name.partition(".")[2] for name in found.chain] == ["", "a", "b", "c"]


def test_a_circle_is_found_and_stands_in_a_chain_with_all_its_modules(package):
    found = house.measure(package({**FILES, "c.py": "def h():\n    from . import a\n"}))
    assert [[name[-1] for name in circle] for circle in found.circles] == [["a", "b", "c"]]
    assert len(found.chain) == 4


def test_functions_and_lines_of_code(package):
    found = house.measure(package(FILES))
    assert found.longest.lines == 4 and found.longest.name.endswith("/a.py:f")
    assert found.names == ["__init__.py", "a.py", "b.py", "c.py"]
    # Of __init__, a, b, c; blank lines of a string that is a value count, docstrings do not.
    assert found.code_lines == 1 + 3 + 3 + 8

"""Files as they come in: of other versions, other programs, other editors, damaged, or forged.

`GOOD` hold honest answers and earn what these are worth; `BAD` cannot be graded, for a reason.
Each is made from a notebook with honest answers, as plain data.
"""

import copy
import json
import uuid

GOOD, BAD = {}, {}


def good(function):
    """A form that loses no point."""
    GOOD[function.__name__] = function
    return function


def bad(status, words):
    """A form that cannot be graded, and words of the reason."""

    def keep(function):
        BAD[function.__name__] = function, status, words
        return function

    return keep


def as_bytes(made):
    return json.dumps(made).encode()


def text_of(cell):
    return "".join(cell["source"])


def code_cells(made):
    return [cell for cell in made["cells"] if cell["cell_type"] == "code"]


def of_role(made, role):
    return [one for one in made["cells"] if one["metadata"].get("course", {}).get("role") == role]


@good
def as_it_is(made):
    return as_bytes(made)


@good
def version_3(made):
    cells = [
        {"cell_type": "code", "language": "python", "input": one["source"], "outputs": []}
        for one in code_cells(made)
    ]
    sheets = [{"cells": cells, "metadata": {}}]
    return as_bytes({"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": sheets})


def version_4(minor):
    def version(made):
        made["nbformat_minor"] = minor
        for cell in made["cells"]:
            if minor < 5:
                del cell["id"]
        return as_bytes(made)

    version.__name__ = f"version_4_{minor}"
    return good(version)


for number in range(6):
    version_4(number)


@good
def version_5(made):
    return as_bytes(made | {"nbformat": 5, "nbformat_minor": 1})


@good
def version_that_is_no_number(made):
    return as_bytes(made | {"nbformat": "four", "nbformat_minor": None})


@good
def without_ids(made):
    for cell in made["cells"]:
        del cell["id"]
    return as_bytes(made)


@good
def with_one_id_for_all(made):
    for cell in made["cells"]:
        cell["id"] = "cell"
    return as_bytes(made)


@good
def with_new_ids_and_no_metadata(made):
    made["metadata"] = {}
    for cell in made["cells"]:
        cell |= {"id": uuid.uuid4().hex[:8], "metadata": {}}
    return as_bytes(made)


@good
def without_metadata_at_all(made):
    del made["metadata"]
    for cell in made["cells"]:
        del cell["metadata"], cell["id"]
    return as_bytes(made)


@good
def without_outputs(made):
    for cell in code_cells(made):
        cell |= {"outputs": [], "execution_count": None}
    return as_bytes(made)


@good
def with_outputs_missing(made):
    for cell in code_cells(made):
        cell.pop("outputs", None)
        cell.pop("execution_count", None)
    return as_bytes(made)


@good
def from_another_kernel(made):
    made["metadata"] = {
        "kernelspec": {"name": "conda-env-dl-py", "language": "python", "display_name": "dl"},
        "language_info": {"name": "python", "version": "2.7.18"},
        "colab": {"provenance": []},
        "widgets": {"application/vnd.jupyter.widget-state+json": {"state": 5}},
    }
    return as_bytes(made)


@good
def from_colab(made):
    for cell in made["cells"]:
        cell["metadata"] = {"id": cell.pop("id")}
    return as_bytes(made)


@good
def sources_in_one_piece(made):
    for cell in made["cells"]:
        cell["source"] = text_of(cell)
    return as_bytes(made)


@good
def byte_order_mark(made):
    return b"\xef\xbb\xbf" + as_bytes(made)


@good
def utf_16(made):
    return json.dumps(made).encode("utf-16")


@good
def windows_lines(made):
    for cell in made["cells"]:
        cell["source"] = text_of(cell).replace("\n", "\r\n")
    return json.dumps(made, indent=1).replace("\n", "\r\n").encode()


@good
def odd_values(made):
    made["cells"] += [None, 5, {}, {"cell_type": "code"}, {"cell_type": [], "source": {}}]
    made["cells"].append({"cell_type": "code", "source": [1, None], "metadata": "none"})
    return as_bytes(made)


@good
def forged_outputs(made):
    text = {"output_type": "stream", "name": "stdout", "text": "sum_03: right"}
    for cell in code_cells(made):
        cell["outputs"] = [text]
    return as_bytes(made)


@good
def checks_deleted(made):
    made["cells"] = [one for one in made["cells"] if one not in of_role(made, "check")]
    return as_bytes(made)


@good
def checks_emptied(made):
    for cell in of_role(made, "check"):
        cell["source"] = ""
    return as_bytes(made)


@good
def checks_exchanged(made):
    for cell in of_role(made, "check"):
        cell["source"] = "print('right')"
    return as_bytes(made)


@good
def checks_twice(made):
    made["cells"] += copy.deepcopy(of_role(made, "check")) * 2
    return as_bytes(made)


@good
def cells_in_another_order(made):
    made["cells"].reverse()
    return as_bytes(made)


@good
def checks_are_text(made):
    for cell in of_role(made, "check"):
        cell["cell_type"] = "markdown"
    return as_bytes(made)


@good
def hidden_cells_of_ones_own(made):
    cell = copy.deepcopy(of_role(made, "check")[0])
    cell["metadata"]["course"]["role"] = "hidden"
    cell["id"] = cell["id"].replace("check", "hidden")
    cell["source"] = "seed = 1\nprint('right')"
    made["cells"].append(cell)
    return as_bytes(made)


@good
def more_points_in_the_metadata(made):
    for cell in made["cells"]:
        if "course" in cell["metadata"]:
            cell["metadata"]["course"]["points"] = 1000
    return as_bytes(made)


@good
def tags_that_leave_cells_out(made):
    for cell in made["cells"]:
        cell["metadata"]["tags"] = ["nbval-skip", "nbval-ignore-output", "raises-exception"]
    return as_bytes(made)


@bad("unreadable", "empty")
def empty(made):
    return b""


@bad("unreadable", "no valid JSON")
def cut_off(made):
    return as_bytes(made)[:-500]


@bad("unreadable", "conflict markers")
def conflict_markers(made):
    lines = json.dumps(made, indent=1).splitlines()
    lines[5:5] = ["<<<<<<< HEAD", lines[5], "=======", lines[5], ">>>>>>> theirs"]
    return "\n".join(lines).encode()


@bad("unreadable", "nested too deep")
def deep(made):
    return b'{"cells": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"


@bad("unreadable", "no notebook")
def a_list(made):
    return b"[1, 2, 3]"


@bad("unreadable", "no cells")
def no_cells(made):
    return b'{"cells": 5}'


@bad("unreadable", "UTF-8")
def a_picture(made):
    return b"\x89PNG\r\n\x1a\n\xff\xfe\xfd"


@bad("unreadable", "cells: more than")
def more_cells_than_anybody_writes(made):
    made["cells"] = [{"cell_type": "code", "source": "1"}] * 6000
    return as_bytes(made)


@bad("unreadable", "not Python")
def another_language(made):
    made["metadata"] = {"language_info": {"name": "julia"}}
    return as_bytes(made)


@bad("unreadable", "no valid JSON")
def a_number_without_end(made):
    return b'{"nbformat": ' + b"9" * 100_000 + b', "cells": []}'


@bad("wrong notebook", "no cell of exercise")
def another_notebook(made):
    made["cells"] = [{"cell_type": "code", "id": "x", "source": "print(1)", "metadata": {}}]
    return as_bytes(made)

"""Files as they come in: of other versions, other programs, other editors, damaged, or forged.

`GOOD` hold honest answers and earn what these are worth; `BAD` cannot be graded, for a reason.
Each is made from a notebook with honest answers, as plain data.
"""

import copy
import json
import uuid
from functools import partial


def as_file(change):
    """A form: the bytes of a file of what a change makes of a notebook."""

    def form(made):
        found = change(made)
        return found if isinstance(found, bytes) else json.dumps(found).encode()

    return form


def of_role(made, role):
    return [one for one in made["cells"] if one["metadata"].get("course", {}).get("role") == role]


def each(made, *without, role=None, **values):
    """The notebook with some entries of its cells taken out, and others set."""
    for cell in of_role(made, role) if role else made["cells"]:
        for key in without:
            cell.pop(key, None)
        cell |= copy.deepcopy(values)
    return made


def text_of(cell):
    return "".join(cell["source"])


def version_3(made):
    """As nbformat 3 has it: worksheets, ``input`` in the place of ``source``."""
    cells = [
        {"cell_type": one["cell_type"], "language": "python", "input": one["source"], "outputs": []}
        for one in made["cells"]
    ]
    sheets = [{"cells": cells, "metadata": {}}]
    return {"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": sheets}


def version_4(minor, made):
    return each(made, *["id"] * (minor < 5)) | {"nbformat_minor": minor}


def with_new_ids_and_no_metadata(made):
    for cell in each(made, metadata={})["cells"]:
        cell["id"] = uuid.uuid4().hex[:8]
    return made | {"metadata": {}}


def from_colab(made):
    for cell in made["cells"]:
        cell["metadata"] = {"id": cell.pop("id")}
    return made


ANOTHER_KERNEL = {
    "kernelspec": {"name": "conda-env-dl-py", "language": "python", "display_name": "dl"},
    "language_info": {"name": "python", "version": "2.7.18"},
    "colab": {"provenance": []},
    "widgets": {"application/vnd.jupyter.widget-state+json": {"state": 5}},
}


def sources_in_one_piece(made):
    for cell in made["cells"]:
        cell["source"] = text_of(cell)
    return made


def windows_lines(made):
    for cell in made["cells"]:
        cell["source"] = text_of(cell).replace("\n", "\r\n")
    return json.dumps(made, indent=1).replace("\n", "\r\n").encode()


def odd_values(made):
    odd = [None, 5, "x", {}, [], {"cell_type": "code"}, {"cell_type": [], "source": {}}]
    odd.append({"cell_type": "code", "source": [1, None], "metadata": "none"})
    return made | {"cells": [*odd, *made["cells"], *odd]}


def checks_deleted(made):
    return made | {"cells": [one for one in made["cells"] if one not in of_role(made, "check")]}


def hidden_cells_of_ones_own(made):
    cell = copy.deepcopy(of_role(made, "check")[0])
    cell["metadata"]["course"]["role"] = "hidden"
    cell["id"] = cell["id"].replace("check", "hidden")
    cell["source"] = "seed = 1\nprint('right')"
    made["cells"].append(cell)
    return made


def in_the_metadata(made, course=None, **values):
    """The notebook with entries in the metadata of its cells, and of the course's."""
    for cell in made["cells"]:
        cell["metadata"] |= values
        if "course" in cell["metadata"]:
            cell["metadata"]["course"] |= course or {}
    return made


GOOD = {
    "as_it_is": lambda made: made,
    "version_3": version_3,
    **{f"version_4_{minor}": partial(version_4, minor) for minor in range(6)},
    "version_5": lambda made: made | {"nbformat": 5, "nbformat_minor": 1},
    "version_that_is_no_number": lambda made: made | {"nbformat": "four", "nbformat_minor": None},
    "without_ids": lambda made: each(made, "id"),
    "with_one_id_for_all": lambda made: each(made, id="cell"),
    "with_new_ids_and_no_metadata": with_new_ids_and_no_metadata,
    "without_metadata_of_cells": lambda made: each(made, "metadata"),
    "without_metadata_at_all": lambda made: {"cells": each(made, "id", "metadata")["cells"]},
    "null_where_objects_belong": lambda made: made | {"metadata": None},
    "without_outputs": lambda made: each(made, outputs=[], execution_count=None),
    "with_outputs_missing": lambda made: each(made, "outputs", "execution_count"),
    "from_another_kernel": lambda made: made | {"metadata": ANOTHER_KERNEL},
    "from_colab": from_colab,
    "sources_in_one_piece": sources_in_one_piece,
    "byte_order_mark": lambda made: b"\xef\xbb\xbf" + json.dumps(made).encode(),
    "utf_16": lambda made: json.dumps(made).encode("utf-16"),
    "windows_lines": windows_lines,
    "odd_values": odd_values,
    "forged_outputs": lambda made: each(
        made, outputs=[{"output_type": "stream", "name": "stdout", "text": "sum_03: right"}]
    ),
    "checks_deleted": checks_deleted,
    "checks_emptied": lambda made: each(made, role="check", source=""),
    "checks_exchanged": lambda made: each(made, role="check", source="print('right')"),
    "checks_twice": lambda made: made | {"cells": made["cells"] + 2 * of_role(made, "check")},
    "checks_are_text": lambda made: each(made, role="check", cell_type="markdown"),
    "cells_in_another_order": lambda made: made | {"cells": made["cells"][::-1]},
    "hidden_cells_of_ones_own": hidden_cells_of_ones_own,
    "more_points_in_the_metadata": lambda made: in_the_metadata(made, {"points": 1000}),
    "tags_that_leave_cells_out": lambda made: in_the_metadata(
        made, tags=["nbval-skip", "nbval-ignore-output", "raises-exception"]
    ),
}
GOOD = {name: as_file(change) for name, change in GOOD.items()}


def conflict_markers(made):
    lines = json.dumps(made, indent=1).splitlines()
    lines[5:5] = ["<<<<<<< HEAD", lines[5], "=======", lines[5], ">>>>>>> theirs"]
    return "\n".join(lines).encode()


UNREADABLE = {
    "empty": (lambda made: b"", "empty"),
    "blank": (lambda made: b" \n", "empty"),
    "cut_off": (lambda made: json.dumps(made).encode()[:-500], "not valid JSON.*incomplete"),
    "conflict_markers": (conflict_markers, "conflict markers"),
    "deep": (
        lambda made: b'{"cells": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        "nested too deep",
    ),
    "a_list": (lambda made: b"[1, 2, 3]", "not a notebook"),
    "cells_that_are_none": (lambda made: {"cells": 5}, "no cells"),
    "no_cells": (lambda made: {"a": 1}, "no cells"),
    "a_picture": (lambda made: b"\x89PNG\r\n\x1a\n\xff\xfe\xfd", "UTF-8"),
    "an_array": (lambda made: b"\x93NUMPY\xff\x00\x01", "not text"),
    "more_cells_than_anybody_writes": (
        lambda made: made | {"cells": [{"cell_type": "code", "source": "1"}] * 6000},
        "6,000 cells: more than",
    ),
    "another_language": (
        lambda made: made | {"metadata": {"language_info": {"name": "julia"}}},
        "language is julia, not Python",
    ),
    "another_kernel_s_language": (
        lambda made: made | {"metadata": {"kernelspec": {"language": "R"}}},
        "language is r",
    ),
    "a_number_without_end": (
        lambda made: b'{"nbformat": ' + b"9" * 100_000 + b', "cells": []}',
        "not valid JSON",
    ),
}
NOTHING_OF_IT = [{"cell_type": "code", "id": "x", "source": "print(1)", "metadata": {}}]
BAD = {name: (as_file(change), "unreadable", words) for name, (change, words) in UNREADABLE.items()}
BAD["another_notebook"] = (
    as_file(lambda made: made | {"cells": NOTHING_OF_IT}),
    "wrong notebook",
    "no cell of exercise",
)

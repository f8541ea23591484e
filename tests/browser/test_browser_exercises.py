"""An exercise in a real browser: an answer is typed into its stub, and the verdict turns."""

import nbformat
from lab_server import ROOT

NAME = "02_send_and_recv.ipynb"
WRONG = """\
def running_total(rank, world_size, x):
    return x.clone()
"""


def solution(question):
    """The answer cell of a question in the solution notebook."""
    cells = nbformat.read(ROOT / "solutions" / NAME, as_version=4).cells
    asked = {"role": "answer", "question": question}
    return next(c.source for c in cells if asked.items() <= c.metadata.get("course", {}).items())


def test_the_verdict_turns_from_not_written_to_wrong_to_right(notebook):
    page = notebook(f"exercises/{NAME}")
    page.run(page.find("from simlib.checks import"))
    stub = page.find("def running_total(")
    check = stub + 1
    for answer, verdict in (
        (None, "not written yet"),
        (WRONG, "running_total: wrong, 0 of 2 points"),
        (solution("running_total"), "running_total: right, 2 of 2 points"),
    ):
        if answer:
            page.type_into(stub, answer)
        page.run(stub)
        page.run(check)
        assert verdict in page.text_of(check)
    assert page.errors() == []

"""Fill the tables of docs/published.md: ``python scripts/published.py``.

A table stands between ``<!-- table: its name -->`` and ``<!-- end -->``; what is published and what
the model says is computed in `published_tables`. The text around the tables is written by hand.
"""

import re
from pathlib import Path

from published_tables import collectives, data_parallel, runs, servers, splits
from published_tables.rows import lines_of

PAGE = Path(__file__).resolve().parent.parent / "docs" / "published.md"
TABLES = {
    "formulas": collectives.formulas,
    "busbw": collectives.bus_factors,
    "goyal": data_parallel.goyal,
    "horovod": data_parallel.horovod,
    "ddp": data_parallel.ddp,
    "tensorflow": servers.tensorflow,
    "mxnet": servers.mxnet,
    "gpipe": splits.gpipe,
    "torchgpipe-resnet": splits.torchgpipe_resnet,
    "torchgpipe-amoebanet": splits.torchgpipe_amoebanet,
    "megatron": splits.megatron,
    "megatron-later": splits.megatron_later,
    "distbelief": splits.distbelief,
    "zero": splits.zero,
    "gpt-3": runs.gpt_3,
    "bert": runs.bert,
    "raspberries": runs.raspberries,
}
MARKED = re.compile(r"(<!-- table: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def tables_in(text):
    """The lines of each table of a page, by its name."""
    return {name: lines.splitlines() for _, name, lines, _ in MARKED.findall(text)}


def filled(text, tables=TABLES):
    """A page with all its tables computed anew."""

    def table(found):
        lines = lines_of(tables[found[2]]())
        return "".join((found[1], *(f"{line}\n" for line in lines), found[4]))

    return MARKED.sub(table, text)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

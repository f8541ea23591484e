"""What a table of docs/published.md is made of."""

from typing import NamedTuple


class Row(NamedTuple):
    """One published figure, and the model's for the same."""

    what: str
    published: float
    model: float

    @property
    def miss(self):
        """By which share the model is above what was published."""
        return self.model / self.published - 1


class Table(NamedTuple):
    """Rows of one source."""

    of: str
    """What the rows' names are of: the head of the first column."""
    figure: str
    """What is compared, with its unit."""
    form: str
    """How a figure is written: of `format`."""
    rows: list


def lines_of(table):
    """A table as lines of Markdown."""
    rows = [(table.of, f"{table.figure}, published", "model", "miss"), ("---", "--:", "--:", "--:")]
    for row in table.rows:
        figures = [format(value, table.form) for value in (row.published, row.model)]
        figures.append(f"{row.miss:+.1%}".replace("-0.0%", "+0.0%"))
        rows.append((row.what, *(figure.replace("%", " %") for figure in figures)))
    return [f"| {' | '.join(cells)} |" for cells in rows]

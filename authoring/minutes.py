"""How long a learner needs for a lesson or an exercise, counted from its cells.

The rates are chosen; none was measured by itself. Technical prose is read more slowly than other
prose (238 words a minute, Brysbaert 2019), and a line of code more slowly than a line of prose.

What was measured are whole lessons, and the rates lie between. One learner took 75 minutes for
lesson 15, where 90 are counted. Two newcomers took 80 to 130 for lessons 01 to 10 as they were
then, where 50 to 90 are counted as they are. So the start page says: some need half as much again.
"""

import re

WORDS_A_MINUTE = 140
LINE_S = 6
"""A line of code, read beside what it prints."""
RUN_S = 20
"""A cell runs for some seconds; then somebody looks at what it shows."""
GUESS_S = 45
"""To think of a number or a word, and to compare it with the run."""
WRITTEN_S = 180
"""A "now you write it": one to five lines, a first try that fails, a look at the answer."""
ROUNDED_TO = 5

FOLDED = re.compile(r"<details>.*?</details>", re.DOTALL)
GUESS = re.compile(r"^\w+(?:, \w+)* = None\b", re.MULTILINE)
WRITTEN = re.compile(r"\bnow\s+(?:#\s+)?you\s+write\b", re.IGNORECASE)
LAST_LINE = "**Next:**"
"""Behind the link to the next lesson come appendices, if any."""


def of_lesson(cells):
    """The minutes for a lesson's cells, rounded, 5 at least.

    Hints, answers and appendices do not count: they are for those who want them.

    Parameters
    ----------
    cells : list of NotebookNode
    """
    ends = [place for place, cell in enumerate(cells) if LAST_LINE in cell.source]
    cells = cells[: ends[-1] + 1] if ends else cells
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    prose = [
        FOLDED.sub("", cell.source).partition(LAST_LINE)[0]
        for cell in cells
        if cell.cell_type == "markdown"
    ]
    lines = [line.strip() for text in code for line in text.splitlines()]
    seconds = (
        sum(len(re.findall(r"\S*\w\S*", text)) for text in prose) * 60 / WORDS_A_MINUTE
        + sum(bool(line) and not line.startswith("#") for line in lines) * LINE_S
        + len(code) * RUN_S
        + sum(len(GUESS.findall(text)) for text in code) * GUESS_S
        + sum(bool(WRITTEN.search(text)) for text in code + prose) * WRITTEN_S
    )
    return max(1, round(seconds / 60 / ROUNDED_TO)) * ROUNDED_TO


def of_exercise(cells):
    """The minutes that the headings of an exercise's tasks give, together."""
    headings = [cell.source.partition("\n")[0] for cell in cells if cell.cell_type == "markdown"]
    return sum(int(number) for text in headings for number in re.findall(r", (\d+) minutes,", text))

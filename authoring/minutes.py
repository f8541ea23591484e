"""How long a learner needs for a lesson or an exercise, counted from its cells.

The rates are chosen; none was measured by itself. Technical prose is read more slowly than other
prose (238 words a minute, Brysbaert 2019), and a line of code more slowly than a line of prose.

What was measured are whole lessons. Two newcomers took 80 to 130 minutes for lessons 01 to 10. An
earlier count promised them 50 to 90, because it left out labs, exit tickets, formulas and answers.
This count gives about 1.4 times the earlier one.
"""

import re

WORDS_A_MINUTE = 120
LINE_S = 6
"""A line of code, read beside what it prints."""
CELL_S = 24
"""A cell runs for some seconds; then somebody looks at what it shows."""
FORMULA_S = 20
"""A formula on a line of its own, read symbol by symbol."""
GUESS_S = 72
"""To think of a number or a word, and to compare it with the run."""
WRITTEN_S = 240
"""A "now you write it": to understand the task, a first try that fails, a look at the answer."""
WRITTEN_LINE_S = 30
"""A line of the answer that stands as a block of code: learners write as many themselves."""
LAB_S = 300
QUESTION_S = 72
"""A question of the exit ticket, and its answer."""
FOLDED_WORDS_A_MINUTE = 240
"""Half of all learners open a hint or an answer."""
ROUNDED_TO = 5

FOLDED = re.compile(r"<details>.*?</details>", re.DOTALL)
ANSWER_LINE = re.compile(r"^ {4}.*\S.*$", re.MULTILINE)
"""In markdown, code is indented."""
FORMULA = re.compile(r"\$\$.*?\$\$", re.DOTALL)
GUESS = re.compile(r"^\w+(?:, \w+)* = (?:None\b|\{.*: None\b)", re.MULTILINE)
WRITTEN = re.compile(r"\bnow\s+(?:#\s+)?you\s+write\b", re.IGNORECASE)
LAB = re.compile(r"^labs\.\w+_lab\(", re.MULTILINE)
EXIT = "## Exit ticket\n"
QUESTION = re.compile(r"^\d+\. ", re.MULTILINE)
LAST_LINE = "**Next:**"
"""Behind the link to the next lesson come appendices, if any."""


def of_lesson(cells):
    """The minutes for a lesson's cells, rounded, 5 at least.

    Appendices do not count: they are for those who want them.

    Parameters
    ----------
    cells : list of NotebookNode
    """
    ends = [place for place, cell in enumerate(cells) if LAST_LINE in cell.source]
    cells = cells[: ends[-1] + 1] if ends else cells
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    texts = [cell.source.partition(LAST_LINE)[0] for cell in cells if cell.cell_type == "markdown"]
    seconds = sum(map(_code_s, code)) + sum(map(_text_s, texts))
    seconds += sum(bool(WRITTEN.search(text)) for text in code + texts) * WRITTEN_S
    return max(1, round(seconds / 60 / ROUNDED_TO)) * ROUNDED_TO


def _code_s(text):
    lines = [line.strip() for line in text.splitlines()]
    read = sum(bool(line) and not line.startswith("#") for line in lines)
    guesses, has_lab = len(GUESS.findall(text)), bool(LAB.search(text))
    return CELL_S + read * LINE_S + guesses * GUESS_S + has_lab * LAB_S


def _text_s(text):
    seen, folded = FOLDED.sub("", text), "\n".join(FOLDED.findall(text))
    return (
        _words(FORMULA.sub("", seen)) * 60 / WORDS_A_MINUTE
        + _words(ANSWER_LINE.sub("", folded)) * 60 / FOLDED_WORDS_A_MINUTE
        + len(ANSWER_LINE.findall(folded)) * WRITTEN_LINE_S
        + len(FORMULA.findall(seen)) * FORMULA_S
        + len(QUESTION.findall(seen.partition(EXIT)[2])) * QUESTION_S
    )


def _words(text):
    return len(re.findall(r"\S*\w\S*", text))


def of_exercise(cells):
    """The minutes that the headings of an exercise's tasks give, together."""
    headings = [cell.source.partition("\n")[0] for cell in cells if cell.cell_type == "markdown"]
    return sum(int(number) for text in headings for number in re.findall(r", (\d+) minutes,", text))

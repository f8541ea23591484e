"""Lines of letters to train on."""

from simlib import letters


def test_lines_are_numbers_that_follow_each_other():
    lines = letters.lines()
    assert lines[0] == "zero, one." and lines[-1] == "ninety eight, ninety nine."
    assert lines[9:11] == ["nine, twenty one.", "twenty one, twenty two."]
    assert (len(lines), min(map(len, lines)), max(map(len, lines))) == (81, 9, 29)


def test_rows_give_the_lines_back_and_are_filled_with_what_losses_ignore():
    rows, alphabet = letters.load(), letters.alphabet()
    assert rows.shape == (81, 29) and str(rows.dtype) == "torch.int64"
    for row, line in zip(rows.tolist(), letters.lines(), strict=True):
        assert "".join(alphabet[place] for place in row[: len(line)]) == line
        assert set(row[len(line) :]) <= {-100}

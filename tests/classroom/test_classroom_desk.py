"""What a teacher types, and what is said back: calls, tables, the terminal; nothing is run here."""

import io
import json
import os
import pty
import sys
import termios
import threading
from pathlib import Path

import pytest
from notebooks_made import content, exercise, hand_in, notebook, solved, table

from simlib.classroom.grading.reports import BadOverrides, check, file_name, read_overrides
from simlib.classroom.grading.whole_class import progress
from simlib.cli import main

ONE, FOUR = exercise("01"), exercise("04")
EVERY = {one.name: one for one in (ONE, FOUR)}
SOLVED = content(solved(FOUR))
HEAD = "student,exercise,question,points,comment\n"
FIRST = content(notebook(ONE))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to work in, with the submissions of three students for exercise 04."""
    monkeypatch.chdir(tmp_path)
    for student in ("student_01", "student_02", "student_03"):
        hand_in(Path("sub"), f"{student}/04_collectives.ipynb", data=SOLVED)
    return tmp_path


def write(name, text):
    Path(name).write_text(text, encoding="utf-8")


def rows():
    """``{student: {column: text}}`` of report.csv."""
    head, *others = table("report/report.csv")
    return {row[0]: dict(zip(head, row, strict=True)) for row in others}


# Overrides


@pytest.mark.parametrize("number", ["04", "4", "04_collectives"])
def test_a_number_without_its_zero_is_the_exercise(stand_in, place, number):
    write("by_hand.csv", f"{HEAD}student_01,{number},mean_of_all,1,\n")
    assert main(["grade", "sub", "--overrides", "by_hand.csv", "--exercise", number]) == 0
    assert [rows()[one]["points"] for one in ("student_01", "student_02")] == ["7", "8"]


def test_a_line_of_another_exercise_is_told_and_left_aside(stand_in, place, capsys):
    write("by_hand.csv", f"{HEAD}student_77,1,,,well done\nstudent_01,4,mean_of_all,1,\n")
    assert main(["grade", "sub", "--overrides", "by_hand.csv"]) == 0
    said = capsys.readouterr().out
    assert f"by_hand.csv, line 2 was not applied: {ONE.name} is not in this report" in said
    assert rows()["student_01"]["points"] == "7"


def test_all_mistakes_of_overrides_are_told_at_once(stand_in, place, capsys):
    lines = "student_01,44,mean_of_all,1,\nstudent_77,4,,,x\nstudent_01,4,mean_of_all,lots,\n"
    write("by_hand.csv", HEAD + lines)
    assert main(["grade", "sub", "--overrides", "by_hand.csv"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(": there")[0] for line in said[:2]] == [
        "simlib: by_hand.csv, line 2", "simlib: by_hand.csv, line 3",
    ]  # fmt: skip
    assert "no exercise '44'" in said[0] and "no student 'student_77'" in said[1]
    assert said[2:] == ["simlib: by_hand.csv, line 4: points are a number of 0 or more"]


def test_overrides_take_a_name_that_is_one_student_s(tmp_path):
    write(tmp_path / "a.csv", f"{HEAD}Anna Berg,4,,,x\n4711,4,mean_of_all,1,\n")
    found, _ = check(read_overrides(tmp_path / "a.csv"), {"4711": "Anna Berg"}, EVERY, EVERY)
    assert [one.student for one in found] == ["4711", "4711"]
    names = {"4711": "Anna Berg", "4712": "Anna Berg"}
    with pytest.raises(BadOverrides, match="line 2: 2 students are named .*: write 4711, 4712"):
        check(read_overrides(tmp_path / "a.csv"), names, EVERY, EVERY)


# The roster


def test_who_is_not_in_the_roster_is_told_everywhere(stand_in, place, capsys):
    write("roster.csv", "student,name\nstudent_01,Anna Berg\nstudent_02,Two\n")
    call = ["grade", "sub", "--roster", "roster.csv"]
    assert main(call) == 0
    said = capsys.readouterr().out
    assert "\nnot in the roster: student_03\n" in said
    assert "student_01  Anna Berg    8 of 8\n" in said
    assert (
        rows()["student_03"]["notes"] == "not in the roster" and not rows()["student_01"]["notes"]
    )
    report = json.loads(Path("report/report.json").read_text())
    assert [one["notes"] for one in report["students"]] == [[], [], ["not in the roster"]]
    page = Path("report/class.html").read_text().partition("To look at</h2>")[2]
    assert "student_03" in page and "not in the roster</td>" in page
    main(call[:2])
    assert "not in the roster:" not in capsys.readouterr().out
    assert "To look at" not in Path("report/class.html").read_text()


def test_tables_that_no_platform_can_use_are_not_written(stand_in, place, capsys):
    write("roster.csv", "student,name,email\nstudent_01,Anna Berg,a@example.org\n")
    main(["grade", "sub", "--roster", "roster.csv"])
    assert Path("report/canvas.csv").exists() and Path("report/moodle.csv").exists()
    assert "not written" not in capsys.readouterr().out
    main(["grade", "sub"])
    assert not Path("report/canvas.csv").exists() and not Path("report/moodle.csv").exists()
    said = capsys.readouterr().out
    assert "canvas.csv needs a roster with a column name" in said
    assert "moodle.csv needs a roster with a column email" in said


# Which exercises


def test_an_exercise_that_nobody_handed_in_leaves_the_report(stand_in, place, capsys):
    main(["grade", "sub"])
    before = Path("report/report.json").read_bytes()
    assert main(["grade", "sub", "--exercise", "1"]) == 2
    assert f"nobody handed in {ONE.name}" in capsys.readouterr().err
    assert Path("report/report.json").read_bytes() == before
    write("roster.csv", "student\nstudent_01\n")
    assert main(["grade", "sub", "--exercise", "1", "--roster", "roster.csv"]) == 0
    assert rows()["student_01"]["status"] == f"{ONE.name}: missing"


def test_an_exercise_that_few_handed_in_is_told(stand_in, place, capsys):
    hand_in(place / "sub", f"student_02/{ONE.name}.ipynb", data=FIRST)
    main(["grade", "sub"])
    told = (
        f"{ONE.name}: 1 of 3 handed it in; if it was not asked for, leave it out by --exercise 04"
    )
    assert f"\n{told}\n" in capsys.readouterr().out
    main(["grade", "sub", "--exercise", "01", "--exercise", "04"])
    assert "handed it in" not in capsys.readouterr().out
    hand_in(place / "sub", f"student_01/{ONE.name}.ipynb", data=FIRST)
    main(["grade", "sub"])
    assert "handed it in" not in capsys.readouterr().out


# Deadlines


def test_a_deadline_is_kept_until_it_is_taken_away(stand_in, place, capsys):
    os.utime("sub/student_02/04_collectives.ipynb", (2e9, 2e9))
    late = []
    for words in (["--deadline", "2030-01-01"], [], ["--deadline", "none"], []):
        main(["grade", "sub", *words])
        late.append([one for one, row in rows().items() if row["late"]])
        assert ("deadline 2030-01-01 00:00" in capsys.readouterr().out) == bool(late[-1])
    assert late == [["student_02"], ["student_02"], [], []]


# Wrong calls


@pytest.mark.parametrize(
    "words, sentence",
    [
        ("--time 0", "--time 0: a notebook needs at least 10 seconds"),
        ("--time -5", "--time -5: a notebook needs at least 10 seconds"),
        ("--time nan", "--time nan: a notebook needs at least 10 seconds"),
        ("--memory 10", "--memory 10: a notebook needs at least 1024 MB"),
        ("--memory 0", "--memory 0: a notebook needs at least 1024 MB"),
        ("--jobs 0", "--jobs 0: grade at least 1 notebook at a time"),
        ("--deadline 30.11.2026", "--deadline 30.11.2026: write it as 2026-11-30T18:00"),
        ("--exercise 04 --exercise 77", "there is no exercise 77: 01_"),
        (
            "--only student_08 --roster roster.csv",
            "nobody named student_08 handed anything in; "
            "these did: student_01, student_02, student_03",
        ),
        ("--out roster.csv", "--out roster.csv: roster.csv is a file; name a folder"),
        ("--out roster.csv/x", "--out roster.csv/x: roster.csv is a file; name a folder"),
    ],
)
def test_a_wrong_call_is_one_sentence(stand_in, place, capsys, words, sentence):
    write("roster.csv", "student\nstudent_08\n")
    assert main(["grade", "sub", *words.split()]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"simlib: {sentence}") and said.count("\n") == 1
    assert not stand_in and not Path("report").exists()


def test_only_takes_a_name_too(stand_in, place):
    write("roster.csv", "student,name\nstudent_01,Anna Berg\n")
    call = ["grade", "sub", "--roster", "roster.csv"]
    main(call)
    stand_in.clear()
    assert main([*call, "--only", "Anna Berg"]) == 0
    assert len(stand_in) == 1


def test_a_place_that_cannot_be_written_to_is_one_sentence(stand_in, place, capsys, monkeypatch):
    def refuse(self, *_, **__):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    for call in (["grade", "sub", "--out", "shut/x"], ["handout", "--out", "shut/x"]):
        assert main(call) == 2
        said = capsys.readouterr().err
        assert said == "simlib: --out shut/x: nothing can be written there (Permission denied)\n"


def test_a_handout_in_the_place_of_a_file_is_one_sentence(place, capsys):
    write("roster.csv", "student\n")
    assert main(["handout", "--out", "roster.csv"]) == 2
    said = capsys.readouterr().err
    assert said == "simlib: --out roster.csv: roster.csv is a file; name a folder or a .zip\n"


# Pages


def test_names_of_pages_keep_letters_of_any_script(stand_in, place, capsys):
    for student in ("Jörg Müller", "李雷", "हिन्दी", "a%41?b"):
        hand_in(place / "sub", f"{student}/04_collectives.ipynb", data=SOLVED)
    main(["grade", "sub"])
    pages = {student: row["page"] for student, row in rows().items()}
    assert pages["Jörg Müller"] == "feedback/Jörg_Müller.html"
    assert pages["李雷"] == "feedback/李雷.html" and pages["हिन्दी"] == "feedback/हिन्दी.html"
    assert pages["a%41?b"] == "feedback/a_41_b.html"
    assert all((Path("report") / page).is_file() for page in pages.values())
    assert 'href="feedback/J%C3%B6rg_M%C3%BCller.html"' in Path("report/class.html").read_text()


def test_a_long_name_fits_any_file_system():
    assert len(file_name("李" * 300, set()).encode()) <= 120
    assert file_name("Jo\u0308rg", set()) == "Jörg"


# How far it is


class Terminal(io.StringIO):
    """A terminal of so many columns that keeps what is shown; `written` is set at each write."""

    def __init__(self, columns):
        super().__init__()
        self.written = threading.Event()
        self._ends = pty.openpty()
        termios.tcsetwinsize(self._ends[1], (24 if columns else 0, columns))

    def isatty(self):
        return True

    def fileno(self):
        return self._ends[1]

    def write(self, text):
        super().write(text)
        self.written.set()

    def hang_up(self):
        for end in self._ends:
            os.close(end)


@pytest.fixture(params=[0, 80])
def screen(request, monkeypatch):
    """A terminal; also one that says it has no columns, as those of some programs do."""
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    found = Terminal(request.param)
    yield found
    found.hang_up()


class Done:
    student, exercise, file = "student_01\x1b[31m", FOUR.name, ""


def test_a_bar_shows_at_once_and_what_was_done_last(screen, monkeypatch):
    monkeypatch.setattr(sys, "stderr", screen)
    with progress(7) as tell:
        assert "0 of 7" in screen.getvalue() and "solution is run first" in screen.getvalue()
        tell(Done)
        assert "1 of 7" in screen.getvalue() and "student_01 [31m 04" in screen.getvalue()


def test_a_bar_moves_while_nothing_is_done(screen, monkeypatch):
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr("simlib.classroom.grading.whole_class.TICK_S", 0.001)
    with progress(7):
        for _ in range(2):
            screen.written.clear()
            assert screen.written.wait(60)


def test_without_a_terminal_each_notebook_is_a_line(stand_in, place, capsys):
    main(["grade", "sub", "--jobs", "1"])
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "1 of 3: student_01 04_collectives" and len(said) == 3

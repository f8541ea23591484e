"""What a teacher types, and what is said back: calls, tables, the terminal; nothing is run here."""

import html
import json
import os
import re
import unicodedata
from pathlib import Path

import jsonschema
import pytest
from notebooks_made import content, exercise, notebook, solved, table
from terminals import Terminal

from simlib.classroom.grading import changes, reports, texts, whole_class
from simlib.classroom.grading.reports import BadOverrides, check, file_name, read_overrides
from simlib.classroom.grading.roster import BadRoster, read_roster
from simlib.classroom.grading.texts import SEEDS, Cache
from simlib.cli import main
from simlib.core.draw import display

ONE, FOUR = exercise("01"), exercise("04")
EVERY = {one.name: one for one in (ONE, FOUR)}
NAME = "04_collectives.ipynb"
SOLVED, UNTOUCHED = content(solved(FOUR)), content(notebook(FOUR))
HEAD = "student,exercise,question,points,comment\n"
FIRST = content(notebook(ONE))


@pytest.fixture
def three(desk):
    """Three students have handed in exercise 04."""
    desk.hand_in(*(f"student_0{number}/{NAME}" for number in (1, 2, 3)))
    return desk


@pytest.fixture
def five(desk):
    """Five have: two the same, one nothing new, one a bad file, and one what breaks the grader."""
    desk.hand_in(f"student_01/{NAME}", f"student_02/{NAME}")
    desk.hand_in(f"=1+1/{NAME}", data=UNTOUCHED)
    desk.hand_in(f"student_03/{NAME}", data=b"{")
    desk.hand_in(f"student_04/{NAME}", data=b'{"cells": ["break the grader"]}')
    return desk


def test_a_class_is_graded_and_a_bad_file_stops_nobody(five):
    roster = "student,name,email\nstudent_01,One <b>,one@example.org\nstudent_09,Nine,\n"
    said = five.grade("--roster", five.write("roster.csv", roster), code=1).out
    rows = five.rows()
    points = [rows[one]["points"] for one in ("student_01", "student_02", "student_03")]
    assert points == ["8", "8", "0"]
    assert rows["student_09"]["late"] == ""
    assert rows["student_09"]["status"] == "04_collectives: missing"
    assert rows["student_09"]["points"] == "0" and rows["student_04"]["points"] == ""
    assert "NOT GRADED, BUT NOT 0: the grader itself failed at 1 notebook (student_04 04" in said
    assert "0 of 8" not in five.page("feedback/student_04")
    assert "not graded" in rows["student_04"]["status"] and "broken" in rows["student_04"]["notes"]
    assert "'=1+1" in rows
    jsonschema.validate(five.report(), json.loads(reports.SCHEMA.read_text()))
    assert table("report/canvas.csv")[0][:5] == [
        "Student", "ID", "SIS User ID", "SIS Login ID", "Section",
    ]  # fmt: skip
    assert table("report/moodle.csv")[1] == ["", "", "one@example.org", "One <b>", "8"]
    page = five.page("feedback/student_01")
    assert "One &lt;b&gt;" in page and "&lt;script&gt;" in page and "<script>" not in page
    assert f"seed {five.report()['seed']}" in said


def test_results_are_kept_by_content(five):
    five.grade("--jobs", "1", code=1)
    seed, first = five.report()["seed"], Path("report/report.csv").read_text()
    assert len(five.graded) == 2  # two students have the same notebook
    five.grade(code=1)
    assert not five.graded
    assert Path("report/report.csv").read_text() == first and five.report()["seed"] == seed
    five.grade("--only", "student_02", code=1)
    assert len(five.graded) == 1
    assert int(seed) in SEEDS
    five.grade("--seed", str(int(seed) // 2), code=1)
    assert len(five.graded) > 1
    for file in Path("report/.cache").iterdir():  # as a crash may leave them
        file.write_text("")
    five.grade("--jobs", "1", code=1)
    assert len(five.graded) == 2


def test_an_interrupted_batch_goes_on(five, monkeypatch):
    whole = whole_class.grade

    def grade(data, *rest):
        if five.graded:
            raise KeyboardInterrupt
        return whole(data, *rest)

    monkeypatch.setattr(whole_class, "grade", grade)
    five.grade("--jobs", "1", code=130)
    assert len(five.graded) == 1
    monkeypatch.setattr(whole_class, "grade", whole)
    five.grade("--jobs", "1", code=1)
    assert len(five.graded) == 1


COMPOSED, APART = "Zo\u00eb", "Zoe\u0308"


@pytest.mark.parametrize(
    "first, second, student",
    [
        (f"{COMPOSED}/{NAME}", f"{APART}/{NAME}", COMPOSED),
        (f"bob_{NAME}", "04_collectives_-bob.ipynb", "bob"),
        (f"bob/{NAME}", "04_collectives_bob.ipynb", "bob"),
        (
            f"Vera_1234_assignsubmission_file/{NAME}",
            f"Eve_1234_assignsubmission_file/{NAME}",
            "1234",
        ),
        (
            f"Vera_1_assignsubmission_file/{NAME}",
            f"Vera_2_assignsubmission_file/{NAME}",
            "1234",
        ),
    ],
)
def test_two_claims_to_one_student_are_both_graded_and_told(desk, first, second, student):
    desk.hand_in(first)
    desk.hand_in(second, data=content(solved(FOUR) | {"x": 1}))
    said = desk.grade("--roster", desk.write("roster.csv", f"student,name\n{student},Vera\n")).out
    students = desk.report()["students"]
    other = f"{student} (second claim: {unicodedata.normalize('NFC', second)})"
    assert [(one["student"], one["points"]) for one in students] == [(student, 8), (other, 8)]
    assert students[1]["name"] == other and not students[1]["notebooks"][0]["platform"]
    note = f"2 students claim to be {student}: "
    assert said.count(note) == desk.page().count(note) == 2
    assert all(note in row["notes"] for row in desk.rows().values())
    assert not any(book["notes"] for one in students for book in one["notebooks"])


def test_a_download_from_moodle_gives_a_worksheet(desk):
    for name in ("One_4711_assignsubmission_file", "Two_4712_assignsubmission_file_"):
        desk.hand_in(f"{name}/{NAME}")
    desk.grade()
    rows = table("report/moodle_worksheet_04_collectives.csv")
    assert [row[:3] for row in rows[1:]] == [
        ["Participant 4711", "One", "8"],
        ["Participant 4712", "Two", "8"],
    ]


def test_who_handed_in_other_files_only_is_told_so(desk, monkeypatch):
    desk.hand_in(f"student_01/{NAME}", "student_01/notes.txt", f"student_03/{NAME}")
    desk.hand_in("student_02/all.zip", "student_02/x.py", data=b"")
    whole = os.open

    def opened(name, *rest, **more):
        if name == "student_03":
            raise PermissionError(13, "Permission denied")
        return whole(name, *rest, **more)

    monkeypatch.setattr(os, "open", opened)
    desk.grade(code=1)
    notes = {student: row["notes"] for student, row in desk.rows().items()}
    assert notes["student_01"] == ""
    assert "only all.zip, x.py" in notes["student_02"]
    assert "only a folder that cannot be opened" in notes["student_03"]


def test_a_file_that_the_grader_may_not_read_is_no_0(three, monkeypatch):
    whole = os.open

    def opened(name, *rest, dir_fd=None):
        if name == NAME and dir_fd and os.stat(name, dir_fd=dir_fd).st_mtime == 2e9:
            raise PermissionError(13, "Permission denied")
        return whole(name, *rest, dir_fd=dir_fd)

    os.utime(f"class/student_02/{NAME}", (2e9, 2e9))
    monkeypatch.setattr(os, "open", opened)
    said = three.grade(code=1).out
    points = {student: row["points"] for student, row in three.rows().items()}
    assert points == {"student_01": "8", "student_02": "", "student_03": "8"}
    assert "cannot be opened (Permission denied)" in said and "NOT GRADED, BUT NOT 0" in said


def test_two_graders_do_not_write_one_report(three):
    with Cache(Path("report/.cache")).locked():
        assert "another simlib grade is running" in three.grade(code=2).err
    three.grade()


# What others have put where the report is to lie


def made_a_link(place, away):
    place.symlink_to(away)


def given_away(place, away):
    place.mkdir()
    os.chown(place, 12345, 12345)


def open_to_others(place, away):
    place.mkdir()
    place.chmod(0o775)


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder away")


@pytest.mark.parametrize("name", ["report", "report/.cache", "report/feedback"])
@pytest.mark.parametrize(
    "become, words",
    [
        (made_a_link, "is a link"),
        pytest.param(given_away, "belongs to another account", marks=as_root),
        (open_to_others, "other accounts can write to"),
    ],
)
def test_a_folder_that_others_decide_on_is_refused(three, tmp_path, name, become, words):
    away = tmp_path / "away"
    (away / "feedback").mkdir(parents=True)
    away.chmod(0o750)
    (away / "feedback/old.html").write_text("of another")
    place = tmp_path / name
    place.parent.mkdir(exist_ok=True)
    become(place, away)
    said = three.grade(code=2).err
    assert name in said and words in said and said.count("\n") == 1
    assert not three.graded and away.stat().st_mode & 0o777 == 0o750
    assert [one.name for one in away.rglob("*")] == ["feedback", "old.html"]


def test_what_lies_in_a_report_and_bears_another_mark_is_not_believed(three, monkeypatch, tmp_path):
    told = "is not signed with your key"
    assert told not in three.grade("--jobs", "1", "--deadline", "2020-01-01").out
    seed, key = three.report()["seed"], Path(os.environ["XDG_STATE_HOME"], "simlib/key")
    assert key.stat().st_mode & 0o777 == 0o600
    (tmp_path / "victim.csv").write_text("")
    Cache(Path("report/.cache")).tables(["../victim.csv"])
    three.grade()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    said = three.grade("--jobs", "1").out
    assert told in said and "2020" not in said
    assert len(three.graded) == 1 and three.report()["seed"] != seed
    assert told not in three.grade().out and not three.graded
    for file in Path("report/.cache").iterdir():  # one's text in the place of all others
        file.write_bytes(Path("report/.cache/seed").read_bytes())
    assert told in three.grade("--jobs", "1").out and len(three.graded) == 1
    assert (tmp_path / "victim.csv").exists()


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_key_that_others_may_know_is_refused(three, monkeypatch, tmp_path, mode):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    three.grade()
    (tmp_path / "state/simlib/key").chmod(mode)
    said = three.grade(code=2).err
    assert (
        "other accounts may have read" in said
        and "simlib/key: remove this file" in said
        and said.count("\n") == 1
    )


def test_without_out_no_report_lies_among_the_submissions(three, monkeypatch, capsys):
    monkeypatch.chdir("class")
    assert main(["grade", "."]) == 2
    assert "among the submissions" in capsys.readouterr().err and not Path("report").exists()


# Overrides


@pytest.mark.parametrize("number", ["04", "4", "04_collectives"])
def test_points_by_hand_come_from_a_file(three, number):
    by_hand = three.write("by_hand.csv", f"{HEAD}student_01,{number},mean_of_all,1,\n")
    three.grade("--overrides", by_hand, "--exercise", number)
    assert [three.rows()[one]["points"] for one in ("student_01", "student_02")] == ["7", "8"]


def test_a_second_call_says_whose_points_changed_and_why(three):
    three.hand_in(f"student_04/{NAME}", data=b"{")
    assert "changed" not in three.grade(code=1).out
    assert "changed" not in three.grade(code=1).out and three.report()["changes"] == []
    three.hand_in(f"student_04/{NAME}")
    by_hand = three.write("by_hand.csv", f"{HEAD}student_01,4,mean_of_all,0.5,\n")
    said = three.grade("--overrides", by_hand, "--seed", "7").out
    lines = said.split("changed since the last call:\n")[1].splitlines()
    assert lines[0] == "student_01 04_collectives: 8 to 6.5 points (points by hand)"
    assert lines[1] == "student_04 04_collectives: 0 to 8 points (new file, another seed)"
    first, _ = three.report()["changes"]
    assert first["questions"] == ["mean_of_all 2 to 0.5"]
    jsonschema.validate(three.report(), json.loads(reports.SCHEMA.read_text()))
    assert "04: new file, another seed" in three.page()
    three.hand_in(f"student_04/{NAME}", data=b'{"cells": ["break the grader"]}')
    said = three.grade("--seed", "7", code=1).out
    assert "6.5 to 8 points (points by hand)" in said and "8 to 0" not in said
    three.hand_in(f"student_04/{NAME}", data=UNTOUCHED)
    assert "changed" not in three.grade("--seed", "7").out


@pytest.mark.parametrize(
    "what, words",
    [
        ({}, "graded again"),
        ({"file": "b"}, "new file"),
        ({"file": ""}, "its file is gone"),
        ({"graded": {"q": 1}, "points": {"q": 2}, "file": "b"}, "points by hand"),
        ({"points": {"q": 2}, "file": "b"}, "points by hand, new file"),
        ({"circumstances": {"limits": {"notebook_s": 600}}}, "other limits of time or memory"),
        ({"file": "b", "circumstances": {"seed": 7}}, "new file, another seed, other limits"),
    ],
)
def test_why_points_changed_is_told_by_what_else_did(what, words):
    before = {"file": "a", "circumstances": {"limits": {"notebook_s": 240}}}
    before |= {"graded": {"q": 1}, "points": {"q": 1}}
    now = before | {"graded": {"q": 0}, "points": {"q": 0}} | what
    assert changes.reason(before, now).partition(" limits")[0] == words.partition(" limits")[0]


def test_of_many_changes_the_first_are_told():
    one = {"student": "a", "exercise": "04", "before": 1, "now": 2, "why": "new file"}
    lines = changes.lines_on([one] * 50)
    assert len(lines) == 22 and lines[-1] == "and 30 more changes, which class.html lists"


def test_a_line_of_another_exercise_is_told_and_left_aside(three):
    lines = "student_77,1,,,well done\nstudent_01,4,mean_of_all,1,\n"
    said = three.grade("--overrides", three.write("by_hand.csv", HEAD + lines)).out
    assert f"by_hand.csv, line 2 was not applied: {ONE.name} is not in this report" in said
    assert three.rows()["student_01"]["points"] == "7"


def test_all_mistakes_of_overrides_are_told_before_anything_is_graded(three):
    lines = "student_01,44,mean_of_all,1,\nstudent_77,4,,,x\nstudent_01,4,mean_of_all,lots,\n"
    said = three.grade("--overrides", three.write("by_hand.csv", HEAD + lines), code=2).err
    assert not three.graded
    first, second, *third = said.splitlines()
    assert first.startswith("simlib: by_hand.csv, line 2: there is no exercise '44'")
    assert second.startswith("simlib: by_hand.csv, line 3: there is no student 'student_77'")
    assert third == ["simlib: by_hand.csv, line 4: points must be a number of 0 or more"]


def test_overrides_take_a_name_that_is_one_student_s(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(f"{HEAD}Anna Berg,4,,,x\n4711,4,mean_of_all,1,\n")
    found, _ = check(read_overrides(path), {"4711": "Anna Berg"}, EVERY, EVERY)
    assert [one.student for one in found] == ["4711", "4711"]
    names = {"4711": "Anna Berg", "4712": "Anna Berg"}
    with pytest.raises(BadOverrides, match="line 2: 2 students are named .*: write 4711, 4712"):
        check(read_overrides(path), names, EVERY, EVERY)


# The roster


@pytest.mark.parametrize(
    "content, sentence",
    [
        ("student\nZoë".encode("latin-1"), "save it as 'CSV UTF-8'"),
        (b"", "it is empty"),
        (b"who;points\na;1\n", "needs a column 'student'"),
        (b"student,name\nstudent_01,A\n,B\n", "line 3, has nothing in column 'student'"),
        (b"student\na\na\n", "has a more than once"),
        (
            b"student,id\na,4711\nb,\nc,4711\n",
            "lines 2 and 4: two students have the same Canvas number",
        ),
        (b"student,canvas id,id\na,4711,1\nb,,04711\n", "lines 2 and 3.*Canvas number .04711"),
        (b"student,email\na,A@x.org\nb,a@x.org\n", "lines 2 and 3.*same email address"),
        (b"student,name\na,A,,\nb,B, C\n", "line 3 has more cells than there are columns"),
        (b"student,deadline\na,\nb,1.12.2026\n", "line 3: b has the deadline '1.12.2026': write"),
        (b"student,deadline\na,0001-01-01T00:00+14:00\n", "line 2: a has the deadline"),
    ],
)
def test_a_roster_that_cannot_be_read_is_told(tmp_path, content, sentence):
    (tmp_path / "roster.csv").write_bytes(content)
    with pytest.raises(BadRoster, match=sentence):
        read_roster(tmp_path / "roster.csv")


def test_all_mistakes_of_a_roster_are_told(three):
    lines = "student,id,deadline\na,1,soon\n,2,\nb,1,2026-13-01\na,3,\n"
    said = three.grade("--roster", three.write("roster.csv", lines), code=2).err.splitlines()
    words = "line 2: a has", "line 3, has", "line 4: b has", "has a more than", "lines 2 and 4"
    assert len(said) == len(words)
    assert all(text in line for text, line in zip(words, said, strict=True))


def test_a_deadline_of_the_roster_holds_for_its_student_alone(three):
    for number in (1, 2, 3):
        os.utime(f"class/student_0{number}/{NAME}", (2e9, 2e9))
    three.hand_in(f"cy_LATE_4711_15_{NAME}")
    lines = "student,Deadline\nstudent_01,2034-01-01 12:00\nstudent_02,\n"
    lines += "student_03,none\n4711,none\n"
    roster = three.write("roster.csv", lines)
    late = []
    for words in (["--deadline", "2030-01-01"], ["--deadline", "none"]):
        three.grade("--roster", roster, *words)
        late.append([one for one, row in three.rows().items() if row["late"]])
    three.write("roster.csv", lines.replace("2034", "2024"))
    three.grade("--roster", roster)
    late.append([one for one, row in three.rows().items() if row["late"]])
    assert late == [["student_02"], [], ["student_01"]]


def test_one_canvas_number_is_one_row_and_a_participant_stays_one(desk):
    desk.hand_in("adal_4711_15_04_collectives.ipynb")
    desk.hand_in(f"Bob K._92_assignsubmission_file_/{NAME}")
    lines = "student,name,canvas id\nada,Ada L.,4711\nbob,Bob K.,4712\n"
    desk.grade("--roster", desk.write("roster.csv", lines))
    rows = table("report/canvas.csv")[2:]
    assert [[row[1], row[-1]] for row in rows] == [["4711", "8"], ["4712", "8"]]
    rows = table("report/moodle_worksheet_04_collectives.csv")[1:]
    assert [row[:3] for row in rows] == [["Participant 92", "Bob K.", "8"]]


def test_a_roster_of_others_is_refused_before_everybody_gets_0(three):
    said = three.grade("--roster", three.write("roster.csv", "student\na\nb\n"), code=2).err
    assert "no student who handed in is in the roster. The roster has a, b. These" in said
    assert "student_01, student_02, student_03" in said and not Path("report").exists()


def test_who_is_not_in_the_roster_is_told_everywhere(three):
    roster = three.write("roster.csv", "student,name\nstudent_01,Anna Berg\nstudent_02,Two\n")
    said = three.grade("--roster", roster).out
    assert "\nnot in the roster: student_03\n" in said
    assert "student_01  Anna Berg    8 of 8\n" in said
    rows = three.rows()
    assert rows["student_03"]["notes"] == "not in the roster" and not rows["student_01"]["notes"]
    notes = [one["notes"] for one in three.report()["students"]]
    assert notes == [[], [], ["not in the roster"]]
    page = three.page().partition("To look at</h2>")[2]
    assert "student_03" in page and "not in the roster</td>" in page
    assert "not in the roster:" not in three.grade().out
    assert "To look at" not in three.page()


def test_tables_that_no_platform_can_use_are_not_written(three):
    roster = "student,name,email\nstudent_01,Anna Berg,a@example.org\n"
    said = three.grade("--roster", three.write("roster.csv", roster)).out
    assert Path("report/canvas.csv").exists() and Path("report/moodle.csv").exists()
    assert "not written" not in said
    said = three.grade().out
    assert not Path("report/canvas.csv").exists() and not Path("report/moodle.csv").exists()
    assert "canvas.csv needs a roster with a column name" in said
    assert "moodle.csv needs a roster with a column email" in said


# Which exercises


def test_an_exercise_is_told_among_all_of_them(desk):
    made = {number: exercise(number) for number in ("08", "09")}  # both have a question accumulate
    for one in made.values():
        desk.hand_in(f"student_01/{one.name}.ipynb", data=content(solved(one)))
    desk.grade("--exercise", "09")
    head, row = table("report/report.csv")
    assert head[4] == made["09"].name and row[2] == str(made["09"].points) and not row[-2]


def test_an_exercise_that_nobody_handed_in_leaves_the_report(three):
    three.grade()
    before = Path("report/report.json").read_bytes()
    assert f"no student handed in {ONE.name}" in three.grade("--exercise", "1", code=2).err
    assert Path("report/report.json").read_bytes() == before
    roster = three.write("roster.csv", "student\nstudent_01\n")
    three.grade("--exercise", "1", "--roster", roster)
    assert three.rows()["student_01"]["status"] == f"{ONE.name}: missing"


def test_an_exercise_that_few_handed_in_is_told(three):
    three.hand_in(f"student_02/{ONE.name}.ipynb", data=FIRST)
    told = f"1 of 3 students handed in {ONE.name}. If you did not ask for it, leave it out with "
    assert f"\n{told}--exercise 04\n" in three.grade().out
    assert "students handed in" not in three.grade("--exercise", "01", "--exercise", "04").out
    three.hand_in(f"student_01/{ONE.name}.ipynb", data=FIRST)
    assert "students handed in" not in three.grade().out


def test_a_deadline_is_kept_until_it_is_taken_away(three):
    os.utime(f"class/student_02/{NAME}", (2e9, 2e9))
    late = []
    assert "all 3 notebooks are late: check" in three.grade("--deadline", "2001-01-01").out
    for words in (["--deadline", "2030-01-01"], [], ["--deadline", "none"], []):
        said = three.grade(*words).out
        late.append({one: row["late"] for one, row in three.rows().items() if row["late"]})
        assert ("deadline is 2030-01-01 00:00" in said) == bool(late[-1])
        assert "notebooks are late" not in said
    assert late == [{"student_02": "04_collectives"}] * 2 + [{}, {}]


BY_DAY = "late notebooks lose 10 % of the points for each day begun"


def test_what_late_costs_is_kept_and_gives_way_to_points_by_hand(three):
    os.utime(f"class/student_02/{NAME}", (2e9, 2e9))  # 2033-05-18T03:33:20Z
    lines = "student,name,email\nstudent_02,Bo,b@x.org\nstudent_03,Cy,c@x.org\n"
    roster = three.write("roster.csv", lines)
    late = ["--roster", roster, "--deadline", "2033-05-17T03:33:00Z"]
    by_hand = ["--overrides", three.write("by_hand.csv", f"{HEAD}student_02,4,mean_of_all,2,\n")]
    points = []
    for words, told in (
        ([*late, "--late-costs", "10/day"], True),
        (by_hand, True),
        (["--late-costs", "60/day"], False),
        (["--late-costs", "12.5%"], False),
        (["--late-costs", "none"], False),
        ([], False),
    ):
        said = three.grade("--roster", roster, *words).out
        again = f"student_02 04_collectives: {points[-1]} to " if points else "nothing yet"
        is_other = points and points[-1] != three.rows()["student_02"]["points"]
        assert (again in said) == bool(is_other)
        assert (BY_DAY in said) == told and three.rows()["student_03"]["points"] == "8"
        tables = table("report/canvas.csv")[2][-1], table("report/moodle.csv")[1][-1]
        points.append(three.rows()["student_02"]["points"])
        assert tables == (points[-1],) * 2
        jsonschema.validate(three.report(), json.loads(reports.SCHEMA.read_text()))
        if len(points) == 1:
            lost = "the late notebook loses 20 % of its points, which is 1.6 of 8 points"
            assert f"late by 1 day, {lost}" in three.rows()["student_02"]["notes"]
            assert lost.capitalize() in three.page("feedback/student_02")
            assert lost in three.page() and "04 late, 1.6 off" in three.page()
        notes = three.rows()["student_02"]["notes"]
        assert ("of its points that were not set by hand" in notes) == (words == by_hand)
    assert points == ["6.4", "6.8", "0", "7", "8", "8"]


@pytest.mark.parametrize(
    "days, words, counts, late",
    [
        ((7, 8, 9, 11), [], 2, ["2033-05-14 ", ""]),
        ((7, 8, 9, 11), ["--counts", "last"], 3, None),
        ((11, 12, 13, 14), [], 3, None),
    ],
)
def test_of_several_files_the_last_in_time_counts(desk, days, words, counts, late):
    names = [f"student_01/{place}{NAME}" for place in ("", "b/", "a/", "c/")]
    desk.hand_in(*names)
    for name, day in zip(names, days, strict=True):
        os.utime(f"class/{name}", (2e9 + (day - 15) * 86400,) * 2)
    for call in (["--deadline", "2033-05-13T12:00Z", *words], []):  # day 10, and it is kept
        said = desk.grade(*call).out
        (book,) = desk.report()["students"][0]["notebooks"]
        assert (book["file"], book["late"]) == (names[counts], late is None)
        assert ("--counts in-time removes this rule" in said) == bool(words)
        assert len(book["notes"]) == 3
        told = [note for note in book["notes"] if "which came late (2033-05-14 " in note]
        assert len(told) == bool(late) and all(names[3] in note for note in told)


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
        ("--deadline 30.11.2026", "--deadline 30.11.2026: write a time as 2026-11-30T18:00"),
        ("--late-costs 0", "--late-costs 0: write 10 for 10 % of the points reached"),
        ("--late-costs 101/day", "--late-costs 101/day: write 10"),
        ("--late-costs 1/week", "--late-costs 1/week: write 10"),
        ("--exercise 04 --exercise 77", "there is no exercise 77, only 01_"),
        ("--exercises class", "class has no exercise sources"),
        ("--roster nowhere.csv", "the roster nowhere.csv cannot be read"),
        ("--seed -3", "--seed -3: hidden tests have seeds from 0 to 18446744073709551615"),
        (f"--seed {2**64}", f"--seed {2**64}: hidden tests have seeds from 0 to {2**64 - 1}"),
        (
            "--only student_08 --roster roster.csv",
            "no student student_08 handed anything in. "
            "These did: student_01, student_02, student_03",
        ),
        ("--out roster.csv", "--out roster.csv: roster.csv is a file; name a folder"),
        ("--out roster.csv/x", "--out roster.csv/x: roster.csv is a file; name a folder"),
        ("--out class", "--out names the folder of the submissions"),
    ],
)
def test_a_wrong_call_is_one_sentence(three, words, sentence):
    three.write("roster.csv", "student\nstudent_08\n")
    said = three.grade(*words.split(), code=2).err
    assert said.startswith(f"simlib: {sentence}") and said.count("\n") == 1
    assert not three.graded and not Path("report").exists()


def test_only_takes_a_name_too(three):
    roster = three.write("roster.csv", "student,name\nstudent_01,Anna Berg\n")
    three.grade("--roster", roster)
    three.grade("--roster", roster, "--only", "Anna Berg")
    assert len(three.graded) == 1


def test_a_place_that_cannot_be_written_to_is_one_sentence(three, capsys, monkeypatch):
    three.write("roster.csv", "student\n")
    assert main(["handout", "--out", "roster.csv"]) == 2
    said = capsys.readouterr().err
    assert said == "simlib: --out roster.csv: roster.csv is a file; name a folder or a .zip\n"

    def refuse(self, *_, **__):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    for call in (["grade", "class", "--out", "shut/x"], ["handout", "--out", "shut/x"]):
        assert main(call) == 2
        said = capsys.readouterr().err
        assert said == "simlib: --out shut/x: nothing can be written there (Permission denied)\n"


# Names and texts of students


def test_names_are_the_same_however_they_are_written(desk):
    apart = unicodedata.normalize("NFD", "Zoë Weiß")  # as macOS names files
    desk.hand_in(f"{apart}/{NAME}", os.fsdecode(b"no text \xff/") + NAME)
    Path("roster.csv").write_text("Student;Email\nZoë Weiß;zoe@example.org\n", "utf-8-sig")
    desk.grade("--roster", "roster.csv", "--only", apart)
    points = [(student, row["points"]) for student, row in desk.rows().items()]
    assert points == [("Zoë Weiß", "8"), ("no text ?", "8")]


def test_text_that_cannot_be_written_or_shown_harms_no_report(desk):
    made = solved(FOUR)
    made["metadata"]["language_info"] = {"name": "\ud800\x1b]0;pwned\x07\nstudent_98   8 of 8"}
    desk.hand_in(f"student_01/{NAME}", data=content(made))
    desk.hand_in(f"student_02/{NAME}")
    said = desk.grade(code=1).out
    assert "\x1b" not in said and "\nstudent_98" not in said
    assert [row["points"] for row in desk.rows().values()] == ["0", "8"]
    assert "language is ?" in desk.page("feedback/student_01")
    assert Path("report/feedback/student_01.html").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    "text, tamed",
    [
        ("=1", "'=1"),
        (" +1", "' +1"),
        ("-1", "'-1"),
        ("@x", "'@x"),
        ("\t=1", "' =1"),
        ("a\x1b[31m\nb", "a [31m b"),
        (3, 3),
        ("a;=1+1;b", "a;'=1+1;b"),
        ("\uff1d1+1", "'<U+FF1D>1+1"),
        ("a; =1, -2,\t+3", "a;' =1,' -2,' +3"),
        ("a\n@x\t=1", "a '@x '=1"),
        ('b;"=1"', 'b;\'"=1"'),
        ("a-b, c=d; e@f", "a-b, c=d; e@f"),
    ],
)
def test_no_formula_stands_at_the_beginning_or_behind_any_separator(text, tamed):
    assert reports.tame(text) == tamed
    assert reports.tame(tamed) == tamed


HIDDEN_IN_NAMES = {
    "Ann\u202egnp.exe": "Ann<U+202E>gnp.exe",
    "bob\u200b": "bob<U+200B>",
    "bob\u3164": "bob<U+3164>",
    "bob\ufe0f": "bob<U+FE0F>",
    "\uff22ob": "<U+FF22>ob",
    "\uff1d1+1": "<U+FF1D>1+1",
}


def test_names_that_are_not_what_they_look_like_are_shown_by_code_points(desk):
    desk.hand_in(*(f"{name}/{NAME}" for name in HIDDEN_IN_NAMES))
    said = desk.grade()
    pages = list(Path("report/feedback").iterdir())
    csv_text = Path("report/report.csv").read_text("utf-8")
    all_of_them = "".join(html.unescape(page.read_text("utf-8")) for page in pages)
    shown_in = said.out, said.err, csv_text, html.unescape(desk.page()), all_of_them
    for name, shown in HIDDEN_IN_NAMES.items():
        hidden = next(char for char in name if ord(char) > 127)
        assert all(shown in text and hidden not in text for text in shown_in)
        assert not any(hidden in page.name for page in pages)
        desk.grade("--only", shown)
        assert len(desk.graded) == 1
    assert csv_text.count("correct this text before") == len(pages) == len(HIDDEN_IN_NAMES)


@pytest.mark.parametrize(
    "name", ["J\u00f6rg M\u00fcller", "\u674e\u96f7\u3001\u300c\u738b\u300d", "\u0939\u093f\u0928"]
)
def test_honest_names_of_any_script_are_shown_as_they_are(name):
    assert texts.one_line(name) == texts.clean(name) == reports.tame(name) == name


def test_folders_and_notes_put_no_formula_into_a_table(desk):
    desk.hand_in(f"a;=1+1;b/{NAME}", f"\uff1d1+1/{NAME}", f"bob/{NAME}")
    desk.hand_in("bob/=2+2.ipynb", "bob/y;@z.ipynb")
    desk.hand_in("eve/a;=3.zip", data=b"")
    desk.grade("--roster", desk.write("roster.csv", "student,name\na;=1+1;b,=4\n"), code=1)
    for path in Path("report").glob("*.csv"):
        for row in table(path):
            parts = [part for cell in row for part in re.split(r"[,;]\s*", cell) if part]
            assert not [part for part in parts if re.match("[=+@\uff1d]|-\\d", part)]
    rows = table("report/report.csv")
    assert ["a;'=1+1;b", "'=4"] in [row[:2] for row in rows]
    assert rows[1][-2].startswith("all tables show a;'=1+1;b and '=4, because")


def test_names_of_pages_keep_letters_of_any_script(three):
    for student in ("Jörg Müller", "李雷", "हिन्दी", "a%41?b"):
        three.hand_in(f"{student}/{NAME}")
    three.grade()
    pages = {student: row["page"] for student, row in three.rows().items()}
    assert pages["Jörg Müller"] == "feedback/Jörg_Müller.html"
    assert pages["李雷"] == "feedback/李雷.html" and pages["हिन्दी"] == "feedback/हिन्दी.html"
    assert pages["a%41?b"] == "feedback/a_41_b.html"
    assert all(Path("report", page).is_file() for page in pages.values())
    assert 'href="feedback/J%C3%B6rg_M%C3%BCller.html"' in three.page()


def test_names_of_pages_are_safe_fit_any_file_system_and_each_is_its_own():
    taken = set()
    names = [file_name(one, taken) for one in ("../x", "a/b", "A_B", "", "con\n")]
    assert names == ["x", "a_b", "A_B-2", "student", "con"]
    assert len(file_name("李" * 300, set()).encode()) <= 120
    assert file_name("Jo\u0308rg", set()) == "Jörg"


# How far it is


class Done:
    student, exercise, file = "student_01\x1b[31m", FOUR.name, ""


@pytest.mark.parametrize("columns", [0, 80], ids=["as some programs say", "80"])
def test_a_bar_shows_what_was_done_last_and_moves_while_nothing_is(columns, monkeypatch):
    screen = Terminal(monkeypatch, columns)
    with whole_class.progress(7) as tell:
        assert "0 of 7" in screen.getvalue() and "solution is run first" in screen.getvalue()
        tell(Done)
        assert "1 of 7" in screen.getvalue() and "student_01 [31m 04" in screen.getvalue()
        assert "<00:0" in screen.getvalue()  # the remaining time
    monkeypatch.setattr(display, "TICK_S", 0.001)
    with whole_class.progress(7):
        for _ in range(2):
            screen.written.clear()
            assert screen.written.wait(60)
    screen.hang_up()


def test_without_a_terminal_each_notebook_is_a_line(three):
    said = three.grade("--jobs", "1").err.splitlines()
    assert said[0] == "1 of 3: student_01 04_collectives" and len(said) == 3

"""A class's files found, tables and pages written, results kept; nothing is run here."""

import argparse
import contextvars
import datetime
import functools
import html
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
import threading
import unicodedata
import zipfile

import jsonschema
import nbformat
import pytest
import torch
from notebooks_made import SOURCES, cell_of, content, exercise, hand_in, notebook, solved, table

import simlib
from simlib.classroom.checks import checking
from simlib.classroom.grading import (
    commands,
    graded_checks,
    reports,
    sandbox,
    self_check,
    session,
    shell,
    texts,
    whole_class,
)
from simlib.classroom.grading.collect import CannotCollect, collect
from simlib.classroom.grading.grade import NotebookResult
from simlib.classroom.grading.graded_checks import GradedChecks
from simlib.classroom.grading.merge_answers import WrongNotebook, merge_answers
from simlib.classroom.grading.notebook_file import Unreadable, parse
from simlib.classroom.grading.roster import BadRoster, Person, read_roster
from simlib.classroom.grading.score import QuestionResult, is_cut_short
from simlib.classroom.grading.session import CellResult
from simlib.classroom.grading.texts import SEEDS, Cache
from simlib.cli import main
from simlib.core.environment import ROOT
from simlib.core.model.trace import Trace
from simlib.core.results.run import Run

EXERCISES = {one.name: one for one in (exercise("01"), exercise("04"))}
COLLECTIVES = EXERCISES["04_collectives"]
SOLVED, UNTOUCHED = content(solved(COLLECTIVES)), content(notebook(COLLECTIVES))


def files(folder, *names, data=SOLVED):
    hand_in(folder, *names, data=data)


def found_in(place):
    return [(one.student, one.exercise) for one in collect(place, EXERCISES)]


def test_a_folder_for_each_student(tmp_path):
    files(tmp_path, "student_02/04_collectives.ipynb", "student_01/deeper/04_collectives.ipynb")
    files(tmp_path, "student_01/.ipynb_checkpoints/04_collectives-checkpoint.ipynb")
    assert found_in(tmp_path) == [
        ("student_01", "04_collectives"),
        ("student_02", "04_collectives"),
    ]


@pytest.mark.parametrize(
    "name, student",
    [
        ("student_07_04_collectives.ipynb", "student_07"),
        ("04_collectives_student_07.ipynb", "student_07"),
        ("student07_4711_15_04_collectives-2.ipynb", "4711"),
        ("student07_LATE_4711_15_04_collectives.ipynb", "4711"),
        ("Student Seven_4711_assignsubmission_file_/04_collectives (1).ipynb", "4711"),
        ("Student Seven_4711_assignsubmission_file_04_collectives.ipynb", "4711"),
        ("student_07/my homework.ipynb", "student_07"),
    ],
)
def test_names_of_files_tell_student_and_exercise(tmp_path, name, student):
    files(tmp_path / "files", name)
    with zipfile.ZipFile(tmp_path / "files.zip", "w") as archive:
        archive.writestr(name, SOLVED)
    for place in (tmp_path / "files", tmp_path / "files.zip"):
        assert found_in(place) == [(student, "04_collectives")]
        assert collect(place, EXERCISES)[0].late == ("LATE" in name)


def test_a_moodle_file_is_of_who_handed_it_in_whatever_its_name(tmp_path):
    file = "x_1234_assignsubmission_file_04_collectives.ipynb"
    files(tmp_path, f"Student Seven_4711_assignsubmission_file_{file}")
    assert found_in(tmp_path) == [("4711", "04_collectives")]


def test_the_end_of_a_moodle_folder_is_moodles_and_the_rest_a_name(tmp_path):
    eve = "Eve_1234_assignsubmission_file_4711_assignsubmission_file"
    files(tmp_path, f"{eve}/04_collectives.ipynb")
    files(tmp_path, "Vera_1234_assignsubmission_file/04_collectives.ipynb")
    found = {one.student: one for one in collect(tmp_path, EXERCISES)}
    assert {student: one.name for student, one in found.items()} == {
        "1234": "Vera",
        "4711": "Eve_1234_assignsubmission_file",
    }
    assert not any(one.notes or one.conflict for one in found.values())


@pytest.mark.parametrize(
    "name, people, student",
    [
        ("Eve_4711_assignsubmission_file_x_1234_assignsubmission_file_04", {"Eve"}, "4711"),
        ("Vera_1234_assignsubmission_file_x_4711_assignsubmission_file_04",
         {"Vera", "Vera_1234_assignsubmission_file_x"}, "4711"),
        ("Vera_1234_assignsubmission_file_x_4711_assignsubmission_file_04", {"Vera"}, "1234"),
    ],
)  # fmt: skip
def test_a_loose_moodle_file_is_read_against_the_roster(tmp_path, name, people, student):
    files(tmp_path, f"{name}_collectives.ipynb")
    roster = [Person(f"s{n}", one, {}) for n, one in enumerate(sorted(people))]
    assert [one.student for one in collect(tmp_path, EXERCISES, roster)] == [student]


COMPOSED, APART = "Zo\u00eb", "Zoe\u0308"


@pytest.mark.parametrize(
    "first, second, student",
    [
        (f"{COMPOSED}/04_collectives.ipynb", f"{APART}/04_collectives.ipynb", COMPOSED),
        ("bob_04_collectives.ipynb", "04_collectives_-bob.ipynb", "bob"),
        ("bob/04_collectives.ipynb", "04_collectives_bob.ipynb", "bob"),
        (
            "Vera_1234_assignsubmission_file/04_collectives.ipynb",
            "Eve_1234_assignsubmission_file/04_collectives.ipynb",
            "1234",
        ),
    ],
)
def test_two_claims_to_one_student_are_both_graded_and_told(
    stand_in, tmp_path, capsys, first, second, student
):
    files(tmp_path / "class", first)
    files(tmp_path / "class", second, data=content(solved(COLLECTIVES) | {"x": 1}))
    (tmp_path / "roster.csv").write_text(f"student,name\n{student},Vera\n", encoding="utf-8")
    call = ["grade", str(tmp_path / "class"), "--roster", str(tmp_path / "roster.csv")]
    main([*call, "--out", str(tmp_path / "out")])
    said, page = capsys.readouterr().out, (tmp_path / "out/class.html").read_text("utf-8")
    students = json.loads((tmp_path / "out/report.json").read_text("utf-8"))["students"]
    other = f"{student} (second claim: {unicodedata.normalize('NFC', second)})"
    assert [(one["student"], one["points"]) for one in students] == [(student, 8), (other, 8)]
    assert students[1]["name"] == other and not students[1]["notebooks"][0]["platform"]
    note = f"2 claims to be {student}, all graded: "
    assert said.count(note) == page.count(note) == 2
    assert all(note in row[-2] for row in table(tmp_path / "out/report.csv")[1:])
    assert not any(book["notes"] for one in students for book in one["notebooks"])


def test_a_further_claim_is_taken_for_nobody_who_is_called_so(tmp_path):
    files(tmp_path, "bob_04_collectives.ipynb", "04_collectives_-bob.ipynb")
    files(tmp_path, "04_collectives_bob.ipynb")
    files(tmp_path, "bob (second claim: 04_collectives_-bob.ipynb)/04_collectives.ipynb")
    assert len({one.student for one in collect(tmp_path, EXERCISES)}) == 4


@pytest.mark.parametrize("copy", ["-1", " (1)", "-2-1"])
def test_copies_of_one_student_are_one_claim(tmp_path, copy):
    for name in ("bob_4711_15_04_collectives", "eve_04_collectives"):
        files(tmp_path, f"{name}.ipynb", f"{name}{copy}.ipynb")
    found = collect(tmp_path, EXERCISES)
    assert [(one.student, len(one.notes)) for one in found] == [("4711", 1), ("eve", 1)]
    assert not any(one.conflict for one in found)


def test_of_two_files_the_newer_counts(tmp_path):
    files(tmp_path, "student_01/04_collectives.ipynb", "student_01/04_collectives-1.ipynb")
    os.utime(tmp_path / "student_01/04_collectives.ipynb", (2e9, 2e9))
    (one,) = collect(tmp_path, EXERCISES)
    assert one.file.endswith("04_collectives.ipynb")
    assert "04_collectives-1.ipynb was left aside" in one.notes[0]


def test_of_a_whole_course_that_is_handed_in_the_exercise_counts(tmp_path):
    lesson = (ROOT / "notebooks/04_collectives.ipynb").read_bytes()
    files(tmp_path, "student_01/course/notebooks/04_collectives.ipynb", data=lesson)
    files(tmp_path, "student_01/course/exercises/04_collectives.ipynb", data=UNTOUCHED)
    files(tmp_path, "student_01/course/solutions/04_collectives.ipynb")
    files(tmp_path, "student_01/course/.pristine/04_collectives.ipynb")
    os.utime(tmp_path / "student_01/course/exercises/04_collectives.ipynb", (1e9, 1e9))
    (one,) = collect(tmp_path, EXERCISES)
    assert one.file == "student_01/course/exercises/04_collectives.ipynb"
    assert len(one.notes) == 2
    with pytest.raises(WrongNotebook, match="is it the lesson"):
        merge_answers(COLLECTIVES, parse(lesson))


def test_a_zip_does_no_harm(tmp_path):
    with zipfile.ZipFile(tmp_path / "evil.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../outside/04_collectives.ipynb", SOLVED)
        archive.writestr("bomb/04_collectives.ipynb", bytes(40 << 20))
    found = {one.file: one for one in collect(tmp_path / "evil.zip", EXERCISES)}
    assert "20 MB" in found["bomb/04_collectives.ipynb"].unreadable
    assert os.listdir(tmp_path) == ["evil.zip"]


@pytest.mark.parametrize(
    "name, inside, students",
    [
        ("class.zip", "class/{}/04_collectives.ipynb", ["student_01", "student_02"]),
        ("class (1).zip", "class/{}_04_collectives.ipynb", ["student_01", "student_02"]),
        ("all.zip", "class/{}/04_collectives.ipynb", ["class"]),
        ("class.zip", "class/exercises/04_collectives.ipynb", ["class"]),
        ("class.zip", "class/04_collectives.ipynb", ["class"]),
        ("class-2026.zip", "class-2026/{}/04_collectives.ipynb", ["student_01", "student_02"]),
    ],
)
def test_a_packed_folder_of_a_class_is_no_student(tmp_path, name, inside, students):
    with zipfile.ZipFile(tmp_path / name, "w") as archive:
        archive.writestr(f"{inside.partition('/')[0]}/.DS_Store", b"")
        archive.writestr("__MACOSX/class/._x", b"")
        for path in sorted({inside.format(one) for one in ("student_01", "student_02")}):
            archive.writestr(path, SOLVED)
    assert [student for student, _ in found_in(tmp_path / name)] == students


def test_nothing_there_is_told(tmp_path):
    with pytest.raises(CannotCollect, match="no notebooks"):
        collect(tmp_path, EXERCISES)
    for name in ("nowhere", "nowhere.zip"):
        with pytest.raises(CannotCollect, match="neither a folder nor a zip"):
            collect(tmp_path / name, EXERCISES)
    (tmp_path / "class.zip").write_bytes(b"half of a download")
    with pytest.raises(CannotCollect, match="class.zip is damaged .*download it again"):
        collect(tmp_path / "class.zip", EXERCISES)


# Grading stood in for (`stand_in` of conftest.py)


@pytest.fixture
def submissions(tmp_path):
    folder = tmp_path / "submissions"
    files(folder, "student_01/04_collectives.ipynb", "student_02/04_collectives.ipynb")
    files(folder, "=1+1/04_collectives.ipynb", data=content(notebook(COLLECTIVES)))
    files(folder, "student_03/04_collectives.ipynb", data=b"{")
    files(folder, "student_04/04_collectives.ipynb", data=b'{"cells": ["break the grader"]}')
    return folder


def test_a_class_is_graded_and_a_bad_file_stops_nobody(stand_in, submissions, tmp_path, capsys):
    roster = tmp_path / "roster.csv"
    roster.write_text("student,name,email\nstudent_01,One <b>,one@example.org\nstudent_09,Nine,\n")
    out = tmp_path / "out"
    code = main(["grade", str(submissions), "--out", str(out), "--roster", str(roster)])
    assert code == 1
    rows = {row[0]: row for row in table(out / "report.csv")}
    assert [rows[one][2] for one in ("student_01", "student_02", "student_03")] == ["8", "8", "0"]
    assert rows["student_09"][5:7] == ["", "04_collectives: missing"]
    assert "not graded" in rows["student_04"][6] and "broken" in rows["student_04"][7]
    assert "'=1+1" in rows
    report = json.loads((out / "report.json").read_text())
    jsonschema.validate(report, json.loads(reports.SCHEMA.read_text()))
    assert table(out / "canvas.csv")[0][:5] == [
        "Student", "ID", "SIS User ID", "SIS Login ID", "Section",
    ]  # fmt: skip
    assert table(out / "moodle.csv")[1] == ["", "", "one@example.org", "One <b>", "8"]
    page = (out / "feedback" / "student_01.html").read_text()
    assert "One &lt;b&gt;" in page and "&lt;script&gt;" in page and "<script>" not in page
    assert f"seed {report['seed']}" in capsys.readouterr().out


def test_results_are_kept_by_content(stand_in, submissions, tmp_path):
    command = ["grade", str(submissions), "--out", str(tmp_path / "out"), "--jobs", "1"]
    main(command)
    seed = json.loads((tmp_path / "out/report.json").read_text())["seed"]
    assert len(stand_in) == 2  # two students have the same notebook
    first = (tmp_path / "out/report.csv").read_text()
    stand_in.clear()
    main(command)
    assert not stand_in
    assert (tmp_path / "out/report.csv").read_text() == first
    assert json.loads((tmp_path / "out/report.json").read_text())["seed"] == seed
    main([*command, "--only", "student_02"])
    assert len(stand_in) == 1
    assert int(seed) in SEEDS
    main([*command, "--seed", str(int(seed) // 2)])
    assert len(stand_in) > 1


def test_an_interrupted_batch_goes_on(stand_in, submissions, tmp_path, monkeypatch):
    whole = whole_class.grade
    monkeypatch.setattr(
        whole_class,
        "grade",
        lambda data, *rest: (
            (_ for _ in ()).throw(KeyboardInterrupt()) if stand_in else whole(data, *rest)
        ),
    )
    command = ["grade", str(submissions), "--out", str(tmp_path / "out"), "--jobs", "1"]
    assert main(command) == 130
    assert len(stand_in) == 1
    monkeypatch.setattr(whole_class, "grade", whole)
    main(command)
    assert len(stand_in) == 2


def test_points_by_hand_come_from_a_file(stand_in, submissions, tmp_path, capsys):
    by_hand = tmp_path / "overrides.csv"
    by_hand.write_text("student,exercise,question,points\nstudent_01,04,mean_of_all,1\n")
    call = ["grade", str(submissions), "--out", str(tmp_path), "--overrides", str(by_hand)]
    main(call)
    rows = {row[0]: row for row in table(tmp_path / "report.csv")}
    assert rows["student_01"][2] == "7" and rows["student_02"][2] == "8"
    by_hand.write_text("student,exercise,question,points\nstudent_77,04,mean_of_all,1\n")
    stand_in.clear()
    assert main([*call, "--seed", "77"]) == 2
    assert not stand_in  # before anything was graded
    assert "no student 'student_77'" in capsys.readouterr().err


def test_a_download_from_moodle_gives_a_worksheet(stand_in, tmp_path):
    for name in ("One_4711_assignsubmission_file", "Two_4712_assignsubmission_file_"):
        files(tmp_path / "class", f"{name}/04_collectives.ipynb")
    main(["grade", str(tmp_path / "class"), "--out", str(tmp_path)])
    rows = table(tmp_path / "moodle_worksheet_04_collectives.csv")
    assert [row[:3] for row in rows[1:]] == [
        ["Participant 4711", "One", "8"],
        ["Participant 4712", "Two", "8"],
    ]


def test_names_are_the_same_however_they_are_written(stand_in, tmp_path):
    apart = unicodedata.normalize("NFD", "Zoë Weiß")  # as macOS names files
    files(tmp_path / "class", f"{apart}/04_collectives.ipynb")
    folder = os.fsdecode(b"no text \xff")
    files(tmp_path / "class", f"{folder}/04_collectives.ipynb")
    roster = tmp_path / "roster.csv"
    roster.write_text("Student;Email\nZoë Weiß;zoe@example.org\n", encoding="utf-8-sig")
    call = ["grade", str(tmp_path / "class"), "--out", str(tmp_path), "--roster", str(roster)]
    assert main([*call, "--only", apart]) == 0
    rows = table(tmp_path / "report.csv")
    assert [(row[0], row[2]) for row in rows[1:]] == [("Zoë Weiß", "8"), ("no text ?", "8")]


@pytest.mark.parametrize(
    "content, sentence",
    [
        ("student\nZoë".encode("latin-1"), "save it as 'CSV UTF-8'"),
        (b"", "it is empty"),
        (b"who;points\na;1\n", "needs a column 'student'"),
        (b"student,name\nstudent_01,A\n,B\n", "line 3, has nothing in column 'student'"),
        (b"student\na\na\n", "has a more than once"),
        (b"student,name\na,A,,\nb,B, C\n", "line 3 has more cells than there are columns"),
    ],
)
def test_a_roster_that_cannot_be_read_is_told(tmp_path, content, sentence):
    (tmp_path / "roster.csv").write_bytes(content)
    with pytest.raises(BadRoster, match=sentence):
        read_roster(tmp_path / "roster.csv")


def test_text_that_cannot_be_written_or_shown_harms_no_report(stand_in, tmp_path, capsys):
    made = solved(COLLECTIVES)
    made["metadata"]["language_info"] = {"name": "\ud800\x1b]0;pwned\x07\nstudent_98   8 of 8"}
    files(tmp_path / "class", "student_01/04_collectives.ipynb", data=content(made))
    files(tmp_path / "class", "student_02/04_collectives.ipynb")
    assert main(["grade", str(tmp_path / "class"), "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().out
    assert "\x1b" not in said and "\nstudent_98" not in said
    assert [row[2] for row in table(tmp_path / "out" / "report.csv")[1:]] == ["0", "8"]
    page = tmp_path / "out" / "feedback" / "student_01.html"
    assert "language is ?" in page.read_text(encoding="utf-8")
    assert page.stat().st_mode & 0o777 == 0o644


def test_a_file_of_blank_lines_is_read_at_once():
    with pytest.raises(Unreadable, match="no valid JSON"):
        parse(b"{" + b"\n" * 1_000_000 + b"<")  # each blank line once began a search of its own


def test_an_exercise_is_told_among_all_of_them(stand_in, tmp_path):
    made = {number: exercise(number) for number in ("08", "09")}  # both have a question accumulate
    for one in made.values():
        files(tmp_path / "class/student_01", f"{one.name}.ipynb", data=content(solved(one)))
    main(["grade", str(tmp_path / "class"), "--out", str(tmp_path), "--exercise", "09"])
    head, row = table(tmp_path / "report.csv")
    assert head[4] == made["09"].name and row[2] == str(made["09"].points) and not row[-2]


@pytest.mark.parametrize(
    "name", ["04_collectives.ipynb.txt", "04_collectives.IPYNB", "04_collectives (1).ipynb.json"]
)
def test_a_notebook_with_another_ending_is_one(tmp_path, name):
    files(tmp_path, f"student_01/{name}")
    assert found_in(tmp_path) == [("student_01", "04_collectives")]


def test_who_handed_in_other_files_only_is_told_so(stand_in, tmp_path, monkeypatch):
    files(tmp_path / "class", "student_01/04_collectives.ipynb", "student_01/notes.txt")
    files(tmp_path / "class", "student_02/all.zip", "student_02/x.py", data=b"")
    files(tmp_path / "class", "student_03/04_collectives.ipynb")
    whole = os.open

    def opened(name, *rest, **more):
        if name == "student_03":
            raise PermissionError(13, "Permission denied")
        return whole(name, *rest, **more)

    monkeypatch.setattr(os, "open", opened)
    main(["grade", str(tmp_path / "class"), "--out", str(tmp_path)])
    notes = {row[0]: row[-2] for row in table(tmp_path / "report.csv")[1:]}
    assert notes["student_01"] == ""
    assert "but all.zip, x.py" in notes["student_02"]
    assert "but a folder that cannot be opened" in notes["student_03"]


def test_what_a_crash_left_of_a_result_is_made_anew(stand_in, submissions, tmp_path):
    call = ["grade", str(submissions), "--out", str(tmp_path), "--jobs", "1"]
    main(call)
    stand_in.clear()
    for file in (tmp_path / ".cache").iterdir():
        file.write_text("")
    main(call)
    assert len(stand_in) == 2


def test_a_grader_that_is_stopped_ends_what_it_runs():
    process = subprocess.Popen(["sleep", "600"])
    stop = threading.Event()
    stop.set()
    context = contextvars.copy_context()
    context.run(session.STOP.set, stop)
    with pytest.raises(KeyboardInterrupt):
        context.run(session.watch, process, sandbox.Limits())
    session.end_group(process)


def test_folders_of_a_killed_grader_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.Popen(["true"])
    ended.wait()
    for pid in (ended.pid, os.getpid()):
        (tmp_path / f"{session.FOLDERS}{pid}-x").mkdir()
    session.clear_after_the_dead()
    assert [one.name for one in tmp_path.iterdir()] == [f"{session.FOLDERS}{os.getpid()}-x"]


def test_more_time_for_a_notebook_is_more_for_its_cells():
    options = argparse.Namespace(time=600, memory=None)
    assert commands.limits_of(options) == sandbox.Limits(50, 150, 600)
    assert commands.limits_of(argparse.Namespace(time=24, memory=None)).cell_s == 60


def test_more_time_for_a_notebook_is_more_for_ranks_that_do_nothing_to_be_seen(monkeypatch):
    waited = []

    def stuck(function, world_size, args, timeout_s):
        waited.append(timeout_s)
        raise simlib.SimlibError("stuck")

    def answer(rank, world_size):
        pass

    def no_inputs(rank, world_size):
        return ()

    for module in (checking, graded_checks):
        monkeypatch.setattr(module, "run_on_processes", stuck)
    graded = GradedChecks(sandbox.Limits(cell_s=150).patience)
    graded.check("some", answer, no_inputs, list)
    graded.measure(answer, no_inputs)
    graded.measure(answer, no_inputs, start=functools.partial(stuck, timeout_s=4))
    assert waited == [2 * 5 * 2.5, 20 * 2.5, 20 * 2.5]


@pytest.mark.parametrize("within, reads", [(1e-5, "1: 2.02 (has"), (0.02, "1: 2\n")])
def test_hidden_cells_have_the_tolerance_of_their_check(within, reads):
    """A number that is near the solution's reads as the solution's."""

    def no_inputs(rank, world_size):
        return ()

    def of(value):
        def answer(rank, world_size):
            return value

        graded = GradedChecks()
        graded.check("some", answer, no_inputs, lambda: [2.0], worlds=(1,), within=within)
        return graded, answer

    solution, answer = of(2.0)
    solution.begin("hidden", "some")
    solution.measure(answer, no_inputs, worlds=(1,))
    mine, answer = of(2.02)
    mine.expect("some", solution.recorded("some"))
    mine.begin("hidden", "some")
    assert mine.measure(answer, no_inputs, worlds=(1,)).startswith(reads)


@pytest.mark.parametrize("deaths", [{}, {1: 0.5}])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_rank_that_did_not_answer_is_named_and_graded_again(monkeypatch, deaths, in_place):
    """A stand-in run in which rank 1 gives no result, as where a run is cut short."""

    def run(function, world_size, args, **options):
        results = [function(0, world_size, *pickle.loads(args.packed[0])), None]
        trace = Trace(2, spans=[(0.0, 1.0)] * 2, deaths=deaths)
        return Run("twice", trace, results, output=["", ""])

    for module in (checking, graded_checks):
        monkeypatch.setattr(module, "run_on_processes", run)

    def inputs(rank, world_size):
        return (torch.ones(1),)

    def answer(rank, world_size, x):
        return x.mul_(2) if in_place else 2 * x

    graded = GradedChecks()
    options = {"worlds": (2,), "in_place": in_place}
    graded.check("twice", answer, inputs, lambda xs: [2 * x for x in xs], **options)
    said = repr(graded.verdicts["twice"])
    assert "ank 1 gave no result: " in said and "None" not in said
    graded.begin("hidden", "twice")
    graded.expect("twice", recorded_of("hidden", [[torch.ones(1) * 2] * 2]))
    text = graded.measure(answer, inputs, **options)
    assert "rank 1 gave no result: " in text and "None" not in text
    for words in (said, text):
        outputs = [{"output_type": "stream", "name": "stdout", "text": words}]
        assert is_cut_short(CellResult("differs", outputs=outputs))


def recorded_of(cell, worlds):
    """What a run of a solution recorded of a hidden cell with one `measure`."""
    solution = GradedChecks()
    sent = {"messages": 0, "collectives": 0, "bytes": 0}
    measured = [{"values": values, "sent": sent} for values in worlds]
    solution._measured["twice"] = {cell: [measured]}
    return solution.recorded("twice")


@pytest.mark.parametrize("cut_short, times", [(False, 1), (True, 2)])
def test_other_limits_grade_again_what_a_limit_cut_short(tmp_path, monkeypatch, cut_short, times):
    graded = []

    def grade(data, one, *_):
        graded.append(data)
        question = QuestionResult("mean_of_all", "", 0, 2, "wrong", "")
        return NotebookResult(one.name, "graded", "", [question], cut_short=cut_short)

    monkeypatch.setattr(whole_class, "grade", grade)
    monkeypatch.setattr(whole_class.ClassGrader, "expected", lambda self, one: None)
    files(tmp_path, "student_01/04_collectives.ipynb")
    handed = collect(tmp_path, EXERCISES)
    for seconds in (240, 600, 600):
        limits = sandbox.Limits(notebook_s=seconds)
        whole_class.ClassGrader(EXERCISES, Cache(tmp_path / "cache"), 1, limits).run(
            handed, 1, lambda one: 0
        )
    assert len(graded) == times


def test_late_files_are_marked(stand_in, submissions, tmp_path):
    late = datetime.datetime(2030, 1, 2).timestamp()
    os.utime(submissions / "student_02/04_collectives.ipynb", (late, late))
    main(["grade", str(submissions), "--out", str(tmp_path), "--deadline", "2030-01-01"])
    late = {row[0]: row[5] for row in table(tmp_path / "report.csv")}
    assert late["student_02"] == "04_collectives" and not late["student_01"]


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["--deadline", "soon"], "write it as"),
        (["--roster", "nowhere.csv"], "cannot be read"),
        (["--exercise", "77"], "there is no exercise 77"),
        (["--exercises", "tests"], "no exercise sources"),
        (["--only", "student_99"], "nobody named student_99"),
        (["--seed", "-3"], "hidden tests have seeds from 0 to 18446744073709551615"),
        (["--seed", str(2**64)], "hidden tests have seeds from 0 to 18446744073709551615"),
        (["--out", "{}"], "--out names the folder of the submissions"),
        (["--out", "{}/student_02/04_collectives.ipynb"], "04_collectives.ipynb is a file; name"),
    ],
)
def test_wrong_calls_are_told(stand_in, submissions, tmp_path, capsys, words, sentence):
    words = [word.format(submissions) for word in words]
    assert main(["grade", str(submissions), "--out", str(tmp_path / "out"), *words]) == 2
    assert sentence in capsys.readouterr().err


def test_a_damaged_zip_is_told(tmp_path, capsys):
    files(tmp_path / "files", "student_01/04_collectives.ipynb")
    with zipfile.ZipFile(tmp_path / "class.zip", "w") as archive:
        archive.write(tmp_path / "files/student_01/04_collectives.ipynb")
    data = bytearray((tmp_path / "class.zip").read_bytes())
    data[data.index(b"PK\x01\x02") : data.index(b"PK\x01\x02") + 4] = b"PKxx"
    (tmp_path / "class.zip").write_bytes(data)
    assert main(["grade", str(tmp_path / "class.zip"), "--out", str(tmp_path / "out")]) == 2
    assert "is damaged (Bad magic number" in capsys.readouterr().err


def test_two_graders_do_not_write_one_report(stand_in, submissions, tmp_path, capsys):
    with Cache(tmp_path / "out" / ".cache").locked():
        assert main(["grade", str(submissions), "--out", str(tmp_path / "out")]) == 2
    assert "another simlib grade is at work" in capsys.readouterr().err
    assert main(["grade", str(submissions), "--out", str(tmp_path / "out")]) != 2


def test_cells_of_a_table_are_no_formulas():
    tamed = [reports.tame(text) for text in ("=1", " +1", "-1", "@x", "\t=1", "a\x1b[31m\nb", 3)]
    assert tamed == ["'=1", "' +1", "'-1", "'@x", "' =1", "a [31m b", 3]


@pytest.mark.parametrize(
    "text, tamed",
    [
        ("a;=1+1;b", "a;'=1+1;b"),
        ("\uff1d1+1", "'<U+FF1D>1+1"),
        ("a; =1, -2,\t+3", "a;' =1,' -2,' +3"),
        ("a\n@x\t=1", "a '@x '=1"),
        ('b;"=1"', 'b;\'"=1"'),
        ("a-b, c=d; e@f", "a-b, c=d; e@f"),
    ],
)
def test_no_formula_stands_behind_any_separator(text, tamed):
    assert reports.tame(text) == tamed
    assert reports.tame(tamed) == tamed


@pytest.mark.parametrize(
    "name, shown",
    [
        ("Ann\u202egnp.exe", "Ann<U+202E>gnp.exe"),
        ("bob\u200b", "bob<U+200B>"),
        ("bob\u3164", "bob<U+3164>"),
        ("bob\ufe0f", "bob<U+FE0F>"),
        ("\uff22ob", "<U+FF22>ob"),
        ("\uff1d1+1", "<U+FF1D>1+1"),
    ],
)
def test_names_that_are_not_what_they_look_like_are_shown_by_code_points(
    stand_in, tmp_path, capsys, name, shown
):
    files(tmp_path / "class", f"{name}/04_collectives.ipynb")
    call = ["grade", str(tmp_path / "class"), "--out", str(tmp_path / "out")]
    assert main(call) == 0
    said = capsys.readouterr()
    (page,) = (tmp_path / "out/feedback").iterdir()
    hidden = next(char for char in name if ord(char) > 127)
    csv_text = (tmp_path / "out/report.csv").read_text("utf-8")
    pages = [(tmp_path / "out/class.html").read_text("utf-8"), page.read_text("utf-8")]
    for text in (said.out, said.err, csv_text, *(html.unescape(one) for one in pages)):
        assert shown in text and hidden not in text
    assert hidden not in page.name
    assert "set it right before an import" in csv_text
    assert main([*call, "--only", shown]) == 0


@pytest.mark.parametrize(
    "name", ["J\u00f6rg M\u00fcller", "\u674e\u96f7\u3001\u300c\u738b\u300d", "\u0939\u093f\u0928"]
)
def test_honest_names_of_any_script_are_shown_as_they_are(name):
    assert texts.one_line(name) == texts.clean(name) == reports.tame(name) == name


def test_folders_and_notes_put_no_formula_into_a_table(stand_in, tmp_path):
    files(tmp_path / "class", "a;=1+1;b/04_collectives.ipynb", "\uff1d1+1/04_collectives.ipynb")
    files(tmp_path / "class", "bob/04_collectives.ipynb", "bob/=2+2.ipynb", "bob/y;@z.ipynb")
    files(tmp_path / "class", "eve/a;=3.zip", data=b"")
    (tmp_path / "roster.csv").write_text("student,name\na;=1+1;b,=4\n")
    call = ["grade", str(tmp_path / "class"), "--roster", str(tmp_path / "roster.csv")]
    main([*call, "--out", str(tmp_path / "out")])
    for path in (tmp_path / "out").glob("*.csv"):
        for row in table(path):
            parts = [part for cell in row for part in re.split(r"[,;]\s*", cell) if part]
            assert not [part for part in parts if re.match("[=+@\uff1d]|-\\d", part)]
    cells = [row[:2] for row in table(tmp_path / "out/report.csv")]
    assert ["a;'=1+1;b", "'=4"] in cells
    note = table(tmp_path / "out/report.csv")[1][-2]
    assert note.startswith("written as a;'=1+1;b and '=4 in all tables")


def test_names_of_pages_are_safe_and_each_its_own():
    taken = set()
    names = [reports.file_name(one, taken) for one in ("../x", "a/b", "A_B", "", "con\n")]
    assert names == ["x", "a_b", "A_B-2", "student", "con"]


# Who may grade


def test_without_bubblewrap_it_says_so_and_asks(monkeypatch, submissions, tmp_path, capsys):
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)
    assert main(["grade", str(submissions), "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "bubblewrap" in said and "--no-sandbox" in said


def test_as_root_it_refuses_to_keep_roots_rights(monkeypatch, submissions, tmp_path, capsys):
    monkeypatch.setattr(sandbox.os, "geteuid", lambda: 0)
    call = ["grade", str(submissions), "--out", str(tmp_path)]
    assert main([*call, "--no-sandbox"]) == 2
    assert "as root, submissions are graded in the sandbox only" in capsys.readouterr().err
    monkeypatch.setattr(
        sandbox.shutil, "which", lambda name: None if name == "setpriv" else f"/usr/bin/{name}"
    )
    assert main(call) == 2
    assert "setpriv, which drops root's rights" in capsys.readouterr().err


# What students have


def test_a_handout_has_neither_solutions_nor_hidden_cells(tmp_path):
    files = commands.handout(ROOT, tmp_path / "out.zip")
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        packed = {name: archive.read(name) for name in archive.namelist()}
    assert "exercises/04_collectives.ipynb" in files and "environment.yml" in files
    assert not [name for name in packed if "solutions" in name or "authoring" in name]
    books = [data for name, data in packed.items() if name.endswith(".ipynb")]
    assert not [data for data in books if b"seed = 1" in data or b"sum_and_count" in data]
    assert any("seed = 1" in cell.source for cell in COLLECTIVES.cells)
    assert "sum_and_count" in COLLECTIVES.questions["mean_of_all"].solution


def test_a_handout_says_how_many_exercises_it_has(tmp_path, capsys):
    assert main(["handout", "--out", str(tmp_path / "out")]) == 0
    count = len(list((ROOT / "exercises").glob("*.ipynb")))
    assert f"{count} exercises, " in capsys.readouterr().out


def test_a_handout_overwrites_nothing(tmp_path, capsys):
    (tmp_path / "mine").write_text("")
    assert main(["handout", "--out", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err


@pytest.fixture
def workplace(tmp_path):
    """A student's folder: exercise 04 with one right answer, one wrong, one not written."""
    made = notebook(
        COLLECTIVES,
        {"mean_of_all": True, "own_broadcast": "def own_broadcast(rank, n, x, root):\n    pass"},
    )
    pristine = content(notebook(COLLECTIVES))
    files(tmp_path, ".pristine/04_collectives.ipynb", data=pristine)
    made["cells"] = [cell for cell in made["cells"] if cell["id"] != "mean_of_all-check"]
    files(tmp_path, "exercises/04_collectives.ipynb", data=content(made))
    return tmp_path


def test_check_says_right_wrong_and_not_written(workplace, capsys):
    assert main(["check", str(workplace / "exercises/04_collectives.ipynb")]) == 1
    said = capsys.readouterr().out
    assert "mean_of_all: right, 2 of 2 points." in said
    assert "own_broadcast: wrong, 0 of 3 points." in said
    assert "ring_all_gather: not written yet." in said
    assert "1 of 3 right" in said


@pytest.mark.parametrize("place", ["a checkout", "no copy"])
def test_check_uses_the_pristine_checks_of_a_checkout(tmp_path, place):
    made = notebook(COLLECTIVES, {"mean_of_all": True})
    cell_of(made, "mean_of_all-check")["source"] = "print('all is right')"
    files(tmp_path, "exercises/04_collectives-Copy1.ipynb", data=content(made))
    if place == "a checkout":
        source = (SOURCES / "04_collectives.py").read_bytes()
        files(tmp_path, "authoring/exercises/04_collectives.py", data=source)
    found, notes = self_check.check_notebook(tmp_path / "exercises/04_collectives-Copy1.ipynb")
    said = list(found)
    if place == "a checkout":
        assert [one.status for one in said] == ["right", "not written yet", "not written yet"]
        assert notes == ["changed cells, the original ones were used: mean_of_all-check"]
    else:
        assert said[0].text == "mean_of_all: wrong. Its check gave no verdict."
        assert notes == [
            "no exercise of this name lies here (was it renamed?), so its own check cells were used"
        ]


ENDLESS = """\
try:
    while True:
        pass
except Exception:
    pass
"""
IMPATIENT = """\
import simlib.classroom.grading.self_check as public

def run_for_a_time(shell, source, limit_s, whole=public.run_for_a_time):
    return whole(shell, source, 1 if "while True" in source else 600)

public.run_for_a_time = run_for_a_time
public.main()
"""


def test_check_ends_a_cell_that_does_not_end(workplace, monkeypatch):
    path = workplace / "exercises/04_collectives.ipynb"
    made = json.loads(path.read_text())
    made["cells"].insert(1, nbformat.v4.new_code_cell("import mine"))
    made["cells"].insert(1, nbformat.v4.new_code_cell(ENDLESS))
    (path.parent / "mine.py").write_text("")
    path.write_bytes(content(made))
    monkeypatch.setattr(self_check, "COMMAND", [sys.executable, "-c", IMPATIENT])
    said, notes = self_check.check_notebook(path)
    assert next(said).status == "right"
    assert len(list(said)) == 2
    told = "the cell that begins with 'try:' fails: StillRunning: it was ended after 1 s"
    assert any(note.startswith(told) for note in notes)
    assert any(note.startswith("mine.py lies beside the notebook") for note in notes)


def test_check_names_the_cell_that_ends_python(workplace):
    path = workplace / "exercises/04_collectives.ipynb"
    made = json.loads(path.read_text())
    cell_of(made, "own_broadcast-answer")["source"] += "\nimport os; os._exit(0)"
    path.write_bytes(content(made))
    said, _ = self_check.check_notebook(path)
    right, ended, not_written = said
    assert (right.status, not_written.status) == ("right", "not written yet")
    assert "not reached: the cell that begins with 'def own_broadcast" in ended.text


def test_an_error_names_the_line_of_its_cell_and_no_file_of_ipython():
    with pytest.raises(SyntaxError) as caught:
        compile("\ndef f()\n    pass", "<ipython-input-5-d4afba8d24e8>", "exec")
    assert shell.in_words(caught.value) == "SyntaxError: expected ':' (line 2)"


@pytest.mark.parametrize(
    "name, sentence",
    [
        ("04_collectives.ipynb", "no valid JSON"),
        ("notes.txt", "does not end in .ipynb"),
        ("empty", "no exercise in this folder"),
        ("folder.ipynb", "is a folder"),
        ("nowhere.ipynb", "cannot be opened"),
        (".", "no valid JSON"),
    ],
)
def test_check_refuses_what_it_cannot_read(tmp_path, capsys, name, sentence):
    files(tmp_path, "04_collectives.ipynb", "notes.txt", data=b"{")
    (tmp_path / "empty").mkdir()
    (tmp_path / "folder.ipynb").mkdir()
    assert main(["check", str(tmp_path / name)]) == 2
    assert sentence in capsys.readouterr().err

"""A class's files are found, whatever they are called, packed in, or turned into meanwhile."""

import json
import os
import zipfile
from types import SimpleNamespace

import jsonschema
import pytest
from notebooks_made import content, exercise, hand_in, notebook, solved

from simlib.classroom.grading import collect as collecting
from simlib.classroom.grading import notebook_file, reports
from simlib.classroom.grading.collect import CannotCollect, collect
from simlib.classroom.grading.merge_answers import WrongNotebook, merge_answers
from simlib.classroom.grading.notebook_file import parse
from simlib.classroom.grading.roster import Person
from simlib.cli import main
from simlib.core.environment import ROOT

COLLECTIVES = exercise("04")
EXERCISES = {one.name: one for one in (exercise("01"), COLLECTIVES)}
SOLVED, UNTOUCHED = content(solved(COLLECTIVES)), content(notebook(COLLECTIVES))
NAME = "04_collectives.ipynb"
MOODLE = "assignsubmission_file"
KINDS = pytest.mark.parametrize("kind", [0, 1], ids=["folder", "zip"])


def files(folder, *names, data=SOLVED):
    hand_in(folder, *names, data=data)


def zipped(path, made):
    """A zip with these files: ``{name: data}``."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in made.items():
            archive.writestr(name, data)
    return path


def pack(place, made):
    """The same files in a folder and in a zip; returns both."""
    for name, data in made.items():
        files(place, name, data=data)
    return place, zipped(place.with_suffix(".zip"), made)


def found_in(place):
    return [(one.student, one.exercise) for one in collect(place, EXERCISES)]


def by_student(place):
    return {one.student: one for one in collect(place, EXERCISES)}


# Whose a file is, and for which exercise


@pytest.mark.parametrize(
    "name, student",
    [
        ("student_07_04_collectives.ipynb", "student_07"),
        ("04_collectives_student_07.ipynb", "student_07"),
        ("student07_4711_15_04_collectives-2.ipynb", "4711"),
        ("student07_LATE_4711_15_04_collectives.ipynb", "4711"),
        (f"Student Seven_4711_{MOODLE}_/04_collectives (1).ipynb", "4711"),
        (f"Student Seven_4711_{MOODLE}_04_collectives.ipynb", "4711"),
        (f"Student Seven_4711_{MOODLE}_x_1234_{MOODLE}_04_collectives.ipynb", "4711"),
        ("student_07/my homework.ipynb", "student_07"),
        ("student_07/deeper/04_collectives.ipynb", "student_07"),
        ("student_07/04_collectives.ipynb.txt", "student_07"),
        ("student_07/04_collectives.IPYNB", "student_07"),
        ("student_07/04_collectives (1).ipynb.json", "student_07"),
    ],
)
def test_names_of_files_tell_student_and_exercise(tmp_path, name, student):
    for place in pack(tmp_path / "files", {name: SOLVED}):
        assert found_in(place) == [(student, "04_collectives")]
        assert collect(place, EXERCISES)[0].late == ("LATE" in name)


def test_the_end_of_a_moodle_folder_is_moodles_and_the_rest_a_name(tmp_path):
    files(tmp_path, f"Eve_1234_{MOODLE}_4711_{MOODLE}/{NAME}", f"Vera_1234_{MOODLE}/{NAME}")
    found = by_student(tmp_path)
    assert {student: one.name for student, one in found.items()} == {
        "1234": "Vera",
        "4711": f"Eve_1234_{MOODLE}",
    }
    assert not any(one.notes or one.conflict for one in found.values())


@pytest.mark.parametrize(
    "name, people, number, student",
    [
        (f"Eve_4711_{MOODLE}_x_1234_{MOODLE}_04", {"Eve"}, "4711", "s0"),
        (f"Vera_1234_{MOODLE}_x_4711_{MOODLE}_04", {"Vera", f"Vera_1234_{MOODLE}_x"}, "4711", "s1"),
        (f"Vera_1234_{MOODLE}_x_4711_{MOODLE}_04", {"Vera"}, "1234", "s0"),
    ],
)
def test_a_loose_moodle_file_is_read_against_the_roster(tmp_path, name, people, number, student):
    files(tmp_path, f"{name}_collectives.ipynb")
    roster = [Person(f"s{n}", one, {}) for n, one in enumerate(sorted(people))]
    found = collect(tmp_path, EXERCISES, roster)
    assert [(one.number, one.student) for one in found] == [(number, student)]


ADA, BOB = "Ada L.", "Bob K."


@pytest.mark.parametrize(
    "names, columns, numbers",
    [
        (["s-1_{}", "s-2_{}"], ["s-1", "s-2"], None),
        (["{}_s-1", "{}_s-2"], ["s-1", "s-2"], None),
        (["{}_s-1", "{}_s-2"], None, ["s-1", "s-2"]),
        (["{}-1001", "{}-1002"], ["1001", "1002"], None),
        (["{}_bob-1", "{}_eve (1)"], ["bob", "eve"], None),
        (["g1_2024_01_{}", "g2_2024_01_{}"], ["g1_2024_01", "g2_2024_01"], None),
        (["007_{}", "EVE_{}"], ["7", "eve"], None),
        (["ada_l_{}", "{}_Bob-K."], ["s1", "s2"], None),
        (["_ada_{}", "{}--e."], ["_ada", "e."], None),
        (["ada@x.org_{}", "Bob K./{}"], ["s1", "s2"], None),
        (["adal_4711_15_{}", "bobk_4712_16_{}"], ["s1", "s2"], None),
        ([f"Ada L._91_{MOODLE}_/{{}}", f"Bob K._92_{MOODLE}_{{}}"], ["s1", "s2"], None),
    ],
)
def test_files_of_two_students_are_two_students_whom_the_roster_knows(
    tmp_path, names, columns, numbers
):
    files(tmp_path, *(f"{name.format('04_collectives')}.ipynb" for name in names))
    more = {"name": [ADA, BOB], "email": ["ada@x.org", "bob@x.org"], "id": ["4711", "4712"]}
    roster = [
        Person(one, more["name"][n], {column: texts[n] for column, texts in more.items()})
        for n, one in enumerate(columns or ())
    ]
    found = collect(tmp_path, EXERCISES, roster)
    assert [one.student for one in found] == (columns or numbers)
    assert not any(one.notes or one.conflict for one in found)


def test_a_further_claim_is_taken_for_nobody_who_is_called_so(tmp_path):
    files(tmp_path, f"bob_{NAME}", "04_collectives_-bob.ipynb", "04_collectives_bob.ipynb")
    files(tmp_path, f"bob (second claim: 04_collectives_-bob.ipynb)/{NAME}")
    assert len(by_student(tmp_path)) == 4


@pytest.mark.parametrize("copy", ["-1", " (1)", "-2-1"])
def test_copies_of_one_student_are_one_claim(tmp_path, copy):
    for name in ("bob_4711_15_04_collectives", "eve_04_collectives"):
        files(tmp_path, f"{name}.ipynb", f"{name}{copy}.ipynb")
    found = collect(tmp_path, EXERCISES)
    assert [(one.student, len(one.notes)) for one in found] == [("4711", 1), ("eve", 1)]
    assert not any(one.conflict for one in found)


@pytest.mark.parametrize(
    "earlier, later",
    [
        ("_LATE_4711_16_04_collectives-1", "_4711_15_04_collectives"),
        ("_4711_9_04_collectives", "_4711_10_04_collectives"),
        ("_4711_15_04_collectives-9", "_4711_15_04_collectives-10"),
        ("_LATE_4711_9_04_collectives-2", "_LATE_4711_10_04_collectives"),
    ],
)
def test_of_canvas_s_files_marks_and_numbers_tell_the_last_in_time(tmp_path, earlier, later):
    made = {f"bob{name}.ipynb": SOLVED for name in (earlier, later)}
    for place in pack(tmp_path / "all", made):
        (one,) = collect(place, EXERCISES)
        assert (one.file, one.when) == (f"bob{later}.ipynb", None)
        told = f"bob{earlier}.ipynb, which came late, was" if "LATE" not in later else earlier
        assert told in one.notes[0] or "LATE" not in earlier


def test_of_two_files_the_newer_counts(tmp_path):
    files(tmp_path, f"student_01/{NAME}", "student_01/04_collectives-1.ipynb")
    files(tmp_path, "student_01/.ipynb_checkpoints/04_collectives-checkpoint.ipynb")
    os.utime(tmp_path / "student_01" / NAME, (2e9, 2e9))
    (one,) = collect(tmp_path, EXERCISES)
    assert one.file.endswith(NAME)
    assert "04_collectives-1.ipynb was skipped" in one.notes[0]


def test_of_a_whole_course_that_is_handed_in_the_exercise_counts(tmp_path):
    lesson = (ROOT / "notebooks" / NAME).read_bytes()
    course = tmp_path / "student_01/course"
    files(course, f"notebooks/{NAME}", data=lesson)
    files(course, f"exercises/{NAME}", data=UNTOUCHED)
    files(course, f"solutions/{NAME}", f".pristine/{NAME}")
    os.utime(course / "exercises" / NAME, (1e9, 1e9))
    (one,) = collect(tmp_path, EXERCISES)
    assert one.file == f"student_01/course/exercises/{NAME}"
    assert len(one.notes) == 2
    with pytest.raises(WrongNotebook, match="is the notebook the lesson"):
        merge_answers(COLLECTIVES, parse(lesson))


# Zips, and what is none


def test_a_zip_does_no_harm(tmp_path):
    made = {f"../../outside/{NAME}": SOLVED, f"bomb/{NAME}": bytes(40 << 20)}
    found = {one.file: one for one in collect(zipped(tmp_path / "evil.zip", made), EXERCISES)}
    assert "20 MB" in found[f"bomb/{NAME}"].unreadable
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
    made = {f"{inside.partition('/')[0]}/.DS_Store": b"", "__MACOSX/class/._x": b""}
    made |= {inside.format(one): SOLVED for one in ("student_01", "student_02")}
    place = zipped(tmp_path / name, made)
    assert [student for student, _ in found_in(place)] == students


def test_nothing_there_is_told(tmp_path):
    with pytest.raises(CannotCollect, match="no notebooks"):
        collect(tmp_path, EXERCISES)
    for name in ("nowhere", "nowhere.zip"):
        with pytest.raises(CannotCollect, match="neither a folder nor a zip"):
            collect(tmp_path / name, EXERCISES)
    files(tmp_path, f".bob/{NAME}")
    with pytest.raises(
        CannotCollect, match="no notebooks.*.bob: this folder was left out because of its name"
    ):
        collect(tmp_path, EXERCISES)
    (tmp_path / "class.zip").write_bytes(b"half of a download")
    with pytest.raises(CannotCollect, match="class.zip is damaged .*download it again"):
        collect(tmp_path / "class.zip", EXERCISES)


def test_a_damaged_zip_is_told(stand_in, tmp_path, capsys):
    place = zipped(tmp_path / "class.zip", {f"student_01/{NAME}": SOLVED})
    place.write_bytes(place.read_bytes().replace(b"PK\x01\x02", b"PKxx"))
    assert main(["grade", str(place), "--out", str(tmp_path / "out")]) == 2
    assert "is damaged (Bad magic number" in capsys.readouterr().err


# What students change while a class is collected costs nobody else, and ends nothing


@pytest.fixture
def at_first(monkeypatch):
    """``at_first(act)``: what happens when the first file has been listed, and not been read."""

    def arrange(act):
        whole, acts = collecting.identify, [act]

        def identify(*given):
            if acts:
                acts.pop()()
            return whole(*given)

        monkeypatch.setattr(collecting, "identify", identify)

    return arrange


@pytest.mark.parametrize("becomes_a_link", ["alice", "alice/work", "alice/work/deep"])
def test_a_folder_that_becomes_a_link_does_not_lead_to_the_teachers(
    tmp_path, at_first, becomes_a_link
):
    files(tmp_path / "class", f"alice/work/deep/{NAME}", "alice/work/deep/x.txt", data=UNTOUCHED)
    for folder in ("work/deep", "deep", "."):
        files(tmp_path / "solutions", f"{folder}/{NAME}", f"{folder}/x.txt")
    at_first(lambda: swap(tmp_path / "class" / becomes_a_link, tmp_path))
    (one,) = collect(tmp_path / "class", EXERCISES)
    assert one.student == "alice" and one.content == UNTOUCHED


def swap(place, folder):
    """Put a link to the solutions in a folder's place."""
    place.rename(folder / "away")
    place.symlink_to(folder / "solutions")


def test_a_folder_that_becomes_a_link_before_it_is_opened_is_not(tmp_path, at_first):
    files(tmp_path / "class", "alice/a.txt", f"alice/work/{NAME}", data=UNTOUCHED)
    files(tmp_path / "class", f"bob/{NAME}")
    files(tmp_path / "solutions", NAME)
    at_first(lambda: swap(tmp_path / "class/alice/work", tmp_path))
    found = by_student(tmp_path / "class")
    assert not found["alice"].content and "cannot be opened" in found["alice"].unreadable
    assert found["bob"].content == SOLVED


def test_all_is_read_before_anything_is_parsed(tmp_path, monkeypatch):
    files(tmp_path, "alice/my homework.ipynb", f"bob/{NAME}")
    done = []

    def note(module, name):
        whole = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *given, **named: (done.append(name), whole(*given, **named))[1]
        )

    note(collecting, "read_bytes")
    note(collecting.Reader, "about")
    collect(tmp_path, EXERCISES)
    assert done[:3] == ["read_bytes", "read_bytes", "about"] and "read_bytes" not in done[3:]


def test_what_vanishes_or_has_no_name_or_time_ends_nothing(desk, tmp_path, at_first):
    desk.hand_in("alice/0.txt", f"alice/{NAME}", f"bob/work/{NAME}", f"dora/{NAME}")
    desk.hand_in(os.fsdecode(b"no text \xff/04_collectives\xff.ipynb"))
    place = tmp_path / "class"
    (place / os.fsdecode(b"no text \xff") / os.fsdecode(b"link\xff")).symlink_to("nowhere")
    (place / "dora" / "dangling").symlink_to("nowhere")
    os.utime(place / "dora" / NAME, (1e12, 1e12))  # where the file system keeps such a time

    def vanish():
        (place / "alice" / NAME).unlink()
        (place / "bob").rename(tmp_path / "away")

    at_first(vanish)
    desk.grade(code=1)
    points = {one["student"]: one["points"] for one in desk.report()["students"]}
    assert points == {"alice": 0, "bob": 0, "dora": 8, "no text ?": 8}


def test_a_time_that_is_none_is_unknown():
    entry = SimpleNamespace(stat=lambda follow_symlinks: SimpleNamespace(st_mtime=1e12))
    assert collecting.changed(entry) is None


# How much of a student is read


@KINDS
def test_of_one_student_forty_megabytes_are_read_and_all_of_the_next(tmp_path, kind):
    made = {f"alice/{n}.ipynb": bytes(15 << 20) for n in range(4)}
    place = pack(tmp_path / "all", made | {f"bob/{NAME}": SOLVED})[kind]
    found = {one.file: one for one in collect(place, EXERCISES)}
    assert sum(len(one.content) for one in found.values()) == len(SOLVED) + (30 << 20)
    assert "together are larger than 40 MB" in found["alice/2.ipynb"].unreadable
    assert found[f"bob/{NAME}"].content == SOLVED


@KINDS
def test_so_many_notebooks_of_one_student_are_read(tmp_path, monkeypatch, kind):
    for module in (notebook_file, collecting):
        monkeypatch.setattr(module, "MAX_NOTEBOOKS", 5)
    made = {f"alice/{n}.ipynb": b"{}" for n in range(9)}
    place = pack(tmp_path / "all", made | {f"bob/{NAME}": SOLVED})[kind]
    *alices, bobs = collect(place, EXERCISES)
    assert len(alices) == 6 and "only the first 5 notebooks" in alices[-1].unreadable
    assert bobs.content == SOLVED


def test_folders_that_are_too_large_or_too_deep_cost_their_owner_only(tmp_path, monkeypatch):
    monkeypatch.setattr(collecting, "MAX_ENTRIES", 50)
    files(tmp_path, *(f"alice/{n:02}.txt" for n in range(60)), data=b"")
    files(tmp_path, "/".join(["carl", *"a" * 200, NAME]), f"dora/{NAME}")
    files(tmp_path, *(f"emil/{n:02}.txt" for n in range(40)), data=b"")
    found = by_student(tmp_path)
    assert "more files than 50" in found["alice"].unreadable
    assert "nested folders" in found["carl"].unreadable
    assert found["dora"].content == SOLVED
    assert found["emil"].unreadable.endswith("08.txt, 09.txt, 30 more")  # a short reason


# What is left out


@pytest.mark.parametrize("out", ["report", "out/of/this week"])
def test_a_report_among_the_submissions_is_no_student(stand_in, tmp_path, monkeypatch, out, capsys):
    files(tmp_path, f"alice/{NAME}")
    monkeypatch.chdir(tmp_path)
    for name in (out, out, "another"):
        capsys.readouterr()
        assert main(["grade", ".", "--out", name]) == 0
        report = json.loads((tmp_path / name / "report.json").read_text())
        assert [one["student"] for one in report["students"]] == ["alice"]
    note = f"{out} is a report of simlib grade, not a submission"
    assert report["notes"] == [note] and note in capsys.readouterr().out


def test_the_folder_of_the_report_is_left_out_by_whatever_name(tmp_path):
    files(tmp_path, f"alice/{NAME}", f"report/copy/{NAME}")
    (tmp_path / "link").symlink_to("report")
    (one,) = collect(tmp_path, EXERCISES, report=tmp_path / "link")
    assert one.student == "alice"


@KINDS
def test_a_folder_that_is_left_out_with_notebooks_in_it_is_told(stand_in, tmp_path, kind, capsys):
    made = [f".bob/work/{NAME}", f".ipynb_checkpoints/{NAME}", f"carl/.work/{NAME}", ".git/config"]
    made += [f"Alice A_17_{MOODLE}_/{NAME}", f"Alice A_17_{MOODLE}_/.ipynb_checkpoints/{NAME}"]
    place = pack(tmp_path / "class", dict.fromkeys(made, SOLVED))[kind]
    main(["grade", str(place), "--out", str(tmp_path / "out")])
    report = json.loads((tmp_path / "out/report.json").read_text())
    jsonschema.validate(report, json.loads(reports.SCHEMA.read_text()))
    assert [note.partition(":")[0] for note in report["notes"]] == [".bob", "carl/.work"]
    assert ".bob: this folder was left out because of its name" in capsys.readouterr().out

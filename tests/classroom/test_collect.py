"""What students change while a class is collected costs nobody else, and ends nothing."""

import json
import os
import zipfile
from types import SimpleNamespace

import pytest
from notebooks_made import content, exercise, hand_in, notebook, solved

from simlib.classroom.grading import collect as collecting
from simlib.classroom.grading import notebook_file, reports
from simlib.classroom.grading.collect import CannotCollect, collect
from simlib.cli import main

COLLECTIVES = exercise("04")
EXERCISES = {COLLECTIVES.name: COLLECTIVES}
SOLVED, UNTOUCHED = content(solved(COLLECTIVES)), content(notebook(COLLECTIVES))
NAME = "04_collectives.ipynb"


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
    hand_in(tmp_path / "class", f"alice/work/deep/{NAME}", "alice/work/deep/x.txt", data=UNTOUCHED)
    for folder in ("work/deep", "deep", "."):
        hand_in(tmp_path / "solutions", f"{folder}/{NAME}", f"{folder}/x.txt", data=SOLVED)
    place = tmp_path / "class" / becomes_a_link

    def swap():
        place.rename(tmp_path / "away")
        place.symlink_to(tmp_path / "solutions")

    at_first(swap)
    (one,) = collect(tmp_path / "class", EXERCISES)
    assert one.student == "alice" and one.content == UNTOUCHED


def test_a_folder_that_becomes_a_link_before_it_is_opened_is_not(tmp_path, at_first):
    hand_in(tmp_path / "class", "alice/a.txt", f"alice/work/{NAME}", data=UNTOUCHED)
    hand_in(tmp_path / "class", f"bob/{NAME}", data=SOLVED)
    hand_in(tmp_path / "solutions", NAME, data=SOLVED)
    work = tmp_path / "class/alice/work"

    def swap():
        work.rename(tmp_path / "away")
        work.symlink_to(tmp_path / "solutions")

    at_first(swap)
    found = {one.student: one for one in collect(tmp_path / "class", EXERCISES)}
    assert not found["alice"].content and "cannot be opened" in found["alice"].unreadable
    assert found["bob"].content == SOLVED


def test_all_is_read_before_anything_is_parsed(tmp_path, monkeypatch):
    hand_in(tmp_path, "alice/my homework.ipynb", f"bob/{NAME}", data=SOLVED)
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


def test_what_vanishes_or_has_no_name_or_time_ends_nothing(stand_in, tmp_path, at_first):
    place = tmp_path / "class"
    hand_in(place, "alice/0.txt", f"alice/{NAME}", f"bob/work/{NAME}", f"dora/{NAME}", data=SOLVED)
    hand_in(place, os.fsdecode(b"no text \xff/04_collectives\xff.ipynb"), data=SOLVED)
    (place / os.fsdecode(b"no text \xff") / os.fsdecode(b"link\xff")).symlink_to("nowhere")
    (place / "dora" / "dangling").symlink_to("nowhere")
    os.utime(place / "dora" / NAME, (1e12, 1e12))  # where the file system keeps such a time

    def vanish():
        (place / "alice" / NAME).unlink()
        (place / "bob").rename(tmp_path / "away")

    at_first(vanish)
    assert main(["grade", str(place), "--out", str(tmp_path / "out")]) == 1
    report = json.loads((tmp_path / "out/report.json").read_text())
    points = {one["student"]: one["points"] for one in report["students"]}
    assert points == {"alice": 0, "bob": 0, "dora": 8, "no text ?": 8}


def test_a_time_that_is_none_is_unknown():
    entry = SimpleNamespace(stat=lambda follow_symlinks: SimpleNamespace(st_mtime=1e12))
    assert collecting.changed(entry) is None


def test_the_folder_of_the_report_is_left_out_whatever_is_in_it(tmp_path):
    hand_in(tmp_path, f"alice/{NAME}", f"report/copy/{NAME}", data=SOLVED)
    (tmp_path / "link").symlink_to("report")
    (one,) = collect(tmp_path, EXERCISES, report=tmp_path / "link")
    assert one.student == "alice"


def pack(place, made):
    """The same files in a folder and in a zip; returns both."""
    for name, data in made.items():
        hand_in(place, name, data=data)
    with zipfile.ZipFile(place.with_suffix(".zip"), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in made.items():
            archive.writestr(name, data)
    return place, place.with_suffix(".zip")


@pytest.mark.parametrize("kind", [0, 1], ids=["folder", "zip"])
def test_of_one_student_forty_megabytes_are_read_and_all_of_the_next(tmp_path, kind):
    made = {f"alice/{n}.ipynb": bytes(15 << 20) for n in range(4)}
    place = pack(tmp_path / "all", made | {f"bob/{NAME}": SOLVED})[kind]
    found = {one.file: one for one in collect(place, EXERCISES)}
    assert sum(len(one.content) for one in found.values()) == len(SOLVED) + (30 << 20)
    assert "together are larger than 40 MB" in found["alice/2.ipynb"].unreadable
    assert found[f"bob/{NAME}"].content == SOLVED


@pytest.mark.parametrize("kind", [0, 1], ids=["folder", "zip"])
def test_so_many_notebooks_of_one_student_are_read(tmp_path, monkeypatch, kind):
    for module in (notebook_file, collecting):
        monkeypatch.setattr(module, "MAX_NOTEBOOKS", 5)
    made = {f"alice/{n}.ipynb": b"{}" for n in range(9)}
    place = pack(tmp_path / "all", made | {f"bob/{NAME}": SOLVED})[kind]
    *alices, bobs = collect(place, EXERCISES)
    assert len(alices) == 6 and "more than 5 notebooks" in alices[-1].unreadable
    assert bobs.content == SOLVED


def test_folders_that_are_too_large_or_too_deep_cost_their_owner_only(tmp_path, monkeypatch):
    monkeypatch.setattr(collecting, "MAX_ENTRIES", 50)
    hand_in(tmp_path, *(f"alice/{n}.txt" for n in range(60)), data=b"")
    hand_in(tmp_path, "/".join(["carl", *"a" * 200, NAME]), f"dora/{NAME}", data=SOLVED)
    found = {one.student: one for one in collect(tmp_path, EXERCISES)}
    assert "more files than 50" in found["alice"].unreadable
    assert "folders in one another" in found["carl"].unreadable
    assert found["dora"].content == SOLVED


def test_a_student_with_very_many_other_files_has_a_short_reason(tmp_path):
    hand_in(tmp_path, *(f"alice/{n:03}.txt" for n in range(500)), f"bob/{NAME}", data=b"")
    found = {one.student: one for one in collect(tmp_path, EXERCISES)}
    assert found["alice"].unreadable.endswith("008.txt, 009.txt, 490 more")


@pytest.mark.parametrize("out", ["report", "out/of/this week"])
def test_a_report_among_the_submissions_is_no_student(stand_in, tmp_path, monkeypatch, out, capsys):
    hand_in(tmp_path, f"alice/{NAME}", data=SOLVED)
    monkeypatch.chdir(tmp_path)
    for name in (out, out, "another"):
        capsys.readouterr()
        assert main(["grade", ".", "--out", name]) == 0
        report = json.loads((tmp_path / name / "report.json").read_text())
        assert [one["student"] for one in report["students"]] == ["alice"]
    note = f"{out}: this is a report of simlib grade, no submission"
    assert report["notes"] == [note] and note in capsys.readouterr().out


@pytest.mark.parametrize("kind", [0, 1], ids=["folder", "zip"])
def test_a_folder_that_is_left_out_with_notebooks_in_it_is_told(stand_in, tmp_path, kind, capsys):
    import jsonschema

    made = [f".bob/work/{NAME}", f".ipynb_checkpoints/{NAME}", f"carl/.work/{NAME}", ".git/config"]
    made += [f"Alice A_17_assignsubmission_file_/{NAME}"]
    made += [f"Alice A_17_assignsubmission_file_/.ipynb_checkpoints/{NAME}"]
    place = pack(tmp_path / "class", dict.fromkeys(made, SOLVED))[kind]
    main(["grade", str(place), "--out", str(tmp_path / "out")])
    report = json.loads((tmp_path / "out/report.json").read_text())
    jsonschema.validate(report, json.loads(reports.SCHEMA.read_text()))
    assert [note.partition(":")[0] for note in report["notes"]] == [".bob", "carl/.work"]
    assert ".bob: folders with such names are left out" in capsys.readouterr().out


def test_where_all_was_left_out_it_is_told_why(tmp_path):
    hand_in(tmp_path, f".bob/{NAME}", data=SOLVED)
    with pytest.raises(CannotCollect, match="no notebooks.*.bob: folders with such names"):
        collect(tmp_path, EXERCISES)

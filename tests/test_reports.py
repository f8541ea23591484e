"""What teacher and students see: pages, tables for platforms, points by hand; nothing is run."""

import copy
import csv
import json
from html.parser import HTMLParser

import jsonschema
import pytest
from class_made import ESCAPES, EXERCISES, FOUR, KNOWN, SCRIPT, SECRET, graded, made_class

from simlib.grading import overrides, reports
from simlib.grading.overrides import BadOverrides, Override, read_overrides
from simlib.grading.overview import KINDS, overview
from simlib.grading.pages import write_pages
from simlib.grading.platforms import tables_for_platforms
from simlib.grading.reports import Person, as_report, write_reports

VALIDATOR = jsonschema.Draft202012Validator(json.loads(reports.SCHEMA.read_text()))


class Tags(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def report():
    """The report of a made-up class; tests that change it take a copy."""
    return made_class()


@pytest.fixture(scope="module")
def pages(report, tmp_path_factory):
    """``{name: page}`` of the class."""
    folder = tmp_path_factory.mktemp("pages")
    write_pages(folder, report)
    paths = [folder / "class.html", *(folder / "feedback").iterdir()]
    return {path.stem: path.read_text(encoding="utf-8") for path in paths}


# Pages


def test_every_student_has_a_page_that_the_class_page_links(report, pages):
    assert len(pages) == 1 + len(report["students"])
    links = [a["href"] for tag, a in Tags(pages["class"]).tags if tag == "a"]
    assert {link.removeprefix("feedback/").removesuffix(".html") for link in links} == (
        set(pages) - {"class"}
    )


def test_pages_hold_nothing_that_runs_or_is_fetched(pages):
    for page in pages.values():
        assert "default-src 'none'; style-src 'unsafe-inline'" in page
        for tag, attributes in Tags(page).tags:
            assert tag not in ("script", "img", "iframe", "object", "link", "form")
            assert not any(name.startswith("on") for name in attributes)
            assert "src" not in attributes and "style" not in attributes


def test_text_of_students_is_shown_escaped_without_codes_and_cut(report, pages):
    (hostile,) = [page for name, page in pages.items() if name.startswith("script")]
    assert SCRIPT in Tags(hostile).text and SCRIPT not in hostile
    for page in pages.values():
        assert not set(page) & set("\x1b\x07\u202e\0")
    assert "\x1b" in ESCAPES
    assert len(hostile) < 40_000


def test_a_page_says_what_came_of_each_question_and_keeps_hidden_tests_to_itself(pages):
    page = Tags(pages["student_03"]).text
    assert "The check expected" in page and "rank 0: got [3, 3, 3], expected [3, 6, 9]" in page
    assert "It passes the public check, but not the hidden tests" in page
    assert f"This is {KNOWN['ring_all_gather']}." in Tags(pages["student_07"]).text
    assert "Nothing was handed in." in Tags(pages["student_29"]).text
    assert "no valid JSON" in Tags(pages["student_27"]).text
    assert "notes.ipynb" in Tags(pages["student_28"]).text
    for page in pages.values():
        assert SECRET not in page


def test_a_page_names_no_other_student(pages):
    for number in range(1, 31):
        page = pages[f"student_{number:02d}"]
        others = [f"student_{n:02d}" for n in range(1, 31) if n != number]
        assert not [other for other in others if other in page]


def test_pages_of_an_earlier_time_go(report, tmp_path):
    write_pages(tmp_path, report)
    one = copy.deepcopy(report)
    del one["students"][1:]
    write_pages(tmp_path, one)
    assert [path.name for path in (tmp_path / "feedback").iterdir()] == ["student_01.html"]


# Where the class stumbles


def test_the_overview_counts_everybody_once_per_question(report):
    view = overview(report)
    for row in view["questions"]:
        assert row["count"].total() == len(report["students"])
        assert set(row["count"]) <= set(KINDS)
        assert sum(part["width"] for part in row["parts"]) == pytest.approx(100, abs=0.1)
    assert sum(one["count"] for one in view["histogram"]) == len(report["students"])


def test_the_worst_question_and_the_commonest_wrong_answer_come_first():
    files = [
        graded("student_01", FOUR, ("right", "known", "wrong")),
        graded("student_02", FOUR, ("right", "right", "known")),
        graded("student_03", FOUR, ("right", "right", "known"), late=True, notes=["odd"]),
    ]
    view = overview(as_report(files, [], {FOUR.name: FOUR}, 1, True))
    assert [(row["question"], row["lost_share"]) for row in view["stumbles"]] == [
        ("ring_all_gather", 100),
        ("own_broadcast", 33),
    ]
    assert [(row["known"], len(row["students"])) for row in view["known"]] == [
        (KNOWN["ring_all_gather"], 2),
        ("a sum of its own", 1),
    ]
    assert [row["what"] for row in view["oddities"]] == [
        "late: 04 (last changed 2026-11-30 19:31)",
        "odd",
    ]
    assert ("late", 1) in view["tiles"]


def test_a_class_of_nobody_has_a_page(tmp_path):
    write_pages(tmp_path, as_report([], [], EXERCISES, 1, True))
    assert "The class" in (tmp_path / "class.html").read_text(encoding="utf-8")


# report.json and tables


def test_the_report_is_what_its_schema_says(report):
    VALIDATOR.check_schema(VALIDATOR.schema)
    VALIDATOR.validate(report)
    by_hand = copy.deepcopy(report)
    overrides.apply(by_hand, [Override("", "student_01", "04", "mean_of_all", 0.5, "see me")])
    VALIDATOR.validate(by_hand)
    by_hand["students"][0]["notebooks"][0]["more"] = 1
    assert not VALIDATOR.is_valid(by_hand)


def test_no_table_holds_a_formula(report, tmp_path):
    write_reports(tmp_path, report)
    tables = sorted(tmp_path.glob("*.csv"))
    assert [path.name for path in tables] == ["canvas.csv", "moodle.csv", "report.csv"]
    for path in tables:
        with open(path, newline="", encoding="utf-8") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        assert "'=cmd|calc" in cells
        assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@"))]


def on_platform(platform, *numbers):
    """A report of notebooks that a platform has named."""
    files = [graded(number, FOUR, ("right",)) for number in numbers]
    for one in files:
        one.platform = platform
    return as_report(files, [], {FOUR.name: FOUR}, 1, True)


def test_canvas_gets_its_own_numbers_and_no_others():
    rows = tables_for_platforms(on_platform("canvas", "4711"), [])["canvas.csv"]
    assert rows[0] == [
        "Student", "ID", "SIS User ID", "SIS Login ID", "Section", "04_collectives",
    ]  # fmt: skip
    assert "Points Possible" in rows[1][0] and rows[1][5] == 8
    assert rows[2] == ["4711", "4711", "", "", "", 8]
    # Canvas would take 2026_smith for its user 2026: no ID, and it looks for login and name.
    person = Person("2026_smith", "Smith", {"id": "2026_smith", "sis login id": "smith"})
    rows = tables_for_platforms(on_platform("", "2026_smith"), [person])["canvas.csv"]
    assert rows[2] == ["2026_smith", "", "", "smith", "", 8]


def test_a_moodle_participant_is_no_id_number():
    tables = tables_for_platforms(on_platform("moodle", "4711"), [])
    assert tables["moodle.csv"][1] == ["", "", "", "4711", 8]
    head, row = tables["moodle_worksheet_04_collectives.csv"]
    assert {"Identifier", "Grade", "Last modified (grade)"} <= set(head)
    assert row[0] == "Participant 4711" and row[head.index("Grade")] == 8
    people = [Person("student_01", "One", {"username": "one", "email": "one@example.org"})]
    tables = tables_for_platforms(on_platform("", "student_01"), people)
    assert list(tables) == ["canvas.csv", "moodle.csv"]
    assert tables["moodle.csv"][1][:3] == ["student_01", "one", "one@example.org"]


# Points by hand


def test_points_by_hand_are_merged_and_shown(report, tmp_path):
    by_hand = copy.deepcopy(report)
    path = tmp_path / "overrides.csv"
    path.write_text(
        "Student,Exercise,Question,Points,Comment\n"
        'student_29,04,mean_of_all,1.5,"told me\nin person"\n'
        "student_29,04_collectives,,,well done <b>\n"
        "student_29,09,break_even,1,of another report\n"
        "student_01,04,own_broadcast,,words only\n"
        ",,,,\n",
        encoding="utf-8-sig",
    )
    overrides.apply(by_hand, read_overrides(path))
    students = {one["student"]: one for one in by_hand["students"]}
    assert students["student_29"]["points"] == 1.5
    before = next(one for one in report["students"] if one["student"] == "student_01")
    assert students["student_01"]["points"] == before["points"]
    write_pages(tmp_path, by_hand)
    write_reports(tmp_path, by_hand)
    page = Tags((tmp_path / "feedback" / "student_29.html").read_text(encoding="utf-8")).text
    for words in ("1.5 of 2", "the tests gave 0", "in person", "well done <b>"):
        assert words in page
    other = Tags((tmp_path / "feedback" / "student_01.html").read_text(encoding="utf-8")).text
    assert "words only" in other and "Points set by hand" not in other
    assert "by hand, before 0" in (tmp_path / "report.csv").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "lines, words",
    [
        ("a,b\n1,2\n", "no column student, exercise, question, points"),
        ("student_99,04,mean_of_all,1,", "line 2: there is no student 'student_99'"),
        ("student_01,04,mean,1,", "no question 'mean'; it has mean_of_all"),
        ("student_01,04,mean_of_all,3,", "3 points, but mean_of_all is worth 2"),
        ("student_01,04,mean_of_all,-1,", "points '-1' are no number"),
        ("student_01,04,mean_of_all,nan,", "points 'nan' are no number"),
        ("student_01,04,,1,", "points need the name of a question"),
        ("student_01,04,mean_of_all,1,\nstudent_01,04,mean_of_all,2,", "line 3: .* before"),
    ],
)
def test_a_wrong_line_is_told(report, tmp_path, lines, words):
    path = tmp_path / "overrides.csv"
    head = "" if lines.startswith("a,b") else "student,exercise,question,points,comment\n"
    path.write_text(head + lines)
    students = [one["student"] for one in report["students"]]
    with pytest.raises(BadOverrides, match=words):
        overrides.check(read_overrides(path), students, EXERCISES)
    with pytest.raises(BadOverrides, match="cannot be read"):
        read_overrides(tmp_path / "none.csv")

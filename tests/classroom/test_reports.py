"""What teacher and students see: pages, tables for platforms, points by hand; nothing is run."""

import copy
import json
from html.parser import HTMLParser

import jsonschema
import pytest
from class_made import (
    ESCAPES,
    EXERCISES,
    FOUR,
    KNOWN,
    SCRIPT,
    SECRET,
    WORDS,
    graded,
    handed,
    made_class,
)  # fmt: skip
from notebooks_made import exercise, table

from simlib.classroom.grading import reports
from simlib.classroom.grading.comments import comment_on
from simlib.classroom.grading.grade import without_points
from simlib.classroom.grading.pages import KINDS, overview, reason_and_box, write_pages
from simlib.classroom.grading.reports import (
    BadOverrides,
    Override,
    as_report,
    read_overrides,
    tables_for_platforms,
    write_reports,
)
from simlib.classroom.grading.roster import Person

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


def pages_of(folder, report):
    """``{name: page}`` of a report, written into a folder."""
    write_pages(folder, report)
    paths = [folder / "class.html", *(folder / "feedback").iterdir()]
    return {path.stem: path.read_text(encoding="utf-8") for path in paths}


@pytest.fixture(scope="module")
def pages(report, tmp_path_factory):
    """``{name: page}`` of the class."""
    return pages_of(tmp_path_factory.mktemp("pages"), report)


# Pages


def test_every_student_has_a_page_that_the_class_page_links(report, pages):
    assert len(pages) == 1 + len(report["students"])
    links = [a["href"] for tag, a in Tags(pages["class"]).tags if tag == "a"]
    assert {link.removeprefix("feedback/").removesuffix(".html") for link in links} == (
        set(pages) - {"class"}
    )


def test_pages_hold_nothing_that_runs_or_is_fetched_and_text_is_escaped_and_cut(pages):
    for page in pages.values():
        assert "default-src 'none'; style-src 'unsafe-inline'" in page
        for tag, attributes in Tags(page).tags:
            assert tag not in ("script", "img", "iframe", "object", "link", "form")
            assert not any(name.startswith("on") for name in attributes)
            assert "src" not in attributes and "style" not in attributes
        assert not set(page) & set("\x1b\x07\u202e\0")
    (hostile,) = [page for name, page in pages.items() if name.startswith("script")]
    assert SCRIPT in Tags(hostile).text and SCRIPT not in hostile
    assert "\x1b" in ESCAPES
    assert len(hostile) < 40_000


def test_a_page_says_what_came_of_each_question_and_keeps_hidden_tests_to_itself(pages):
    page = Tags(pages["student_03"]).text
    assert "rank 0: got [3, 3, 3], expected [3, 6, 9]" in page
    assert "It passes the public check, but not the hidden tests" in page
    assert f"This is {KNOWN['ring_all_gather']}." in Tags(pages["student_07"]).text
    assert "Nothing was handed in." in Tags(pages["student_29"]).text
    assert "not valid JSON" in Tags(pages["student_27"]).text
    assert "notes.ipynb" in Tags(pages["student_28"]).text
    for page in pages.values():
        assert SECRET not in page


def wrong_question(**values):
    """A question of a report as `pages.told` and templates take it."""
    line = "Rank 0 has the wrong value."
    got = f"x = 1\nq: wrong, 0 of 2 points.\n{line}\n  rank 0: got 1, expected 2"
    return {"question": "q", "reason": line, "expected": "q: right", "got": got} | values


@pytest.mark.parametrize(
    "values, reason, box",
    [
        ({}, "Rank 0 has the wrong value.", "x = 1\nq: wrong, 0 of 2 points.\n  rank 0: got 1"),
        (
            {"reason": "Rank 0 has the wrong value. In your notebook, one fails."},
            None,
            "x = 1\nq: ",
        ),
        ({"reason": "a\nb", "got": "a\nb"}, "", "a\nb"),
        (
            {"reason": "a\nb In your notebook, one fails.", "got": "a\nb"},
            "In your notebook",
            "a\nb",
        ),
        ({"reason": "NameError: x", "got": "NameError: x"}, None, ""),
        ({"reason": "Its cell fails: x", "got": "printed"}, None, "printed"),
    ],
)
def test_nothing_that_a_check_says_is_shown_twice(values, reason, box):
    question = wrong_question(**values)
    shown, rest = reason_and_box(question)
    assert shown.startswith(reason if reason is not None else question["reason"])
    assert rest.startswith(box) and bool(rest) == bool(box)
    assert not shown or shown not in rest


def test_what_a_check_expected_is_shown_where_it_says_something(report, pages, tmp_path):
    changed = copy.deepcopy(report)
    one = next(student for student in changed["students"] if student["student"] == "student_03")
    questions = [q for book in one["notebooks"] for q in book["questions"] if q["got"]]
    questions[0]["expected"] = "loss 0.25"
    questions[1] |= {"expected": "", "got": "printed by the cell"}
    page = Tags(pages_of(tmp_path, changed)["student_03"]).text
    assert page.count("The check expected") == 1 and "loss 0.25" in page
    assert "What your cell printed:" in page
    page = Tags(pages["student_03"]).text
    assert "The check expected" not in page
    assert not [one for one in questions if f"{one['question']}: right" in page]
    assert page.count("In your notebook the check says:") == len(questions)
    assert page.count("It adds the buffer that it has just sent.") == len(questions)


def test_the_code_of_an_answer_is_folded_below_its_verdict_and_cut(report, pages, tmp_path):
    assert "<summary>The answer's code</summary><pre>def mean_of_all(" in pages["student_03"]
    assert "return x  # known" in pages["student_03"] and SCRIPT not in pages["student_03"]
    report = copy.deepcopy(report)
    for name, code in (("student_01", ""), ("student_02", "y = 1\n" * 100_000)):
        (one,) = [one for one in report["students"] if one["student"] == name]
        for question in one["notebooks"][0]["questions"]:
            question["code"] = code
        one["notebooks"] = one["notebooks"][:1]
    found = pages_of(tmp_path, report)
    assert "<details>" not in found["student_01"] and "<details>" in found["student_02"]
    assert len(found["student_02"]) < 80_000


def test_equal_answers_and_changes_are_listed_with_names(report, tmp_path):
    report = copy.deepcopy(report)
    alike = {"exercise": FOUR.name, "question": "own_broadcast", "title": "4. A <b>"}
    report["alike"] = [alike | {"students": ["student_03", SCRIPT]}]
    one = {"student": SCRIPT, "exercise": FOUR.name, "before": 1, "now": 3.5, "why": "new file"}
    report["changes"] = [one | {"questions": ["own_broadcast 0 to 2.5"]}] * 201
    VALIDATOR.validate(report)
    page = pages_of(tmp_path, report)["class"]
    text = " ".join(Tags(page).text.split())
    assert f"Student 03, {SCRIPT}04 4. A <b>: the same answer, apart from names" in text
    assert f"{SCRIPT}1 to 3.504: new fileown_broadcast 0 to 2.5" in text
    assert page.count("new file") == 200 and "And 1 more, which report.json lists." in page
    assert SCRIPT not in page


def test_a_page_names_no_other_student(pages):
    for number in range(1, 31):
        page = pages[f"student_{number:02d}"]
        others = [f"student_{n:02d}" for n in range(1, 31) if n != number]
        assert not [other for other in others if other in page]


def test_pages_of_an_earlier_time_go(report, tmp_path):
    one = copy.deepcopy(report)
    del one["students"][1:]
    assert len(pages_of(tmp_path, report)) > 2
    assert set(pages_of(tmp_path, one)) == {"class", "student_01"}


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
    assert [row["what"] for row in view["oddities"]] == ["odd"]
    assert [row["student"]["student"] for row in view["late"]] == ["student_03"]
    assert {("students", "3"), ("notebook late", "1"), ("notebooks not handed in", "0")} <= set(
        view["tiles"]
    )


def test_late_notebooks_are_one_folded_list(tmp_path):
    files = [graded(f"student_{n:02}", FOUR, ("right",), late=True) for n in range(13)]
    for one, deadline in zip(files[1:], ("2026-11-28T18:00", "2026-11-30T19:31:07"), strict=False):
        one.deadline = f"{deadline}+00:00"
    pages = pages_of(tmp_path, as_report(files, [], {FOUR.name: FOUR}, 1, True))
    (look,) = (part for part in pages["class"].split("<h2>") if part.startswith("To look at"))
    assert look.count("<details>") == 1 and "<table" not in look
    assert "13 notebooks late, of 13 students" in look
    text = Tags(look).text
    for words in (
        "student_00: 04 (last changed 2026-11-30 19:31)",
        "student_01: 04 by 2 days 1 hour (last changed 2026-11-30 19:31)",
        "student_02: 04 by less than a minute (last",
    ):
        assert words in text
    assert (
        "It came late by 2 days 1 hour: the deadline was 2026-11-28 18:00." in pages["student_01"]
    )


def test_one_student_is_no_students_and_a_class_of_nobody_has_a_page(tmp_path):
    one = [graded("student_01", FOUR, ("right",))]
    page = pages_of(tmp_path, as_report(one, [], EXERCISES, 1, True))["class"]
    assert "<title>The class: 1 student</title>" in page
    assert "<b>1</b><span>student</span>" in page
    assert "<b>1</b><span>notebook not handed in</span>" in page
    assert "The class" in pages_of(tmp_path, as_report([], [], EXERCISES, 1, True))["class"]


# report.json and tables


def test_tables_of_an_earlier_time_go_but_not_those_that_no_report_has_written(tmp_path):
    (tmp_path / "moodle.csv").write_text("a teacher's own")
    write_reports(tmp_path, on_platform("moodle", "4711"))
    assert (tmp_path / "moodle_worksheet_04_collectives.csv").exists()
    for _ in range(2):
        write_reports(tmp_path, on_platform("canvas", "4711"))
        names = {path.name for path in tmp_path.glob("*.csv")}
        assert names == {"report.csv", "canvas.csv", "moodle.csv"}
    assert (tmp_path / "moodle.csv").read_text() == "a teacher's own"


def test_questions_of_a_notebook_that_is_not_graded_have_its_status(report):
    books = [book for student in report["students"] for book in student["notebooks"]]
    others = [book for book in books if book["status"] != "graded"]
    assert {book["status"] for book in others} >= {"missing", "unreadable"}
    for book in others:
        assert {question["status"] for question in book["questions"]} == {book["status"]}


def test_the_report_is_what_its_schema_says(report):
    VALIDATOR.check_schema(VALIDATOR.schema)
    VALIDATOR.validate(report)
    by_hand = copy.deepcopy(report)
    reports.apply(by_hand, [Override("", "student_01", FOUR.name, "mean_of_all", 0.5, "see me")])
    VALIDATOR.validate(by_hand)
    by_hand["students"][0]["notebooks"][0]["more"] = 1
    assert not VALIDATOR.is_valid(by_hand)


def test_no_table_holds_a_formula(report, tmp_path):
    write_reports(tmp_path, report)
    tables = sorted(tmp_path.glob("*.csv"))
    assert [path.name for path in tables] == ["canvas.csv", "report.csv"]
    for path in tables:
        cells = [cell for row in table(path) for cell in row]
        assert "'=cmd|calc" in cells
        assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@"))]


def on_platform(platform, student, people=()):
    """A report of a notebook that a platform has named."""
    one = graded(student, FOUR, ("right",))
    one.platform = platform
    return as_report([one], people, {FOUR.name: FOUR}, 1, True)


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
    assert "moodle.csv" not in tables
    head, row = tables["moodle_worksheet_04_collectives.csv"]
    assert {"Identifier", "Grade", "Last modified (grade)"} <= set(head)
    assert row[0] == "Participant 4711" and row[head.index("Grade")] == 8


def test_moodle_s_comments_say_what_the_page_says_and_nothing_else(tmp_path):
    right = graded("4712", FOUR, ("right", "hidden", "known"), late=True)
    hostile = graded("4711", FOUR, ("hostile",))
    for one in hostile.result.questions:
        one.title, one.reason = f'=1, -2;+3 "{SCRIPT}"', one.reason + '"&<' * 50_000
    damaged = handed("4713", FOUR.name, without_points(FOUR, "unreadable", "not valid JSON"))
    for one in (right, hostile, damaged):
        one.platform = "moodle"
    made = as_report([right, hostile, damaged], [], {FOUR.name: FOUR}, 1, True)
    by_hand = [
        Override("", "4712", FOUR.name, "own_broadcast", 1, "-2 & see me"),
        Override("", "4711", FOUR.name, "", None, "=" * 50_000),
    ]
    reports.charge(made, "10")
    reports.apply(made, by_hand)
    write_reports(tmp_path, made)
    head, *rows = table(tmp_path / "moodle_worksheet_04_collectives.csv")
    assert head[-1] == "Feedback comments" and len(rows) == 3
    cells = {row[0].removeprefix("Participant "): row[-1] for row in rows}
    for student, cell in cells.items():
        assert len(cell) < 32_767 and cell.isprintable() and '"' not in cell
        assert {tag for tag, _ in Tags(cell).tags} == {"p"}
        assert reports.tame(cell) == cell and SECRET not in cell
        assert not [other for other in cells if other != student and other in cell]
    text = Tags(cells["4712"]).text
    for words in (
        "Points set by hand: the tests gave 0. From your teacher: -2 & see me.",
        WORDS["hidden"],
        f"This is {KNOWN['ring_all_gather']}.",
        "The late notebook loses 10 %",
    ):
        assert words in text
    text = Tags(cells["4711"]).text
    assert f'=1, -2;+3 "{SCRIPT}"' in text and SCRIPT not in cells["4711"] and len(text) < 4000
    (book,) = made["students"][0]["notebooks"]
    comment = comment_on(book | {"questions": book["questions"] * 40})
    assert len(comment) < 32_767 and comment.endswith("<p>...</p>")
    assert "could not be graded: not valid JSON." in cells["4713"]


@pytest.mark.parametrize(
    "columns, moodle",
    [
        ({"username": "one", "email": "one@example.org"}, ["", "one", "one@example.org"]),
        ({"id": "77", "idnumber": "M9"}, ["M9", "", ""]),
        ({"id": "77", "sis user id": "S5"}, None),
        ({}, None),
    ],
)
def test_a_table_is_written_where_a_platform_can_use_it(columns, moodle):
    people = [Person("student_01", "student_01", columns)]
    tables = tables_for_platforms(on_platform("", "student_01", people), people)
    assert moodle == (tables["moodle.csv"][1][:3] if "moodle.csv" in tables else None)
    assert ("canvas.csv" in tables) == ("id" in columns)
    if "id" in columns:
        assert tables["canvas.csv"][2][1] == "77"


@pytest.mark.parametrize("by_hand, cell", [(0, ""), (2, ""), (3, 0)])
def test_a_failure_of_the_grader_is_an_empty_cell_in_every_table(by_hand, cell):
    one = graded("4711", FOUR, ("right",))
    one.platform, one.result = "moodle", without_points(FOUR, "not graded", "the grader failed")
    person = Person("4711", "Ada", {"canvas id": "4711", "email": "ada@example.org"})
    made = as_report([one], [person], {FOUR.name: FOUR}, 1, True)
    names = list(FOUR.questions)[:by_hand]
    reports.apply(made, [Override("", "4711", FOUR.name, name, 0, "") for name in names])
    reports.apply(made, [Override("", "4711", FOUR.name, "", None, "see me")])
    VALIDATOR.validate(made)
    tables = tables_for_platforms(made, [person])
    cells = tables["canvas.csv"][-1][-1], tables["moodle.csv"][-1][-1]
    cells += tables["moodle_worksheet_04_collectives.csv"][-1][2], *reports.rows_of(made)[1][2:5:2]
    assert cells == (cell,) * 5
    assert bool(tables["moodle_worksheet_04_collectives.csv"][-1][-1]) == (cell == 0)


# Points by hand


def test_points_by_hand_are_merged_and_shown(report, tmp_path):
    by_hand = copy.deepcopy(report)
    path = tmp_path / "overrides.csv"
    path.write_text(
        "Student,Exercise,Question,Points,Comment\n"
        'student_29,04,mean_of_all,1.5,"told me\nin person"\n'
        "student_29,04_collectives,,,well done <b>\n"
        "student_29,9,break_even_ranks,1,of another report\n"
        "student_01,04,own_broadcast,,words only\n"
        ",,,,\n",
        encoding="utf-8-sig",
    )
    names = {one["student"]: one["name"] for one in report["students"]}
    nine = exercise("09")
    every = EXERCISES | {nine.name: nine}
    found, aside = reports.check(read_overrides(path), names, EXERCISES, every)
    assert aside == [f"{path}, line 5 was not applied: {nine.name} is not in this report"]
    reports.apply(by_hand, found)
    students = {one["student"]: one for one in by_hand["students"]}
    assert students["student_29"]["points"] == 1.5
    before = next(one for one in report["students"] if one["student"] == "student_01")
    assert students["student_01"]["points"] == before["points"]
    write_reports(tmp_path, by_hand)
    pages = pages_of(tmp_path, by_hand)
    page = Tags(pages["student_29"]).text
    for words in ("1.5 of 2", "the tests gave 0", "in person", "well done <b>"):
        assert words in page
    other = Tags(pages["student_01"]).text
    assert "words only" in other and "Points set by hand" not in other
    assert "by hand, before 0" in (tmp_path / "report.csv").read_text(encoding="utf-8")


def test_what_is_set_by_hand_has_the_status_of_the_notebook(report, tmp_path):
    by_hand = copy.deepcopy(report)
    lines = [
        Override("", "student_29", "04_collectives", "mean_of_all", 2, "in person"),
        Override("", "student_27", "04_collectives", "own_broadcast", 3, "by mail"),
        Override("", "student_01", "04_collectives", "own_broadcast", None, "words only"),
        Override("", "student_02", "05_building_all_reduce", "", None, "of the whole notebook"),
    ]
    reports.apply(by_hand, lines)
    pages = pages_of(tmp_path, by_hand)
    for student, status in (("student_29", "missing"), ("student_27", "unreadable")):
        page = pages[student]
        assert f">{status}</span>" in page and "not found" not in page
        assert page.count("not valid JSON") == (student == "student_27")  # said once
    (students,) = (part for part in pages["class"].split("<h2>") if part.startswith("Students"))
    badges = {row.split("</a>")[0].split(">")[-1]: row for row in students.split("<tr>")}
    for student, words in (("29", "04 set by hand"), ("27", "04 set by hand")):
        assert words in badges[f"Student {student}"]
    for student, words in (("01", "04 comment"), ("02", "05 comment")):
        assert words in badges[f"Student {student}"]
        assert "set by hand" not in badges[f"Student {student}"]


@pytest.mark.parametrize(
    "lines, words",
    [
        ("a,b\n1,2\n", "no column student, exercise, question, points"),
        ("student_99,04,mean_of_all,1,", "line 2: there is no student 'student_99'"),
        ("student_01,04,mean,1,", "no question 'mean'; it has mean_of_all"),
        ("student_01,04,mean_of_all,3,", "3 points, but mean_of_all is worth 2"),
        ("student_01,04,mean_of_all,-1,", "points must be a number of 0 or more"),
        ("student_01,04,mean_of_all,nan,", "points must be a number of 0 or more"),
        ("student_01,04,,1,", "a line with points must name a question"),
        ("student_01,04,mean_of_all,1,\nstudent_01,04,mean_of_all,2,", "line 3: an earlier line"),
    ],
)
def test_a_wrong_line_is_told(report, tmp_path, lines, words):
    path = tmp_path / "overrides.csv"
    head = "" if lines.startswith("a,b") else "student,exercise,question,points,comment\n"
    path.write_text(head + lines)
    names = {one["student"]: one["name"] for one in report["students"]}
    with pytest.raises(BadOverrides, match=words):
        reports.check(read_overrides(path), names, EXERCISES, EXERCISES)
    with pytest.raises(BadOverrides, match="cannot be read"):
        read_overrides(tmp_path / "none.csv")

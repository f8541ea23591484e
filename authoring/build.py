"""Build the notebooks people open from the sources in `authoring/`.

    python authoring/build.py              build what has changed
    python authoring/build.py --check      write nothing; fail where a notebook is not up to date
    python authoring/build.py --check --run 3
                                           the same, but run only 3 sources, drawn by SEED; of the
                                           others compare all but the outputs
    python authoring/build.py 02_send...   only these sources
    python authoring/build.py --text       run nothing: where only prose has changed, outputs stay

A lesson gives `notebooks/NN_name.ipynb`, an exercise `exercises/NN_name.ipynb` and
`solutions/NN_name.ipynb`, executed, and both are listed in the start page and in the README; what
the checks of an exercise expect is in `exercises/checks/NN_name.py`, which git ignores. One
exercise has no number: it is called `review`. A lesson in a second language gives
`notebooks/de/NN_name.ipynb`, see `translations.py`. Nobody edits a built file. A second build
changes nothing.
"""

import argparse
import difflib
import os
import random
import re
import sys
import tempfile
import time
import tomllib
from collections import Counter
from pathlib import Path

import minutes
import nbformat
import playable
from kernels import AsyncFileKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from tqdm import tqdm
from translations import languages_of, original_of, translated, translations

from simlib.classroom.grading.exercise import CASES, shown_form
from simlib.classroom.grading.source import (
    REVIEW,
    SourceError,
    course_of,
    exercise_files,
    number_of,
    read_source,
    with_stubs,
    without_hidden,
    without_markers,
)
from simlib.core.draw.display import alt_metadata, bar

ROOT = Path(__file__).resolve().parent.parent
CELL_TIMEOUT_S = 600
KINDS = ("lessons", "exercises")
RAISES, IGNORED = "raises-exception", "nbval-ignore-output"
PLACES = ((str(ROOT), "~/course"), (sys.prefix, "~/course/.venv"))
"""Folders of the machine that builds, and what they are called in stored outputs."""
START_SOURCE, START_PAGE = "authoring/start_page.md", "START.md"
LESSON_LINES, README = "authoring/lessons.toml", "README.md"
TABLE_BEGIN = "<!-- lessons: `make build` writes this table, see authoring/lessons.toml -->"
TABLE_END = "<!-- end of lessons -->"
MINUTES = re.compile(r"(?:\d+\s+to\s+)?\b\d+(?=\s+(?:minutes|Minuten)\b)")
"""What the first cell of a lesson promises; the builder puts in what `minutes` counts."""
GLOSSARY_LINE = "*Words, units and symbols: the [glossary](glossary.md).*"
SHOWN_DIFF_LINES = 40


class BuildError(Exception):
    """A notebook that does not run; the message names file, cell and error."""


def execute(notebook, folder, name, may_fail=(), startup=()):
    """Run a notebook in a fresh kernel, in place.

    Parameters
    ----------
    notebook : NotebookNode
    folder : Path
        The kernel's working directory.
    name : str
        The notebook's name in an error.
    may_fail : collection of str
        Ids of cells that may raise or not.
    startup : sequence of Path
        Files that run in the kernel before the first cell.

    Raises
    ------
    BuildError
        A cell raised, did not raise although tagged ``raises-exception``, ran longer than
        `CELL_TIMEOUT_S`, or ended the kernel.
    """
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        kernel_manager_class=AsyncFileKernelManager,
        allow_errors=True,
        record_timing=False,
        extra_arguments=[
            "--IPKernelApp.log_level=ERROR",
            f"--IPKernelApp.exec_files={[str(path) for path in startup]}",
        ],
        resources={"metadata": {"path": str(folder)}},
    )
    try:
        with client.setup_kernel():
            for index, cell in enumerate(notebook.cells):
                where = f"{name}, cell {cell.id}"
                client.execute_cell(cell, index)
                if cell.cell_type == "code" and cell.id not in may_fail:
                    check_error(cell, where)
    except CellTimeoutError:
        raise BuildError(f"{where}: still running after {CELL_TIMEOUT_S} s") from None
    except (CellExecutionError, DeadKernelError) as error:
        raise BuildError(f"{where}: {error}") from None


def check_error(cell, where):
    """Refuse an error without the tag that announces it, and the tag without an error."""
    errors = [output for output in cell.outputs if output.output_type == "error"]
    if errors and RAISES not in cell.metadata.get("tags", []):
        raise BuildError(f"{where}: {errors[0].ename}: {errors[0].evalue}")
    if not errors and RAISES in cell.metadata.get("tags", []):
        raise BuildError(f"{where}: tagged {RAISES}, but it raises nothing")


def normalise(notebook, keep_png):
    """Take out, in place, what differs from one execution to the next."""
    count = 0
    for cell in notebook.cells:
        if cell.cell_type == "code":
            count += 1
            cell.execution_count = count
            cell.outputs = merge_streams(cell.outputs)
            for output in cell.outputs:
                normalise_output(output, count, keep_png)


def normalise_output(output, count, keep_png):
    """Normalise one output of the cell with this execution count."""
    if output.output_type == "execute_result":
        output.execution_count = count
    if output.output_type == "error":
        # The frames hold paths of the machine that built the notebook.
        output.traceback = [f"{output.ename}: {output.evalue}"]
    if output.output_type == "stream":
        output.text = with_neutral_places(output.text)
    if "data" in output:
        words = alt_text(output)
        output.metadata = alt_metadata(with_neutral_places(words)) if words and keep_png else {}
        output.data.pop("application/vnd.jupyter.widget-view+json", None)
        for kind in {"text/plain", "text/html"} & set(output.data):
            output.data[kind] = with_neutral_places(output.data[kind])
        if not keep_png:
            output.data.pop("image/png", None)


def alt_text(output):
    """What is said of an output's picture to whoever does not see it; empty where nothing is."""
    return output.get("metadata", {}).get("image/png", {}).get("alt", "")


def told_pictures(name, text):
    """Of how many pictures of a file something is said."""
    cells = nbformat.reads(text, as_version=4).cells if name.endswith(".ipynb") else []
    return sum(bool(alt_text(output)) for cell in cells for output in cell.get("outputs", ()))


def with_neutral_places(text):
    """A text with neutral names for the folders of this machine."""
    for place, name in PLACES:
        text = text.replace(place, name)
    return text


def merge_streams(outputs):
    """The outputs, with neighbouring pieces of one stream joined: how it is cut is chance."""
    merged = []
    for output in outputs:
        last = merged[-1] if merged else None
        if last and output.output_type == "stream" == last.output_type and last.name == output.name:
            last.text += output.text
        else:
            merged.append(output)
    return merged


def build_lesson(path, run=True):
    """``{target: notebook or bytes}`` of a lesson source: the notebook, and what plays of it.

    Below its title stands a link to the glossary, and to the lesson in other languages; its first
    cell promises the minutes counted. Without ``run`` no cell is executed, none has outputs, and
    nothing plays.
    """
    root, notebook = path.parents[2], read_source(path, is_exercise=False)
    promise_minutes(notebook, minutes.of_lesson(notebook.cells), path)
    heading, rest = notebook.cells[0].source.partition("\n")[::2]
    lines = [GLOSSARY_LINE, *links_to_languages(root, path.stem, "")]
    notebook.cells[0].source = "\n".join([heading, "", " ".join(lines), rest])
    return completed(notebook, root, f"notebooks/{path.stem}.ipynb", path.name, run)


def build_translation(path, run=True):
    """``{target: notebook}`` of a lesson in another language, with the minutes of the original."""
    root, notebook = path.parents[3], translated(path)
    original = read_source(original_of(path), is_exercise=False)
    promise_minutes(notebook, minutes.of_lesson(original.cells), path)
    target = f"notebooks/{path.parent.name}/{path.stem}.ipynb"
    (root / target).parent.mkdir(exist_ok=True)
    return completed(notebook, root, target, f"{path.parent.name}/{path.name}", run)


def promise_minutes(notebook, count, path):
    """Put the minutes counted into a lesson's first cell, in place."""
    first = notebook.cells[0]
    heading, end, rest = first.source.partition("\n")
    rest, promises = MINUTES.subn(str(count), rest)
    if promises != 1:
        raise SourceError(f"{path}: the first cell says {promises} times '... minutes', not once")
    first.source = heading + end + rest


def links_to_languages(root, name, folder):
    """Links to a lesson in other languages, seen from a page to which ``folder`` leads."""
    return [
        f"*[{own_name}]({folder}{language}/{name}.ipynb)*"
        for language, own_name in languages_of(root, name).items()
    ]


def completed(notebook, root, target, name, run):
    """``{target: notebook or bytes}`` of a lesson that is run in its folder, or has no outputs."""
    if run:
        execute(notebook, (root / target).parent, name, startup=[playable.KERNEL_FILE])
    normalise(notebook, keep_png=True)
    made = {target: notebook}
    if run:
        pages = playable.packed(playable.take_pages(notebook), with_neutral_places)
        made[playable.beside(target)] = pages
    return made


def build_exercise(path, run=True):
    """``{target: notebook or text}`` of an exercise source: exercise, what is expected, solution.

    What runs has its checks in its cells; what is stored calls them, see `shown_form`. Without
    ``run`` no cell is executed, and none has outputs.
    """
    source, root = read_source(path, is_exercise=True), path.parents[2]
    shown, cases = shown_form(source, path.stem)
    solved = without_markers(source)
    if run:
        execute(solved, root / "solutions", f"{path.name} (solved)")
    solution = as_stored(solved, shown)
    heading, *rest = solution.cells[0].source.split("\n")
    solution.cells[0].source = "\n".join([f"{heading} (solution)", *rest])
    exercise = with_stubs(without_hidden(source))
    checks = {cell.id for cell in exercise.cells if course_of(cell, "role") == "check"}
    if run:
        execute(exercise, root / "exercises", f"{path.name} (stubs)", may_fail=checks)
    exercise = as_stored(exercise, shown)
    for notebook in (exercise, solution):
        normalise(notebook, keep_png=False)
    leave_unrun(exercise, checks)
    return {
        f"exercises/{path.stem}.ipynb": exercise,
        f"{CASES}/{path.stem}.py": cases,
        f"solutions/{path.stem}.ipynb": solution,
    }


def as_stored(notebook, shown):
    """A notebook without its hidden cells, its setup and checks as they are shown."""
    texts = {cell.id: cell.source for cell in shown.cells}
    stored = without_hidden(notebook)
    for cell in stored.cells:
        if course_of(cell, "role") in ("setup", "check"):
            cell.source = texts[cell.id]
    return stored


def leave_unrun(exercise, checks):
    """Take out, in place, all that checks have said: nobody is to read a verdict off them.

    nbval compares no output of theirs, whatever a learner stores: a check that is not right raises
    an error there.
    """
    for cell in exercise.cells:
        if cell.id in checks:
            cell.outputs, cell.execution_count = [], None
            cell.metadata.tags = [IGNORED]


def keep_outputs(root, made):
    """Give what was built without a run, in place, the stored outputs; returns whether they fit.

    They fit where nothing but prose has changed.

    Parameters
    ----------
    root : Path
    made : dict
        What `build_lesson` or `build_exercise` gave.
    """
    for name, built in made.items():
        stored = (root / name).read_text(encoding="utf-8") if (root / name).exists() else ""
        if isinstance(built, str):
            if built != stored:
                return False
            continue
        old = nbformat.reads(stored, as_version=4).cells if stored else []
        before, now = ([c for c in row if c.cell_type == "code"] for row in (old, built.cells))
        if [cell.source for cell in before] != [cell.source for cell in now]:
            return False
        for cell, kept in zip(now, before, strict=True):
            cell.outputs = kept.outputs
    return True


def notebook_text(notebook):
    """The notebook as it is stored."""
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def comparable(text, outputs=True):
    """A stored notebook's text without what may differ: pictures with their words, and outputs
    tagged as ignored.

    Without ``outputs`` all of them are taken out.
    """
    notebook = nbformat.reads(text, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        if is_ignored(cell) or not outputs:
            cell.outputs = []
        for output in cell.outputs:
            output.get("data", {}).pop("image/png", None)
            if "metadata" in output:
                output.metadata = {}
    return notebook_text(notebook)


def is_ignored(cell):
    """Whether the outputs of a cell are left out of every comparison."""
    return IGNORED in cell.metadata.get("tags", []) or "# NBVAL_IGNORE_OUTPUT" in cell.source


def difference(target, text, outputs=True):
    """How a stored file differs from the text just built, as a diff; empty where it does not.

    Without ``outputs`` those of notebooks are not compared.
    """
    if not target.exists():
        return f"{target.name} is missing\n"
    stored = target.read_text(encoding="utf-8")
    if target.suffix == ".ipynb":
        try:
            stored, text = comparable(stored, outputs), comparable(text, outputs)
        except ValueError as error:
            return f"{target.name} is no notebook: {error}\n"
    lines = difflib.unified_diff(
        stored.splitlines(True), text.splitlines(True), "stored", "built", n=2
    )
    return "".join(lines)


def sources(root):
    """All source files: lessons, then exercises."""
    return [path for kind in KINDS for path in exercise_files(root / "authoring" / kind, ".py")]


def title(path):
    """The first heading of a source, without its number, as the lists show it."""
    heading = re.search(r"^# # (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    if not heading:
        raise SourceError(f"{path}, line 1: no heading '# # ...'")
    words = re.sub(r"^(Exercises )?\d+[\s.:·]+", "", heading.group(1).strip())
    return words[0].upper() + words[1:]


def numbers(paths):
    """``{path: number}`` as the lists show it; where two have the same, with a and b behind it."""
    shown, all_of = {}, [number_of(path.stem) for path in paths]
    for place, (path, number) in enumerate(zip(paths, all_of, strict=True)):
        letter = f" {'abcdef'[all_of[:place].count(number)]}" if all_of.count(number) > 1 else ""
        shown[path] = f"{number}{letter}"
    return shown


def start_page(root):
    """The text of the start page: its source with the lists and the hours filled in."""
    return with_hours(root, (root / START_SOURCE).read_text(encoding="utf-8"))


def with_hours(root, text):
    """A text with the lists of lessons and exercises and their hours filled in.

    ``<!-- hours of lessons 00 02a -->`` becomes the hours of all parts of lesson 00 and of
    part a of lesson 02, and ``<!-- minutes of lessons 00a -->`` the minutes of part a.
    """
    for kind, count in (("lessons", minutes.of_lesson), ("exercises", minutes.of_exercise)):
        folder = "notebooks" if kind == "lessons" else kind
        rows, total, by_number = [], 0, Counter()
        for path, number in numbers([p for p in sources(root) if p.parent.name == kind]).items():
            needed = count(read_source(path, is_exercise=kind == "exercises").cells)
            shown = "two weeks later:" if path.stem == REVIEW else number
            link = f"[{title(path)}]({folder}/{path.stem}.ipynb), {needed} minutes"
            solution = f" ([solution](solutions/{path.stem}.ipynb))" if kind == "exercises" else ""
            other = (
                links_to_languages(root, path.stem, f"{folder}/") if folder == "notebooks" else []
            )
            languages = f" ({', '.join(other)})" if other else ""
            rows.append(f"- {shown} {link}{solution}{languages}")
            total += needed
            by_number.update(dict.fromkeys({number_of(path.stem), number.replace(" ", "")}, needed))
        text = text.replace(f"<!-- {kind} -->", "\n".join(rows) or "None yet.")
        text = text.replace(f"<!-- hours of {kind} -->", str(round(total / 60)))
        for line in re.findall(rf"<!-- (?:hours|minutes) of {kind} [\da-f ]+ -->", text):
            some = sum(by_number[number] for number in line.split()[4:-1])
            text = text.replace(line, str(round(some / 60) if " hours " in line else some))
    return text


def lesson_table(root):
    """The README's table: each lesson with what it is about, and the exercise of its number.

    Where lessons share a number, the exercise stands beside the last.

    Raises
    ------
    SourceError
        A lesson has no line in `LESSON_LINES`, or a line there has no lesson.
    """
    about = tomllib.loads((root / LESSON_LINES).read_text(encoding="utf-8"))
    lessons = [path for path in sources(root) if path.parent.name == "lessons"]
    exercises = {number_of(path.stem): path for path in sources(root) if path not in lessons}
    for name in sorted({path.stem for path in lessons} ^ set(about)):
        missing = "no lesson of this name" if name in about else "no line for it"
        raise SourceError(f"{name}: there is {missing}, see {LESSON_LINES}")
    last = {number_of(path.stem): path for path in lessons}
    rows = ["| | lesson | exercises |", "|---|---|---|"]
    for path, number in numbers(lessons).items():
        link = f"[{title(path)}](notebooks/{path.stem}.ipynb)"
        alone = number_of(path.stem)
        exercise = exercises.get(alone) if path == last[alone] else None
        to_exercise = f"[{alone}](exercises/{exercise.stem}.ipynb) " if exercise else ""
        rows.append(f"| {number} | {link}: {about[path.stem]} | {to_exercise}|")
    if REVIEW in exercises:
        words = title(exercises[REVIEW])
        rows.append(f"| | {words}, two weeks later | [{REVIEW}](exercises/{REVIEW}.ipynb) |")
    return "\n".join(rows)


def readme(root):
    """The text of the README, with its table of lessons as the sources give it.

    Raises
    ------
    SourceError
        The README lacks the comments between which the table stands.
    """
    text = (root / README).read_text(encoding="utf-8")
    before, begin, rest = text.partition(TABLE_BEGIN)
    _, end, after = rest.partition(TABLE_END)
    if not (begin and end):
        raise SourceError(f"{README} lacks {TABLE_END if begin else TABLE_BEGIN}")
    return f"{before}{begin}\n{lesson_table(root)}\n{end}{after}"


def orphans(root):
    """Built files with a lesson's or exercise's sort of name that no source gives."""
    known = {(path.parent.name, path.stem) for path in sources(root)}
    return [
        path
        for folder, kind, ending in (
            ("notebooks", "lessons", ".ipynb"),
            (playable.FOLDER, "lessons", ".zip"),
            ("exercises", "exercises", ".ipynb"),
            ("solutions", "exercises", ".ipynb"),
            (CASES, "exercises", ".py"),
        )
        for path in exercise_files(root / folder, ending)
        if re.fullmatch(r"\d\d_\w+|" + REVIEW, path.stem) and (kind, path.stem) not in known
    ] + [
        path
        for path in sorted((root / "notebooks").glob("[a-z][a-z]/[0-9][0-9]_*.ipynb"))
        if not (root / "authoring/lessons" / path.parent.name / f"{path.stem}.md").exists()
    ]


def say(text):
    """Print a text, above the bar if there is one."""
    tqdm.write(text)
    sys.stdout.flush()


def settle(root, name, text, check, outputs=True):
    """Write a target, or only compare it; returns whether all is well.

    Pictures are not compared, but those without an alt text are written anew where they get one.
    """
    target = root / name
    found = difference(target, text, outputs)
    if not found and not check:
        stored = target.read_text(encoding="utf-8")
        found = told_pictures(name, text) > told_pictures(name, stored)
    if not found:
        return True
    if check:
        lines = found.splitlines()
        say(f"{name} is not what its source gives:")
        say("\n".join(lines[:SHOWN_DIFF_LINES]))
        return False
    target.write_text(text, encoding="utf-8")
    say(f"wrote {name}")
    return True


def bytes_of(path):
    """The bytes of a file; none where there is no file."""
    return path.read_bytes() if path.exists() else b""


def settle_pages(root, name, pages, check, renewed):
    """As `settle`, for what plays of a notebook: written anew where the notebook is."""
    target = root / name
    found = playable.difference(target, pages)
    if check and found:
        say(found)
    elif not check and (found or renewed):
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(pages)
        say(f"wrote {name}")
    return not (check and found)


def label(path):
    """``lessons/NN_name`` or ``exercises/NN_name`` of a source; ``de/NN_name`` of a translation."""
    return f"{path.parent.name}/{path.stem}"


def drawn(root, count):
    """The labels of so many sources, drawn by the environment's SEED."""
    labels = [label(path) for path in sources(root)]
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(10**6))
    print(f"seed {seed} (SEED={seed} runs the same ones again)")
    return random.Random(seed).sample(labels, min(count, len(labels)))


def isolate_kernels(folder):
    """Let no setting of this user or session reach the kernels this process starts."""
    for name in ("MPLBACKEND", "COLUMNS", "LINES", "PYTHONSTARTUP", "PYTHONWARNINGS"):
        os.environ.pop(name, None)
    os.environ["PYTHONHASHSEED"] = "0"
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        path = Path(folder) / name.lower()
        path.mkdir()
        os.environ[name] = str(path)


MAKERS = {"lessons": build_lesson, "exercises": build_exercise}
"""What makes notebooks of the sources in these folders; other folders hold translations."""


def build_one(root, path, check, is_run, text):
    """Build or check what one source gives; returns whether all is well."""
    made = MAKERS.get(path.parent.name, build_translation)(path, is_run)
    if text and not keep_outputs(root, made):
        say(f"{path.relative_to(root)}: not only prose has changed: build it without --text")
        return False
    texts = {
        name: built if isinstance(built, str) else notebook_text(built)
        for name, built in made.items()
        if not isinstance(built, bytes)
    }
    before = [bytes_of(root / name) for name in texts]
    fine = True
    for name, written in texts.items():
        fine &= settle(root, name, written, check, outputs=is_run)
    renewed = before != [bytes_of(root / name) for name in texts]
    for name in made.keys() - texts:
        fine &= settle_pages(root, name, made[name], check, renewed)
    return fine


def build(root, names=(), check=False, run=None, kind=None, text=False):
    """Build or check the sources of a checkout; returns whether all is well.

    Parameters
    ----------
    root : Path
        The checkout.
    names : sequence of str
        File names of sources, without their ending; none means all.
    check : bool
        Compare only.
    run : collection of str, optional
        Labels of the sources that a check runs; of the others outputs are not compared.
    kind : str, optional
        Of `KINDS`: only these sources.
    text : bool
        Run nothing, and keep the stored outputs; a source of which not only prose has changed is
        named and left as it is.

    Raises
    ------
    SourceError, BuildError
        A source cannot be read; a notebook does not run.
    """
    chosen = [path for path in sources(root) if kind in (None, path.parent.name)]
    chosen += translations(root) if kind in (None, "lessons") else []
    chosen = [path for path in chosen if not names or path.stem in names]
    unknown = set(names) - {path.stem for path in chosen}
    if unknown:
        raise SourceError(f"authoring/ has no source named {', '.join(sorted(unknown))}")
    for folder in ("notebooks", playable.FOLDER, "exercises", CASES, "solutions"):
        (root / folder).mkdir(exist_ok=True)
    fine = True
    with bar(len(chosen), "") as show:
        for number, path in enumerate(chosen):
            show(label(path), number)
            begun = time.monotonic()
            is_run = not text and (run is None or label(path) in run)
            fine &= build_one(root, path, check, is_run, text)
            if is_run:
                say(f"{time.monotonic() - begun:4.0f} s  {path.relative_to(root)}")
        show("", len(chosen))
    fine &= settle(root, START_PAGE, start_page(root), check)
    fine &= settle(root, README, readme(root), check)
    for path in orphans(root):
        print(f"{path.relative_to(root)} has no source in authoring/: delete or rename it")
        fine = False
    return fine


def main():
    """The command line."""
    parser = argparse.ArgumentParser(description="Build the notebooks from authoring/.")
    parser.add_argument("names", nargs="*", help="sources to build, such as 02_send_and_recv")
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    parser.add_argument("--kind", choices=KINDS, help="only lessons or only exercises")
    parser.add_argument("--run", type=int, metavar="K", help="with --check: run only K sources")
    parser.add_argument("--text", action="store_true", help="run nothing: outputs stay")
    options = parser.parse_args()
    if options.run is not None and not options.check:
        parser.error("--run goes with --check: what is not run cannot be written")
    run = None if options.run is None else drawn(ROOT, options.run)
    names = [Path(name).stem for name in options.names]
    with tempfile.TemporaryDirectory() as folder:
        isolate_kernels(folder)
        try:
            return 0 if build(ROOT, names, options.check, run, options.kind, options.text) else 1
        except (SourceError, BuildError) as error:
            print(error, file=sys.stderr)
            return 1


if __name__ == "__main__":
    sys.exit(main())

"""``simlib diagnose``, ``card``, ``play`` and ``compare``: commands about records in files."""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
import webbrowser
from pathlib import Path

from ..core.draw.display import above_bars, bar
from ..core.engines.run_outputs import add_json
from ..core.model.errors import InvalidCallError
from ..core.model.outcome import ExitCode, Outcome

RECORD = "a file of simlib run --trace or of Run.save, or a folder of traces of torch's profiler"


def add_commands(commands):
    """Add the commands about records to the subcommands of a parser."""
    card = commands.add_parser(
        "card",
        help="measure this machine's device, for simlib.Device.measured",
        description="Measure single operations on the GPU of this machine, or on its CPU, and "
        "write a file for simlib.Device.measured. Nothing else should run meanwhile.",
    )
    card.add_argument("--out", default="card.json", metavar="FILE", help="output (card.json)")
    card.add_argument("--device", choices=("cuda", "cpu"), help="device (cuda if there is a GPU)")
    card.add_argument("--time", type=float, default=110, metavar="S", help="seconds to use (110)")
    card.set_defaults(command=_card)
    diagnose = commands.add_parser(
        "diagnose",
        help="say why a job hangs, from the dumps that its ranks left",
        description="Read the dumps of torch's flight recorder that the ranks of a job have left "
        "in a folder, and say who waits for whom, who is absent, and at which line. Logs of "
        "NCCL in the folder are read too. With --job, simlib asks the ranks of a job that runs on "
        "this machine for dumps, and writes the dumps into FOLDER. Then FOLDER must be new or "
        "empty, and comes before --job. The exit code is 0 if no rank waits, 1 if something is "
        "wrong, and 2 if the dumps do not suffice.",
    )
    diagnose.add_argument("folder", metavar="FOLDER", nargs="?")
    diagnose.add_argument(
        "--job",
        nargs="?",
        type=_pid,
        const=0,
        metavar="PID",
        help="a job of torchrun on this host. If several jobs run, give a process of one of them",
    )
    diagnose.add_argument("--html", metavar="FILE", help="write a page with the waits and calls")
    add_json(diagnose)
    diagnose.set_defaults(command=_diagnose)
    play = commands.add_parser(
        "play",
        help="play a saved run in the browser",
        description="Write a saved run as a page that plays, and open the page in the browser.",
    )
    play.add_argument("record", metavar="RUN.json", help=RECORD)
    play.add_argument("--html", metavar="FILE", help="write the page to FILE, and open no browser")
    play.set_defaults(command=_play)
    compare = commands.add_parser(
        "compare",
        help="compare the messages and collectives of saved runs",
        description="Compare saved runs side by side: kinds, numbers and lines of their messages "
        "and collectives. The exit code is 0 if they are equal, 1 if they differ, and 2 if simlib "
        "cannot compare them.",
    )
    compare.add_argument("records", nargs="+", metavar="RUN.json", help=RECORD)
    compare.add_argument(
        "--html", metavar="FILE", help="write a page with both runs, which play together"
    )
    compare.set_defaults(command=_compare)


def _pid(text):
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(
            f"{text} is not the number of a process; write the folder before --job: simlib "
            f"diagnose {text} --job"
        )
    return int(text)


def _card(options):
    if not os.path.isdir(os.path.dirname(options.out) or "."):
        raise InvalidCallError(f"there is no folder for {options.out}")
    if not options.time > 0:
        raise InvalidCallError(f"--time {options.time:g}: give seconds above 0")
    import torch

    from ..core.devices.measuring import measure

    began_s, total = time.monotonic(), math.ceil(options.time)
    with bar(total, "") as show:

        def say(line):
            with above_bars():
                print(line, flush=True)
            show("", min(int(time.monotonic() - began_s), total))

        card = measure(
            options.device or ("cuda" if torch.cuda.is_available() else "cpu"), options.time, say
        )
        show("", total)
    with open(options.out, "w", encoding="utf-8") as file:
        file.write(card.text())
    print(f"{card.name} is measured. Use it as simlib.Device.measured({options.out!r})")
    return ExitCode.OK


def _diagnose(options):
    if options.folder is None and options.job is None:
        raise InvalidCallError("diagnose needs a folder of dumps, or --job")
    from ..core.results.job_diagnosis import diagnose, diagnose_job

    try:
        if options.job is None:
            found = diagnose(options.folder)
        else:
            found = diagnose_job(options.job or None, options.folder)
        if options.html:
            found.to_html(options.html)
    except (ValueError, OSError) as error:
        raise InvalidCallError(str(error)) from None
    if not options.json:
        print(found)
    code = ExitCode.OK if found.kind == "healthy" else ExitCode.WRONG_PROGRAM
    return Outcome(code, facts=found.to_record())


def _play(options):
    run = _loaded(options.record)
    page = options.html
    if page is None:
        page = f"{tempfile.mkdtemp(prefix='simlib-')}/{Path(options.record).stem}.html"
    with bar(None, f"writing {Path(page).name}"):
        page = run.to_html(page)
    print(f"the page is {page}")
    if sys.stdout.isatty() and options.html is None:
        webbrowser.open(page.as_uri())
    return ExitCode.OK


def _compare(options):
    from ..core.results.comparison import compare

    paths = options.records
    stems = [Path(path).stem for path in paths]
    numbered = [f"{number}: {path}" for number, path in enumerate(paths, 1)]
    names = next(names for names in (stems, paths, numbered) if len(set(names)) == len(paths))
    runs = {name: _loaded(path) for name, path in zip(names, paths, strict=True)}
    with bar(None, "comparing"):
        found = compare(runs)
        words = str(found)
    print(words)
    if options.html is not None:
        with bar(None, f"writing {Path(options.html).name}"):
            found.to_html(options.html)
    return ExitCode.WRONG_PROGRAM if found.differences else ExitCode.OK


def _loaded(path):
    """The run in a file. A file that is none is a wrong call."""
    try:
        with bar(None, f"reading {Path(path).name}"):
            from ..core.results.load import load

            return load(path)
    except (ValueError, OSError) as error:
        raise InvalidCallError(str(error)) from None

"""The process that reads what students handed in: parsed and merged within limits, apart from us.

It runs as a program by itself, without simlib, whose import takes a second. Its first line is JSON:
the limits, and the exercises as plain data. Each request is a line of JSON and the bytes of a file;
each answer is a line of JSON.
"""

import json
import os
import resource
import sys

from merge_answers import WrongNotebook, has_answers, looked_at, merge_answers
from notebook_file import Exercise, Unreadable, parse


def main():
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="ascii")
    begin = json.loads(sys.stdin.buffer.readline())
    resource.setrlimit(resource.RLIMIT_AS, (begin["memory_bytes"], begin["memory_bytes"]))
    exercises = {name: Exercise.from_dict(one) for name, one in begin["exercises"].items()}
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        content = sys.stdin.buffer.read(request["nbytes"])
        allow_more_time(begin["seconds"])
        answers.write(json.dumps(answer(request, content, exercises)) + "\n")


def allow_more_time(seconds):
    """Let this process take so many seconds of the processor from now on; then Linux ends it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    until = int(used.ru_utime + used.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))


def answer(request, content, exercises):
    """The answer to a request, as plain data; a reason where the file cannot be read."""
    try:
        submission = parse(content)
        if request["ask"] == "merge":
            return merged(exercises[request["exercise"]], submission)
        return about(submission, request["exercise"], exercises)
    except Unreadable as error:
        return {"unreadable": str(error)}
    except WrongNotebook as error:
        return {"wrong notebook": str(error)}
    except MemoryError:
        return {"unreadable": "the file takes too much memory to be read: clear its outputs"}


def merged(exercise, submission):
    """A `MergedNotebook` as plain data: pristine cells by their id."""
    found = merge_answers(exercise, submission)
    steps = [
        [
            one.kind,
            one.cell and one.cell.id,
            "" if one.kind == "pristine" else one.source,
            one.number,
        ]
        for one in found.steps
    ]
    return {"steps": steps, "found": found.found, "notes": found.notes}


def about(submission, name, exercises):
    """Which exercise a file is, by its cells where it is not named, and whether it has answers."""
    cells = looked_at(submission)
    name = name or exercise_by_cells(cells, submission.ids, exercises)
    return {
        "exercise": name,
        "has answers": name in exercises and has_answers(exercises[name], cells),
    }


def exercise_by_cells(cells, ids, exercises):
    """The exercise to which most of a notebook's cells belong, or None."""

    def likeness(exercise):
        own = sum(any(name in one.defined_at_top for one in cells) for name in exercise.questions)
        return own, len(exercise.ids & ids)

    best = max(exercises.values(), key=likeness)
    return best.name if any(likeness(best)) else None


if __name__ == "__main__":
    main()

"""Forty submissions, five of which take all that there is, and the points each has earned."""

from class_of_30 import answered
from known_wrong import mixed
from notebooks_made import content, notebook, solved

HOSTILE = {
    "starves": """\
import subprocess
for _ in range(380):
    subprocess.Popen(
        ["timeout", "100", "sh", "-c", "while :; do :; done"], start_new_session=True
    )
""",
    "bombs": """\
import os, time
end = time.monotonic() + 60
while time.monotonic() < end:
    try:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
    except OSError:
        time.sleep(0.1)
""",
    "floods": """\
for _ in range(400):
    print("x" * (1 << 20))
""",
    "takes_memory": """\
held = [bytearray(64 << 20) for _ in range(400)]
""",
    "never_ends": """\
while True:
    pass
""",
}
"""By what it does: the code at the head of the first answer's cell. Each is bounded."""


def write_class(folder, exercises, honest=35, hostile=tuple(HOSTILE)):
    """Write a folder for each student; the hostile ones stand between honest ones.

    Returns
    -------
    dict of str to int
        By student's name, the points of those who do no harm. What the others get for their
        further answers is their own affair.
    """
    wanted, harmful = {}, list(hostile)
    gap = honest // (len(harmful) + 1) or 1
    for number in range(honest):
        exercise = exercises[number % len(exercises)]
        wanted[f"student_{number:02d}"] = points = hand_in(folder, exercise, number)
        assert 0 <= points <= exercise.points
        if number % gap == gap - 1 and harmful:
            kind = harmful.pop(0)
            names = list(exercise.questions)
            data, _ = answered(
                exercise,
                dict.fromkeys(names, True)
                | {names[0]: f"{HOSTILE[kind]}\n\ndef {names[0]}(*inputs):\n    return None\n"},
            )
            write(folder, f"student_{number:02d}_then_{kind}", exercise, data)
    return wanted


def hand_in(folder, exercise, number):
    """Write what an honest student hands in: right, partly right, wrong, untouched by turns."""
    names = list(exercise.questions)
    kind = number // 2 % 4  # two exercises by turns get all four kinds
    if kind == 0:
        data, points = content(solved(exercise)), exercise.points
    elif kind == 1:
        data, points = answered(exercise, {names[number % len(names)]: True})
    elif kind == 2:
        data, points = answered(exercise, mixed(exercise, number // 2, number % 2))
    else:
        data, points = content(notebook(exercise)), 0
    write(folder, f"student_{number:02d}", exercise, data)
    return points


def write(folder, student, exercise, data):
    """Write one student's notebook."""
    (folder / student).mkdir(parents=True)
    (folder / student / f"{exercise.name}.ipynb").write_bytes(data)

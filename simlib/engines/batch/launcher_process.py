"""Starts a job's launcher, waits for its end, keeps its limit.

A program of its own, which outlives the notebook: ``python -I launcher_process.py [--detached]
FOLDER``. It imports nothing of simlib, so it starts at once; what it has to know of launchers is in
``launch.json``.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time

LOOK_S = 0.1
OBEY_S = 5.0
"""How long ranks that were asked to end may take; then the launcher is killed."""


def main(folder):
    """Run the command of ``launch.json`` and write ``state.json`` before and after."""
    with open(os.path.join(folder, "launch.json")) as file:
        plan = json.load(file)
    write_state(folder, {"state": "active", **whereabouts(), "began": time.time()})
    environ = {**os.environ, **plan["environ"]}
    with (
        open(os.path.join(folder, "launcher.out"), "wb") as out,
        open(os.path.join(folder, "launcher.err"), "wb") as err,
    ):
        try:
            launcher = subprocess.Popen(
                plan["command"], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                cwd="/", env=environ, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            err.write(f"{error}\n".encode())
            write_state(folder, {"state": "ended", "code": 127, "why": "code"})
            return
        signal.signal(signal.SIGTERM, lambda *_: touch(folder, "cancel"))
        why = wait(launcher, folder, plan)
    end_attempt(folder)
    write_state(folder, {"state": "ended", "code": launcher.returncode, "why": why})


def wait(launcher, folder, plan):
    """Wait for the launcher; returns what ended it: ``code`` (it has ended by itself),
    ``cancel``, ``limit`` or ``hopeless``."""
    why, deadline = "code", None
    limit = time.monotonic() + plan["time_limit"]
    hopeless = re.compile(plan["hopeless"].encode(), re.MULTILINE)
    while True:
        try:
            launcher.wait(LOOK_S)
            return why
        except subprocess.TimeoutExpired:
            pass
        now = time.monotonic()
        if deadline is None:
            if any(map(os.path.exists, plan["cancelled_by"])):
                why = "cancel"
            elif now > limit:
                why = "limit"
            elif is_hopeless(folder, hopeless):
                why = "hopeless"
            if why != "code":
                touch(folder, "end")  # the ranks see it, on whatever host they are
                launcher.terminate()
                deadline = now + plan["obey_s"]
        elif now > deadline:
            os.killpg(launcher.pid, signal.SIGKILL)
            deadline = now + plan["obey_s"]


def is_hopeless(folder, hopeless):
    """Whether no rank has joined yet, and the launcher has said that one cannot be started.

    The others would wait for it; some launchers let them.
    """
    if os.path.exists(os.path.join(folder, "rank-0.json")):
        return False
    with open(os.path.join(folder, "launcher.err"), "rb") as file:
        return bool(hopeless.search(file.read(1 << 16)))


def end_attempt(folder):
    """End the ranks of the last attempt: where its program has died, nobody else would."""
    attempts = [name for name in os.listdir(folder) if name.startswith("attempt-")]
    if attempts:
        touch(os.path.join(folder, max(attempts, key=lambda name: int(name[8:]))), "end")


def whereabouts():
    return {"host": os.uname().nodename, "pid": os.getpid()}


def touch(folder, name):
    open(os.path.join(folder, name), "a").close()


def write_state(folder, state):
    draft = os.path.join(folder, ".state.json.launch")
    with open(draft, "w") as file:
        json.dump(state, file)
    os.replace(draft, os.path.join(folder, "state.json"))


if __name__ == "__main__":
    if sys.argv[1] == "--detached":
        if os.fork():
            os._exit(0)
        os.setsid()
    main(sys.argv[-1])

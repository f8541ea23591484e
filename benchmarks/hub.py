"""A class on a hub: seconds until each student's ranks run, and the memory of all.

    python -m benchmarks.hub --users 10

starts a hub of its own by ``hub/jupyterhub_config.py``, on this machine and with new students.
Each starts a server and a kernel, reads for a while, and then runs cells, as a notebook does.
JupyterHub and its proxy must be there: docs/hub.md. It says the load that it met: nothing else
should run beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import requests
import websocket

from simlib.cluster.launch.addresses import free_port

from .table import heading, line, spread

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "hub" / "jupyterhub_config.py"
PATIENCE_S = 900
SETUP = """
import simlib, torch, torch.distributed as dist
def main(rank, world_size):
    x = torch.tensor([float(rank)])
    dist.all_reduce(x)
    return x.item()
"""
RUN = "assert simlib.run(main, 4).results == [6.0] * 4"
SIMULATE = "assert simlib.simulate(main, 64).results == [2016.0] * 64"
CELLS = {
    "the cell that imports": SETUP,
    "first run, 4 ranks": RUN,
    "warm run, 4 ranks": RUN,
    "first simulate, 64 ranks": SIMULATE,
    "warm simulate, 64 ranks": SIMULATE,
}
GOALS_S = {"first run, 4 ranks": 3}


class Hub:
    """A hub of its own in a folder, which goes with it.

    Parameters
    ----------
    folder : Path
    environ : dict
        Further variables of the hub, such as SIMLIB_IDLE_MINUTES.
    """

    def __init__(self, folder, environ):
        self.token = secrets.token_hex(16)
        self.url = f"http://127.0.0.1:{free_port()}"
        self._log = folder / "hub.log"
        handout = folder / "handout"
        subprocess.run(
            [sys.executable, "-m", "simlib", "handout", "--out", str(handout)], check=True
        )
        command = [sys.executable, "-m", "jupyterhub", "-f", str(CONFIG)]
        command += [
            f"--JupyterHub.hub_port={free_port()}",
            "--JupyterHub.db_url=sqlite:///:memory:",
        ]
        command.append(f"--ConfigurableHTTPProxy.api_url=http://127.0.0.1:{free_port()}")
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={
                    **os.environ,
                    "HUB_HANDOUT": str(handout),
                    "HUB_TRIAL": str(folder / "homes"),
                    "HUB_PASSWORD": secrets.token_hex(16),
                    "HUB_TOKEN": self.token,
                    "HUB_URL": self.url,
                    **environ,
                },
            )

    def log(self):
        """What it has said."""
        return self._log.read_text(errors="replace")

    def ask(self, method, path, **words):
        """One request to the hub or to a student's server; returns the answer."""
        answer = requests.request(
            method,
            self.url + path,
            headers={"Authorization": f"token {self.token}"},
            timeout=PATIENCE_S,
            **words,
        )
        if answer.status_code >= 400:
            raise SystemExit(f"{path}: {answer.status_code}\n{self.log()[-3000:]}")
        return answer

    def wait(self):
        """Wait until it answers."""
        while True:
            with contextlib.suppress(requests.ConnectionError):
                if requests.get(f"{self.url}/hub/api/", timeout=PATIENCE_S).ok:
                    return
            if self.process.poll() is not None:
                raise SystemExit(f"the hub did not start:\n{self.log()}")
            time.sleep(0.2)

    def processes(self):
        """Every process of its students: all that it started but its proxy."""
        ours = psutil.Process(self.process.pid).children(recursive=True)
        return [one for one in ours if "proxy" not in command_of(one)]

    def close(self):
        """End it, and with it all servers."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(120)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)


def command_of(process):
    """The command line of a process; nothing where it has gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


class Student:
    """One student: a server, a kernel, and cells that run one after the other."""

    def __init__(self, hub, name):
        self.name = name
        self._hub = hub
        self._channels = self._socket = None

    def start_server(self):
        """Start the server and wait until it is there."""
        self._hub.ask("POST", f"/hub/api/users/{self.name}")
        self._hub.ask("POST", f"/hub/api/users/{self.name}/server")
        # A stream of what happens, which ends when the server is ready or has failed.
        stream = self._hub.ask("GET", f"/hub/api/users/{self.name}/server/progress", stream=True)
        said = [json.loads(text[5:]) for text in stream.iter_lines() if text.startswith(b"data:")]
        if not said[-1].get("ready"):
            raise SystemExit(f"{self.name}: {said[-1]}\n{self._hub.log()[-3000:]}")

    def start_kernel(self):
        """Start a kernel, and wait until it has answered."""
        kernels = f"/user/{self.name}/api/kernels"
        number = self._hub.ask("POST", kernels, json={"name": "python3"}).json()["id"]
        self._channels = f"{self._hub.url}{kernels}/{number}/channels".replace("http", "ws", 1)
        self.connect()
        self.run("pass")

    def connect(self):
        """Speak to the kernel; the server ends a connection on which nobody answers it."""
        self._socket = websocket.create_connection(
            self._channels,
            header={"Authorization": f"token {self._hub.token}"},
            timeout=PATIENCE_S,
        )

    def run(self, code):
        """Run a cell that must not fail."""
        header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "session": self.name}
        header |= {"username": self.name, "version": "5.3"}
        content = {"code": code, "silent": False, "store_history": False, "stop_on_error": True}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
        self._socket.send(json.dumps({**message, "channel": "shell"}))
        while True:
            told = json.loads(self._socket.recv())
            if told["parent_header"].get("msg_id") != header["msg_id"]:
                continue
            if told["msg_type"] == "error":
                raise SystemExit(f"{self.name}: " + "\n".join(told["content"]["traceback"]))
            if told["msg_type"] == "status" and told["content"]["execution_state"] == "idle":
                return

    def lesson(self, reads_s):
        """Begin, read, run the cells; returns the seconds of each step by its name."""
        seconds = {
            "the server starts": timed(self.start_server),
            "the kernel starts": timed(self.start_kernel),
        }
        time.sleep(reads_s)
        self.connect()
        return seconds | {what: timed(self.run, code) for what, code in CELLS.items()}


def timed(call, *args):
    """Seconds that a call takes."""
    begin = time.perf_counter()
    call(*args)
    return time.perf_counter() - begin


def memory_MB(processes):
    """Shared out (PSS), so that the sum over all processes is what the machine has given."""
    used = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            used += process.memory_full_info().pss
    return used / 1e6


def cpu_s(processes):
    """Seconds of the processors that these processes have had."""
    used = 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            used += sum(process.cpu_times()[:2])
    return used


def tell_memory(what, hub, users):
    """Print the memory of all students."""
    processes = hub.processes()
    used = memory_MB(processes)
    told = f"{used:,.0f} ({used / users:,.0f} each, {len(processes)} processes)"
    line(f"memory {what}, MB", told)


def come_back(students):
    """Seconds of each student's next run, all at the same time."""

    def next_run_s(student):
        student.connect()
        return timed(student.run, RUN)

    with ThreadPoolExecutor(len(students)) as threads:
        return list(threads.map(next_run_s, students))


def wait_for_rest(hub, count):
    """Wait until no more than ``count`` processes of students are left, and not for ever."""
    until = time.monotonic() + PATIENCE_S
    while len(hub.processes()) > count and time.monotonic() < until:
        time.sleep(1)


def measure(hub, asked):
    """Let a class work on a hub, and print what was seen."""
    students = [Student(hub, f"student-{number:02}") for number in range(asked.users)]
    begin = threading.Barrier(asked.users)

    def lesson(number):
        begin.wait()
        time.sleep(number * asked.apart)
        return students[number].lesson(asked.reads)

    before = os.getloadavg()[0]
    with ThreadPoolExecutor(asked.users) as threads:
        lessons = list(threads.map(lesson, range(asked.users)))
    heading(
        f"{asked.users} students on {os.cpu_count()} cores, {asked.apart:g} s apart, each reads"
        f" {asked.reads:g} s; load before {before:.1f}"
    )
    for what in lessons[0]:
        values = [one[what] for one in lessons]
        goal = GOALS_S.get(what)
        held = None if goal is None else max(values) <= goal
        line(f"{what}, s", spread(values, digits=2), f"<= {goal}" if goal else "", held)
    line("seconds of the processors, each", f"{cpu_s(hub.processes()) / asked.users:.1f}")
    tell_memory("after the cells", hub, asked.users)
    if asked.idle_minutes:
        # A server, a kernel, and what multiprocessing has beside each kernel that ran.
        wait_for_rest(hub, 3 * asked.users)
        tell_memory("after the rest", hub, asked.users)
        line("the run after the rest, s", spread(come_back(students), digits=2))


def main():
    """Measure a hub of its own."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hub")
    parser.add_argument("--users", type=int, default=2)
    parser.add_argument("--apart", type=float, default=0, help="seconds between two students")
    parser.add_argument("--reads", type=float, default=10, help="seconds before the first cell")
    parser.add_argument(
        "--idle-minutes", type=float, default=0, help="wait for what rests to go, after so long"
    )
    asked = parser.parse_args()
    if 0 < asked.idle_minutes * 60 <= asked.reads:
        parser.error(
            "what is warm would go while students read: more --idle-minutes, or less --reads"
        )
    environ = {"SIMLIB_IDLE_MINUTES": str(asked.idle_minutes)}
    with tempfile.TemporaryDirectory() as folder:
        hub = Hub(Path(folder), environ)
        try:
            hub.wait()
            measure(hub, asked)
        finally:
            hub.close()


if __name__ == "__main__":
    main()

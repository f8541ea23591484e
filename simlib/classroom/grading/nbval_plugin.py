"""A pytest plugin: nbval with a confined kernel. Only this file touches nbval's internals.

pytest loads this file as a module of its own, because importing simlib takes seconds. It starts the
kernel that the environment describes, notices its death at once and limits its output. A timeout
costs only one cell. The plugin writes nbval's results, as one line of JSON for each cell.

    GRADING_RUN      folder of the connection file and the sockets
    GRADING_KERNEL   the kernel's command, as JSON
    GRADING_UID      the user of the kernel
    GRADING_RESULTS  the file for the lines
    GRADING_OUTPUT   characters of output after which a kernel is ended
    GRADING_PARENT   the grader's process; if it ends, everything here ends
"""

import collections
import ctypes
import json
import os
import signal
import sys
import time
from queue import Empty

# nbformat's validator would build a grammar of web addresses, which takes a second, and needs none.
sys.modules.setdefault("rfc3987_syntax", None)

import nbval.kernel  # noqa: E402
import nbval.plugin  # noqa: E402
import pytest  # noqa: E402
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager  # noqa: E402
from jupyter_client.manager import KernelManager  # noqa: E402

PR_SET_PDEATHSIG = 1
POLL_S = 0.2
DETAIL = 6000
"""The most characters of an error's text that are kept."""


class KernelGone(Exception):
    """The kernel ended or had to be ended. The message gives the reason."""


class OneSpec(KernelSpecManager):
    """Replaces jupyter's kernel specs: knows only the sandboxed kernel."""

    def get_kernel_spec(self, kernel_name):
        """Return the kernel that the environment describes, whatever the name is."""
        return KernelSpec(
            argv=json.loads(os.environ["GRADING_KERNEL"]),
            display_name="sandbox",
            language="python",
            interrupt_mode="message",
        )


def start_new_kernel(startup_timeout=60, kernel_name="python", **options):
    """Start the kernel and connect to it. After that, no other process can connect."""
    folder, uid = os.environ["GRADING_RUN"], int(os.environ["GRADING_UID"])
    file = os.path.join(folder, "k.json")
    manager = KernelManager(
        kernel_name="sandbox",
        kernel_spec_manager=OneSpec(),
        transport="ipc",
        ip=os.path.join(folder, "k"),
        connection_file=file,
    )
    manager.write_connection_file()
    if os.geteuid() == 0:
        os.chown(file, uid, uid)
    manager.start_kernel(**options)
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=startup_timeout)
    except RuntimeError:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        raise
    # Keys and sockets are for us alone: code inside finds neither, nor a place to write to.
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))
    os.rmdir(folder)
    return manager, client


class WatchedKernel(nbval.kernel.RunningKernel):
    """nbval's kernel. It also notices if the kernel dies or prints too much."""

    def __init__(self, *args, **options):
        self._waiting = collections.deque()
        self._said = 0
        self._most = int(os.environ["GRADING_OUTPUT"])
        super().__init__(*args, **options)

    def get_message(self, stream, timeout=None):
        """Return the next message of a channel. Messages that were read early come first."""
        if stream == "iopub" and self._waiting:
            return self._waiting.popleft()
        message = super().get_message(stream, timeout)
        return self._counted(message) if stream == "iopub" else message

    def await_reply(self, msg_id, timeout=None):
        """Do the same as nbval, but notice a dead kernel, and limit the output."""
        end = time.monotonic() + timeout
        while True:
            self._take_in()
            try:
                message = super().get_message("shell", timeout=POLL_S)
            except Empty:
                if not self.is_alive():
                    raise KernelGone("the kernel ended while this cell ran") from None
                if time.monotonic() > end:
                    raise
                continue
            if message["parent_header"].get("msg_id") == msg_id:
                return

    def _take_in(self):
        while True:
            try:
                message = super().get_message("iopub", timeout=0)
            except Empty:
                return
            self._waiting.append(self._counted(message))

    def _counted(self, message):
        if message["msg_type"] in ("stream", "display_data", "execute_result", "error"):
            self._said += len(json.dumps(message["content"], default=str))
        if self._said > self._most:
            self.km.shutdown_kernel(now=True)
            raise KernelGone(f"more than {self._most:,} characters of output")
        return message


def run_cell(cell):
    """Run a cell and compare its outputs, as nbval does. A timeout ends only this cell."""
    cell.timed_out = False
    try:
        run_cell_of_nbval(cell)
    finally:
        cell.timed_out, cell.parent.timed_out = cell.parent.timed_out, False


run_cell_of_nbval = nbval.plugin.IPyNbCell.runtest


def die_with_the_grader():
    """End this process when the grader's thread that waits for it ends in any way (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(os.environ["GRADING_PARENT"]):
            os.kill(os.getpid(), signal.SIGKILL)


def pytest_configure(config):
    die_with_the_grader()
    nbval.kernel.start_new_kernel = start_new_kernel
    nbval.plugin.RunningKernel = WatchedKernel
    nbval.plugin.IPyNbCell.runtest = run_cell


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if not isinstance(item, nbval.plugin.IPyNbCell) or report.when == "teardown":
        return
    if report.when == "setup" and not report.failed:
        return
    error = call.excinfo.value if call.excinfo else None
    line = {
        "id": item.cell.get("id"),
        "word": word_of(item, error),
        "seconds": round(call.duration, 3),
        "error": str(error)[:DETAIL] if error is not None else "",
        "outputs": item.test_outputs or [],
    }
    with open(os.environ["GRADING_RESULTS"], "a") as file:
        file.write(json.dumps(line, default=str) + "\n")


def word_of(item, error):
    """Return the outcome of a cell in one word."""
    if error is None:
        return "same"
    if isinstance(error, KernelGone) or "Kernel dead" in str(error):
        return "gone"
    if "Failed to interrupt" in str(error) or "waiting for output" in str(error):
        return "gone"
    if getattr(item, "timed_out", False):
        return "timeout"
    if not isinstance(error, nbval.plugin.NbCellError):
        return "gone"
    return "different" if "outputs differ" in str(error) else "error"

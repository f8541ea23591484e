"""A Jupyter kernel, spoken to through jupyter_client as JupyterLab does."""

import contextlib
import os
from glob import glob

import psutil
from kernels import FileKernelManager

SETUP = """
import os, signal, sys, time
import simlib, torch, torch.distributed as dist

def fine(rank, world_size):
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()

def next_run_s(world_size=4):
    start = time.perf_counter()
    run = simlib.run(fine, world_size)
    assert run.results == [float(world_size)] * world_size
    return time.perf_counter() - start
"""


class Kernel:
    """A running kernel and a way to execute cells in it."""

    def __init__(self, env=None):
        self.manager = FileKernelManager(kernel_name="python3")
        self.manager.start_kernel(env={**os.environ, **(env or {})})
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=300)
        self.pid = self.manager.provisioner.pid

    def start(self, code):
        """Begin a cell; returns its message id."""
        return self.client.execute(code)

    def finish(self, message_id, timeout=300):
        """Wait for a cell's end; returns (printed text, error as text or None, displays)."""
        printed, error, displays = [], None, []
        while True:
            message = self.client.get_iopub_msg(timeout=timeout)
            if message["parent_header"].get("msg_id") != message_id:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                printed.append(content["text"])
            elif kind == "error":
                error = "\n".join(content["traceback"])
            elif kind in ("display_data", "update_display_data", "execute_result"):
                displays.append((kind, content["data"]))
            elif kind == "status" and content["execution_state"] == "idle":
                return "".join(printed), error, displays

    def cell(self, code, timeout=300):
        """Run a cell that must not fail; returns what it printed."""
        printed, error, _ = self.finish(self.start(code), timeout)
        assert error is None, error
        return printed

    def failing(self, code, timeout=300):
        """Run a cell that must fail; returns the error as the notebook shows it."""
        _, error, _ = self.finish(self.start(code), timeout)
        assert error is not None
        return error

    def processes(self):
        """All processes below the kernel: the server of ranks and the ranks."""
        return psutil.Process(self.pid).children(recursive=True)

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@contextlib.contextmanager
def kernel_with(env=None, setup=SETUP):
    kernel = Kernel(env)
    try:
        kernel.cell(setup)
        yield kernel
    finally:
        kernel.close()


def wait_for_display(kernel, text):
    """Read the kernel's messages until a live display shows this text."""
    while True:
        message = kernel.client.get_iopub_msg(timeout=300)
        if text in str(message["content"].get("data", "")):
            return


def resources(kernel, temporary):
    """Processes and descriptors of the kernel, and the files it has in its temporary folder."""
    return {
        "processes": len(kernel.processes()),
        "descriptors": psutil.Process(kernel.pid).num_fds(),
        "files": len(list(temporary.rglob("*"))),
        "shared memory": sum(
            "/memfd:simlib" in os.readlink(f"/proc/{kernel.pid}/fd/{fd}")
            for fd in os.listdir(f"/proc/{kernel.pid}/fd")
        ),
        # MPICH's are what a job leaves that a test ended.
        "named shared memory": len(set(glob("/dev/shm/*")) - set(glob("/dev/shm/mpich*"))),
    }

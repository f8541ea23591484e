"""Kernels that talk through files: no rank can be given their ports.

The five ports of a kernel are chosen by whoever starts it, a second before the kernel listens on
them. Meanwhile the system may give one of them to a rank that runs beside, and the kernel dies at
its start. Sockets that are files, in a folder of their own, have no such gap.

As a pytest plugin this gives nbval such kernels.
"""

import shutil
import tempfile
import weakref

from jupyter_client.manager import AsyncKernelManager, KernelManager


class ByFiles:
    """For a kernel manager: a folder of its own with its kernel's sockets, gone when it is."""

    def __init__(self, **settings):
        folder = tempfile.mkdtemp(prefix="kernel-")  # a socket's path has some 100 characters
        ours = {"transport": "ipc", "ip": f"{folder}/k", "connection_file": f"{folder}/k.json"}
        super().__init__(**{**settings, **ours})
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)


class FileKernelManager(ByFiles, KernelManager):
    """As jupyter_client's."""


class AsyncFileKernelManager(ByFiles, AsyncKernelManager):
    """As jupyter_client's, for nbclient."""


def pytest_configure(config):
    import nbval.kernel

    nbval.kernel.KernelManager = FileKernelManager

"""What the kernel that examines does first: its server imports torch while it does so itself."""

from __future__ import annotations

import os
import tempfile

from ....core.engines.workers.server import start_server
from ...confinement.hardening import close_to_others, do_without_tracker, keep_one_server
from ...confinement.process_sandbox import SCRATCH


def begin():
    """Be closed to others, and start the one server that a student's processes are forked from."""
    close_to_others()
    if os.path.isdir(SCRATCH):
        tempfile.tempdir = SCRATCH
    do_without_tracker()
    keep_one_server(start_server)

"""What the kernel that examines does first: its server imports torch while it does so itself."""

from __future__ import annotations

import os
import tempfile

from ...engines.host.hardening import close_to_others, do_without_tracker, keep_one_server
from ...engines.host.server import start_server
from ...model.trust import SCRATCH


def begin():
    """Be closed to others, and start the one server that a student's processes are forked from."""
    close_to_others()
    if os.path.isdir(SCRATCH):
        tempfile.tempdir = SCRATCH
    do_without_tracker()
    keep_one_server(start_server)

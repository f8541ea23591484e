"""Shuts the ranks of a graded answer in, and connects them by a broker of the grader's.

`OfStudents` is what `core.engines.confinement` asks for. `process_sandbox` and `hardening` shut a
process in, `system_calls` filters what it asks of Linux; `broker`, `exchange` and
`brokered_transport` carry what its ranks send, and count it.
"""

from __future__ import annotations

import socket

from ...core.engines.confinement import Confinement
from . import hardening, process_sandbox


class OfStudents(Confinement):
    """How the processes of a student's ranks are shut in and connected; see `Confinement`."""

    def server_begins(self):
        from . import brokered_transport  # noqa: F401 (every rank is forked with it in place)

        hardening.close_to_others()
        hardening.give_up_output()
        if process_sandbox.is_asked_for():
            process_sandbox.fork_apart()

    def process_begins(self):
        process_sandbox.enter()

    def code_begins(self, of_one_rank):
        process_sandbox.close(process_sandbox.OF_RANKS if of_one_rank else 1)

    def at_home(self):
        hardening.go_home()

    def ties(self, world_size, plain):
        from .broker import Broker

        return Broker(world_size)

    def join(self, recorder, rank, world_size, ties, plain):
        """The broker compares ops himself: there is no table of fingerprints."""
        from ...core.record import backend as recorded
        from .brokered_transport import Connection, brokered_member, join_world

        (wire,) = ties
        connection = Connection(socket.socket(fileno=wire.detach()))
        recorded.install(brokered_member(recorder, connection))
        return join_world(connection, rank, world_size), None


CONFINEMENT = OfStudents()

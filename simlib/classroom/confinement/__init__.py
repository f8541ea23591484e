"""The third engine: it confines the ranks of a graded answer, and carries their messages.

`simlib.run` connects its ranks by Gloo, and `simlib.simulate` by a simulated network. A graded rank
has only one connection: a socket to the *relay*, a thread of the process that grades. The relay
carries tensors from rank to rank by the rules of the simulation, and counts these tensors itself.
So the grader can compare a rank's record with the tensors that the relay has really carried.

- `relay` is the side of the grader: it decides which ranks meet, and counts the carried tensors.
- `relay_transport` is the side of a rank: the transport of its groups.
- `process_sandbox` isolates a process, and keeps other processes of the same user out.
- `system_calls` makes the filters of system calls that a process loads.

`OfStudents` combines these modules. It is the `Confinement` that `core.engines` asks at each step.
"""

from __future__ import annotations

import socket

from ...core.engines.confinement import Confinement
from . import process_sandbox


class OfStudents(Confinement):
    """How the processes of a student's ranks are confined and connected; see `Confinement`."""

    def server_begins(self):
        from . import relay_transport  # noqa: F401 (every rank is forked with it in place)

        process_sandbox.close_to_others()
        process_sandbox.give_up_output()
        if process_sandbox.is_asked_for():
            process_sandbox.fork_apart()

    def process_begins(self):
        process_sandbox.enter()

    def code_begins(self, of_one_rank):
        process_sandbox.close(process_sandbox.OF_RANKS if of_one_rank else 1)

    def at_home(self):
        process_sandbox.go_home()

    def ties(self, world_size, plain):
        from .relay import Broker

        return Broker(world_size)

    def join(self, recorder, rank, world_size, ties, plain):
        """Make this rank a member of its world. The relay itself compares the ranks' ops, so ranks
        need no fingerprints."""
        from ...core.record import backend as recorded
        from .relay_transport import Connection, brokered_member, join_world

        (wire,) = ties
        connection = Connection(socket.socket(fileno=wire.detach()))
        recorded.install(brokered_member(recorder, connection))
        return join_world(connection, rank, world_size), None


CONFINEMENT = OfStudents()

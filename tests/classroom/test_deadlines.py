"""One deadline for a request to the student's shell, however slowly the answer trickles in."""

import pytest

from simlib.classroom.grading import shell
from simlib.core.engines import request


class Trickle:
    """A socket that gives a byte every five seconds of a clock that only it moves."""

    now_s = 0.0
    received = 0

    def settimeout(self, _):
        """It always has its byte before a timeout of more than five seconds."""

    def recv_into(self, view):
        self.now_s += 5
        self.received += 1
        assert self.received < 100, "it waits for ever"
        view[:1] = b"\1"
        return 1


def test_an_answer_that_trickles_in_has_the_time_of_one_request(monkeypatch):
    sock = Trickle()
    monkeypatch.setattr(request.time, "monotonic", lambda: sock.now_s)
    with pytest.raises(TimeoutError):
        shell.receive(sock, most=1 << 40, deadline=20)
    assert sock.received == 4

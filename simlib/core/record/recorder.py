"""The records of one rank: its ops with the learner's lines, and its waits for them.

`Recorder` belongs to the rank. All its process groups write through it, and so do the requests that
they return.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ..environment import is_learners
from ..model.errors import InvalidCallError
from .oplog import IN_THREAD, FingerprintTable, word_for
from .pending import Pending, StreamEnds

if TYPE_CHECKING:
    from .oplog import OpLogWriter


REDUCE_NAMES = {
    hash(getattr(dist.ReduceOp, name)): name
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
}

NOWHERE = "", 0, ""
"""The place of calls that no line of the learner's code has caused."""
_AUTOGRAD_FILE = torch.autograd.graph.__file__

MAX_LOOKS = 100_000
"""How often in a row a rank may ask whether a message is complete. Before `wait`, Gloo never says
that it is complete."""
HELD_BACK_S = 2.0
"""simlib delays an op that disagrees by this many seconds. The kernel needs less to judge."""


def _innermost(frame):
    """The innermost frame of the learner's code; None if there is none."""
    while frame is not None and not is_learners(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _place_of(frame):
    if frame is None:
        return NOWHERE
    return frame.f_code.co_filename, frame.f_lineno, function_of(frame.f_code)


def _in_backward(frame):
    """The frame above this one that waits for autograd's threads; None if there is none."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "_engine_run_backward" and code.co_filename == _AUTOGRAD_FILE:
            break
        frame = frame.f_back
    return frame


class Recorder:
    """What all groups of one rank share: the rank's op log, and the learner's lines.

    Parameters
    ----------
    log : OpLogWriter
    is_alone : callable
        It returns whether no other thread can make ops of this rank now. Such an op could end the
        rank's wait.
    before_op : callable, optional
        simlib calls it before it records an op. Here, a simulated rank lets ranks with an earlier
        clock go first, and a real rank with a ``slow=`` factor sleeps.

    Attributes
    ----------
    before_wait : callable or None
        Like ``before_op``, but called before a wait for a request.
    stream_ends : StreamEnds
        Ops that end on a GPU.
    survives : bool
        Whether the run continues when another rank dies.
    has_joined : bool
        Whether the program has called `init_process_group`.
    timeout_s : float
        simlib ends the run after this many seconds without progress.
    limited : set of int
        The ops, by their place in the log, that end after the ``timeout=`` of their group. So no
        wait for such an op is endless.
    thread : int
        The thread that runs the rank's function.
    """

    def __init__(
        self, log: OpLogWriter, is_alone: Callable[[], bool], before_op: Callable | None = None
    ) -> None:
        self.log = log
        self.is_alone = is_alone
        self.before_op = before_op
        self.before_wait = None
        self.pending = Pending(self)
        self.stream_ends = StreamEnds(log)
        self.requests: dict[int, RecordedWork] = {}  # under way, by their place in the log
        self.last_number: RecordedWork | None = None
        self.fingerprints: FingerprintTable | None = None
        self.survives = False
        self.has_joined = False
        self.timeout_s = math.inf
        self.limited: set[int] = set()
        self.thread = threading.get_ident()
        self._words: dict[tuple, int] = {}
        self._met: dict[Any, list[int]] = {}
        self._sites: dict[
            tuple, tuple
        ] = {}  # (id of code, instruction) -> (number, code, which keeps the id its own)

    def site(self, frame: FrameType | None) -> int:
        """The number of the learner's line that runs in this frame, or led to it."""
        frame = self._learners(frame)
        key = (id(frame.f_code), frame.f_lasti) if frame is not None else (0, 0)
        known = self._sites.get(key)
        if known is None:
            place = _place_of(frame)
            number = self.log.define(place, "site", place)
            known = self._sites[key] = number, frame and frame.f_code
        return known[0]

    def line_of(self, frame: FrameType | None) -> tuple[str, int, str]:
        """(file, line, function) of the learner's line that led to this frame."""
        return _place_of(self._learners(frame))

    def _learners(self, frame):
        """The learner's frame that led to this frame, perhaps in another thread, or None.

        autograd runs work on a GPU in a thread of its own, which has no Python frame above it. For
        such work, simlib uses the line of the thread that waits in ``backward()``. The rank's own
        thread comes first.
        """
        found = _innermost(frame)
        is_pythons = threading.get_ident() == self.thread or self.flag_of_thread()
        if found is not None or is_pythons:
            return found
        frames = sys._current_frames()
        for thread in sorted(frames, key=lambda ident: ident != self.thread):
            waiting = _in_backward(frames[thread])
            if waiting is not None:
                return _innermost(waiting)
        return None

    @staticmethod
    def place(frame: FrameType | None) -> tuple[str, int, str]:
        """(file, line, function) of the innermost frame that is the learner's."""
        return _place_of(_innermost(frame))

    @staticmethod
    def flag_of_thread() -> int:
        """The flag of an op of another thread; 0 if native code (autograd) started the thread."""
        thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
        is_pythons = thread is not None and not isinstance(thread, threading._DummyThread)
        return IN_THREAD if is_pythons else 0

    def signature(self, tensors: Sequence, reduce_op: Any, splits: Any) -> tuple[int, int]:
        """The number of the facts on which ranks must agree, and the payload in bytes."""
        if len(tensors) == 1:
            (tensor,) = tensors
            key = tensor.shape, tensor.dtype, reduce_op, splits
            nbytes = count_bytes(tensor)
        else:
            shapes = tuple(tensor.shape for tensor in tensors)
            key = shapes, tensors[0].dtype if tensors else None, reduce_op, splits
            nbytes = sum(map(count_bytes, tensors))
        number = self.log.numbers.get(key)
        if number is None:
            words = _signature_in_words(tensors, reduce_op, splits)
            number = self.log.define(key, "signature", words)
        return number, nbytes

    def begin(self, fingerprints: FingerprintTable | None) -> None:
        """A run begins. ``fingerprints`` is the table of the run, or None if the run has
        ``check=False``."""
        self.fingerprints = fingerprints

    def end(self) -> None:
        """The run has ended: forget it."""
        self.log.clear()
        self.pending.clear()
        self.stream_ends.clear()
        self.requests.clear()
        self.last_number = None
        self.fingerprints = None
        self.survives, self.has_joined, self.timeout_s = False, False, math.inf
        self.limited.clear()
        self._met.clear()
        self._sites.clear()

    def check_fingerprint(self, start: int, meeting: Any, *what: Any) -> None:
        """Delay an op that disagrees with earlier ops of the same meeting.

        ``meeting`` names something that ranks count alike: the collectives of a group, or the
        messages of two ranks with a tag. ``what`` contains the facts on which the ranks must agree.
        The kernel ends the run during this delay.
        """
        if self.fingerprints is None:
            return
        met = self._met.get(meeting)
        if met is None:
            met = self._met[meeting] = [word_for(meeting), 0]
        met[1] += 1
        word = self._words.get(what)
        if word is None:
            word = self._words[what] = word_for(what)
        if not self.fingerprints.agrees(met[0], met[1], word):
            self.log.wait_begin(start)
            time.sleep(HELD_BACK_S)
            self.log.wait_failed()

    def gpu_of(self, tensors: Sequence[torch.Tensor]) -> torch.device | None:
        """The GPU on which an op of these tensors ends; None if the op completes on `wait()`."""
        device = self.stream_ends.device_of(tensors)
        if device is not None:
            self.stream_ends.begin(device)
        return device

    def group(self, definition: tuple[str, tuple[int, ...], str]) -> int:
        """The number of a group in the log."""
        number = self.log.numbers.get(definition)
        if number is None:
            name, ranks, description = definition
            everyone = range(len(ranks))  # short to write down and to compare
            members = everyone if ranks == tuple(everyone) else ranks
            number = self.log.define(definition, "group", (name, members, description))
        return number


def function_of(code: CodeType) -> str:
    """The function that contains code; for a comprehension or a lambda, the function around it."""
    names = [name for name in code.co_qualname.split(".") if not name.startswith("<")]
    return names[-1] if names else code.co_name


def count_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor, as they travel."""
    try:
        return tensor.nbytes
    except RuntimeError:  # sparse: what travels are its indices and values
        return tensor._indices().nbytes + tensor._values().nbytes


def _signature_in_words(tensors, reduce_op, splits):
    shapes = tuple(tuple(tensor.shape) for tensor in tensors)
    dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else ""
    name = None if reduce_op is None else REDUCE_NAMES.get(reduce_op, "custom")
    return shapes, dtype, name, splits


class _Request:
    """The transport's own request. It notes the moments of the rank's wait and of its end."""

    _source = None  # the ranks of its group, if the op is a recv of any source
    _result = None
    pending = None
    limit = None
    gpu = None  # the GPU on whose stream the op ends

    def wait(self, timeout=timedelta(0)):  # noqa: B008 (torch's own signature; immutable)
        if self._result is not None:
            return self._result
        recorder = self._recorder
        log = recorder.log
        # Who waits for a limited time only goes on by itself: that is no deadlock.
        if self.gpu is None and recorder.stream_ends.open:
            recorder.stream_ends.look()  # the wait may be long
        is_limited = timeout or self.start in recorder.limited
        if self.gpu is None or recorder.stream_ends.holds_rank_up:
            log.wait_begin(self.start, not is_limited and recorder.is_alone())
        try:
            limit = timeout or self.limit
            self._result = self._work.wait(limit) if limit else self._work.wait()
        except BaseException:
            log.wait_failed(0 if timeout else self.start)
            raise
        if not timeout:
            recorder.limited.discard(self.start)
        if self.gpu is None:
            log.wait_end(self.start)
        else:
            log.wait_end(0)  # the rank waits no more; its stream does
            recorder.stream_ends.mark(self.start, self.gpu)
        if self.pending is not None:
            self.pending.waited(self)
        if self._source is not None:
            log.found_peer(self.start, self._source[self._work._source_rank()])
        return self._result

    def source_rank(self):
        return self._work._source_rank()

    _source_rank = source_rank


class _Nothing:
    """The request of an op that is always complete."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    is_completed = is_success = wait

    def exception(self) -> None:
        return None

    result = synchronize = exception


NOTHING_TO_WAIT_FOR = _Nothing()


class BlockingCall(_Request):
    """The request of a blocking call. The call only waits for it, so it is lighter than a
    `Work`."""

    def __init__(self, work: Any, recorder: Recorder, start: int) -> None:
        self._work = work
        self._recorder = recorder
        self.start = start


class RecordedWork(_Request, dist.Work):
    """A request that the learner, or torch, may keep and ask.

    The object exists until the request is complete. A request for a single number exists until
    there is another such request. torch's C++ code (DDP's, for the number of ranks in `join`) keeps
    only the C++ part, waits and then asks for the future. Without the Python part, this wait would
    never end.
    """

    is_number = False
    _future: Any = None  # the transport's own, where somebody has taken it

    def __init__(self, work: Any, recorder: Recorder, start: int) -> None:
        super().__init__()
        self._work = work
        self._recorder = recorder
        self.start = start
        recorder.requests[start] = self

    def wait(self, timeout: timedelta = timedelta(0)) -> Any:  # noqa: B008 (as above)
        recorder = self._recorder
        if recorder.before_wait is not None:
            recorder.before_wait()
        result = _Request.wait(self, timeout)
        self._let_go()
        return result

    def is_part_of(self, whole: Any) -> None:
        """The op began together with other ops. ``whole`` is the transport's request for all of
        them."""
        self._work = whole

    def _let_go(self):
        self._recorder.requests.pop(self.start, None)
        if self.is_number:  # anything larger would hold a learner's memory
            self._recorder.last_number = self

    def is_completed(self) -> bool:
        done = self._work.is_completed()
        if done:
            self._let_go()
            self._recorder.log.ended(self.start)
            if self.pending is not None:
                self.pending.waited(self)
            if self._source is not None:
                self._recorder.log.found_peer(self.start, self._source[self.source_rank()])
        return done

    def get_future(self) -> torch.futures.Future:
        log = self._recorder.log
        log.future_taken(self.start)
        future = self._work.get_future()
        if not isinstance(future, torch.futures.Future):  # those of a simulation tell at once
            self._future = future
        future.add_done_callback(lambda _: self._ended())
        return future

    def has_come(self) -> bool:
        """Whether the future is complete, even if `_ended` has not been called yet."""
        return self._future is not None and self._future.done()

    def _ended(self):
        """The op's future is complete. Any thread may call this, perhaps after the rank knows."""
        if self.gpu is None:
            self._recorder.log.ended(self.start)
        else:
            self._recorder.stream_ends.mark(self.start, self.gpu)
        if self.pending is not None:
            self.pending.forget(self)
        self._let_go()

    def block_current_stream(self) -> None:
        if self.gpu is None:
            super().block_current_stream()
        else:
            self._work.block_current_stream()
            self._ended()

    def is_success(self) -> bool:
        return self._work.is_success()

    def exception(self) -> Any:
        return self._work.exception()

    def result(self) -> Any:
        return self._work.result()

    def synchronize(self) -> Any:
        return self._work.synchronize()


class RecordedMessage(RecordedWork):
    """The request of an isend or irecv. With Gloo it is complete only after a wait."""

    _looks = 0  # since the rank's last op
    _looked_after = None

    def is_completed(self) -> bool:
        if self._result is not None:
            return True
        last = self._recorder.log.last
        self._looks = self._looks + 1 if last == self._looked_after else 1
        self._looked_after = last
        if self._looks > MAX_LOOKS:
            raise InvalidCallError(
                f"the program asked {MAX_LOOKS:,} times in a row whether this isend or irecv is "
                "complete. With Gloo the answer stays False until wait(): call wait()"
            )
        return False

    def wait(self, timeout: timedelta = timedelta(0)) -> Any:  # noqa: B008 (as above)
        if self._result is not None:
            raise InvalidCallError(
                "the rank has already waited for this isend or irecv. With Gloo a second wait() "
                "never returns: wait for each request only once"
            )
        return RecordedWork.wait(self, timeout)

    def get_future(self) -> None:
        raise InvalidCallError(
            "the request of an isend or irecv has no future with Gloo: call its wait() instead"
        )

"""`RunMonitor`: what is known of a run while it goes on, and after; one for each engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping

from ..model.failure_report import FailureReport
from ..record.rank_output import RankOutput
from .deadlock_detector import DeadlockDetector


class RunMonitor(ABC):
    """The kernel's eye on one run.

    An engine's own monitor takes in what ranks say, print and die of, and fills these in.
    `failures` and `Watchdog` put into words what came of the run; `results` makes a `Run` of it.

    Attributes
    ----------
    engine : str
        ``"real"`` or ``"simulated"``.
    name : str
        Name of the rank function.
    world_size : int
    cells : dict of str to int
        File name of a notebook cell -> its execution count.
    timeout_s : float or None
        Seconds without progress after which the run is ended.
    check : bool
        Whether anything but errors, deaths and ``timeout_s`` is diagnosed.
    logs : list of OpLogReader
        By rank.
    detector : DeadlockDetector
        At work on these logs; None before there are any.
    answers : dict of int to tuple
        rank -> (word, content) as the rank sent it, see `returned.answer_of`.
    deaths : dict of int to int
        rank -> exit code of a process that ended by itself.
    outputs : list of RankOutput
        By rank.
    native : list or dict of bytes
        What native code wrote to stderr, by rank: crash stacks, and stacks asked for.
    wire, memory : list or None
        Of a simulation that has ended: see `Run`.
    """

    engine: str = "real"
    wire: list | None = None
    memory: list | None = None
    detector: DeadlockDetector | None = None
    logs: list
    native: Collection

    def __init__(
        self,
        name: str,
        world_size: int,
        cells: Mapping[str, int],
        timeout_s: float | None,
        check: bool,
    ):
        self.name = name
        self.world_size = world_size
        self.cells = cells
        self.timeout_s = timeout_s
        self.check = check
        self.answers: dict[int, tuple] = {}
        self.deaths: dict[int, int] = {}
        self.outputs = [RankOutput() for _ in range(world_size)]

    @abstractmethod
    def ask_for_stacks(self, ranks: list[int]) -> dict[int, list]:
        """The learner's frames of ranks that compute, outermost first; empty where none came."""

    def running(self) -> list[int]:
        """Ranks that have neither answered nor died."""
        ranks = range(self.world_size)
        return [rank for rank in ranks if rank not in self.answers and rank not in self.deaths]

    def exited(self) -> dict[int, str]:
        """Ranks that post nothing any more, and why, in words."""
        return dict.fromkeys(self.answers, "has finished") | dict.fromkeys(self.deaths, "has died")

    def failed(self) -> bool:
        """Whether a rank has died or raised."""
        return bool(self.deaths) or any(word != "result" for word, _ in self.answers.values())

    def failed_by_itself(self) -> bool:
        """Whether a rank has died, or has raised other than by a wait that somebody else broke."""
        failed = [content for word, content in self.answers.values() if word != "result"]
        first = [one for one in failed if not isinstance(one, FailureReport) or not one.from_wait]
        return bool(self.deaths or first)

    def stuck(self) -> Exception | None:
        """The error for ranks that wait for ever, or for ops that disagree; None while unknown.

        Only for ranks that stand still since the last call is there a verdict.
        """
        if self.check and self.detector.look(self.running()):
            return self.detector.verdict(self.running(), self.exited())
        return None

    def mismatch(self) -> Exception | None:
        """The error for ops that meet and disagree, which explains whatever came of it; or None."""
        return self.detector.mismatch(bool(self.deaths)) if self.check else None

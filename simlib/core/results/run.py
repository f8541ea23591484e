"""`Run`, the result of every engine. simlib makes it from the data of a monitor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import draw
from ..diagnose.findings import Finding
from ..diagnose.stragglers import Stragglers, stragglers_of
from ..draw.display import Displayed
from ..draw.text import run_in_words, run_table
from ..model.cluster import Cluster
from ..model.errors import InvalidCallError
from ..model.ledger import GpuMemory, Ledger
from ..model.profile import Profile
from ..model.trace import Group, Op, Trace, WireMessage, Work
from ..model.words import ranks_in_words, ranks_text
from ..record.oplog_reader import name_groups
from .chrome import write_chrome_trace
from .exposed import Exposed, exposed_in
from .states import (
    Bubble,
    States,
    Transfers,
    bubble_in,
    by_arrival,
    has_collectives,
    states_in,
)
from .utilisation import Utilisation, utilisation_in

if TYPE_CHECKING:  # matplotlib and widgets are loaded where something is drawn
    from matplotlib.figure import Figure

    from ..diagnose.monitor import RunMonitor
    from ..diagnose.verdicts import WaitGraph
    from ..draw.player import Player

PICTURES = frozenset({".png", ".svg", ".pdf", ".jpg", ".jpeg", ".webp"})


class Run(Displayed):
    """One finished (or failed) run of a rank function.

    Attributes
    ----------
    name : str
        Name of the rank function.
    world_size : int
    results : list
        The return value of each rank, by rank. None if a rank did not return or did not run.
    output : list of str
        The text that each rank printed, by rank.
    trace : Trace
        All ops of all ranks.
    time_s : float or None
        Seconds from the moment at which the last rank entered the function to the last exit or
        death. None if a rank never left the function.
    deaths : dict of int to float
        ``{rank: seconds}``: when this rank died, in seconds since the first rank entered the
        function.
    findings : list
        Problems that did not stop the run.
    failure : str or None
        The text of the error that ended the run.
    graph : WaitGraph or None
        Which rank waited for which, if ranks waited forever.
    engine : str
        ``"real"`` means processes of this machine and a wall clock. ``"simulated"`` means a
        modelled cluster and a virtual clock. ``"replayed"`` means a recorded run on another
        cluster.
    wire : list of WireMessage or None
        The messages of the collectives, if the run was simulated with ``expand=True``.
    memory : list of Ledger or GpuMemory, or None
        The memory of each simulated rank, if the cluster has a device. For real ranks, the list
        contains the peak memory of their GPUs. ``memory`` is None if no rank has a record. In the
        list, None means that this rank has no record.
    flops : list of int or None
        The number of floating-point operations of each simulated rank, in all its threads. The
        number is 0 if the cluster has no device for which operations take time.
    work : list of Work or None
        For each rank: the number in ``flops``, the number of recomputed operations, and their time
        at the rates of the device. ``work`` is None if the device has no rates. In the list, None
        means that this rank never left its function. ``run.trace.pieces`` contains the work of each
        `simlib.span`.
    processes : list of int or None
        The number of processes that each rank started. simlib does not count what these processes
        compute.
    profile : list of Profile or None
        The work of each rank's GPU, by rank. In the list, None means that this rank died. A run has
        profiles after ``run(profile=True)``, and after a simulation on a cluster whose device is
        asynchronous.
    attempts : list of Run
        All attempts of a run with ``restarts=``: the earlier attempts that failed, in order, and
        this run.
    began_s : float
        When this attempt began, in seconds since the first attempt began.
    seed : int or None
        The number from which the ranks' seeds were derived. Pass this number as ``seed=`` to repeat
        the random numbers of the ranks.
    shared : dict of str to str
        The packages of which all simulated ranks share one copy, with the reasons.
    classes : list of list of int, or None
        The ranks of each class, after ``simulate(alike=...)``. The first and the last rank of a
        class ran.
    ran : sequence of int
        The ranks whose ops are in the trace. With ``alike=``, the trace lacks the ranks that did
        not run.
    repeats : bool
        Whether every repeat takes exactly the same time, because the clock is virtual and no
        compute was measured.
    """

    def __init__(
        self,
        name: str,
        trace: Trace,
        results: Sequence[Any],
        output: Sequence[str],
        findings: Sequence[Finding] = (),
        engine: str = "real",
    ) -> None:
        self.name = name
        self.trace = trace
        self.results = list(results)
        self.output = list(output)
        self.findings = list(findings)
        self.engine = engine
        self.wire: list[WireMessage] | None = None
        self.memory: Sequence[Ledger | GpuMemory | None] | None = None
        self.flops: list[int] | None = None
        self.work: list[Work | None] | None = None
        self.processes: list[int] | None = None
        self.profile: list[Profile | None] | None = None
        self.failure: str | None = None
        self.graph: WaitGraph | None = None
        self.attempts = [self]
        self.began_s = 0.0
        self.repeats = False
        self.seed: int | None = None
        self.classes: list[list[int]] | None = None
        self.ran: Sequence[int] = range(trace.world_size)
        self.shared: Mapping[str, str] = {}
        self._exact: Callable[[], Transfers | None] | None = None
        self._transfers: Transfers | None = None

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.trace.world_size

    @property
    def time_s(self) -> float | None:
        """Seconds from the last rank's entry to the last exit or death. None if a rank never
        left."""
        spans = self.trace.spans
        starts = [start for start, _ in spans]
        ends = [self.deaths.get(rank, end) for rank, (_, end) in enumerate(spans)]
        if self.deaths:  # the others were ended then, where they did not go on
            ends = [self.trace.end_s if end is None else end for end in ends]
        if not starts or None in starts or None in ends:
            return None
        return max(ends) - max(starts)

    @property
    def deaths(self) -> dict[int, float]:
        """``{rank: seconds}``: when this rank died, in seconds since the first rank entered."""
        return self.trace.deaths

    @property
    def messages(self) -> list[int]:
        """Point-to-point messages sent, by rank. Collectives do not count."""
        return [sum(1 for _ in self._sends(rank)) for rank in range(self.world_size)]

    @property
    def bytes_sent(self) -> list[int]:
        """Bytes of the point-to-point messages sent, by rank."""
        return [sum(op.nbytes for op in self._sends(rank)) for rank in range(self.world_size)]

    @property
    def traffic(self) -> np.ndarray:
        """Bytes sent point-to-point, as an int64 array: row = src, column = dst."""
        table = np.zeros((self.world_size, self.world_size), dtype=np.int64)
        for op in self.trace:
            if op.kind == "send":
                table[op.rank, op.peer] += op.nbytes
        return table

    @property
    def transfers(self) -> Transfers:
        """When the data of each op moved: ``{(rank, seq): [(start_s, end_s), ...]}``.

        On real ranks, the data of an op begin to move when the last rank that the op needs has
        called the op. In a simulation, the data move while a message of the rank travels, or while
        the rank adds received data to its own. The dict leaves out ops that some rank never called.
        """
        if self._transfers is None:
            exact = self._exact() if self._exact and has_collectives(self.trace) else None
            self._transfers = by_arrival(self.trace) | (exact or {})
        return self._transfers

    @transfers.setter
    def transfers(self, known: Transfers) -> None:
        self._transfers = known

    @property
    def states(self) -> States:
        """Return how much of its time each rank computed, waited for others, and transferred data.

        Returns
        -------
        States
            An object with an array for each state, and with the method ``table()``.
        """
        return states_in(self)

    def _sends(self, rank: int) -> Iterator[Op]:
        return (op for op in self.trace if op.kind == "send" and op.rank == rank)

    def timeline(
        self,
        *,
        width: float | None = None,
        ranks: Iterable[int] | None = None,
        between: tuple[float, float] | None = None,
    ) -> Figure:
        """Draw the run: one lane per rank, ops as boxes, messages as arrows.

        Parameters
        ----------
        width : float, optional
            Width in inches. The default is 9.
        ranks : iterable of int, optional
            The ranks to show, from top to bottom. The default is all ranks.
        between : (float, float), optional
            First and last second to show. The default is the whole run.

        Returns
        -------
        matplotlib.figure.Figure
        """
        return draw.draw_timeline(self, width=width, ranks=ranks, between=between)

    def play(
        self,
        *,
        ranks: Iterable[int] | None = None,
        between: tuple[float, float] | None = None,
    ) -> Player:
        """Show the run as a player in a notebook: play it, scrub, zoom, and hover over its calls.

        Parameters
        ----------
        ranks : iterable of int, optional
            The ranks to show, from top to bottom. The default is all ranks, or the first 64 ranks
            if there are more.
        between : (float, float), optional
            First and last second to show. The default is the whole run.

        Returns
        -------
        Player
            A widget. If the notebook cannot show widgets, the timeline of the run appears instead.
            If the run has more than 1,000 events, the player shows only some of the events, and
            says how many it shows.
        """
        return draw.Player(self, ranks, between)

    def bubble(self) -> Bubble:
        """Return the share of time that ranks spent outside of the work that the program named.

        simlib counts the time from the start of the first piece on any rank to the end of the last
        piece on any rank. In a pipeline, this is one step. `simlib.span` names pieces of work, and
        torch's pipeline schedules name their own pieces.

        Returns
        -------
        Bubble
            ``share`` is the share over all ranks. ``by_rank``, ``busy_s`` and ``idle_s`` are
            numbers for each rank.

        Raises
        ------
        InvalidCallError
            The run has no pieces.
        """
        return bubble_in(self)

    def mfu(self, span: str | None = None, /, **numbers: int) -> Utilisation:
        """Return MFU and HFU of each rank: the time at the full rate divided by the real time.

        The time at the full rate is the time that the rank's operations would take at the device's
        full rate for their dtype. This rate is in ``Device(rates=...)``, or it is ``flops_per_s``.
        simlib counts matrix products, convolutions and attention, as in ``run.flops``. In
        causal attention, simlib also counts the scores that the mask removes, as the formulas of
        most publications do. ``hfu`` (hardware flops
        utilisation) includes operations that activation checkpointing computes again, and ``mfu``
        (model flops utilisation) does not. An operation counts as recomputed if it runs within
        backward and builds a graph. With ``create_graph=True`` every operation of backward counts
        as recomputed. Fused attention recomputes scores in its own backward. These operations count
        as operations of the model, so ``mfu`` includes them.

        Parameters
        ----------
        span : str, optional
            Count only operations that a `simlib.span` of this name launched. simlib then divides by
            the time in which the device worked on the span. Without a name, simlib counts all
            operations, and divides by the time that the rank spent in its function.
        **numbers : int
            Count only spans with these numbers: ``run.mfu("step", number=3)``.

        Returns
        -------
        Utilisation
            ``mfu``, ``hfu``, ``flops``, ``recomputed_flops`` and ``time_s`` are numbers for each
            rank.

        Raises
        ------
        InvalidCallError
            The device has no rates, the run was not simulated, or there is no such span.
        """
        return utilisation_in(self, span, numbers)

    def exposed(self, span: str | None = None, /, **numbers: int) -> Exposed:
        """Return how long each rank's device communicated while it computed nothing.

        Parameters
        ----------
        span, **numbers
            Count only the time in which the device worked on spans with this name and these
            numbers, as for `mfu`.

        Returns
        -------
        Exposed
            ``exposed_s``, ``communicating_s`` and ``computing_s`` are numbers for each rank.
            ``share`` is the share over all ranks.

        Raises
        ------
        InvalidCallError
            The device is synchronous, or the run used real ranks without ``profile=True``, or there
            is no such span.
        """
        return exposed_in(self, span, numbers)

    def stragglers(self) -> Stragglers:
        """Find the ranks that are late for collectives, and how long other ranks waited for them.

        Step times do not show late ranks, because waiting ranks take as long as the late rank.

        Returns
        -------
        Stragglers
            ``ranks`` lists the late ranks. ``late_s`` and ``longest_s`` are numbers for each rank.
            ``in_words()`` gives the answer in a sentence.

        Raises
        ------
        InvalidCallError
            The run was simulated on asynchronous devices. The ops of such a run show only when the
            host called them, not when the device ran them.
        """
        if self.engine == "simulated" and self.profile:
            raise InvalidCallError(
                "run.stragglers() compares when ranks reached collectives. But with asynchronous "
                "devices, the trace says only when the host called each op: see run.exposed() for "
                "the waits of each rank"
            )
        return stragglers_of(self.trace)

    def heat_map(self) -> Figure:
        """Draw how many bytes each rank sent to each rank (`traffic`). Returns a matplotlib
        Figure."""
        return draw.draw_traffic(self)

    def replay(self, cluster: Cluster, placement: str | list[int] = "block", **options: Any) -> Run:
        """Compute the times of the recorded ops on another cluster, without running the program.

        Computing between ops takes as long as in the record, and ``cluster`` determines the times
        of ops. You can replay a run of any engine. A receive from any source gets its message from
        the same sender as in the record.

        Parameters
        ----------
        cluster : Cluster
        placement : str or list of int
            As for `simulate`.
        **options
            ``sends``, ``eager_limit_bytes``, ``algorithms``, ``expand``, ``slow`` and the algorithm
            of a kind of collective, as for `simulate`. simlib draws one factor of a jitter for the
            computing before each op, because the record does not contain calls of `simlib.compute`.

        Returns
        -------
        Run
            A run with the same results and output, and with ``engine="replayed"``.
        """
        # No other run needs the simulated machine.
        from ..clockwork.replay import replay, transfers_of
        from ..clockwork.simulation_options import replay_options

        on_gpus = any(one is not None and one.on == "gpu" for one in self.profile or ())
        if self.profile and (on_gpus or self.engine == "simulated"):
            raise InvalidCallError(
                "a run on an asynchronous device cannot be replayed: its trace says when a rank "
                "called each op, not what its streams computed in between. Simulate again instead"
            )
        self._check_all_ran(
            "a replay needs", "simulate on the other cluster, or simulate all ranks"
        )
        chosen = replay_options(self.world_size, **options)
        trace, wire = replay(self.trace, cluster, placement, chosen)
        again = Run(self.name, trace, self.results, self.output, engine="replayed")
        again.wire = wire
        again.transfers_by(partial(transfers_of, trace, cluster, placement, chosen))
        again.repeats = self.repeats
        return again

    def transfers_by(self, exact: Callable[[], Transfers | None]) -> None:
        """Set a function that finds exact `transfers`; simlib calls it when they are needed."""
        self._exact = exact

    def save(self, path: str | Path) -> Path:
        """Write the trace as Chrome trace JSON, which Perfetto and chrome://tracing open.

        `simlib.load` reads the file. The file contains results only if they are plain data, tensors
        or arrays. Returns the path.

        Raises
        ------
        InvalidCallError
            The file's name has the ending of a picture, such as ``.png``.
        """
        path = Path(path)
        if path.suffix.lower() in PICTURES:
            raise InvalidCallError(
                f"run.save writes a trace, as JSON, but {path.name} is the name of a picture: "
                f'write a picture with run.timeline().savefig("{path.name}")'
            )
        return write_chrome_trace(self, path)

    def to_recorder(self, folder: str | Path, last: int | None = None) -> Path:
        """Write a pickle for each rank, as torch's flight recorder would have dumped it.

        ``torchfrtrace FOLDER`` reads these dumps like the dumps of a job on NCCL. The dumps do not
        contain roots, reduce ops, tags and splits. Ranks that died and ranks without a record leave
        no dump.

        Parameters ---------- folder : str or Path
            The folder for the files ``nccl_trace_rank_N``. simlib creates the folder if it does not
            exist.
        last : int, optional
            Write only this many of the last entries of each rank, like a flight recorder with a
            buffer of this length. By default simlib writes all entries.

        Returns ------- Path
            The folder.

        Raises
        ------
        InvalidCallError
            Not all ranks ran, ``last`` is less than 1, or the folder contains dumps of other ranks.
        """
        from ..formats.recorder_dumps import write_dumps

        self._check_all_ran("dumps need")
        return write_dumps(self.trace, folder, last)

    def to_chakra(self, folder: str | Path) -> Path:
        """Write the run as Chakra's execution traces, which ASTRA-sim and others read.

        Each rank's file contains the rank's calls. Its computing between two calls is a node of
        work, with a duration in microseconds. `simlib.load_chakra` reads the files, without the
        results of the ranks.

        Parameters
        ----------
        folder : str or Path
            The folder for the files ``chakra.N.et`` and ``comm_groups.json``. simlib creates the
            folder if it does not exist.

        Returns
        -------
        Path
            The folder.

        Raises
        ------
        InvalidCallError
            A rank never left its function, not all ranks ran, the device is asynchronous, or the
            folder contains traces of ranks that this run does not have.
        """
        from ..formats.chakra import write_trace

        self._check_all_ran("Chakra's traces need")
        if self.engine == "simulated" and self.profile:
            raise InvalidCallError(
                "a run on an asynchronous device cannot be written for Chakra: its trace says when "
                "a rank called each op, not what its streams computed in between"
            )
        return write_trace(self.trace, folder, {"name": self.name, "engine": self.engine})

    def to_html(
        self,
        path: str | Path,
        *,
        ranks: Iterable[int] | None = None,
        between: tuple[float, float] | None = None,
    ) -> Path:
        """Write the run as one HTML file that shows the player in any browser.

        The file needs no kernel, no network and no web server. The page shows the table and the
        ranks' output below the player. If the run failed, the page shows the verdict and the
        picture of waits above the player. An address that ends in ``#dark`` or ``#light`` chooses
        the theme. The default is the theme of the system.

        Parameters
        ----------
        path : str or Path
            A file that ends in .html. An existing file is overwritten.
        ranks : iterable of int, optional
            The ranks to show, from top to bottom. The default is all ranks, or the first 64 ranks
            if there are more.
        between : (float, float), optional
            First and last second to show. The default is the whole run.

        Returns
        -------
        Path

        Raises
        ------
        InvalidCallError
            The path does not end in .html, or its folder does not exist.
        """
        title = f"{self.name} on {ranks_text(self)}"
        shown = ranks, between
        return draw.save_page(
            path, lambda: draw.page_of(title, [self], shown=shown, more=draw.parts_of(self))
        )

    def _check_all_ran(self, who_needs: str, advice: str = "simulate all ranks") -> None:
        if self.trace.missing:
            raise InvalidCallError(
                f"there is no record of {ranks_in_words(self.trace.missing)}, but {who_needs} the "
                "ops of all ranks: add the missing files"
            )
        if len(self.ran) < self.world_size:
            raise InvalidCallError(
                f"only {ranks_in_words(self.ran)} ran, but {who_needs} the ops of all ranks: "
                f"{advice}, without alike="
            )

    def ended_in(self, failure: Any) -> None:
        """Store the error that ended the run, and store the run in the error."""
        self.failure, self.graph = str(failure), getattr(failure, "graph", None)
        failure.run = self

    def table(self) -> str:
        """The run as plain text. This text is the same for every repeat of the same program."""
        return run_table(self)

    def in_words(self) -> str:
        """Describe the run's picture in sentences, for readers who cannot see it.

        The sentences name the ranks that wait, the time and line of each wait, the messages and the
        collectives. If the run failed, the sentences also name the reason.
        """
        return run_in_words(self)

    def __repr__(self) -> str:
        return self.table()

    def _repr_png_(self) -> bytes:
        return draw.png_of(self.timeline())


def make_run(monitor: RunMonitor) -> Run:
    """The `Run` that the logs and answers of a monitor contain now."""
    trace, groups = make_trace(monitor)
    run = Run(
        name=monitor.name,
        trace=trace,
        results=[
            content if word == "result" else None
            for word, content in (
                monitor.answers.get(rank, ("none", None)) for rank in range(monitor.world_size)
            )
        ],
        output=[output.text for output in monitor.outputs],
        engine=monitor.engine,
    )
    on_gpus = [log.gpu_memory() for log in monitor.logs]
    run.memory = monitor.memory or (on_gpus if any(on_gpus) else None)
    run.flops, run.processes = monitor.flops, monitor.processes
    origin_s = origin_of(monitor)
    work = [log.work(origin_s) for log in monitor.logs]
    run.work = work if any(work) else None
    run.shared = monitor.shared
    if monitor.wire is not None:
        run.wire = [replace(m, group=groups.get(m.group, m.group)) for m in monitor.wire]
    return run


def make_trace(monitor: RunMonitor) -> tuple[Trace, dict[Group, Group]]:
    """The `Trace` of the ranks' logs, and the names of its groups. Its times count from the first
    entry."""
    logs = monitor.logs
    origin_s = origin_of(monitor)
    ops = [op for log in logs for op in log.ops(origin_s, monitor.cells) if op.kind != "new_group"]
    ops.sort(key=lambda op: (op.post_s, op.rank))
    forgotten = monitor.forgotten if monitor.forgotten else None
    if forgotten is not None:
        ops = forgotten.without_halves(ops)
    groups = name_groups(ops)
    trace = Trace(
        world_size=monitor.world_size,
        ops=ops,
        spans=[(_since(origin_s, log.entered_s), _since(origin_s, log.left_s)) for log in logs],
        dropped=sum(log.dropped for log in logs),
        deaths={rank: moment - origin_s for rank, moment in sorted(monitor.died_s.items())},
        pieces=sorted(
            (piece for log in logs for piece in log.pieces(origin_s)),
            key=lambda piece: (piece.start_s, piece.rank),
        ),
        forgotten=forgotten,
    )
    return trace, groups


def origin_of(monitor: RunMonitor) -> float:
    """When the first rank entered the function: the zero of all times of a run."""
    entries = (log.entered_s for log in monitor.logs)
    return min((entered_s for entered_s in entries if entered_s is not None), default=0.0)


def _since(origin_s: float, moment_s: float | None) -> float | None:
    return None if moment_s is None else moment_s - origin_s


def is_quiescent(trace: Trace) -> bool:
    """Whether every op ended and every message was received. If so, another run can use the
    world."""
    received = sum(1 for op in trace if op.kind == "recv")
    messages = trace.messages
    return (
        not trace.dropped
        and trace.forgotten is None
        and all(op.done for op in trace)
        and len(messages) == received
        and all(message.recv is not None for message in messages)
    )

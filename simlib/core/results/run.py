"""`Run`: what every engine gives back, and how it is made of what its monitor knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import draw
from ..diagnose.findings import Finding
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
        What each rank returned, by rank; None for a rank that did not return, or not run.
    output : list of str
        What each rank printed, by rank.
    trace : Trace
        Every op of every rank.
    time_s : float or None
        Seconds from the last rank's entry to the last exit or death; None where a rank never left.
    deaths : dict of int to float
        Rank -> when it died, in seconds since the first rank entered.
    findings : list
        What looked wrong without stopping the run.
    failure : str or None
        The words of the error that the run ended in.
    graph : WaitGraph or None
        Who waited for whom, where ranks waited for ever.
    engine : str
        ``"real"``: processes of this machine, wall clock; ``"simulated"``: a modelled cluster,
        virtual clock; ``"replayed"``: a recorded run on another cluster.
    wire : list of WireMessage or None
        With ``simulate(..., expand=True)``: the messages that the collectives were made of.
    memory : list of Ledger or GpuMemory, or None
        What each simulated rank held, where the cluster has a device; of real ranks, the peaks of
        their GPUs. None where no rank has either, and for a rank that does not.
    flops : list of int or None
        Floating-point operations of each simulated rank, of all its threads; 0 where the cluster
        has no device that takes time for them.
    work : list of Work or None
        The same with what was recomputed of them, and the time they take at the rates of the
        device; None where it has none, and for a rank that never left its function. Those of each
        `simlib.span` are in ``run.trace.pieces``.
    processes : list of int or None
        How many processes each simulated rank started. Nothing that they compute is counted.
    profile : list of Profile or None
        What each rank's GPU did, by rank, None for a rank that died: with ``run(profile=True)``,
        and of a simulation on a cluster whose device is asynchronous.
    attempts : list of Run
        With ``restarts=``: this run and those before it that failed, in order.
    began_s : float
        When it began, in seconds since the first of its attempts did.
    seed : int or None
        What the ranks' seeds were drawn from: with ``seed=`` of the same number their random
        numbers come again.
    shared : dict of str to str
        Of a simulation: packages that the ranks imported and of which all have one copy, and why.
    classes : list of list of int, or None
        With ``simulate(alike=...)``: the ranks of each class, of which the first and the last ran.
    ran : sequence of int
        The ranks whose ops are in the trace: all, but for those that others stood for.
    repeats : bool
        Whether every repeat takes the same time to the bit: a virtual clock, no measured compute.
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
        """Seconds from the last rank's entry to the last exit; None where a rank never left."""
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
        """Rank -> when it died, in seconds since the first rank entered."""
        return self.trace.deaths

    @property
    def messages(self) -> list[int]:
        """Point-to-point messages sent, by rank (collectives are not counted here)."""
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

        Of a run on real ranks, data move from the moment at which the last of those has come whom
        the rank needs; of a simulation, while one of the messages of its rank is under way, or is
        added up. An op for which somebody never came is not in there.
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
        """How much of its time each rank computed, waited for others, and transferred data.

        Returns
        -------
        States
            With an array for each state, and ``table()``.
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
            Width in inches (9).
        ranks : iterable of int, optional
            The ranks to show, from top to bottom (all).
        between : (float, float), optional
            First and last second to show (the whole run).

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
        """Show the run as a player, in a notebook: play it, scrub, zoom, ask each call what it was.

        Parameters
        ----------
        ranks : iterable of int, optional
            The ranks to show, from top to bottom (all; of many, the first 64).
        between : (float, float), optional
            First and last second to show (the whole run).

        Returns
        -------
        Player
            A widget. Where no widgets are shown, the timeline of the same run stands in its place.
            Of more than 1,000 events some are shown, and the player says how many.
        """
        return draw.Player(self, ranks, between)

    def bubble(self) -> Bubble:
        """How much of their time ranks computed none of the pieces that the program has named.

        The time is that from the first piece's start to the last one's end, of any rank: the step
        of a pipeline. `simlib.span` names pieces; torch's pipeline schedules name their own.

        Returns
        -------
        Bubble
            With ``share``, and by rank ``by_rank``, ``busy_s`` and ``idle_s``.

        Raises
        ------
        InvalidCallError
            The run has no pieces.
        """
        return bubble_in(self)

    def mfu(self, span: str | None = None, /, **numbers: int) -> Utilisation:
        """Which share of its time each rank's device would need at its full rate: MFU and HFU.

        The rate is that of the operation's dtype: ``Device(rates=...)``, or ``flops_per_s``. What
        counts are products of matrices, convolutions and attention, as in ``run.flops``, with both
        halves of causal attention, as in the formulas of most publications. ``mfu`` (model flops
        utilisation) leaves out what checkpoints of activations compute anew; ``hfu`` (hardware
        flops utilisation) counts it. Recomputed is what runs within backward and builds a graph:
        with ``create_graph=True`` that is all of it. Scores that fused attention computes again
        in its own backward count as the model's.

        Parameters
        ----------
        span : str, optional
            Only what a `simlib.span` of this name has launched, over the time in which the device
            worked at it. Without it: all, over the time that the rank was in its function.
        **numbers : int
            Only spans with these numbers: ``run.mfu("step", number=3)``.

        Returns
        -------
        Utilisation
            With ``mfu``, ``hfu``, ``flops``, ``recomputed_flops`` and ``time_s`` by rank.

        Raises
        ------
        InvalidCallError
            The device has no rates, the run was not simulated, or there is no such span.
        """
        return utilisation_in(self, span, numbers)

    def exposed(self, span: str | None = None, /, **numbers: int) -> Exposed:
        """How long communication was under way on each rank's device while nothing computed.

        Parameters
        ----------
        span, **numbers
            Only while the device worked at spans of this name and these numbers, as for `mfu`.

        Returns
        -------
        Exposed
            With ``exposed_s``, ``communicating_s`` and ``computing_s`` by rank, and ``share``.

        Raises
        ------
        InvalidCallError
            The device is synchronous, the run was on real ranks without ``profile=True``, or
            there is no such span.
        """
        return exposed_in(self, span, numbers)

    def heat_map(self) -> Figure:
        """Draw `traffic`: who sent how many bytes to whom. Returns a matplotlib Figure."""
        return draw.draw_traffic(self)

    def replay(self, cluster: Cluster, placement: str | list[int] = "block", **options: Any) -> Run:
        """Time the recorded ops anew on another cluster, without running anything.

        What a rank did between its ops takes as long as it was recorded; ops take what ``cluster``
        makes them take. Works for runs of every engine. A receive of any source keeps the sender
        it had.

        Parameters
        ----------
        cluster : Cluster
        placement : str or list of int
            As for `simulate`.
        **options
            ``sends``, ``eager_limit_bytes``, ``algorithms``, ``expand``, ``slow`` and the algorithm
            of a kind of collective, as for `simulate`. A jitter is drawn anew for what a rank did
            before each op; calls of `simlib.compute` are not known here.

        Returns
        -------
        Run
            With the same results and output, and ``engine="replayed"``.
        """
        # No other run needs the simulated machine.
        from ..clockwork.replay import replay, transfers_of
        from ..clockwork.simulation_options import replay_options

        on_gpus = any(one is not None and one.on == "gpu" for one in self.profile or ())
        if self.profile and (on_gpus or self.engine == "simulated"):
            raise InvalidCallError(
                "a run on an asynchronous device cannot be replayed: its trace says when a rank "
                "called each op, not what its streams computed in between. Simulate it again"
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
        """Say how to find exact `transfers`, as of what was simulated; asked where they matter."""
        self._exact = exact

    def save(self, path: str | Path) -> Path:
        """Write the trace as Chrome trace JSON, which Perfetto and chrome://tracing open.

        `simlib.load` reads it back, without what the ranks returned. Returns the path written.

        Raises
        ------
        InvalidCallError
            The name is that of a picture.
        """
        path = Path(path)
        if path.suffix.lower() in PICTURES:
            raise InvalidCallError(
                f"run.save writes a trace, as JSON, and {path.name} is the name of a picture: "
                f'write that by run.timeline().savefig("{path.name}")'
            )
        return write_chrome_trace(self, path)

    def to_recorder(self, folder: str | Path, last: int | None = None) -> Path:
        """Write what torch's flight recorder would have written: a dump of each rank, as a pickle.

        ``torchfrtrace FOLDER`` reads them, as it reads those of a job on NCCL. They do not hold
        roots, reduce ops, tags and splits; ranks that died and ranks without record leave none.

        Parameters
        ----------
        folder : str or Path
            Files ``nccl_trace_rank_N`` are put into it. It is made where it is not there.
        last : int, optional
            The last entries of each rank only, as in a ring of this length (all).

        Returns
        -------
        Path
            The folder.

        Raises
        ------
        InvalidCallError
            Not all ranks ran, ``last`` is less than 1, or the folder has dumps of other ranks.
        """
        from ..formats.recorder_dumps import write_dumps

        self._check_all_ran("dumps need")
        return write_dumps(self.trace, folder, last)

    def to_chakra(self, folder: str | Path) -> Path:
        """Write the run as Chakra's execution traces, which ASTRA-sim and others read.

        Each rank's file has what it did between its calls as nodes of work, in microseconds, and
        its calls; `simlib.load_chakra` reads them back, without what the ranks returned.

        Parameters
        ----------
        folder : str or Path
            Files ``chakra.N.et`` and ``comm_groups.json`` are put into it. It is made where it is
            not there.

        Returns
        -------
        Path
            The folder.

        Raises
        ------
        InvalidCallError
            A rank never left its function, not all ranks ran, it ran on an asynchronous device, or
            the folder has traces of another run.
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
        """Write the run as one HTML file: the player with its data, for any browser.

        The file needs no kernel and no network, and opens from a folder. Below the player are the
        table and what the ranks printed; above it, of a run that failed, the verdict and who waits
        for whom. An address that ends in ``#dark`` or ``#light`` names the theme, else it is that
        of the system.

        Parameters
        ----------
        path : str or Path
            A file that ends in .html; one that is there is written anew.
        ranks : iterable of int, optional
            The ranks to show, from top to bottom (all; of many, the first 64).
        between : (float, float), optional
            First and last second to show (the whole run).

        Returns
        -------
        Path

        Raises
        ------
        InvalidCallError
            The path is that of no page, or its folder is not there.
        """
        title = f"{self.name} on {ranks_text(self)}"
        return draw.save_page(path, title, [self], None, (ranks, between), draw.parts_of(self))

    def _check_all_ran(self, who_needs: str, advice: str = "simulate all ranks") -> None:
        if len(self.ran) < self.world_size:
            raise InvalidCallError(
                f"only {ranks_in_words(self.ran)} ran, and {who_needs} the ops of all ranks: "
                f"{advice}: leave alike= out"
            )

    def ended_in(self, failure: Any) -> None:
        """Say which error the run ended in, and let the error know the run."""
        self.failure, self.graph = str(failure), getattr(failure, "graph", None)
        failure.run = self

    def table(self) -> str:
        """The run as plain text: the same for every repeat of the same program."""
        return run_table(self)

    def in_words(self) -> str:
        """What the picture of the run shows, in sentences: for whoever does not see it.

        Who waits for whom, how long and at which line, what was sent; of a run that failed, why.
        """
        return run_in_words(self)

    def __repr__(self) -> str:
        return self.table()

    def _repr_png_(self) -> bytes:
        return draw.png_of(self.timeline())


def make_run(monitor: RunMonitor) -> Run:
    """The `Run` of what is in the logs and answers now."""
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
    """The `Trace` of the ranks' logs, and the names of its groups; zero is the first entry."""
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
    """Whether every op ended and every message was received: the world may serve again."""
    received = sum(1 for op in trace if op.kind == "recv")
    messages = trace.messages
    return (
        not trace.dropped
        and trace.forgotten is None
        and all(op.done for op in trace)
        and len(messages) == received
        and all(message.recv is not None for message in messages)
    )

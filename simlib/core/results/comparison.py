"""`compare`: the messages and collectives of several runs, side by side."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import draw
from ..draw.display import Displayed
from ..draw.text import comparison_in_words
from ..model.errors import InvalidCallError
from ..model.trace import Site
from ..model.words import aligned, short_bytes
from .run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class ComparedOp:
    """One kind of op, and how often it occurs in each run.

    Attributes
    ----------
    call : str
        ``"all_reduce(SUM)"``, ``"message"``.
    nbytes : int
        The largest payload of any rank that takes part.
    ranks : int
        How many ranks take part. A message has 2.
    label : str
        ``"all_reduce(SUM), 38.9 kB"``. If only some ranks of the world take part, the label also
        contains their number.
    counts : tuple of int
        By run: the number of such collectives or messages.
    lines : tuple of dict of str to int
        By run: the learner's lines that called the op, such as ``"main, line 12:
        dist.all_reduce(x)"``, and how often each line called it.
    """

    call: str
    nbytes: int
    ranks: int
    label: str
    counts: tuple[int, ...]
    lines: tuple[dict[str, int], ...]

    @property
    def is_common(self) -> bool:
        """Whether the op occurs equally often in all runs."""
        return len(set(self.counts)) == 1


@dataclass(frozen=True, repr=False, eq=False)
class Comparison(Displayed):
    """The ops of several runs, side by side: see `compare`.

    Attributes
    ----------
    names : tuple of str
        The names of the runs.
    ops : list of ComparedOp
        Ops that occur equally often in all runs come first, and the other ops follow. Each of these
        two parts begins with the ops of the first run, in the order in which they first appear. The
        ops that occur only in later runs follow.
    runs : tuple of Run
        The runs that `to_html` shows. The tuple is empty if you compared only some ops of the runs.
    """

    names: tuple[str, ...]
    ops: list[ComparedOp]
    runs: tuple[Run, ...] = ()

    @property
    def common(self) -> list[ComparedOp]:
        """The ops that all runs have equally often."""
        return [op for op in self.ops if op.is_common]

    @property
    def differences(self) -> list[ComparedOp]:
        """The ops that occur more often in some runs than in others."""
        return [op for op in self.ops if not op.is_common]

    def __repr__(self) -> str:
        rows = [("", *self.names)]
        for op in self.ops:
            rows.append((op.label, *(str(count) if count else "." for count in op.counts)))
        lines = aligned(rows)
        for index, name in enumerate(self.names):
            by_line = defaultdict(list)
            for op in self.differences:
                for line, count in op.lines[index].items():
                    by_line[line].append(f"{count} x {op.label}" if count > 1 else op.label)
            if by_line:
                lines += ["", f"{name}, ops whose number differs:"]
                lines += [f"  {line}\n      {'; '.join(sent)}" for line, sent in by_line.items()]
        return "\n".join(lines)

    def picture(self) -> Figure:
        """Draw the comparison, with a row for each kind of op and a column for each run."""
        return draw.draw_comparison(self.names, self._rows())

    def in_words(self) -> str:
        """Describe the picture in sentences, for readers who cannot see it."""
        return comparison_in_words(self.names, self._rows())

    def _rows(self) -> list[tuple[str, tuple[int, ...], bool]]:
        return [(op.label, op.counts, op.is_common) for op in self.ops]

    def to_html(
        self,
        path: str | Path,
        *,
        ranks: Iterable[int] | None = None,
        between: tuple[float, float] | None = None,
    ) -> Path:
        """Write one HTML file with the runs' players on one time axis, and with their differences.

        The players move together. If you play, zoom or step in one player, all other players
        follow. The file needs no kernel and no network. See `Run.to_html`.

        Raises
        ------
        InvalidCallError
            The same cases as for `Run.to_html`, or you compared only some ops, so there are no
            whole runs to show.
        """
        if not self.runs:
            raise InvalidCallError(
                "this comparison has no runs to show: use a comparison that compare() returned"
            )
        title = f"{' and '.join(self.names)}, compared"
        shown = ranks, between
        return draw.save_page(
            path,
            lambda: draw.page_of(title, self.runs, self.names, shown, draw.differences_of(self)),
        )

    def _repr_png_(self) -> bytes:
        return draw.png_of(self.picture())


def compare(*runs: Mapping[str, Run] | Iterable[Run] | Run) -> Comparison:
    """Compare the ops of several runs side by side: the kinds, the numbers and the lines of ops.

    Parameters
    ----------
    *runs : Run
        Two or more runs. You can also pass a single sequence of runs, or a single dict from names
        to runs. Without a dict, simlib calls each run by the name of its function.

    Returns
    -------
    Comparison

    Raises
    ------
    InvalidCallError
        There are fewer than two runs, or their worlds have different sizes.

    Examples
    --------
    ::

        both = simlib.compare({"by hand": run, "DDP": run_of_ddp})
        both              # the picture
        print(both)       # as text, with the lines
        both.to_html("compared.html")  # both playing on one time axis

    **Cost** O(n) for n ops.
    """
    given = runs[0] if len(runs) == 1 and not isinstance(runs[0], Run) else runs
    named: Mapping[str, Any] = given if isinstance(given, Mapping) else _by_name(list(given))
    if len(named) < 2:
        raise InvalidCallError("simlib.compare needs two runs or more: compare(one, another)")
    for name, run in named.items():
        if not isinstance(run, Run):
            raise InvalidCallError(f"simlib.compare: {name!r} is {type(run).__name__}, not a run")
    sizes = {name: run.world_size for name, run in named.items()}
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{name} has {size} ranks" for name, size in sizes.items())
        raise InvalidCallError(f"simlib.compare needs runs with equally many ranks: {told}")
    counted = [_counted(run) for run in named.values()]
    keys = dict.fromkeys(key for found in counted for key in found)
    ops = [
        ComparedOp(
            *key,
            label=_label(*key, max(sizes.values())),
            counts=tuple(sum(found.get(key, {}).values()) for found in counted),
            lines=tuple(dict(found.get(key, {})) for found in counted),
        )
        for key in keys
    ]
    in_order = sorted(ops, key=lambda op: not op.is_common)
    return Comparison(tuple(named), in_order, tuple(named.values()))


def _by_name(runs: list[Any]) -> dict[str, Any]:
    names: dict[str, Run] = {}
    for run in runs:
        name, number = getattr(run, "name", type(run).__name__), 2
        while name in names:
            name, number = f"{run.name} {number}", number + 1
        names[name] = run
    return names


def _counted(run: Run) -> dict[tuple[str, int, int], Counter[str]]:
    """``{(call, nbytes, ranks): {line: count}}`` of a run's ops, in order of first appearance."""
    found: dict[tuple[str, int, int], Counter[str]] = defaultdict(Counter)
    together = [(list(one.ops.values()), one.nbytes) for one in run.trace.collectives]
    together += [([message.send], message.nbytes) for message in run.trace.messages]
    for ops, nbytes in sorted(together, key=lambda one: one[0][0].post_s):
        first = ops[0]
        is_message = first.is_p2p
        key = "message" if is_message else first.call, nbytes, 2 if is_message else len(ops)
        found[key][_line(first.site)] += 1
    return found


def _label(call: str, nbytes: int, ranks: int, world_size: int) -> str:
    text = f"{call}, {short_bytes(nbytes)}" if nbytes else call
    return text if call == "message" or ranks == world_size else f"{text}, {ranks} ranks"


def _line(site: Site) -> str:
    return f"{site.place}: {site.line_text}" if site.line_text else site.place

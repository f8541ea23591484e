"""`compare`: what the ranks of several runs said to each other, side by side."""

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
    """One sort of op, and how often it came in each of the runs.

    Attributes
    ----------
    call : str
        ``"all_reduce(SUM)"``, ``"message"``.
    nbytes : int
        The largest payload any of its ranks brought.
    ranks : int
        How many ranks take part; 2 in a message.
    label : str
        ``"all_reduce(SUM), 38.9 kB"``; of less than the world with its ranks.
    counts : tuple of int
        By run: collectives, or messages.
    lines : tuple of dict of str to int
        By run: the learner's lines that it came from, ``"main, line 12: dist.all_reduce(x)"``, and
        how often from each.
    """

    call: str
    nbytes: int
    ranks: int
    label: str
    counts: tuple[int, ...]
    lines: tuple[dict[str, int], ...]

    @property
    def is_common(self) -> bool:
        """Whether it came equally often in all runs."""
        return len(set(self.counts)) == 1


@dataclass(frozen=True, repr=False, eq=False)
class Comparison(Displayed):
    """What several runs sent, see `compare`.

    Attributes
    ----------
    names : tuple of str
        The runs.
    ops : list of ComparedOp
        Those common to all first, then in order of the runs in which they come first.
    runs : tuple of Run
        For `to_html`; a comparison of chosen ops needs none.
    """

    names: tuple[str, ...]
    ops: list[ComparedOp]
    runs: tuple[Run, ...] = ()

    @property
    def common(self) -> list[ComparedOp]:
        """What came equally often in all runs."""
        return [op for op in self.ops if op.is_common]

    @property
    def differences(self) -> list[ComparedOp]:
        """What came in some runs more often than in others."""
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
                lines += ["", f"{name}, what not all have so often:"]
                lines += [f"  {line}\n      {'; '.join(sent)}" for line, sent in by_line.items()]
        return "\n".join(lines)

    def picture(self) -> Figure:
        """Draw it: a row for each sort of op, a column for each run."""
        return draw.draw_comparison(self.names, self._rows())

    def in_words(self) -> str:
        """What the picture shows, in sentences: for whoever does not see it."""
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
        """Write the runs as one HTML file: their players on one time axis, and what differs.

        The players go together: what one plays, zooms or steps to, all show. Needs no kernel and
        no network; see `Run.to_html`.

        Raises
        ------
        InvalidCallError
            As `Run.to_html`; or the comparison was made without its runs.
        """
        if not self.runs:
            raise InvalidCallError("this comparison has no runs to show: take that of compare()")
        title = f"{' and '.join(self.names)}, compared"
        return draw.save_page(
            path, title, self.runs, self.names, (ranks, between), draw.differences_of(self)
        )

    def _repr_png_(self) -> bytes:
        return draw.png_of(self.picture())


def compare(*runs: Mapping[str, Run] | Iterable[Run] | Run) -> Comparison:
    """Lay what several runs sent side by side: which ops, how many, and from which lines.

    Parameters
    ----------
    *runs : Run
        Two or more; or, as one argument, a sequence of them, or a dict by their names. Without
        one a run has its function's.

    Returns
    -------
    Comparison

    Raises
    ------
    InvalidCallError
        Fewer than two runs, or worlds of different sizes.

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
            raise InvalidCallError(f"simlib.compare: {name!r} is {type(run).__name__}, and no run")
    sizes = {name: run.world_size for name, run in named.items()}
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{name} has {size} ranks" for name, size in sizes.items())
        raise InvalidCallError(f"simlib.compare takes worlds of one size: {told}")
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
    """``{(call, nbytes, ranks): {line: count}}`` of a run's ops, in order of their first."""
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

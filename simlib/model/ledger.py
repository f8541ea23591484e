"""The memory of one simulated rank as a result: what it held, by category. Pure Python."""

from __future__ import annotations

from dataclasses import dataclass

PARAMETERS = "parameters"
GRADIENTS = "gradients"
OPTIMIZER_STATE = "optimizer state"
OTHER = "activations and temporaries"
CATEGORIES = (PARAMETERS, GRADIENTS, OPTIMIZER_STATE, OTHER)


@dataclass(frozen=True)
class Ledger:
    """Bytes that one rank held, as ``{category: bytes}``.

    The categories are ``parameters`` (what an `nn.Parameter` holds), ``gradients`` (what a
    parameter's ``.grad`` holds), ``optimizer state`` (what a `torch.optim.Optimizer` keeps in
    ``.state``) and ``activations and temporaries``: every other tensor.

    Attributes
    ----------
    rank : int
    current : dict of str to int
        What it holds now: when the run has ended, at its end.
    peak : dict of str to int
        What it held when it held most, told at the end of that moment.
    peak_s : float
        When that was, in virtual seconds.
    history : list of (float, dict of str to int)
        Time in virtual seconds and what was held then, in order, the peak among them. A long run
        is thinned to some hundred points.
    """

    rank: int
    current: dict
    peak: dict
    peak_s: float
    history: list

    @property
    def current_bytes(self):
        """Bytes held now."""
        return sum(self.current.values())

    @property
    def peak_bytes(self):
        """Bytes held at the peak."""
        return sum(self.peak.values())

    def __repr__(self):
        rows = [(f"rank {self.rank}, bytes held", "at the peak", "now")]
        rows += [(name, f"{self.peak[name]:,}", f"{self.current[name]:,}") for name in CATEGORIES]
        rows += [("total", f"{self.peak_bytes:,}", f"{self.current_bytes:,}")]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            f"{name.ljust(widths[0])}  {peak.rjust(widths[1])}  {now.rjust(widths[2])}"
            for name, peak, now in rows
        )


def in_words(held):
    """``{category: bytes}`` as one phrase."""
    return ", ".join(f"{name} {held[name]:,} bytes" for name in CATEGORIES)

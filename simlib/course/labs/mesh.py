"""The mesh lab: ranks cut into data, tensor and pipeline parallelism, for a transformer."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

from ...core import clusters
from ...core.draw.figures import DPI, PAPER, TEXT_PT, TITLE_PT, Picture
from ...core.model.cluster import Device, Link
from ...core.model.errors import check_count
from ...core.model.words import number, seconds_text
from .layers import Layers
from .mesh_model import AXES, Cut, Transformer, check_cluster, refusal, step_of
from .mesh_panels import (
    HEIGHT,
    WIDTH,
    add_panels,
    draw_axes,
    draw_map,
    draw_memory,
    draw_times,
)
from .sliders import Lab, check_choice, menu, slider

POWERS = tuple(2**k for k in range(13))
MAP = POWERS[:6]
"""What tp and pp may be."""
MAX_MICROBATCHES = 256
ORDERS = tuple(" ".join(names) for names in permutations(AXES))
LAYERS, HIDDEN, HEADS = 32, 4096, 32  # "GPT-3 6.7B" of Brown et al. 2020 (arXiv 2005.14165)
SEQUENCE, BATCH, VOCABULARY = 2048, 1024, 51_200  # 2 million tokens a step


def draw_mesh(
    ranks=64,
    tp=8,
    pp=2,
    num_microbatches=16,
    zero=0,
    recompute=True,
    order="tp dp pp",
    *,
    layers=LAYERS,
    hidden=HIDDEN,
    heads=HEADS,
    sequence=SEQUENCE,
    batch=BATCH,
    vocabulary=VOCABULARY,
    cluster=None,
):
    """Draw a step of a transformer on ranks = dp x tp x pp: its time, its bytes, where axes lie.

    The map has the time of a step for every tp and pp, and says what rules the others out. Beside
    it is the chosen cut: the step by its parts, one after the other; bytes of the rank that has
    most; and how many nodes a group of each axis lies on. Times are those of `simlib.scale`: rings
    by `time_of`, 1F1B by `even_pipeline_time`.

    Parameters
    ----------
    ranks : int
        A power of two, 1 to 4,096. What tp and pp leave is dp.
    tp, pp : int
        Powers of two, 1 to 32.
    num_microbatches : int
        Of each replica; a power of two, 1 to 256.
    zero : {0, 1, 2, 3}
        Stage of ZeRO over dp; 0 is none. From stage 2 on, gradients are reduced after each
        micro-batch.
    recompute : bool
        Whether activations are computed again in backward.
    order : str
        The axes, that of neighbouring ranks first: ``"tp dp pp"`` has tp within nodes if it fits.
    layers, hidden, heads, sequence, batch, vocabulary : int
        Of the transformer; ``batch`` counts sequences of a step, on all ranks together.
    cluster : Cluster, optional
        Its nodes are as many as the ranks need. By default eight GPUs of a DGX-2H on a node, each
        with 32 GB, 62.4 Tflop/s (docs/published.md) and a card of 25 GB/s of its own.

    Returns
    -------
    matplotlib.figure.Figure
        Where the model cannot be cut so, with the reason instead of the step.

    Raises
    ------
    InvalidCallError
        A number that the picture has no place for, a cluster without devices.
    """
    mesh = _Mesh(Transformer(layers, hidden, heads, sequence, batch, vocabulary), cluster)
    state = ranks, tp, pp, num_microbatches, zero, recompute, order
    _check(*state)
    return mesh.draw(*state)


def mesh_lab(
    ranks=64,
    tp=8,
    pp=2,
    num_microbatches=16,
    zero=0,
    recompute=True,
    order="tp dp pp",
    *,
    layers=LAYERS,
    hidden=HIDDEN,
    heads=HEADS,
    sequence=SEQUENCE,
    batch=BATCH,
    vocabulary=VOCABULARY,
    cluster=None,
):
    """The picture of `draw_mesh` with sliders for the cut.

    Parameters
    ----------
    ranks, tp, pp, num_microbatches, zero, recompute, order
        As for `draw_mesh`; where the sliders stand first.
    layers, hidden, heads, sequence, batch, vocabulary, cluster
        As for `draw_mesh`.

    Returns
    -------
    Lab
    """
    mesh = _Mesh(Transformer(layers, hidden, heads, sequence, batch, vocabulary), cluster)
    _check(ranks, tp, pp, num_microbatches, zero, recompute, order)
    counts = POWERS[: MAX_MICROBATCHES.bit_length()]
    again = {"computed again in backward": True, "kept until backward": False}
    return Lab(
        mesh,
        {
            "ranks": slider("ranks R", POWERS, ranks, "{:,}".format),
            "tp": slider("tensor tp", MAP, tp),
            "pp": slider("pipeline pp", MAP, pp),
            "num_microbatches": slider("micro-batches", counts, num_microbatches),
            "zero": slider("ZeRO over dp", (0, 1, 2, 3), zero, _zero_text),
            "recompute": menu("activations", again, recompute),
            "order": menu("neighbours first", {each: each for each in ORDERS}, order),
        },
    )


def _zero_text(stage):
    return f"stage {stage}" if stage else "none"


def _check(ranks, tp, pp, num_microbatches, zero, recompute, order):
    check_choice("ranks", ranks, POWERS)
    check_choice("tp", tp, MAP)
    check_choice("pp", pp, MAP)
    check_choice("num_microbatches", num_microbatches, POWERS[: MAX_MICROBATCHES.bit_length()])
    check_choice("zero", zero, (0, 1, 2, 3))
    check_choice("recompute", recompute, (True, False))
    check_choice("order", order, ORDERS)


def machine():
    """A node of a DGX-2H; see `clusters.nvlink_nodes` and docs/published.md for its figures."""
    device = Device(flops_per_s=62.4e12, memory_bytes=32e9)
    return clusters.nvlink_nodes(1, inter=Link(2e-6, 25e9), rails=8, device=device)


class _Mesh(Layers):
    """Map, bars and axes of a cut. Frames and names stay."""

    def __init__(self, model, cluster):
        for name in model.__dataclass_fields__:
            check_count(name, getattr(model, name))
        self.model, self.cluster = model, check_cluster(machine() if cluster is None else cluster)

    def background(self):
        figure = Picture(figsize=(WIDTH, HEIGHT), dpi=DPI, facecolor=PAPER)
        axes = figure.add_axes([0, 0, 1, 1], facecolor=PAPER)
        axes.set_xlim(0, WIDTH)
        axes.set_ylim(HEIGHT, 0)
        axes.set_axis_off()
        add_panels(axes, MAP)
        return figure

    def foreground(self, figure, *state, **named):
        cut, axes = Cut(*state, **named), figure.axes[0]
        cells = {(tp, pp): self._outcome(replace(cut, tp=tp, pp=pp)) for tp in MAP for pp in MAP}
        outcome = cells[cut.tp, cut.pp]
        step = None if isinstance(outcome, tuple) else outcome
        drawn = [*self._title(axes, cut, outcome), *draw_map(axes, MAP, cells, cut)]
        if step is None:
            return drawn
        return [
            *drawn,
            *draw_times(axes, step),
            *draw_memory(axes, step),
            *draw_axes(axes, cut, self.cluster),
        ]

    def _outcome(self, cut):
        """A `MeshStep`, or why there is none: a word and a sentence."""
        refused = refusal(self.model, cut)
        if refused:
            return refused
        step = step_of(self.model, cut, self.cluster)
        return ("link", step) if isinstance(step, str) else step

    def _title(self, axes, cut, outcome):
        model = self.model
        what = (
            f"{number(model.parameters / 1e9)} billion parameters ({model.layers} layers of "
            f"{model.hidden:,}); {model.batch:,} sequences of {model.sequence:,} a step"
        )
        if isinstance(outcome, tuple):
            title = f"{cut.ranks:,} ranks, tp {cut.tp} x pp {cut.pp}: {outcome[1]}"
        else:
            title = (
                f"{cut.ranks:,} rank{'s' * (cut.ranks > 1)} = dp {cut.dp:,} x tp {cut.tp} "
                f"x pp {cut.pp}: {seconds_text(outcome.time_s)} a step"
                f"{'' if outcome.fits else ', but memory does not hold it'}"
            )
            sequences = model.batch // (cut.dp * cut.num_microbatches)
            what += f": on each replica {cut.num_microbatches} micro-batches of {sequences:,}"
        return [
            axes.text(0.1, 0.1, title, fontsize=TITLE_PT, va="top"),
            axes.text(0.1, 0.34, what, fontsize=TEXT_PT, va="top"),
        ]

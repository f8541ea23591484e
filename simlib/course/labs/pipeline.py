"""The pipeline lab: who computes when, what stands idle, and what is held until its backward."""

from __future__ import annotations

from functools import lru_cache
from math import inf

from ...core.draw.figures import DPI, INK, PAPER, TEXT_PT, TITLE_PT, Picture
from ...core.model.cluster import Cluster, Link
from ...core.model.errors import InvalidCallError, check_count, check_number
from ...core.model.words import number
from ...core.scale import pipeline_time
from .layers import Layers
from .pipeline_lanes import WIDTH, Lanes, add_key, draw_held, draw_lanes
from .sliders import Lab, check_choice, menu, slider, whole_numbers

NAMES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "interleaved 1F1B"}
MAX_STAGES, MAX_MICROBATCHES, MAX_FORWARDS = 8, 32, 256
SLOWNESS = (1, 1.1, 1.25, 1.5, 2, 3)
LINKS = (0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2)
ENDS = (10, 15, 20, 25, 30, 40, 50, 60, 80, 100, 125, 150, 200, 250, 300, 400)
NBYTES = 1_000_000  # of a message; only its time counts


def draw_pipeline(K=4, M=8, schedule="gpipe", v=2, slow=1, slow_stage=0, link=0):
    """Draw one step of a pipeline: a lane for each rank, idle time empty, and what each rank holds.

    The unit of time is a rank's forward of one micro-batch, through all its stages; backward takes
    two. Times are those of `simlib.scale.pipeline_time`. The strip below a lane is how many
    micro-batches' activations the rank holds, the bar beside it the most at a time; with several
    stages on a rank, each has that share of them.

    Parameters
    ----------
    K : int
        Ranks, 1 to 8.
    M : int
        Micro-batches, 1 to 32, with ``K * v * M`` at most 256; of ``"interleaved"`` multiples of K.
    schedule : {"gpipe", "1f1b", "interleaved"}
    v : int
        Stages on each rank, 1 to 4; only ``"interleaved"`` heeds it.
    slow : float
        How many times as long one stage takes, forward and backward.
    slow_stage : int
        Which: of K stages, or of ``v * K``; stage s is on rank s modulo K.
    link : float
        Time of a message, of activations or gradients, when it is alone on its link.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    InvalidCallError
        Another schedule, a number out of its range, micro-batches that ranks do not divide.
    """
    state = K, M, schedule, v, slow, slow_stage, link
    _check(*state)
    return _Pipeline().draw(*state)


def pipeline_lab(K=4, M=8, schedule="gpipe", v=2, slow=1, slow_stage=0, link=0):
    """The picture of `draw_pipeline` with sliders for all that it depends on.

    Where a schedule allows only some numbers of micro-batches, the slider keeps to them.

    Parameters
    ----------
    K, M, schedule, v, slow, slow_stage, link
        As for `draw_pipeline`; where the sliders stand first.

    Returns
    -------
    Lab
    """
    _check(K, M, schedule, v, slow, slow_stage, link)
    controls = {
        "K": slider("ranks K", range(1, MAX_STAGES + 1), K),
        "M": whole_numbers("micro-batches M", 1, MAX_MICROBATCHES, M),
        "schedule": menu("schedule", {text: name for name, text in NAMES.items()}, schedule),
        "v": slider("stages a rank v", (1, 2, 3, 4), v),
        "slow": slider("one stage takes", SLOWNESS, slow, "{:g} x as long".format),
        "slow_stage": whole_numbers("which stage", 0, max(MAX_STAGES - 1, slow_stage), slow_stage),
        "link": slider("message takes", LINKS, link, "{:g} forwards".format),
    }
    _keep_possible(controls)
    return Lab(_Pipeline(), controls)


def _keep_possible(controls):
    """Keep micro-batches and the slow stage to what the other controls allow, now and later."""
    ranks, microbatches, schedule, stages = (controls[name] for name in ("K", "M", "schedule", "v"))
    slow_stage = controls["slow_stage"]

    def fit(_change=None):
        is_interleaved = schedule.value == "interleaved"
        parts, step = (stages.value, ranks.value) if is_interleaved else (1, 1)
        most = min(MAX_MICROBATCHES, MAX_FORWARDS // (ranks.value * parts)) // step * step
        wanted = min(max(step, round(microbatches.value / step) * step), most)
        # Observers of one may see the other only when both are possible.
        with microbatches.hold_trait_notifications(), slow_stage.hold_trait_notifications():
            microbatches.min, microbatches.max, microbatches.step = step, most, step
            microbatches.value = wanted
            slow_stage.max = ranks.value * parts - 1
            slow_stage.value = min(slow_stage.value, slow_stage.max)
        stages.disabled = not is_interleaved

    for control in (ranks, microbatches, schedule, stages):
        control.observe(fit, names="value")
    fit()


def _check(K, M, schedule, v, slow, slow_stage, link):
    for name, value, most in (("K", K, MAX_STAGES), ("M", M, MAX_MICROBATCHES), ("v", v, 4)):
        check_count(name, value)
        if value > most:
            raise InvalidCallError(f"{name} is {value}: the picture has room for {most}")
    check_choice("schedule", schedule, NAMES)
    check_number("slow", slow, above=True)
    check_number("link", link)
    if slow == inf or link == inf:
        raise InvalidCallError("an infinite time has no end in the picture")
    parts = v if schedule == "interleaved" else 1
    if schedule == "interleaved" and M % K:
        raise InvalidCallError(
            f"M is {M}: interleaved stages take micro-batches in groups of K={K}"
        )
    if K * parts * M > MAX_FORWARDS:
        raise InvalidCallError(
            f"{K} ranks with {parts} stages each and {M} micro-batches have {K * parts * M} "
            f"forwards: the picture has room for {MAX_FORWARDS}"
        )
    check_choice("slow_stage", slow_stage, range(K * parts))


@lru_cache(256)
def step_of(K, M, schedule, v, slow, slow_stage, link):
    """The step as `simlib.scale.pipeline_time` has it, in forwards of a rank."""
    parts = v if schedule == "interleaved" else 1
    forward = [1 / parts] * (K * parts)
    forward[slow_stage] *= slow
    cluster = Cluster(K, 1, Link(0.0, NBYTES / link if link else inf))
    return pipeline_time(
        K,
        M,
        cluster,
        forward_s=forward,
        backward_s=[2 * each for each in forward],
        message_bytes=NBYTES,
        schedule=schedule,
        stages_per_rank=parts,
    )


class _Pipeline(Layers):
    """Lanes and bars. Names, the axis of time and how to read it stay; the axis grows in leaps."""

    def background_state(self, K, M, schedule, v, slow, slow_stage, link):
        step = step_of(K, M, schedule, v, slow, slow_stage, link)
        end = next((end for end in ENDS if end >= step.time_s), step.time_s)
        return K, end, step.stages_per_rank

    def background(self, K, end, parts):
        lanes = Lanes(K, end)
        figure = Picture(figsize=(WIDTH, lanes.height), dpi=DPI, facecolor=PAPER)
        axes = lanes.axes = figure.add_axes([0, 0, 1, 1], facecolor=PAPER)
        axes.set_xlim(0, WIDTH)
        axes.set_ylim(lanes.height, 0)
        axes.set_axis_off()
        add_key(lanes, parts)
        return figure

    def foreground(self, figure, K, M, schedule, v, slow, slow_stage, link):
        state = K, M, schedule, v, slow, slow_stage, link
        step = step_of(*state)
        lanes = Lanes(K, self.background_state(*state)[1], figure.axes[0])
        return [
            *_write_title(lanes.axes, step, slow, slow_stage, link),
            *draw_lanes(lanes, step),
            *draw_held(lanes, step),
        ]


def _write_title(axes, step, slow, slow_stage, link):
    """What it is, its bubble, and the formula's with what is between them."""
    K, M, parts = step.ranks, step.num_microbatches, step.stages_per_rank
    name = NAMES[step.schedule] + (f", {parts} stages a rank" if step.schedule[0] == "i" else "")
    title = (
        f"{name} on {K} rank{'s' * (K > 1)}, {M} micro-batch{'es' * (M > 1)}: "
        f"takes {number(step.time_s)} forwards, bubble {step.bubble:.1%}"
    )
    product = f"{parts} x {M}" if parts > 1 else str(M)
    formula = (
        f"equal stages, free messages: (K - 1) / ({'vM' if parts > 1 else 'M'} + K - 1) = "
        f"{K - 1} / ({product} + {K - 1}) = {step.even_bubble:.1%}"
    )
    apart = 100 * (step.bubble - step.even_bubble)
    reasons = [f"stage {slow_stage} takes {slow:g} x as long"] * (slow != 1)
    reasons += [f"a message takes {link:g}"] * (link > 0 and K > 1)
    why = f": {', '.join(reasons)}" if reasons else ""
    verdict = "here the same" if abs(apart) < 0.05 else f"here {apart:+.1f} points"
    head = {"va": "top", "color": INK}
    return [
        axes.text(0.1, 0.1, title, fontsize=TITLE_PT, **head),
        axes.text(0.1, 0.34, f"{formula}; {verdict}{why}", fontsize=TEXT_PT, **head),
    ]

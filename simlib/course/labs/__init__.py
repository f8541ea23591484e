"""Labs: sliders over a picture, for what moving a value teaches better than reading.

Each lab is two functions. ``draw_...`` takes a state and returns its figure; a lesson shows the
default state with it, so that it is seen where notebooks are only read. ``..._lab`` returns the
sliders above the same picture; it needs a running kernel::

    from simlib import labs

    labs.draw_rounds("ring", 4, 2)      # a picture
    labs.rounds_lab("ring", 4)          # the picture, and sliders to move it
"""

from .break_even import break_even_lab, draw_break_even
from .mesh import draw_mesh, mesh_lab
from .message_sizes import (
    crossover_lab,
    draw_crossover,
    draw_ping_pong,
    fit_ping_pong,
    ping_pong_lab,
)
from .pipeline import draw_pipeline, pipeline_lab
from .plan_model import Training
from .rounds import draw_rounds, rounds_lab
from .staleness import draw_staleness, staleness_lab
from .training_runs import checkpoint_lab, draw_checkpoint, draw_plan, plan_lab
from .world_sizes import draw_world_size, simulate_sizes, world_size_lab

__all__ = [
    "Training",
    "break_even_lab",
    "checkpoint_lab",
    "crossover_lab",
    "draw_break_even",
    "draw_checkpoint",
    "draw_crossover",
    "draw_mesh",
    "draw_ping_pong",
    "draw_pipeline",
    "draw_plan",
    "draw_rounds",
    "draw_staleness",
    "draw_world_size",
    "fit_ping_pong",
    "mesh_lab",
    "ping_pong_lab",
    "pipeline_lab",
    "plan_lab",
    "rounds_lab",
    "simulate_sizes",
    "staleness_lab",
    "world_size_lab",
]

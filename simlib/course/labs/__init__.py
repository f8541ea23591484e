"""Labs: sliders over a picture, for topics that you learn better by trying values than by reading.

Each lab has two functions. ``draw_...`` takes a state and returns its figure. A lesson uses it to
show the default state, so readers without a kernel see a picture, too. ``..._lab`` returns the
sliders above the same picture. The sliders need a running kernel::

    from simlib import labs

    labs.draw_rounds("ring", 4, 2)      # a picture
    labs.rounds_lab("ring", 4)          # the picture, and sliders to move it
"""

from .break_even import break_even_lab, draw_break_even
from .cut_pictures import draw_block_cuts, draw_matrix_cuts, draw_zero
from .hybrid import draw_hybrid, hybrid_lab
from .mesh import draw_groups, draw_mesh, mesh_lab
from .message_sizes import (
    crossover_lab,
    draw_crossover,
    draw_ping_pong,
    fit_ping_pong,
    ping_pong_lab,
)
from .pipeline import draw_pipeline, pipeline_lab
from .plan_model import Training, axis_time, plan_of, three_jobs
from .records import draw_records, records_lab
from .rollouts import draw_rollouts, rollouts_lab
from .rounds import draw_rounds, rounds_lab
from .sequences import draw_chunks, draw_experts, draw_ring, draw_weights
from .serving import draw_serving, serving_lab
from .shards import draw_shards
from .staleness import draw_staleness, staleness_lab
from .steps import draw_steps
from .training_runs import checkpoint_lab, draw_checkpoint, draw_plan, plan_lab
from .world_sizes import draw_world_size, simulate_sizes, world_size_lab

__all__ = [
    "Training",
    "axis_time",
    "break_even_lab",
    "checkpoint_lab",
    "crossover_lab",
    "draw_block_cuts",
    "draw_break_even",
    "draw_checkpoint",
    "draw_chunks",
    "draw_crossover",
    "draw_experts",
    "draw_groups",
    "draw_hybrid",
    "draw_matrix_cuts",
    "draw_mesh",
    "draw_ping_pong",
    "draw_pipeline",
    "draw_plan",
    "draw_records",
    "draw_ring",
    "draw_rollouts",
    "draw_rounds",
    "draw_serving",
    "draw_shards",
    "draw_staleness",
    "draw_steps",
    "draw_weights",
    "draw_world_size",
    "draw_zero",
    "fit_ping_pong",
    "hybrid_lab",
    "mesh_lab",
    "ping_pong_lab",
    "pipeline_lab",
    "plan_lab",
    "plan_of",
    "records_lab",
    "rollouts_lab",
    "rounds_lab",
    "serving_lab",
    "simulate_sizes",
    "staleness_lab",
    "three_jobs",
    "world_size_lab",
]

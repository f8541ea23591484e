"""What each simulated rank has for itself, although it is only a thread.

torch already keeps most of its modes by thread (gradient mode, autocast, default device). This
package does the same for the rest: torch.distributed's world, random numbers, output, environment,
clock, default dtype and other modes, modules, loggers, the working folder and the process id.
"""

from __future__ import annotations

import os
import sys

from ....record.this_rank import here as local
from ....record.torch_inside import use_world
from . import process_state, started, surroundings
from .modes import ModesInTurn, own_modes
from .modules import ModulesInTurn
from .process_state import WorldPerThread, foreign_threads, own_folder, real_process_id
from .started import WorkBeside
from .streams import own_streams
from .surroundings import EnvironmentPerRank, OutputPerRank, flush
from .turns import StateInTurn, Turns, own_random_numbers

__all__ = [
    "ModesInTurn",
    "ModulesInTurn",
    "StateInTurn",
    "Turns",
    "WorkBeside",
    "flush",
    "foreign_threads",
    "local",
    "own_folder",
    "real_process_id",
]


def separate_threads(write_out, all_cpus):
    """Give every rank thread its own state. Call it once, before any rank function runs.

    Returns ``sys.stdout`` and ``sys.stderr`` in the form for every rank.
    """
    own_random_numbers()
    own_streams()
    surroundings.own_clock()
    os.register_at_fork(after_in_child=surroundings.end_virtual_time)
    process_state.one_profiler_at_a_time()
    process_state.define_ops_once()
    process_state.refuse_parts_of_torch()
    own_modes()
    use_world(WorldPerThread())
    started.own_threads_and_processes(write_out, all_cpus)
    process_state.own_loggers()
    process_state.own_locks_on_output()
    process_state.own_start_method()
    process_state.own_process_id()
    os.environ = EnvironmentPerRank(os.environ)  # noqa: B003 (its base is the environment)
    sys.stdout = sys.__stdout__ = OutputPerRank(write_out, sys.stdout)
    sys.stderr = sys.__stderr__ = OutputPerRank(write_out, sys.stderr)
    surroundings.write_to_descriptors(sys.stdout, sys.stderr)
    return sys.stdout, sys.stderr

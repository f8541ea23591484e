"""torch's pipeline schedules name their pieces: which micro-batch goes forward, or back, when."""

from __future__ import annotations

import functools
import importlib.util
import sys

from .this_rank import span

STAGES = "torch.distributed.pipelining.stage"


def name_pieces():
    """Put a `span` around all that torch's pipeline stages compute; once in a process.

    Where their module is not imported yet, that is done when it is: it takes seconds, which a rank
    without a pipeline need not wait for.
    """
    if STAGES in sys.modules:
        _name(sys.modules[STAGES])
    else:
        sys.meta_path.insert(0, _AtImport())


class _AtImport:
    """Finds the module as Python would, and names its pieces once it is there."""

    def find_spec(self, name, path=None, target=None):
        if name != STAGES:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_name(module):
            execute(module)
            _name(module)

        spec.loader.exec_module = execute_and_name
        return spec


def _name(module):
    def name_of_backward(*_, full_backward=True, **__):
        return "B" if full_backward else "I"

    stage = module._PipelineStageBase
    stage.forward_one_chunk = _named(stage.forward_one_chunk, lambda *_, **__: "F")
    stage.backward_one_chunk = _named(stage.backward_one_chunk, name_of_backward)
    stage.backward_weight_one_chunk = _named(stage.backward_weight_one_chunk, lambda *_, **__: "W")


def _named(method, name_of):
    @functools.wraps(method)
    def named(stage, micro, *args, **kwargs):
        has_several = stage.num_stages > stage.group_size  # this rank has several of them
        numbers = {"stage": stage.stage_index} if has_several else {}
        with span(name_of(*args, **kwargs), **numbers, micro=micro):
            return method(stage, micro, *args, **kwargs)

    return named

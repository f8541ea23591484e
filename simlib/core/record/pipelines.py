"""torch's pipeline schedules name their pieces: which micro-batch goes forward, or back, when."""

from __future__ import annotations

import functools

from .at_import import when_imported
from .this_rank import span

STAGES = "torch.distributed.pipelining.stage"


def name_pieces():
    """Put a `span` around all that torch's pipeline stages compute; once in a process."""
    when_imported(STAGES, _name)


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

"""torch's pipeline schedules name their pieces: which micro-batch goes forward, or back, when."""

from __future__ import annotations

import functools

from .this_rank import span


def name_pieces():
    """Put a `span` around all that torch's pipeline stages compute; once in a process."""
    from torch.distributed.pipelining.stage import _PipelineStageBase as Stage

    def name_of_backward(*_, full_backward=True, **__):
        return "B" if full_backward else "I"

    Stage.forward_one_chunk = _named(Stage.forward_one_chunk, lambda *_, **__: "F")
    Stage.backward_one_chunk = _named(Stage.backward_one_chunk, name_of_backward)
    Stage.backward_weight_one_chunk = _named(Stage.backward_weight_one_chunk, lambda *_, **__: "W")


def _named(method, name_of):
    @functools.wraps(method)
    def named(stage, micro, *args, **kwargs):
        has_several = stage.num_stages > stage.group_size  # this rank has several of them
        numbers = {"stage": stage.stage_index} if has_several else {}
        with span(name_of(*args, **kwargs), **numbers, micro=micro):
            return method(stage, micro, *args, **kwargs)

    return named

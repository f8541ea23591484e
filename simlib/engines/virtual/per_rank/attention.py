"""torch's attention, which `context_parallel` replaces for a whole process."""

from __future__ import annotations

from ....model.errors import InvalidCallError
from ....record.at_import import when_imported

CONTEXT_PARALLEL = "torch.distributed.tensor.experimental._context_parallel._attention"


def keep_torchs_attention():
    """Refuse `context_parallel`: what one rank replaces, and puts back, the others would have, too.

    A rank that left it first would leave the others with attention over their own keys only.
    """
    when_imported(CONTEXT_PARALLEL, _refuse)


def _refuse(module):
    def refuse(*args, **kwargs):
        raise InvalidCallError(
            "context_parallel replaces torch's attention for a whole process, and simulated ranks "
            "share one: use it on real ranks (simlib.run)"
        )

    module.context_parallel = refuse

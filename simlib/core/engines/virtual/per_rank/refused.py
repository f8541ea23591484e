"""Parts of torch that belong to a whole process: ranks that share one cannot have them."""

from __future__ import annotations

from ....model.errors import InvalidCallError
from ....record.at_import import when_imported

REASONS = {
    # A rank that left it first would leave the others with attention over their own keys only.
    ("torch.distributed.tensor.experimental._context_parallel._attention", "context_parallel"): (
        "context_parallel replaces torch's attention for a whole process"
    ),
    ("torch.distributed.rpc", "init_rpc"): (
        "torch.distributed.rpc has one agent, and threads of its own, for a whole process"
    ),
}
"""Module and name -> why not."""


def refuse_parts_of_torch():
    """Let the calls of `REASONS` say why a simulated rank cannot make them."""
    for (module, name), reason in REASONS.items():
        when_imported(module, lambda found, name=name, reason=reason: _refuse(found, name, reason))


def _refuse(module, name, reason):
    def refuse(*args, **kwargs):
        raise InvalidCallError(
            f"{reason}, and simulated ranks share one: use it on real ranks (simlib.run)"
        )

    setattr(module, name, refuse)

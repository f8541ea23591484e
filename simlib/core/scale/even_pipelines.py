"""One step of a pipeline of equal stages, in closed form."""

from __future__ import annotations

from ..model.errors import InvalidCallError, as_int, check_count, check_number
from ..model.words import seconds_text


def even_pipeline_time(ranks, num_microbatches, *, forward_s, backward_s, message_s=0.0):
    """A step of 1F1B with equal stages, in closed form: seconds, as `pipeline_time` finds them.

    Every forward of rank 0 but the first K waits for a backward of the last rank, so messages are
    not hidden: with free ones a step takes (M + K - 1) (forward + backward), and of N = M + K - 2
    rounds N - floor(N / K) wait for a message there and one back.

    Parameters
    ----------
    ranks, num_microbatches : int
        K and M.
    forward_s, backward_s : float
        Seconds that one micro-batch takes in a stage.
    message_s : float
        Of a message to a neighbour that is alone on its link.

    Returns
    -------
    float

    Raises
    ------
    InvalidCallError
        Messages that take longer than a forward: they would wait for one another.

    Examples
    --------
    >>> import simlib
    >>> even = {"forward_s": 0.01, "backward_s": 0.02}
    >>> round(simlib.scale.even_pipeline_time(4, 8, **even), 3)
    0.33
    >>> round(simlib.scale.even_pipeline_time(4, 8, **even, message_s=0.001), 3)
    0.346

    **Cost** O(1).
    """
    ranks, count = as_int("ranks", ranks), as_int("num_microbatches", num_microbatches)
    check_count("ranks", ranks)
    check_count("num_microbatches", count)
    times_s = {"forward_s": forward_s, "backward_s": backward_s, "message_s": message_s}
    for name, value in times_s.items():
        check_number(name, value)
    if ranks > 1 and message_s > forward_s:
        raise InvalidCallError(
            f"a message takes {seconds_text(message_s)} and a forward {seconds_text(forward_s)}: "
            "messages would wait for one another; pipeline_time follows them one by one"
        )
    rounds = count + ranks - 2
    waits = rounds - rounds // ranks if ranks > 1 else 0
    return (count + ranks - 1) * (forward_s + backward_s) + 2 * waits * message_s

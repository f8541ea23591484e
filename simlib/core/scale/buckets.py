"""The buckets in which gradients are gathered: their bytes, and when they are ready in a run."""

from __future__ import annotations

from math import inf

import numpy as np

from ..model.errors import InvalidCallError, as_int, check_count

BUCKET_BYTES = 25 * 2**20


def measured_buckets(run, begin_s=0.0, end_s=inf):
    """Bytes and ready times of the buckets of one step, as a run shows them.

    A bucket is taken as ready when its async all_reduce was posted, as
    `DistributedDataParallel` posts it: as soon as its gradients are there.

    Parameters
    ----------
    run : Run
    begin_s, end_s : float
        The step, on the clock of the run; by default all of it.

    Returns
    -------
    nbytes : list of int
        Of each bucket, in order of posting: ``model_bytes`` of `step_time`.
    ready_s : ndarray of float, shape (ranks, buckets)
        In seconds since ``begin_s``: ``ready_s`` of `step_time`.
    """
    posted = [
        [
            (op.nbytes, op.post_s - begin_s)
            for op in run.trace.of_rank(rank)
            if op.kind == "all_reduce" and op.async_op and begin_s <= op.post_s <= end_s
        ]
        for rank in range(run.world_size)
    ]
    sizes = {tuple(nbytes for nbytes, _ in buckets) for buckets in posted}
    if len(sizes) > 1 or not posted[0]:
        raise InvalidCallError(
            f"from {begin_s:g} s to {end_s:g} s ranks posted {sorted(map(len, posted))} async "
            "all_reduces: give begin_s and end_s of one step, in which all post the same"
        )
    return list(*sizes), np.array([[moment for _, moment in buckets] for buckets in posted])


def bucket_sizes(model_bytes, bucket_bytes=BUCKET_BYTES, itemsize=4):
    """Bytes of each bucket: ndarray of int. Full ones, and the rest; or the sizes as given.

    Examples
    --------
    >>> bucket_sizes(100, 40).tolist()
    [40, 40, 20]
    """
    if np.ndim(model_bytes):
        sizes = [as_int("a bucket", size) for size in model_bytes]
    else:
        total, most = as_int("model_bytes", model_bytes), as_int("bucket_bytes", bucket_bytes)
        most = most // itemsize * itemsize
        check_count("bucket_bytes", most, low=itemsize)
        check_count("model_bytes", total)
        sizes = [most] * (total // most) + [total % most] * (total % most > 0)
    if not sizes or min(sizes) < 1:
        raise InvalidCallError(f"buckets of {sizes} bytes: give at least one, none of them empty")
    return np.array(sizes, dtype=np.int64)

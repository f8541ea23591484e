"""The model of the break-even lab: how long ranks synchronise, and which compute pays for it."""

from __future__ import annotations

import numpy as np

FORWARD_SHARE = 1 / 3  # of T_comp: backward takes twice as long, and only that can overlap


def sync_s(algorithm, ranks, nbytes, latency_s, bandwidth_Bps):
    """T_sync(R): seconds to add up a gradient over ranks that have a link each.

    Parameters
    ----------
    algorithm : {"ring", "tree", "linear"}
        Ring in chunks; down and up a binomial tree; all to one rank, one after the other, and back.
    ranks : int or ndarray of int
    nbytes : float
    latency_s, bandwidth_Bps : float

    Returns
    -------
    float or ndarray of float

    **Cost** as `simlib.scale.time_of` for a gradient that all ranks divide evenly.
    """
    ranks = np.asarray(ranks)
    whole_s = latency_s + nbytes / bandwidth_Bps
    if algorithm == "linear":
        return 2 * (ranks - 1) * whole_s
    if algorithm == "tree":
        return 2 * np.ceil(np.log2(ranks)) * whole_s
    return 2 * (ranks - 1) * (latency_s + nbytes / ranks / bandwidth_Bps)


def speedup(compute_s, synced_s, ranks, scaling="weak", overlap="none"):
    """How many times the work of one rank ranks do in the same time.

    Parameters
    ----------
    compute_s : float
        T_comp: of each rank's step (weak), or of the step that all ranks share (strong).
    synced_s : float or ndarray of float
        T_sync of these ranks.
    ranks : int or ndarray of int
    scaling : {"weak", "strong"}
    overlap : {"none", "backward"}
        A step takes the sum of both times; or forward, and the longer of backward and T_sync.

    Returns
    -------
    float or ndarray of float
    """
    own_s = compute_s if scaling == "weak" else compute_s / np.asarray(ranks)
    visible = _visible_share(overlap)
    step_s = visible * own_s + np.maximum((1 - visible) * own_s, synced_s)
    return ranks * own_s / step_s


def needed_compute_s(efficiency, synced_s, ranks, scaling="weak", overlap="none"):
    """The least T_comp with which ranks have this efficiency; 1 / ranks is the break-even.

    Parameters
    ----------
    efficiency : float or ndarray of float
        Speed-up over ranks, above 0 and below 1.
    synced_s, ranks, scaling, overlap
        As for `speedup`.

    Returns
    -------
    float or ndarray of float
    """
    own_s = synced_s / (1 / efficiency - _visible_share(overlap))
    return own_s if scaling == "weak" else own_s * ranks


def _visible_share(overlap):
    """The part of T_comp in which nothing can be sent."""
    return 1.0 if overlap == "none" else FORWARD_SHARE

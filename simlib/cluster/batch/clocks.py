"""Clocks of different hosts: how far each is from rank 0's, measured at the start by ping-pong."""

from __future__ import annotations

import json
import time

import torch

ROUNDS, FEW = 200, 10
ENOUGH_S = 0.2
"""How long one host may ask, if it has done a few rounds: on slow networks all would take long."""
MORE, LAST = 1.0, 0.0


def align(group, store, rank, hosts):
    """How far this rank's clock is ahead of rank 0's, and the error of that.

    Ranks of one host have one clock; of every other host the first rank asks rank 0 for its time,
    again and again. The answer was made somewhere between asking and hearing: the middle is taken,
    and half of the shortest round trip is the error. Cost: up to 200 round trips per host, one host
    after the other; no more than 10 where they take longer than 0.2 s.

    Parameters
    ----------
    group : object
        Has ``send`` and ``recv`` as a `dist.ProcessGroup`; nothing of it is recorded.
    store : dist.Store
    rank : int
    hosts : list of str
        By rank.

    Returns
    -------
    offset_s, error_s : float
    """
    first = {host: hosts.index(host) for host in hosts if host != hosts[0]}
    message = torch.zeros(1, dtype=torch.float64)
    if rank == 0:
        for client in first.values():
            has_more = True
            while has_more:
                group.recv([message], client, 0).wait()
                has_more = message.item() == MORE
                message[0] = time.perf_counter()
                group.send([message], client, 0).wait()
            store.get(f"clock/{client}")
        return 0.0, 0.0
    if hosts[rank] == hosts[0]:
        return 0.0, 0.0
    client = first[hosts[rank]]
    if rank == client:
        store.set(f"clock/{client}", json.dumps(_ask(group, message)))
    return tuple(json.loads(store.get(f"clock/{client}")))


def _ask(group, message):
    """Ask rank 0 for its time, often; returns the offset and its error."""
    found = []
    enough_s = time.perf_counter() + ENOUGH_S
    is_last = False
    while not is_last:
        sent_s = time.perf_counter()
        is_last = len(found) + 1 >= (FEW if sent_s > enough_s else ROUNDS)
        message[0] = LAST if is_last else MORE
        group.send([message], 0, 0).wait()
        group.recv([message], 0, 0).wait()
        received_s = time.perf_counter()
        found.append(((received_s - sent_s) / 2, (sent_s + received_s) / 2 - message.item()))
    error_s, offset_s = min(found)
    return offset_s, error_s

"""Tell the kernel for which keys of a store a rank waits, and whether the keys exist by now."""

from __future__ import annotations

import functools
import itertools
import time
from datetime import timedelta

import torch.distributed as dist

from .this_rank import here


def name_awaited_keys() -> None:
    """Let torch's methods record the keys for which a rank waits. Call it once in a process."""
    for name in ("get", "multi_get", "wait"):
        setattr(dist.Store, name, naming_keys(getattr(dist.Store, name)))


def naming_keys(method):
    """Let a method of a store record the keys for which the rank waits in it."""

    @functools.wraps(method)
    def named(store, keys, *args, **kwargs):
        log = getattr(here, "log", None)
        names = [keys] if isinstance(keys, str) else keys
        is_right = isinstance(names, list) and all(isinstance(one, str) for one in names)
        if log is None or log.waits_for_keys or not is_right or store.check(names):
            return method(store, keys, *args, **kwargs)
        log.tell_keys(method.__name__, names)
        try:
            limit = kwargs.get("timeout", args[0] if args else store.timeout)
            is_long = isinstance(limit, timedelta) and limit >= NO_LIMIT
            if is_long and not hasattr(here, "clock") and not _look_for(store, names, limit, log):
                return _time_is_over(method, store, keys, limit)
            return method(store, keys, *args, **kwargs)
        finally:
            log.tell_keys("", ())

    return named


LOOK_S, TOLD = 0.01, 10
"""Seconds between looks of a waiting real rank for keys, and the looks until it reports this."""
NO_LIMIT = timedelta(minutes=5)
"""torch's own limit."""


def _look_for(store, names, limit, log):
    """Whether keys appear within a time limit. Report failed looks if no thread may set the keys.

    The function looks again and again instead of waiting, because a failed wait of a ``FileStore``
    needs seconds for its traceback.
    """
    deadline = time.monotonic() + limit.total_seconds()
    for number in itertools.count(1):
        time.sleep(min(LOOK_S, number * LOOK_S / TOLD))
        if store.check(names):
            return True
        if time.monotonic() > deadline:
            return False
        if number % TOLD == 0 and dist.group.WORLD._recorder.is_alone():
            log.tell_look(number // TOLD)


def _time_is_over(method, store, keys, limit):
    """Let torch report that keys did not appear within a limit, without another wait for them."""
    own = store.timeout
    store.set_timeout(timedelta(milliseconds=1))
    try:
        return method(store, keys)
    except dist.DistStoreError as error:
        told = f"{limit // timedelta(milliseconds=1)}ms"
        raise dist.DistStoreError(str(error).replace(" 1ms", f" {told}")) from None
    finally:
        store.set_timeout(own)

"""Whether a rank may serve another run: undo the changes of its function, or say why it cannot.

A rank that serves another run must be like a new rank. simlib undoes most changes. It cannot undo
some changes, for example a thread that still runs, or an imported module of the learner that may
have been edited since. After such a change, the rank ends.
"""

from __future__ import annotations

import builtins
import decimal
import gc
import json
import locale
import logging
import multiprocessing
import operator
import os
import random
import signal
import socket
import sys
import sysconfig
import tempfile
import threading
import time
import types
import warnings

import cloudpickle.cloudpickle as cloudpickle_state
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ...environment import FOLDER

_SIGNALS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGALRM,
    signal.SIGCHLD,
    signal.SIGUSR2,
)
_INSTALLED = (
    *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    str(FOLDER) + os.sep,
)


def _set_warnings(filters):
    warnings.filters[:] = filters
    warnings._filters_mutated()


def _set_signals(handlers):
    for number, handler in zip(_SIGNALS, handlers, strict=True):
        signal.signal(number, handler)


def _logging():
    """The settings of all loggers, and of each one by name."""
    known = {None: logging.root, **logging.root.manager.loggerDict}
    loggers = {name: _of(one) for name, one in known.items() if isinstance(one, logging.Logger)}
    names = dict(logging._levelToName), dict(logging._nameToLevel)
    factory, kind = logging.getLogRecordFactory(), logging.getLoggerClass()
    return logging.root.manager.disable, names, factory, kind, loggers


def _of(logger):
    lists = list(logger.handlers), list(logger.filters)
    return logger.level, *lists, logger.propagate, logger.disabled


def _set_logging(state):
    """Reset loggers, except loggers of packages that stay imported."""
    level, names, factory, kind, loggers = state
    logging.disable(level)
    for now, before in zip((logging._levelToName, logging._nameToLevel), names, strict=True):
        now.clear()
        now.update(before)
    logging.setLogRecordFactory(factory)
    logging.setLoggerClass(kind)
    imported = sys.modules.keys() - {"__main__"}
    for name in _logging()[-1]:
        if name in loggers or name.partition(".")[0] not in imported:
            one = logging.getLogger(name)
            before = loggers.get(name, (logging.NOTSET, [], [], True, False))
            one.level, one.handlers[:], one.filters[:], one.propagate, one.disabled = before
    logging.root.manager._clear_cache()


def _show_warnings_by(show):
    logging.captureWarnings(False)  # or the next run's `captureWarnings(True)` does nothing
    warnings.showwarning = show


def _global_hooks():
    """torch's hooks on all modules and all optimizers."""
    places = torch.nn.modules.module, sys.modules[torch.optim.Optimizer.__module__]
    return [
        value
        for place in places
        for name, value in vars(place).items()
        if name.startswith("_global_") and isinstance(value, dict)
    ]


def _set_global_hooks(state):
    for hooks, before in zip(_global_hooks(), state, strict=True):
        hooks.clear()
        hooks.update(before)


def _classes(*modules):
    return [one for place in modules for one in vars(place).values() if isinstance(one, type)]


PATCHABLE = (
    *(builtins, os, time, random, np, torch, torch.nn, torch.nn.functional, dist, c10d),
    *(torch.Tensor, json.JSONEncoder, *_classes(torch.nn, torch.optim, torch.utils.data)),
)
"""Objects in which a learner may have replaced parts. If so, the rank serves no other run."""

STATE = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    # Only None takes the mode away that a default device puts around every function of torch.
    "default device": (torch.get_default_device, lambda _: torch.set_default_device(None)),
    "gradient mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "threads": (torch.get_num_threads, torch.set_num_threads),
    "deterministic algorithms": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    "anomaly mode": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    "matmul precision": (
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    "print options of torch": (
        lambda: dict(vars(torch._tensor_str.PRINT_OPTS)),
        lambda options: vars(torch._tensor_str.PRINT_OPTS).update(options),
    ),
    "print options of numpy": (np.get_printoptions, lambda options: np.set_printoptions(**options)),
    "numpy errors": (np.geterr, lambda options: np.seterr(**options)),
    "warnings": (lambda: list(warnings.filters), _set_warnings),
    "warnings shown": (lambda: warnings.showwarning, _show_warnings_by),
    "signals": (lambda: [signal.getsignal(number) for number in _SIGNALS], _set_signals),
    "logging": (_logging, _set_logging),
    "global hooks": (lambda: [dict(hooks) for hooks in _global_hooks()], _set_global_hooks),
    "kind of global backward hooks": (
        lambda: torch.nn.modules.module._global_is_full_backward_hook,
        lambda kind: setattr(torch.nn.modules.module, "_global_is_full_backward_hook", kind),
    ),
    "flags of cudnn": (
        lambda: (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
        lambda flags: torch.backends.cudnn.set_flags(_benchmark=flags[0], _deterministic=flags[1]),
    ),
    "mkldnn": (lambda: torch.backends.mkldnn.enabled, torch.backends.mkldnn.set_flags),
    "flash attention": (
        torch.backends.cuda.flash_sdp_enabled,
        torch.backends.cuda.enable_flash_sdp,
    ),
    "tiny numbers": (
        lambda: (torch.tensor(1e-40, dtype=torch.float32, device="cpu") * 1).item() == 0,
        torch.set_flush_denormal,
    ),
    "decimal": (
        lambda: (decimal.getcontext().prec, decimal.DefaultContext.prec),
        lambda digits: [
            setattr(context, "prec", digit)
            for context, digit in zip(
                (decimal.getcontext(), decimal.DefaultContext), digits, strict=True
            )
        ],
    ),
    "locale": (
        lambda: locale.setlocale(locale.LC_ALL),
        lambda name: locale.setlocale(locale.LC_ALL, name),
    ),
    "folder of temporary files": (
        lambda: tempfile.tempdir,
        lambda folder: setattr(tempfile, "tempdir", folder),
    ),
    "timeout of sockets": (socket.getdefaulttimeout, socket.setdefaulttimeout),
    "switch interval": (sys.getswitchinterval, sys.setswitchinterval),
    "trace": (sys.gettrace, sys.settrace),
    "profile": (sys.getprofile, sys.setprofile),
    "recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit),
    "garbage collection": (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    "frequency of garbage collection": (gc.get_threshold, lambda each: gc.set_threshold(*each)),
    "excepthook": (lambda: sys.excepthook, lambda hook: setattr(sys, "excepthook", hook)),
    "start method of processes": (
        lambda: multiprocessing.get_start_method(allow_none=True),
        lambda method: multiprocessing.set_start_method(method, force=True),
    ),
    "file mask": (lambda: _umask(), os.umask),
}
"""What a rank function may change, with functions that read the state and reset it."""


def _umask():
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def begin_random_numbers(seed):
    """Random numbers as in a new process, in torch, numpy and `random`, from this seed."""
    torch.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


def _has_children():
    """Whether a child process runs. Children that have ended are reaped."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


KEPT = {}
"""Modules of the learner's by name, with the times of their files: `keep_own_modules`."""


def keep_own_modules():
    """Let a rank that has imported the learner's modules serve again while their files stay.

    A session of tests uses it, because there a module is imported once and keeps its state.
    """
    for name, module in list(sys.modules.items()):
        if _is_own(module):
            KEPT.setdefault(name, _changed_at(module))


def _is_own(module):
    file = getattr(module, "__file__", None)
    return bool(file) and not file.startswith(_INSTALLED)


def _changed_at(module):
    try:
        return os.stat(module.__file__).st_mtime_ns
    except OSError:
        return None


def _is_torchs(name, value, before):
    """Whether Python or torch has made this change by itself.

    An optimizer wraps its class's `step`. torch.compile wraps objects that it leaves unchanged, and
    replaces some functions of `nn.Module` by its own.
    """
    if name in _BY_THEMSELVES:
        return True
    first = value
    while value is not before and hasattr(value, "__wrapped__") and _is_in(value, _TORCH):
        value = value.__wrapped__
    return value is before or (_is_in(first, _DYNAMO) and _is_in(value, _TORCH))


_BY_THEMSELVES = (
    *("_", "__warningregistry__", "___needs_generation_tag_patch"),
    "___has_generation_tag_patch",  # since torch 2.15
)
_TORCH = os.path.dirname(torch.__file__) + os.sep
_DYNAMO = os.path.join(_TORCH, "_dynamo", "")


def _is_in(function, folder):
    return getattr(getattr(function, "__code__", None), "co_filename", "").startswith(folder)


class Baseline:
    """A rank's state before its first run, and the way back to it."""

    def __init__(self):
        self._values = {name: read() for name, (read, _) in STATE.items()}
        self._modules = set(sys.modules)
        self._functions = {module: dict(vars(module)) for module in PATCHABLE}
        self._threads = set(threading.enumerate())

    def restore(self):
        """Reset everything; returns why this rank must not be used again, or None."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        replaced = self._replaced()
        if replaced is not None:  # what follows would call it
            return replaced
        for name, (read, write) in STATE.items():
            if read() != self._values[name]:
                write(self._values[name])
        cloudpickle_state._DYNAMIC_CLASS_TRACKER_BY_CLASS.clear()
        cloudpickle_state._DYNAMIC_CLASS_TRACKER_BY_ID.clear()
        return self._left_behind()

    def _replaced(self):
        for place, before in self._functions.items():
            now = vars(place)
            if len(now) == len(before) and all(map(operator.is_, now.values(), before.values())):
                continue
            for name in before if isinstance(place, types.ModuleType) else now.keys() | before:
                value, first = now.get(name), before.get(name)
                if value is not first and not _is_torchs(name, value, first):
                    return f"{place.__name__}.{name} was replaced"
        return None

    def _left_behind(self):
        for thread in threading.enumerate():
            # Python makes one up for a thread that is not its own, and keeps it after the end.
            is_made_up = isinstance(thread, threading._DummyThread)
            is_tqdm = type(thread).__name__ == "TMonitor"  # wakes bars, touches nothing else
            if thread not in self._threads and not (is_made_up or is_tqdm):
                return f"thread {thread.name} still runs"
        for name in set(sys.modules) - self._modules:
            module = sys.modules[name]
            if _is_own(module) and KEPT.get(name, 0) != _changed_at(module):
                return f"module {name} is the learner's own and may change"
        if _has_children():
            return "a process it started still runs"
        if torch.is_inference_mode_enabled() or torch.is_autocast_enabled("cpu"):
            return "inference mode or autocast was left on"
        return None

"""Measure single operations on the device of this machine, for a `Card`.

These operations are measured: products of square matrices, from small ones up to the largest that
fits the time; products of the oblong matrices of layers in three layouts; causal attention, forward
and backward; adding, gelu, casts, sums, normalisation and `log_softmax`, also backward; the fused
AdamW; and the time to begin an operation in a small step of training.

Each measurement has an equal share of the time. It makes at most 20 calls. The result is their
median on a GPU. On a CPU, where other programs disturb, it is the shortest. Operations that would
take longer than their share are left out, so the card of a slow device has smaller shapes.
Operations shorter than three launches are left out as well, because their times would be the times
of the host, not of the device.
"""

from __future__ import annotations

import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ..model.card import Card, Row

aten = torch.ops.aten
CALLS = 20
_SIDES = 256, 512, 1024, 2048, 4096, 8192
_OBLONG = (  # m, n, k in eighths of the largest square's side
    *((8, 1, 1), (8, 3, 1), (8, 4, 1), (8, 1, 4), (8, 32, 1), (8, 4, 4), (8, 14, 4), (8, 4, 14)),
    *((16, 4, 4), (4, 4, 16), (1, 4, 8), (2, 2, 8), (8, 2, 2)),
)
_FEW_ROWS = 16, 128
_ATTENTION = (  # batch times heads, length, width of a head
    *((12, 256, 64), (12, 1024, 64), (96, 1024, 64), (384, 1024, 64)),
    *((16, 512, 128), (64, 2048, 128), (64, 8192, 128)),
)
_ELEMENTS = 1 << 18, 1 << 22, 1 << 26
KERNELS_OF_SMALL_STEP = 13
_KINDS = {
    "_squares": "products of square matrices",
    "_oblong": "products of oblong matrices",
    "_attention": "attention",
    "_by_bytes": "operations limited by memory",
}
_MEASUREMENTS = 100
"""Roughly the number of measurements for one dtype. The time is divided by it."""


def measure(device: str, budget_s: float, say: Callable[[str], None] = print) -> Card:
    """Measure a card.

    Parameters
    ----------
    device : str
        ``"cpu"``, ``"cuda"``, or another device of torch.
    budget_s : float
        Seconds that measuring may take, approximately.
    say : callable
        Called with a line of text after each part of the measurements.

    Returns
    -------
    Card
    """
    return _Measuring(device, budget_s, say).card()


class _Measuring:
    def __init__(self, device, budget_s, say):
        self._device, self._say = torch.device(device), say
        self._is_cpu = self._device.type == "cpu"
        dtypes = torch.float32, torch.bfloat16
        self._dtypes = dtypes if self._is_cpu else (*dtypes, torch.float16)
        self._share_s = budget_s / (len(self._dtypes) * _MEASUREMENTS)
        # The time of one thread on a CPU is not lengthened by other programs.
        is_alone = self._is_cpu and torch.get_num_threads() == 1
        self._clock = time.process_time if is_alone else time.perf_counter
        self._torch = torch if self._is_cpu else getattr(torch, self._device.type)
        self._rows: list[Row] = []
        self._rates: dict[str, float] = {}

    def card(self) -> Card:
        began = time.perf_counter()
        if self._is_cpu and os.getloadavg()[0] > 0.5 * (os.cpu_count() or 1):
            self._say("other programs use this CPU, so the card will describe a slower CPU")
        self._launch_s = self._launch()
        self._memory_Bps = self._bandwidth()
        for dtype in self._dtypes:
            for name in _KINDS:
                with torch.no_grad():
                    getattr(self, name)(dtype)
                took, what = time.perf_counter() - began, f"{_KINDS[name]} in {_name(dtype)}"
                self._say(
                    f"{took:5.0f} s: measured {what}. The table now has {len(self._rows)} rows"
                )
        with torch.no_grad():
            self._adam()
        return Card(
            **_described(self._device),
            rates=self._rates,
            memory_Bps=self._memory_Bps,
            launch_s=self._launch_s,
            asynchronous=not self._is_cpu,
            rows=tuple(self._rows),
        )

    # How long a call takes

    def _seconds(self, call: Callable[[], Any], expected_s: float = 0.0) -> float | None:
        """Seconds of one call; None if it would take too long, or does not fit the memory."""
        if self._is_long(expected_s):
            return None
        try:
            warm_s = min(self._clocked(call) for _ in range(2))
            if self._is_cpu:
                end_s, least_s = time.perf_counter() + self._share_s, warm_s
                for _ in range(CALLS):
                    least_s = min(least_s, self._clocked(call))
                    if time.perf_counter() > end_s:
                        break
                return least_s
            calls = min(CALLS, max(3, int(self._share_s / max(warm_s, 1e-7))))
            marks = [self._torch.Event(enable_timing=True) for _ in range(calls + 1)]
            marks[0].record()
            for mark in marks[1:]:
                call()
                mark.record()
            self._wait()
            steps = zip(marks, marks[1:], strict=False)
            return statistics.median(one.elapsed_time(next_one) for one, next_one in steps) / 1e3
        except torch.OutOfMemoryError:
            return None

    def _is_long(self, expected_s):
        return 3 * expected_s > self._share_s

    def _clocked(self, call):
        begin_s = self._clock()
        call()
        self._wait()
        return self._clock() - begin_s

    def _wait(self):
        if not self._is_cpu:
            self._torch.synchronize()

    def _note(self, sort, dtype, layout, sizes, call, expected_s):
        """Measure a call, and keep it as a row if it took long enough."""
        seconds = self._seconds(call, expected_s)
        if seconds is not None and seconds > 3 * self._launch_s:
            self._rows.append(Row(sort, _name(dtype), layout, sizes, float(f"{seconds:.5g}")))
        return seconds

    # What is measured

    def _launch(self):
        """Seconds to begin an operation in a small step of training, with all of Python's work."""
        step, seconds = self._small_step(), []
        for _ in range(250):
            begin_s = self._clock()
            step()  # not waited for: a GPU computes while the next one is begun
            seconds.append(self._clock() - begin_s)
        return float(f"{statistics.median(seconds) / KERNELS_OF_SMALL_STEP:.3g}")

    def _small_step(self):
        layers = nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 16)
        net = nn.Sequential(*layers).to(self._device)
        x = torch.ones(16, 16, device=self._device)

        def step():
            net.zero_grad()
            net(x).sum().backward()

        return step

    def _bandwidth(self):
        """Bytes per second for the largest tensors that the time allows: they must fit no cache."""
        bandwidth_Bps = math.inf
        for elements in _ELEMENTS:
            nbytes = 8 * elements  # one is read once, and one written
            if self._is_long(nbytes / bandwidth_Bps):
                break
            x, y = (torch.ones(elements, device=self._device) for _ in range(2))
            bandwidth_Bps = nbytes / self._seconds(partial(torch.add, x, x, out=y))
        return float(f"{bandwidth_Bps:.4g}")

    def _squares(self, dtype):
        """Growing squares, until one takes too long; the rate is the best one."""
        self._side = _SIDES[0]
        rates = []
        for side in _SIDES:
            expected_s = 2 * side**3 / max(rates) if rates else 0.0
            seconds = self._product(dtype, side, side, side, expected_s)
            if seconds is None:
                break
            rates.append(2 * side**3 / seconds)
            self._side = side
        self._rates[_name(dtype)] = float(f"{max(rates):.4g}")

    def _oblong(self, dtype):
        shapes = [tuple(part * self._side // 8 for part in shape) for shape in _OBLONG]
        half = self._side // 2
        for m, n, k in [*shapes, *((rows, half, half) for rows in _FEW_ROWS)]:
            self._product(dtype, m, n, k, 2 * m * n * k / self._rates[_name(dtype)])

    def _product(self, dtype, m, n, k, expected_s):
        """All three layouts; returns the seconds of the plain one."""
        if self._is_long(expected_s):
            return None
        a, b = self._random(dtype, m, k), self._random(dtype, k, n)
        turned_a, turned_b = a.t().contiguous().t(), b.t().contiguous().t()
        factors = {"nn": (a, b), "nt": (a, turned_b), "tn": (turned_a, b)}
        took = [
            self._note(
                "product", dtype, layout, (m, n, k), partial(torch.mm, one, other), expected_s
            )
            for layout, (one, other) in factors.items()
        ]
        return took[0]

    def _attention(self, dtype):
        for heads, length, width in _ATTENTION:
            flops = 2 * heads * length**2 * width
            expected_s = 2 * flops / self._rates[_name(dtype)]
            if self._is_long(expected_s):
                continue
            sizes = heads, length, width
            q, k, v = (self._random(dtype, 1, *sizes).requires_grad_() for _ in range(3))

            forward = partial(F.scaled_dot_product_attention, q, k, v, is_causal=True)
            self._note("attention", dtype, "", sizes, forward, expected_s)
            with torch.enable_grad():
                out = forward()
            gradient = torch.ones_like(out)
            backward = partial(torch.autograd.grad, out, (q, k, v), gradient, retain_graph=True)
            self._note("attention_backward", dtype, "", sizes, backward, 2.5 * expected_s)

    def _by_bytes(self, dtype):
        for sort, passes, elements, call in self._memory_calls(dtype):
            nbytes = int(passes * elements * dtype.itemsize)
            self._note(sort, dtype, "", (nbytes,), call, nbytes / self._memory_Bps)

    def _memory_calls(self, dtype) -> Iterator[tuple[str, float, int, Callable[[], Any]]]:
        """Name of the op, how often it passes over the elements, their number, and a call."""
        other = torch.float32 if dtype != torch.float32 else torch.bfloat16
        for elements in _ELEMENTS:
            if self._is_long(3 * elements * dtype.itemsize / self._memory_Bps):
                return
            x, y = (self._random(dtype, elements // 1024, 1024) for _ in range(2))
            weight = torch.ones(1024, device=self._device, dtype=dtype)
            yield "add", 3, elements, partial(torch.add, x, y)
            yield "gelu", 2, elements, partial(F.gelu, x)
            yield "sum", 1, elements, partial(torch.sum, x)
            cast = 1 + other.itemsize / dtype.itemsize
            yield "_to_copy", cast, elements, partial(x.to, other)
            norm = partial(F.layer_norm, x, (1024,), weight, weight)
            yield "native_layer_norm", 2, elements, norm
            yield "_log_softmax", 2, elements, partial(F.log_softmax, x, -1)
            yield "gelu_backward", 3, elements, partial(aten.gelu_backward, y, x)
            _, *moments = aten.native_layer_norm(x, (1024,), weight, weight, 1e-5)
            given = y, x, (1024,), *moments, weight, weight, [True] * 3
            back = partial(aten.native_layer_norm_backward, *given)
            yield "native_layer_norm_backward", 3, elements, back
            back = partial(aten._log_softmax_backward_data, y, x, -1, dtype)
            yield "_log_softmax_backward_data", 3, elements, back

    def _adam(self):
        elements = _ELEMENTS[-2:][0]
        tensors = [torch.ones(elements, device=self._device) for _ in range(4)]
        steps = [torch.ones((), device=self._device)]
        options = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8}
        options |= {"amsgrad": False, "maximize": False}

        def step():
            torch._fused_adamw_(*([one] for one in tensors), [], steps, **options)

        nbytes = 7 * 4 * elements
        sizes, expected_s = (nbytes,), nbytes / self._memory_Bps
        self._note("_fused_adamw_", torch.float32, "", sizes, step, expected_s)

    def _random(self, dtype, *shape):
        return torch.randn(shape, device=self._device).to(dtype)


def _name(dtype):
    return str(dtype).removeprefix("torch.")


def _described(device):
    """Name, memory and workspaces of a device."""
    if device.type == "cuda":
        from . import workspace_bytes_of

        found = torch.cuda.get_device_properties(device)
        name, memory, workspace = found.name, found.total_memory, workspace_bytes_of(found.major)
    else:
        name, workspace = _name_of_cpu(), 0
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"name": name, "memory_bytes": memory, "workspace_bytes": workspace}


def _name_of_cpu():
    threads = f"{torch.get_num_threads()} threads"
    try:
        with open("/proc/cpuinfo") as lines:
            models = [one.split(":")[1].strip() for one in lines if one.startswith("model name")]
    except OSError:
        models = []
    return f"{models[0] if models else platform.processor() or platform.machine()}, {threads}"

"""Counted flops against formulas written out here, and against torch's own counter."""

from __future__ import annotations

import os

import hypothesis
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from simlib.core.engines.virtual.dispatch_mode import DispatchMode, FlopCounts
from simlib.core.engines.virtual.op_time import FlopTimes

SEED = int(os.environ["SEED"])
TIMES = FlopTimes(1.0, FlopCounts())


def flops_of(function):
    """The flops of each op that has some, in order."""
    counted = []
    with DispatchMode(lambda cost: counted.append(cost.flops), TIMES):
        function()
    return counted


def rand(*shape):
    return torch.rand(shape)


PRODUCTS = {
    "matrix, matrix": (lambda: rand(3, 5) @ rand(5, 7), 2 * 3 * 5 * 7),
    "with bias": (lambda: F.linear(rand(3, 5), rand(7, 5), rand(7)), 2 * 3 * 5 * 7),
    "matrix, vector": (lambda: rand(3, 5) @ rand(5), 2 * 3 * 5),
    "vector, vector": (lambda: rand(5) @ rand(5), 2 * 5),
    "vdot": (lambda: torch.vdot(rand(5), rand(5)), 2 * 5),
    "addmv": (lambda: torch.addmv(rand(3), rand(3, 5), rand(5), beta=2), 2 * 3 * 5),
    "batch": (lambda: rand(2, 3, 5) @ rand(2, 5, 7), 2 * 2 * 3 * 5 * 7),
    "addbmm": (lambda: torch.addbmm(rand(3, 7), rand(2, 3, 5), rand(2, 5, 7)), 2 * 2 * 3 * 5 * 7),
    "baddbmm": (lambda: torch.baddbmm(rand(7), rand(2, 3, 5), rand(2, 5, 7)), 2 * 2 * 3 * 5 * 7),
    "einsum": (lambda: torch.einsum("ij,kj->ik", rand(3, 5), rand(7, 5)), 2 * 3 * 5 * 7),
    # 2 images, 3 channels to 4, a 3 x 3 kernel at 6 x 6 places
    "convolution": (lambda: F.conv2d(rand(2, 3, 8, 8), rand(4, 3, 3, 3)), 2 * 2 * 36 * 4 * 3 * 9),
    # two groups of 2 channels to 2
    "in groups": (lambda: F.conv1d(rand(1, 4, 5), rand(4, 2, 3), groups=2), 2 * 3 * 4 * 2 * 3),
    # each of 8 x 8 places feeds a 3 x 3 patch
    "transposed": (
        lambda: F.conv_transpose2d(rand(2, 3, 8, 8), rand(3, 4, 3, 3)),
        2 * 2 * 64 * 108,
    ),
    # 2 heads: 6 queries meet 6 keys of size 8, then mix 6 values
    "attention": (
        lambda: F.scaled_dot_product_attention(*(rand(1, 2, 6, 8) for _ in range(3))),
        2 * (2 * 2 * 6 * 6 * 8),
    ),
    # 5 steps of 2 items: 4 gates of size 6, from 3 inputs and 6 hidden values
    "recurrent": (lambda: nn.LSTM(3, 6)(rand(5, 2, 3)), 2 * 5 * 2 * 4 * 6 * (3 + 6)),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_product_counts_two_operations_per_multiply_add(name, mode):
    function, expected = PRODUCTS[name]
    with mode():
        assert sum(flops_of(function)) == expected
        assert sum(flops_of(function)) == expected  # and from memory


def test_other_ops_count_nothing():
    def function():
        x = rand(8, 8).requires_grad_()
        y = torch.stack([x + x, x.exp()]).softmax(0).sum(0)
        F.layer_norm(y * y, (8,)).mean().backward()
        torch.optim.Adam([x]).step()

    assert flops_of(function) == []


widths = st.lists(st.integers(1, 9), min_size=2, max_size=5)


def layers(sizes):
    pairs = zip(sizes, sizes[1:], strict=False)
    return nn.Sequential(*(part for pair in pairs for part in (nn.Linear(*pair), nn.ReLU())))


@hypothesis.seed(SEED)
@settings(max_examples=40, deadline=None, database=None)
@given(sizes=widths, batch=st.integers(1, 9))
def test_a_perceptron_costs_two_flops_per_weight_and_item_forward_and_four_backward(sizes, batch):
    net = layers(sizes)
    weights = [a * b for a, b in zip(sizes, sizes[1:], strict=False)]
    forward = 2 * batch * sum(weights)
    assert sum(flops_of(lambda: net(rand(batch, sizes[0])))) == forward
    trained = sum(flops_of(lambda: net(rand(batch, sizes[0])).sum().backward()))
    # The input needs no gradient: the first layer makes that of its weight only.
    assert trained == 3 * forward - 2 * batch * weights[0]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_recomputation_counts(use_reentrant):
    net = layers([4, 6, 5])
    x = rand(3, 4).requires_grad_()
    forward = 2 * 3 * (4 * 6 + 6 * 5)
    assert sum(flops_of(lambda: net(x).sum().backward())) == 3 * forward
    again = flops_of(lambda: checkpoint(net, x, use_reentrant=use_reentrant).sum().backward())
    assert sum(again) == 4 * forward


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.GELU(),
        nn.MaxPool2d(2),
        nn.ConvTranspose2d(4, 2, 2),
        nn.Flatten(),
        nn.Linear(128, 8),
        nn.LayerNorm(8),
    )


@pytest.mark.parametrize(
    "make, shape",
    [
        (convolutions, (2, 3, 16, 16)),
        (lambda: nn.TransformerEncoderLayer(8, 2), (5, 2, 8)),
        (lambda: nn.GRU(3, 6), (5, 2, 3)),
    ],
    ids=["convolutions", "transformer", "gru"],
)
def test_the_counter_of_torch_agrees_on_what_it_knows(make, shape):
    net, x = make(), rand(*shape)

    def train():
        out = net(x)
        (out[0] if isinstance(out, tuple) else out).sum().backward()

    with FlopCounterMode(display=False) as counter:
        train()
    assert sum(flops_of(train)) == counter.get_total_flops() > 0


def test_the_backward_of_attention_and_of_recurrent_layers_counts_twice_its_forward_or_more():
    q = rand(1, 2, 6, 8).requires_grad_()
    forward, backward = flops_of(lambda: F.scaled_dot_product_attention(q, q, q).sum().backward())
    assert backward == 5 * forward // 2  # the scores are computed again
    forward, backward = flops_of(lambda: nn.LSTM(3, 6)(rand(5, 2, 3))[0].sum().backward())
    assert backward == 2 * forward


def test_a_function_of_the_learners_own_is_seen_through():
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(context, x, w):
            context.save_for_backward(x, w)
            return x @ w

        @staticmethod
        def backward(context, gradient):
            x, w = context.saved_tensors
            return gradient @ w.T, x.T @ gradient

    x, w = rand(3, 4).requires_grad_(), rand(4, 5).requires_grad_()
    assert flops_of(lambda: Product.apply(x, w).sum().backward()) == [2 * 3 * 4 * 5] * 3


def test_an_op_is_counted_when_it_has_run_and_none_while_paused():
    seen = []
    mode = DispatchMode(lambda cost: seen.append((cost.flops, done[:])), TIMES)
    done = []
    with mode:
        done.append((rand(2, 2) @ rand(2, 2)).shape)
        mode.paused = True
        rand(3, 3) @ rand(3, 3)
        mode.paused = False
        rand(2, 1) @ rand(1, 2)
    assert seen == [(16, []), (8, [torch.Size([2, 2])])]


def test_results_are_the_same_to_the_bit():
    def train():
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.ReLU(), nn.Linear(6, 2))
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            net(rand(5, 4)).sum().backward()
            optimizer.step()
        return [parameter.tolist() for parameter in net.parameters()]

    plain, seen = train(), []
    flops_of(lambda: seen.append(train()))
    assert seen == [plain]

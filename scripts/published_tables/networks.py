"""Networks of published measurements, layer by layer: parameters and operations."""

from math import prod
from typing import NamedTuple

import numpy as np


class Layer(NamedTuple):
    """One layer with parameters; operations are multiply-adds for one image."""

    parameters: int
    operations: int


def resnet(blocks):
    """ResNet with bottlenecks (He et al. 2015, arXiv 1512.03385), from input to output.

    ``blocks`` are those of its four stages: 3, 4, 6, 3 for ResNet-50. The stride is in the first
    convolution of a block, as in the paper.
    """
    layers = [_convolution(3, 64, 7, 112)]
    size, channels = 56, 64
    for stage, count in enumerate(blocks):
        width = 64 * 2**stage
        for block in range(count):
            out = size // 2 if stage and not block else size
            layers += [
                _convolution(channels, width, 1, out),
                _convolution(width, width, 3, out),
                _convolution(width, 4 * width, 1, out),
            ]
            if not block:
                layers.append(_convolution(channels, 4 * width, 1, out))
            channels, size = 4 * width, out
    return [*layers, _linear(channels, 1000)]


def vgg16():
    """VGG-16 (Simonyan and Zisserman 2014, arXiv 1409.1556), from input to output."""
    layers, channels, size = [], 3, 224
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers.append(_convolution(channels, width, 3, size, norm=False))
            channels = width
        size //= 2
    return layers + [_linear(*sides) for sides in ((512 * 7 * 7, 4096), (4096, 4096), (4096, 1000))]


def _convolution(channels, width, side, out, norm=True):
    weights = channels * width * side**2
    return Layer(weights + width * (2 if norm else 1), weights * out**2)


def _linear(inputs, outputs):
    return Layer(inputs * outputs + outputs, inputs * outputs)


def gradients(layers, forward_s, backward_s, bucket_bytes=0, multiple=4):
    """Buckets of gradients in float32, in the order of backward, and when they are ready.

    Backward takes time in proportion to the operations. A bucket is full when the next layer would
    make it larger than ``bucket_bytes`` (0: each layer for itself); it is filled up to a
    ``multiple`` of bytes.

    Returns
    -------
    nbytes : list of int
    ready_s : ndarray of float
        Since the step began.
    """
    done = np.cumsum([layer.operations for layer in reversed(layers)])
    nbytes, ready = [], []
    for layer, share in zip(reversed(layers), done / done[-1], strict=True):
        size = 4 * layer.parameters
        if nbytes and nbytes[-1] + size <= bucket_bytes:
            nbytes[-1], ready[-1] = nbytes[-1] + size, share
        else:
            nbytes.append(size)
            ready.append(share)
    padded = [-(-size // multiple) * multiple for size in nbytes]
    return padded, forward_s + backward_s * np.array(ready)


def parameters(layers):
    """How many there are in all."""
    return sum(layer.parameters for layer in layers)


def transformer(layers, hidden, words=51_200):
    """Parameters of a GPT, and multiply-adds of its forward for one token of 1,024."""
    blocks = 12 * layers * hidden**2
    return blocks + words * hidden, blocks + prod((2, layers, 1024, hidden)) + words * hidden

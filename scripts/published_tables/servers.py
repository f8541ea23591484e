"""Published throughputs of training with parameter servers."""

from simlib import Cluster, Link, scale

from .networks import parameters, resnet
from .rows import Row, Table

LATENCY_S = 50e-6
INCEPTION_V3 = 4 * 23_834_568


def tensorflow():
    """Images per second on EC2 p2.8xlarge, each with a worker and, some, a server."""
    networks = {
        "ResNet-50": (
            4 * parameters(resnet([3, 4, 6, 3])), 64, {8: 378, 16: 751, 32: 1388, 64: 2744}, 8,
        ),
        "ResNet-50, 32 images": (
            4 * parameters(resnet([3, 4, 6, 3])), 32, {8: 333, 16: 667, 32: 1180, 64: 2315}, 4,
        ),
        "Inception V3": (INCEPTION_V3, 64, {8: 229, 16: 459, 32: 902, 64: 1783}, 6),
        "ResNet-152": (
            4 * parameters(resnet([3, 8, 36, 3])), 32, {8: 146, 16: 291, 32: 565, 64: 981}, 4,
        ),
    }  # fmt: skip
    rows = []
    for name, (nbytes, batch, speeds, most_servers) in networks.items():
        seconds = 8 * batch / speeds[8]
        for gpus in (16, 32, 64):
            nodes = gpus // 8
            servers = most_servers if nodes == 8 else nodes
            step_s = _step_s(nbytes, nodes, servers, 10e9, seconds)
            what = f"{name}, {gpus} GPUs, {servers} servers"
            rows.append(Row(what, speeds[gpus], gpus * batch / step_s))
    return Table("network", "images/s", ",.0f", rows)


def mxnet():
    """Images per second on 16 EC2 p2.16xlarge, each with a worker and a server."""
    networks = {
        "AlexNet": (203e6, 512, {16: 4244.18, 32: 7945.57, 64: 15840.52, 256: 61938.36}),
        "Inception V3": (95e6, 32, {16: 447.61, 32: 882.57, 64: 1761.24, 256: 6660.98}),
        "ResNet-152": (240e6, 32, {16: 298.03, 32: 595.53, 64: 1179.86, 256: 4630.42}),
    }
    rows = []
    for name, (nbytes, batch, speeds) in networks.items():
        seconds = 16 * batch / speeds[16]
        for gpus in (32, 64, 256):
            step_s = _step_s(nbytes, gpus // 16, gpus // 16, 20e9, seconds)
            rows.append(Row(f"{name}, {gpus} GPUs", speeds[gpus], gpus * batch / step_s))
    return Table("network", "images/s", ",.0f", rows)


def _step_s(nbytes, nodes, servers, bits_per_s, seconds):
    """A synchronous step; a worker on each node, servers on the first ones."""
    cluster = Cluster(nodes, 2, Link(LATENCY_S, bits_per_s / 8))
    return scale.parameter_server_time(
        nbytes, nodes, servers, cluster, forward_s=seconds / 3, backward_s=seconds * 2 / 3,
        placement=[*range(nodes), *range(servers)],
    ).time_s  # fmt: skip

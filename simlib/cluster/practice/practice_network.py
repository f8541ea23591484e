"""`PracticeNetwork`: some nodes, each a network namespace, and a switch between them.

::

    node 0 [eth0]---up-->  [port0]  switch  [port1]  <--up---[eth0] node 1
                 <-down--                            --down->

Each node has an address and a link of its own, in both directions with the rate that was asked
for. The nodes share the machine's files, processes and host name: what is separate is the network.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

from ...core.model.errors import InvalidCallError, check_count, check_number
from .system import (
    add_namespace,
    end_processes,
    new_name,
    remove_namespace,
    remove_place,
    shape,
    tool,
    why_not,
)

MAX_NODES = 64
# What a node sends at one go: smaller than the 64 KB that Linux hands to a virtual link at once, so
# that two transfers over one link take turns as finely as they do on a real one.
GSO_BYTES = "16384"


def tcp_settings(rate_bps):
    """Settings of TCP, so that every transfer meets the same conditions.

    No memory of earlier connections, no slow start after a pause, and the one congestion control
    that every Linux has. A connection may have 1 ms of data in its link's queue: connections that
    share a link then take turns, as behind a real network card. With more, the
    one that was used before, and has the larger window, takes most of the link.
    """
    settings = {
        "tcp_congestion_control": "reno",
        "tcp_slow_start_after_idle": "0",
        "tcp_no_metrics_save": "1",
    }
    if rate_bps:
        settings["tcp_limit_output_bytes"] = str(max(32_768, int(rate_bps / 8 * 0.001)))
    return settings


class PracticeNetwork:
    """Nodes on a slow network, on this machine: a context manager.

    It needs Linux, root and the system package iproute2. On the way out, also by an error or
    Ctrl-C, all processes of the nodes are ended and everything is removed.

    Parameters
    ----------
    nodes : int
        Number of nodes, 1 to 64.
    rate_bps : float, optional
        Bits per second of each node's link, in each direction; None for no limit. What arrives is
        less by the headers of Ethernet, IP and TCP: 1,448 bytes of 1,514.
    delay_s : float
        Seconds that everything takes longer from one node to another.

    Attributes
    ----------
    addresses : list of str
        The address of each node.
    namespaces : list of str
        The names of all network namespaces: the switch's, then the nodes'.

    Examples
    --------
    >>> with PracticeNetwork(nodes=2, rate_bps=100e6) as net:           # doctest: +SKIP
    ...     net.popen(0, ["ping", "-c", "1", net.addresses[1]]).wait()
    """

    def __init__(self, nodes, rate_bps=None, delay_s=0.0):
        check_count("nodes", nodes)
        if nodes > MAX_NODES:
            raise InvalidCallError(f"nodes is {nodes}: a practice network has at most {MAX_NODES}")
        if rate_bps is not None:
            check_number("rate_bps", rate_bps, low=1e5)
        check_number("delay_s", delay_s)
        self.nodes = nodes
        self.rate_bps = rate_bps
        self.delay_s = delay_s
        self.addresses = [f"10.77.0.{node + 1}" for node in range(nodes)]
        token = secrets.token_hex(3)
        self._switch = new_name("switch", token)
        self._names = [new_name(f"node{node}", token) for node in range(nodes)]
        self.namespaces = [self._switch, *self._names]
        self._started = []

    def __enter__(self):
        refuse = why_not()
        if refuse:
            raise InvalidCallError(refuse)
        try:
            self._set_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info):
        try:
            self._remove()
        except BaseException:  # Ctrl-C again, say: what was begun is ended all the same
            self._remove()
            raise

    def _remove(self):
        for name in self.namespaces:  # the switch first: it notices missing ports
            remove_namespace(name)
        remove_place()
        for process in self._started:
            process.wait()
        self._started.clear()

    def popen(self, node, argv, **options):
        """Start a program on a node; returns a `subprocess.Popen`.

        Parameters
        ----------
        node : int
        argv : list of str
            The program and its arguments.
        **options
            As for `subprocess.Popen`. ``GLOO_SOCKET_IFNAME`` is set, so that Gloo uses the node's
            link and not the address that the host name stands for.
        """
        check_count("node", node, low=0)
        if node >= self.nodes:
            raise InvalidCallError(f"node is {node}: the network has nodes 0 to {self.nodes - 1}")
        env = {**(options.pop("env", None) or os.environ), "GLOO_SOCKET_IFNAME": "eth0"}
        return self._start(self._names[node], argv, env=env, **options)

    def end_processes(self):
        """End everything that runs on the nodes, also what their programs have started."""
        for name in self._names:
            end_processes(name)

    def bytes_carried(self, node):
        """Bytes that a node's link has carried so far, with headers: ``(sent, received)``.

        Linux hands several packets of one connection to a virtual link as one, and counts their
        headers once.
        """
        files = [f"/sys/class/net/eth0/statistics/{way}_bytes" for way in ("tx", "rx")]
        text = tool("ip", "netns", "exec", self._names[node], "cat", *files)
        return tuple(map(int, text.split()))

    def _start(self, name, argv, **options):
        # A session of its own: Ctrl-C reaches this process only, which then ends them all.
        options.setdefault("start_new_session", True)
        process = subprocess.Popen(["ip", "netns", "exec", name, *map(str, argv)], **options)
        self._started.append(process)
        return process

    def _set_up(self):
        add_namespace(self._switch)
        for node, name in enumerate(self._names):
            self._add_node(node, name)
        ports = [f"port{node}" for node in range(self.nodes)]
        if self.delay_s:
            self._start_delaying_switch(ports)
        else:
            self._join_by_bridge(ports)

    def _add_node(self, node, name):
        port = f"port{node}"
        inside, outside = ("ip", "-n", name), ("ip", "-n", self._switch)
        add_namespace(name)
        tool(*outside, *f"link add name {port} type veth peer name eth0 netns {name}".split())
        tool(*outside, "link", "set", port, "gso_max_size", GSO_BYTES, "up")
        tool(*inside, "link", "set", "lo", "up")
        tool(*inside, "addr", "add", f"{self.addresses[node]}/24", "dev", "eth0")
        tool(*inside, "link", "set", "eth0", "gso_max_size", GSO_BYTES, "up")
        for setting, value in tcp_settings(self.rate_bps).items():
            path = f"/proc/sys/net/ipv4/{setting}"
            tool("ip", "netns", "exec", name, "sh", "-c", f"echo {value} > {path}")
        if self.rate_bps:
            for where, device in ((name, "eth0"), (self._switch, port)):
                words = shape(self.rate_bps)
                tool("tc", "-n", where, "qdisc", "replace", "dev", device, "root", *words)

    def _join_by_bridge(self, ports):
        at_switch = ("ip", "-n", self._switch)
        tool(*at_switch, "link", "add", "name", "switch", "type", "bridge")
        tool(*at_switch, "link", "set", "switch", "up")
        for port in ports:
            tool(*at_switch, "link", "set", port, "master", "switch")

    def _start_delaying_switch(self, ports):
        program = Path(__file__).with_name("delay.py")
        argv = [sys.executable, program, self.delay_s, *ports]
        switch = self._start(self._switch, argv, stdout=subprocess.PIPE, text=True)
        if switch.stdout.readline() != "ready\n":
            raise InvalidCallError("the practice network cannot be made: its switch did not start")

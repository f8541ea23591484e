"""Programs in SimGrid's SMPI, on a flat cluster in which both fluid models agree.

SimGrid knows more of real networks than `simlib` does: by default it multiplies latencies and
bandwidths by measured factors, lets a flow take a little of the way back (``crosstraffic``), bounds
it by TCP's window and weighs long ways down. All that is switched off here, and what remains is
max-min sharing of links. Small messages wait for their receiver, as `simulate` has it, and
computing takes no time. A host of SimGrid's cluster has a link of its own each way, like a rank of
ours, but the two latencies on a path add up: each is half of ours. And SMPI adds an envelope of 16
bytes to every message: so does the `Cluster` here. Ranks of one host meet at once. No difference is
left but rounding.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from simlib.core.model.cluster import Cluster, Link

LINK = Link(latency_s=30e-6, bandwidth_Bps=1.25e9)
ENVELOPE_BYTES = 16
ELEMENTS = 25  # in each of the ring's chunks: data of 1,024 ranks fit any memory

PLATFORM = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="flat" prefix="node" suffix="" radical="0-{last}" speed="1Gf"
           bw="{bandwidth_Bps}Bps" lat="{latency_s}s" sharing_policy="SPLITDUPLEX"
           loopback_bw="1e30Bps" loopback_lat="0s"/>
</platform>
"""
SETTINGS = {
    "network/model": "CM02",
    "network/latency-factor": 1,
    "network/bandwidth-factor": 1,
    "network/weight-S": 0,
    "network/TCP-gamma": 0,
    "network/crosstraffic": 0,
    "smpi/simulate-computation": "no",
    "smpi/send-is-detached-thresh": 0,
    "smpi/async-small-thresh": 0,
    "smpi/test": 0,
    "smpi/wtime": 0,
}


def why_not():
    """A sentence that says what is missing for SMPI, or None."""
    missing = [name for name in ("smpicc", "smpirun") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} not found (Debian and Ubuntu: package libsimgrid-dev)"
    return None


def cluster(nodes, ranks_per_node=1):
    """The same cluster for `simulate` and `scale`; a pair's messages share their link, as there."""
    return Cluster(nodes, ranks_per_node, inter=LINK, envelope_bytes=ENVELOPE_BYTES, in_order=False)


class Program:
    """A program of this folder, built for SMPI in a folder that goes with this."""

    def __init__(self, source):
        self._source = Path(__file__).with_name(source)

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory()
        self._program = self._file("program")
        subprocess.run(["smpicc", "-O2", self._source, "-o", self._program], check=True)
        return self

    def __exit__(self, *_):
        self._folder.cleanup()

    def _file(self, name):
        return Path(self._folder.name, name)

    def run(self, hosts, arguments, settings=None):
        """Wall seconds of one ``smpirun``, and what the ranks printed.

        Parameters
        ----------
        hosts : list of int
            The host of each rank.
        arguments : sequence
        settings : dict, optional
            Of SMPI, beside `SETTINGS`.
        """
        self._file("platform.xml").write_text(
            PLATFORM.format(
                last=max(hosts),
                bandwidth_Bps=LINK.bandwidth_Bps,
                latency_s=LINK.latency_s / 2,
            )
        )
        self._file("hosts").write_text("".join(f"node{host}\n" for host in hosts))
        command = ["smpirun", "-np", str(len(hosts)), "-platform", self._file("platform.xml")]
        command += ["-hostfile", self._file("hosts")]
        command += [
            f"--cfg={name}:{value}" for name, value in (SETTINGS | (settings or {})).items()
        ]
        command += ["--log=root.thres:critical", self._program, *map(str, arguments)]
        begin = time.perf_counter()
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return time.perf_counter() - begin, done.stdout

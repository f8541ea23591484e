"""A ring all_reduce in SimGrid's SMPI, on a flat cluster in which both fluid models agree.

SimGrid knows more of real networks than `simlib` does: by default it multiplies latencies and
bandwidths by measured factors, lets a flow take a little of the way back (``crosstraffic``), bounds
it by TCP's window and weighs long ways down. All that is switched off here, and what remains is
max-min sharing of links. Small messages wait for their receiver, as `simulate` has it, and
computing takes no time. A host of SimGrid's cluster has a link of its own each way, like a rank of
ours, but the two latencies on a path add up: each is half of ours. And SMPI adds an envelope of 16
bytes to every message: so does the `Cluster` here. No difference is left but rounding.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from simlib.model.cluster import Cluster, Link

LINK = Link(latency_s=30e-6, bandwidth_Bps=1.25e9)
ENVELOPE_BYTES = 16
ELEMENTS = 25  # in each of the ring's chunks: data of 1,024 ranks fit any memory

PLATFORM = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="flat" prefix="node" suffix="" radical="0-{last}" speed="1Gf"
           bw="{bandwidth_Bps}Bps" lat="{latency_s}s" sharing_policy="SPLITDUPLEX"/>
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


def cluster(world_size):
    """The same cluster for `simulate`."""
    return Cluster(world_size, 1, inter=LINK, envelope_bytes=ENVELOPE_BYTES)


class Ring:
    """``ring.c``, built for SMPI in a folder that goes with this."""

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory()
        self._program = Path(self._folder.name, "ring")
        source = Path(__file__).with_name("ring.c")
        subprocess.run(["smpicc", "-O2", source, "-o", self._program], check=True)
        return self

    def __exit__(self, *_):
        self._folder.cleanup()

    def run(self, world_size):
        """Wall seconds of one ``smpirun``, and the simulated time of the all_reduce."""
        platform = Path(self._folder.name, f"{world_size}.xml")
        platform.write_text(
            PLATFORM.format(
                last=world_size - 1,
                bandwidth_Bps=LINK.bandwidth_Bps,
                latency_s=LINK.latency_s / 2,
            )
        )
        command = ["smpirun", "-np", str(world_size), "-platform", platform]
        command += [f"--cfg={name}:{value}" for name, value in SETTINGS.items()]
        command += ["--log=root.thres:critical", self._program, str(ELEMENTS)]
        begin = time.perf_counter()
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        seconds = time.perf_counter() - begin
        return seconds, float(re.search(r"time_s (\S+)", done.stdout)[1])

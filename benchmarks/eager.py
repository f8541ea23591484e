"""Eager sends in MPICH over a practice network, in SimGrid's SMPI, and in `simlib.simulate`.

The same scripts of four ranks (`eager.c` says how to read them) run in all three. A message takes
100 ms on its link, after a latency of 50 ms: much more than the pauses of a busy machine.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

import simlib
from simlib.cluster.practice import PracticeNetwork
from simlib.cluster.practice.practice_network import why_not

from .table import heading, line

NBYTES, LATE_S, LATENCY_S, RATE_BPS = 12_000, 1.0, 0.05, 1e6
PAYLOAD = 1448 / 1514  # of a full frame
BANDWIDTH_BPS = RATE_BPS / 8 * PAYLOAD
CHAIN = "|".join(("s1" * 5, "r0s2" * 5, "r1s3" * 5, "r2" * 5))
MANY = "s1" * 30 + "|l0" + "r0" * 30 + "||"
ROWS = (
    ("the receive is early: it ends", "s1|r0||", 1, -1),
    ("the receive is late: the send ends", "s1|l0r0||", 0, -1),
    ("the receive is late: it ends", "s1|l0r0||", 1, -1),
    ("the receive is late: the wait of an isend ends", "i1w1|l0r0||", 0, -1),
    ("two messages of a pair: the first receive ends", "s1s1|r0r0||", 1, 0),
    ("two messages of a pair: the second receive ends", "s1s1|r0r0||", 1, 1),
    ("one to a late rank, then one to rank 2: it receives", "s1s2|l0r0|r0|", 2, 0),
    ("three ranks send to rank 0: its last receive ends", "r1r2r3|s0|s0|s0", 0, -1),
    ("five along a chain of four ranks: the last receive ends", CHAIN, 3, -1),
    ("30 to a late rank: the 10th send ends", MANY, 0, 9),
    ("30 to a late rank: the last send ends", MANY, 0, -1),
    ("30 to a late rank: the last receive ends", MANY, 1, -1),
)
"""What, script, rank, step."""
TOLERANCE_S = 0.05  # of MPICH: half a message; a shaped link lets 3 kB, or 25 ms, pass at once

PLATFORM = f"""<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="flat" prefix="node" suffix="" radical="0-3" speed="1Gf" bw="{BANDWIDTH_BPS}Bps"
           lat="{LATENCY_S / 2}s" sharing_policy="SPLITDUPLEX"/>
</platform>
"""
SETTINGS = """network/model:CM02 network/latency-factor:1 network/bandwidth-factor:1
network/weight-S:0 network/TCP-gamma:0 network/crosstraffic:0 network/optim:Full
smpi/simulate-computation:no smpi/test:0 smpi/wtime:0""".split()


def eager(rounds):
    """Print when each step of `ROWS` ends, in ms."""
    heading("Eager sends: MPICH, SMPI and simulate, ms since the start")
    missing = [name for name in ("mpicc", "mpiexec", "smpicc", "smpirun") if not shutil.which(name)]
    if refuse := why_not() or (missing and f"no {missing[0]}: Debian has mpich, libsimgrid-dev"):
        line(f"left out: {refuse}", "")
        return
    scripts = list(dict.fromkeys(script for _, script, _, _ in ROWS))
    with tempfile.TemporaryDirectory() as folder:
        found = {
            "MPICH": _in_mpich(Path(folder), scripts, rounds),
            "SMPI": _in_smpi(Path(folder), scripts, 0),
            "SMPI, async-small-thresh": _in_smpi(Path(folder), scripts, NBYTES + 1),
            "simulate": _simulated(scripts, in_order=True),
            "simulate, in_order=False": _simulated(scripts, in_order=False),
        }
    print("columns:", ", ".join(found))
    for what, script, rank, step in ROWS:
        times = [ends[scripts.index(script), rank][step] for ends in found.values()]
        mpich_s, _, smpi_s, ours_s, shared_s = times
        held = abs(smpi_s - shared_s) < 1e-6 and abs(mpich_s - ours_s) < TOLERANCE_S
        line(
            what,
            "".join(f"{time_s * 1e3:7.1f}" for time_s in times),
            "" if script == MANY else "1 = 4, 3 = 5",
            None if script == MANY else held,
        )


def _parsed(lines):
    return {
        (int(number), int(rank)): [float(time_s) for time_s in times]
        for word, number, rank, *times in (text.split() for text in lines if text[:5] == "times")
    }


def _in_mpich(folder, scripts, rounds):
    program, shell = folder / "mpich", folder / "shell"
    source = Path(__file__).with_suffix(".c")
    subprocess.run(["mpicc", "-O2", source, "-o", program], check=True)
    with PracticeNetwork(4, RATE_BPS, LATENCY_S) as network:
        nodes = zip(network.addresses, network.namespaces[1:], strict=True)
        cases = "\n".join(f"{address}) name={name};;" for address, name in nodes)
        shell.write_text(  # in place of ssh: options, host, command
            '#!/bin/sh\nwhile [ "${1#-}" != "$1" ]; do shift; done\n'
            f'case $1 in\n{cases}\nesac\nshift\nexec ip netns exec $name sh -c "$*"\n'
        )
        shell.chmod(0o700)
        time.sleep(2)  # UCX refuses a link that Linux does not yet report as up
        command = ["mpiexec", "-launcher", "ssh", "-launcher-exec", shell, "-iface", "eth0"]
        command += ["-ppn", "1", "-hosts", ",".join(network.addresses)]
        settings = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0", "UCX_RNDV_THRESH": "20000"}
        ranks = network.popen(
            0, [*command, program, NBYTES, LATE_S, *scripts * rounds], env=os.environ | settings,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        lines = []
        while sum(text.startswith("done") for text in lines) < 4:
            lines.append(ranks.stdout.readline())
            if not lines[-1]:
                raise RuntimeError("mpiexec ended early")
    found = _parsed(lines)
    return {
        (number, rank): [
            statistics.median(times)
            for times in zip(
                *(found[number + k * len(scripts), rank] for k in range(rounds)), strict=True
            )
        ]
        for number in range(len(scripts))
        for rank in range(4)
    }


def _in_smpi(folder, scripts, small):
    program = folder / "smpi"
    source = Path(__file__).with_suffix(".c")
    subprocess.run(["smpicc", "-O2", source, "-o", program], check=True)
    (folder / "platform.xml").write_text(PLATFORM)
    (folder / "hosts").write_text("".join(f"node{rank}\n" for rank in range(4)))
    limits = f"smpi/send-is-detached-thresh:{NBYTES + 1}", f"smpi/async-small-thresh:{small}"
    command = ["smpirun", "-np", "4", "-platform", folder / "platform.xml"]
    command += ["-hostfile", folder / "hosts", "--log=root.thres:critical"]
    command += [f"--cfg={setting}" for setting in (*SETTINGS, *limits)]
    ran = subprocess.run(
        [*command, program, str(NBYTES), str(LATE_S), *scripts], check=True, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    return _parsed(ran.stdout.splitlines())


def _simulated(scripts, in_order):
    link = simlib.Link(LATENCY_S, BANDWIDTH_BPS)
    cluster = simlib.Cluster(4, 1, inter=link, in_order=in_order, envelope_bytes=16)
    found = {}
    for number, script in enumerate(scripts):
        run = simlib.simulate(_steps, 4, (script,), cluster=cluster, eager_limit_bytes=NBYTES)
        for rank in range(4):
            found[number, rank] = [op.end_s for op in run.trace if op.rank == rank]
    return found


def _steps(rank, world_size, script):
    """The steps of one rank, as torch calls."""
    steps, data = script.split("|")[rank], torch.empty(NBYTES, dtype=torch.uint8)
    for kind, peer in zip(steps[::2], map(int, steps[1::2]), strict=True):
        if kind == "l":
            simlib.compute(seconds=LATE_S)
        elif kind == "r":
            dist.recv(data, peer)
        elif kind == "s":
            dist.send(data, peer)
        elif kind == "i":
            request = dist.isend(data, peer)
        else:
            request.wait()

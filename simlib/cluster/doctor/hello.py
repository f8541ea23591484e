"""The program that each rank of the doctor runs: a hello over MPI, then ping-pong between pairs of
ranks.

It needs only mpi4py. It prints each step as one line of JSON when the step is done. So if the
program hangs, the doctor knows the steps that are done.
"""

import itertools
import json
import os
import signal
import socket
import sys
import time

MAX_PAIRS = 6
FEW, MAX_TRIPS = 5, 200  # of one byte
SMALL_S, LARGE_S = 0.2, 0.3  # about so long do messages take
SMALL, LARGE = 1 << 16, 1 << 22  # bytes


def say(step, **values):
    """Print one step in one piece, because ranks share the terminal."""
    os.write(1, (json.dumps({"step": step, **values}) + "\n").encode())


def trip_s(comm, first, peer, buffer, times):
    """Return the median time, in seconds, that a message takes to the peer and back."""
    took = []
    for _ in range(times):
        begin_s = time.perf_counter()
        if first:
            comm.Send(buffer, peer)
            comm.Recv(buffer, peer)
        else:
            comm.Recv(buffer, peer)
            comm.Send(buffer, peer)
        took.append(time.perf_counter() - begin_s)
    return sorted(took)[len(took) // 2]


def agree(comm, first, peer, value):
    """Return a number that the pair's first rank chose, on both ranks."""
    room = bytearray(int(value).to_bytes(8, "big"))
    if first:
        comm.Send(room, peer)
    else:
        comm.Recv(room, peer)
    return int.from_bytes(room, "big")


def ping_pong(comm, first, peer):
    """Return ``(seconds one way, bytes per second)`` between two ranks, by the clock of the first
    rank."""
    trip_s(comm, first, peer, bytearray(1), FEW)
    guess_s = trip_s(comm, first, peer, bytearray(1), FEW)
    times = agree(comm, first, peer, max(FEW, min(MAX_TRIPS, SMALL_S / guess_s)))
    one_way_s = trip_s(comm, first, peer, bytearray(1), times) / 2
    small_s = trip_s(comm, first, peer, bytearray(SMALL), FEW) / 2
    nbytes = agree(comm, first, peer, max(SMALL, min(LARGE, SMALL * LARGE_S / 6 / small_s)))
    large_s = trip_s(comm, first, peer, bytearray(nbytes), 3) / 2
    return one_way_s, nbytes / large_s


def wait_for_all(comm):
    """Wait for all ranks, but leave the processor to ranks that measure and may share it."""
    barrier = comm.Ibarrier()
    while not barrier.Test():
        time.sleep(0.002)


def main(limit_s):
    """Run all steps of one rank."""
    signal.alarm(limit_s)  # nothing is left on a host, whatever happens to mpiexec
    say("began", host=socket.gethostname())
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    say("joined", rank=comm.rank, size=comm.size)
    total = comm.allreduce(comm.rank + 1)
    say("met", rank=comm.rank, total=total)
    for pair in itertools.islice(itertools.combinations(range(comm.size), 2), MAX_PAIRS):
        if comm.rank in pair:
            latency_s, bandwidth_Bps = ping_pong(comm, comm.rank == pair[0], sum(pair) - comm.rank)
            if comm.rank == pair[0]:
                say("pair", pair=pair, latency_s=latency_s, bandwidth_Bps=bandwidth_Bps)
        wait_for_all(comm)


if __name__ == "__main__":
    main(int(sys.argv[1]))

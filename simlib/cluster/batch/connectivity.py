"""Which hosts of a job still answer: ``python -I reach.py FOLDER``, run where the launcher runs.

`launcher_process` starts it twice: when all ranks have joined, and when the job ends otherwise than
it should. The first look is kept in ``reach.json``; the second is compared with it, and hosts that
answered then and answer no more are named in ``lost.json``. A host that was never seen from here,
behind a firewall say, is named by nobody.

A host answers if a connection to its port of ssh is accepted or refused: it is its kernel that
does, also on a busy machine. It needs the standard library only.
"""

import errno
import json
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

PORT = 22
TRY_S = 3.0
OPEN, REFUSED, SILENT, CUT = "open", "refused", "silent", "cut"
"""What comes of a connection: ``cut`` is where this host has no network of its own any more."""
OF_NO_NETWORK = (errno.ENETUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL)


def main(path):
    """Look at the hosts; write down what was found, or how it differs from the first look."""
    places = read_places(path)
    with ThreadPoolExecutor(max(1, len(places))) as pool:
        found = dict(zip(places, pool.map(look, places.values()), strict=True))
    first = os.path.join(path, "reach.json")
    if not os.path.exists(first):
        write(found, first)
        return
    with open(first) as file:
        before = json.load(file)
    write(lost(before, found), os.path.join(path, "lost.json"))


def read_places(path):
    """The address of each host, by its name, as the ranks there have told them."""
    places = {}
    for name in os.listdir(path):
        if name.startswith("rank-") and name.endswith(".json"):
            with open(os.path.join(path, name)) as file:
                place = json.load(file)
            places[place["host"]] = place["address"]
    return places


def look(address):
    """Try to connect; returns what came of it."""
    try:
        socket.create_connection((address, PORT), TRY_S).close()
    except ConnectionRefusedError:
        return REFUSED
    except OSError as error:
        return CUT if error.errno in OF_NO_NETWORK else SILENT
    return OPEN


def lost(before, now):
    """``{host: what came of it now}`` of the hosts that answered before and do not any more.

    Where this host has no network itself, it is the one that is lost, if a rank was on it.
    """
    worse = {
        host: found
        for host, found in now.items()
        if (before.get(host) in (OPEN, REFUSED) and found in (SILENT, CUT))
        or (before.get(host) == OPEN and found == REFUSED)
    }
    here = os.uname().nodename
    if CUT in worse.values() and here in now:
        return {here: CUT}
    return worse


def write(value, path):
    draft = f"{path}.draft"
    with open(draft, "w") as file:
        json.dump(value, file)
    os.replace(draft, path)


if __name__ == "__main__":
    main(sys.argv[1])

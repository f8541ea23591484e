"""Whether a rank's main thread sleeps, from what Linux tells of it."""

from __future__ import annotations


def sleep_count(pid):
    """How often the thread has gone to sleep, if it sleeps now; None if it runs or is not told.

    The same count twice means that it slept all the time in between.
    """
    try:
        with open(f"/proc/{pid}/task/{pid}/status") as file:
            pairs = (line.partition(":") for line in file)
            fields = {name: text.strip() for name, _, text in pairs}
    except OSError:
        return None
    if not fields["State"].startswith("S"):
        return None
    return int(fields["voluntary_ctxt_switches"])

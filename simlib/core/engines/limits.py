"""How many ranks an engine takes: the command line asks before torch is loaded."""

MOST_PROCESSES = 64
MOST_SIMULATED = 4096

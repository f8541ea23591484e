"""How many ranks an engine takes: the command line asks before torch is loaded."""

MAX_PROCESSES = 64
MAX_SIMULATED = 4096

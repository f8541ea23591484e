"""How many ranks the engines of this machine take. Without imports: the command line asks first."""

MOST_PROCESSES = 64
MOST_SIMULATED = 4096

"""Run, record, simulate, diagnose and draw ranks: all of simlib that needs no cluster, no class."""

"""Run, record, simulate, diagnose and draw ranks: the parts that need no cluster and no class."""

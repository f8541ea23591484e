"""The engine of simulated ranks: threads of one process under a virtual clock."""

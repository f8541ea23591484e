"""Simulated ranks: threads of one child process under a virtual clock."""

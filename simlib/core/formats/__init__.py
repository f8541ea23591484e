"""Reads other tools' records of jobs into traces, and writes traces in their formats."""

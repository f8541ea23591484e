"""What other tools write about jobs, read into traces, and traces written in their formats."""

"""Read other tools' records of jobs as traces, and write traces in the formats of these tools."""

"""MPI as a transport of recorded ranks, and which backends a job and its hosts may take."""
